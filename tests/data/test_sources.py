"""Data sets by name, each read by its real reader from small real files."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

from helpers import pack
from labelflow.data import Data, Stream, eval_batches, open_source, train_batches
from labelflow.data.geometry import Geometry, Tracked
from labelflow.data.loader import Streamed
from labelflow.data.sources import is_named


def image(shade: int) -> Image.Image:
    return Image.new("RGB", (20, 20), (shade, shade, shade))


def png(shade: int) -> bytes:
    file = io.BytesIO()
    image(shade).save(file, "png")
    return file.getvalue()


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    for split in ("train", "test"):
        for label, name in enumerate(("Cat", "dog")):
            (tmp_path / "Set" / split / name).mkdir(parents=True)
            for number in range(6):
                image(100 * label + number).save(tmp_path / "Set" / split / name / f"{number}.png")
    return tmp_path / "Set"


def test_the_world() -> None:
    source = open_source(Data(source="world(train=30, val=20, seed=3)", image_size=32, test_crop=1.0), "val")
    assert len(source) == 20
    assert source.load(3)[0].size == (32, 32)
    with pytest.raises(ValueError, match="takes train, val, seed, objects and scale"):
        open_source(Data(source="world(size=3)"), "train")


def test_hugging_face(folders: Path, tmp_path: Path) -> None:
    data = Data(source=f"hfds/{folders}", root=str(tmp_path / "cache"), val_split="test")
    source = open_source(data, "val")
    assert source.classes == ["Cat", "dog"]
    loaded = [source.load(index) for index in range(len(source))]
    assert [label for _, label in loaded] == [0] * 6 + [1] * 6
    assert np.asarray(loaded[7][0])[0, 0, 0] == 101
    assert "[7]" in source.name(7)


def test_hugging_face_as_a_stream(folders: Path) -> None:
    data = Data(source=f"hfids/{folders}", val_split="test", train_samples=12, val_samples=12, image_size=32, workers=0)
    stream = open_source(data, "train")
    assert isinstance(stream, Stream)
    assert stream.classes == ["Cat", "dog"]
    read = list(
        train_batches(stream, data, batch=4, micro_batch=2, updates=6, seed=0, rank=0, processes=1, first_update=0)
    )
    assert len(read) == 12
    again = list(
        train_batches(stream, data, batch=4, micro_batch=2, updates=6, seed=0, rank=0, processes=1, first_update=3)
    )
    assert len(again) == 6
    assert all((one.pixels == other.pixels).all() for one, other in zip(read[6:], again, strict=True))  # a new epoch
    evaluated = [batch.labels for batch in eval_batches(open_source(data, "val"), data, batch=5, rank=0, processes=1)]
    assert sum(labels.sum().item() for labels in evaluated) == 6


def shards(folder: Path, sizes: Sequence[int]) -> None:
    for shard, samples in enumerate(sizes):
        images = [(f"{shard}_{number}.png", png(10 * number)) for number in range(samples)]
        labels = [(f"{shard}_{number}.cls", b"%d" % (number % 3)) for number in range(samples)]
        pack(
            folder / f"train-{shard:04d}.tar",
            [member for pair in zip(images, labels, strict=True) for member in pair],
        )


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves shards open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_web_dataset_as_a_stream(tmp_path: Path) -> None:
    shards(tmp_path, [8, 8])
    root = f"file:{tmp_path}"
    data = Data(source="wds", root=root, train_split="train-{0000..0001}.tar", image_size=32, workers=0)
    with pytest.raises(ValueError, match="--train-samples"):
        open_source(data, "train")
    with pytest.raises(ValueError, match="--classes"):
        open_source(replace(data, train_samples=16), "train")
    data = replace(data, train_samples=16, classes=3)
    source = open_source(data, "train")
    assert len(source) == 16
    read = list(train_batches(source, data, batch=4, micro_batch=2, updates=8, seed=0))
    assert len(read) == 16
    assert {int(label) for batch in read for label in batch.labels} == {0, 1, 2}


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["hfids", "wds"])
def test_streams_go_on_within_an_epoch(
    kind: str, workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a worker is at its end before the other, and shards are read again to fill an epoch."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)  # seconds after each epoch
    sizes = [11, 4]
    if kind == "wds":
        shards(tmp_path, sizes)
        where = {"source": "wds", "root": f"file:{tmp_path}", "train_split": "train-{0000..0001}.tar"}
    else:
        features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c"])})
        for shard, samples in enumerate(sizes):
            rows = {
                "image": [{"bytes": png(10 * number), "path": None} for number in range(samples)],
                "label": [number % 3 for number in range(samples)],
            }
            datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / f"train-{shard}.parquet")
        where = {"source": f"hfids/{tmp_path}"}
    data = Data(**where, train_samples=16, classes=3, image_size=16, workers=workers)
    source = open_source(data, "train")
    assert isinstance(source, Stream)
    for update, micro_batch in ((1, 4), (1, 2), (3, 2), (5, 2)):
        torch.manual_seed(update)  # what a process did before makes no difference
        whole = list(train_batches(source, data, batch=4, micro_batch=micro_batch, updates=7, seed=0))
        assert len(whole) == 7 * 4 // micro_batch
        rest = list(
            train_batches(source, data, batch=4, micro_batch=micro_batch, updates=7, seed=0, first_update=update)
        )
        pairs = zip(rest, whole[update * 4 // micro_batch :], strict=True)
        assert all(torch.equal(one.pixels, other.pixels) and one.labels.equal(other.labels) for one, other in pairs)


def test_what_is_skipped_is_not_decoded() -> None:
    decoded = []

    class Transform:
        def decode(self, image: object) -> object:
            decoded.append(image)
            return image

        def __call__(self, image: object) -> Tracked:
            return Tracked(torch.zeros(3, 1, 1), Geometry((1, 1)))

    stream = Stream(8, ["0"], lambda epoch: iter([(number, 0) for number in range(8)]))
    assert len(list(Streamed(stream, Transform(), seed=0, epoch=0, batch=2, skipped=3))) == 8
    assert decoded == [6, 7]


def test_hugging_face_s_parquet(tmp_path: Path) -> None:
    """A folder of Parquet files, as the Hub has them: the bytes of each image, and no more."""
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["Cat", "dog"])})
    (tmp_path / "set").mkdir()
    for part in range(2):
        rows = {"image": [{"bytes": png(100 * part + n), "path": f"{n}.png"} for n in range(3)], "label": [0, 1, 0]}
        datasets.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "set" / f"train-{part}.parquet")
    source = open_source(Data(source=f"hfds/{tmp_path / 'set'}", root=str(tmp_path / "cache")), "train")
    assert (len(source), source.classes) == (6, ["Cat", "dog"])
    loaded = [source.load(index) for index in range(6)]
    assert [int(np.asarray(image)[0, 0, 0]) for image, _ in loaded] == [0, 1, 2, 100, 101, 102]
    assert [label for _, label in loaded] == [0, 1, 0, 0, 1, 0]


def test_torchvision_s_cars(tmp_path: Path) -> None:
    savemat = pytest.importorskip("scipy.io").savemat
    root = tmp_path / "stanford_cars"
    (root / "devkit").mkdir(parents=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": np.array(["Audi", "BMW"], dtype=object)})
    fields = [("fname", object), ("class", object)]
    for name, folder in (
        ("devkit/cars_train_annos.mat", "cars_train"),
        ("cars_test_annos_withlabels.mat", "cars_test"),
    ):
        (root / folder).mkdir()
        rows = np.zeros(4, dtype=fields)
        for number in range(4):
            image(60 * number).save(root / folder / f"{number}.png")
            rows[number] = (f"{number}.png", 1 + number % 2)
        savemat(root / name, {"annotations": rows})
    source = open_source(Data(source="torch/stanford_cars", root=str(tmp_path)), "val")
    assert source.classes == ["Audi", "BMW"]
    assert [source.load(index)[1] for index in range(4)] == [0, 1, 0, 1]


def test_a_folder_that_is_called_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said: list[str] = []
    open_source(Data(source="world"), "train", said.append)
    assert not said
    (tmp_path / "world").mkdir()
    open_source(Data(source="world"), "train", said.append)
    assert said == ["world is the sample world here; for the folder of that name: --data ./world"]


def test_unknown_names() -> None:
    with pytest.raises(ValueError, match="did you mean cifar10"):
        open_source(Data(source="torch/cifar11"), "train")
    with pytest.raises(ValueError, match="there is no folder"):
        open_source(Data(source="nowhere"), "train")


@pytest.mark.parametrize("name", ["world", "world(train=8)", "torch/cifar10", "hfds/a/b", "hfids/a", "wds"])
def test_names(name: str) -> None:
    assert is_named(name)


@pytest.mark.parametrize("folder", ["world/photos", "wds/photos", "torch", "hfds", "photos", "./world", "/world"])
def test_folders_that_are_called_alike(folder: str) -> None:
    assert not is_named(folder)
