"""Image sets: where labels come from, subsets, keys."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from labelflow.data import Data
from labelflow.data.sources import Indexed
from labelflow.robustness.datasets import ImageSet, open_dataset, subsample
from labelflow.robustness.occlusion import PatchDrop
from robustness.small import open_images, vits


def test_a_subsample_is_reproducible_and_perturbed_alike(folder: Path, tmp_path: Path) -> None:
    images = open_images(folder)
    part = subsample(images, 4, seed=3)
    keys = [images.source.key(at) for at in range(9)]
    indices = [keys.index(part.source.key(at)) for at in range(4)]
    assert indices == sorted(set(indices))
    assert part.labels == [images.labels[at] for at in indices]  # type: ignore[index]
    assert subsample(images, 4, seed=3).key == part.key != subsample(images, 4, seed=4).key
    evaluator = vits(folder, tmp_path, (0,))
    whole, some = evaluator.predict(images, [PatchDrop(4)])[0][0], evaluator.predict(part, [PatchDrop(4)])[0][0]
    np.testing.assert_allclose(some.logits, whole.logits[:, indices], rtol=1e-4, atol=1e-5)
    assert subsample(images, 0, seed=3) is images


def test_data_sets_of_the_same_name_have_different_keys() -> None:
    """Of torchvision or Hugging Face: other images, or other labels, under the same name."""

    def named(colour: str, label: int = 0) -> ImageSet:
        samples = [(Image.new("RGB", (8, 8), colour), label)] * 200
        source = Indexed(samples, ["a", "b"], "mine/val", tuple, lambda dataset: [label for _, label in dataset])
        return ImageSet("mine", source, ("a", "b"))

    keys = [named("red").key, named("blue").key, named("red", 1).key]
    assert len(set(keys)) == 3
    assert named("red").key == keys[0]
    assert len(set(named("red").hashes)) == 200


def test_a_folder_that_is_called_like_a_data_set(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(folder / "images", tmp_path / "world" / "photos")
    monkeypatch.chdir(tmp_path)
    assert len(open_dataset(Data(source="world/photos"), from_run=False, classes=()).source) == len(
        open_dataset(Data(source=str(folder / "images")), from_run=False, classes=()).source
    )


def test_tables_of_labels(tmp_path: Path) -> None:
    for name in ("a/x.png", "b/x.png", "b/y.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / name)

    def read(text: str, *classes: str) -> list[tuple[str, int]]:
        (tmp_path / "labels.csv").write_text(text, encoding="utf-8-sig")  # as Excel writes it
        source = open_dataset(Data(source=str(tmp_path)), from_run=False, classes=classes).source
        return [(source.key(at), label) for at, label in enumerate(source.labels)]  # type: ignore[attr-defined]

    two = [("a/x.png", 0), ("b/y.png", 1)]
    assert read("file,class\ny.png,dog\na/x.png,cat", "cat", "dog") == two  # the file name is enough if it is unique
    assert read("file,class\nb/y.png,1\na/x.png,0", "cat", "dog") == two
    assert read("file,class\na/x.png,2\nb/y.png,1", "1", "10", "2") == [("a/x.png", 2), ("b/y.png", 0)]  # names
    for text, message in {
        "file,class\nx.png,cat": "missing or ambiguous files: x.png",
        "file,class\nz.png,cat": "missing or ambiguous files: z.png",
        "file,class\ny.png,cow": "classes that the models don't have: cow",
        "file,class\ny.png": "classes that the models don't have: None",
        "name,kind\ny.png,cat": "should have the header 'file,class'",
        "file,class\ny.png,cat\nb/y.png,cat": "names a file twice",
    }.items():
        with pytest.raises(ValueError, match=message):
            read(text, "cat", "dog")
