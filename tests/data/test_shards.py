"""WebDataset shards by position: what tarfile and webdataset read, or one line that says what is wrong."""

import io
import json
import os
import pickle
import re
import tarfile
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import webdataset
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from helpers import pack
from labelflow.data import (
    Data,
    PixelBatch,
    Shards,
    Stream,
    eval_batches,
    open_map_style,
    open_source,
    train_batches,
    waiting,
)
from labelflow.data import shards as module
from labelflow.data.shards import ShardList

DATA = Data(source="wds", train_split="train-{0..2}.tar", val_split="val-0.tar", image_size=16, workers=0)
Member = tuple[str, bytes]


def png(shade: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (shade, shade, shade)).save(file, "png")
    return file.getvalue()


def samples(numbers: Sequence[int], classes: int = 3) -> list[Member]:
    return [
        member
        for number in numbers
        for member in ((f"{number:04d}.png", png(number)), (f"{number:04d}.cls", b"%d" % (number % classes)))
    ]


@pytest.fixture
def photos(tmp_path: Path) -> Data:
    """32 samples of 3 classes to train on, 4 to evaluate on."""
    for number, part in enumerate((range(13), range(13, 20), range(20, 32))):
        pack(tmp_path / f"train-{number}.tar", samples(part))
    pack(tmp_path / "val-0.tar", samples([0, 1, 3, 4]))
    return replace(DATA, root=str(tmp_path))


def opened(folder: Path, *parts: Sequence[Member], field: str = "", classes: int = 0) -> Shards:
    for number, members in enumerate(parts):
        pack(folder / f"{number}.tar", members)
    shards = [str(folder / f"{number}.tar") for number in range(len(parts))]
    return Shards(ShardList(shards, field=field), str(folder), classes)


def content(source: Shards, index: int) -> bytes:
    sample = source.samples[index]
    return Path(source.shards[sample["shard"]]).read_bytes()[sample["offset"] :][: sample["size"]]


# ---- what is found

words = st.text(st.characters(exclude_characters="./\0", exclude_categories=["Cs"]), min_size=1, max_size=120)
keys = st.lists(words, min_size=1, max_size=3).map("/".join).filter(lambda key: not key.startswith("__"))


@given(
    st.lists(st.tuples(keys, st.binary(max_size=1500), st.integers(0, 99)), max_size=5, unique_by=lambda one: one[0]),
    st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]),
    st.randoms(use_true_random=False),
)
@example([("d/" * 70 + "k" * 120, b"image", 7), ("ü" * 99, b"", 0)], tarfile.GNU_FORMAT, None)
def test_every_sample_that_tarfile_finds(wanted: list[tuple[str, bytes, int]], form: int, chance: Any) -> None:
    """Long names, in the headers of either kind; members in any order."""
    members = [
        member
        for key, image, label in wanted
        for member in ((f"{key}.jpg", image), (f"{key}.cls", b"%d\n" % label), (f"{key}.seg.png", b"mask"))
    ]
    if chance:
        chance.shuffle(members)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "0.tar")
        pack(path, members, form)
        found = {sample.key: sample for sample in module._samples(ShardList([path]), 0)}
        assert {os.fsdecode(key) for key in found} == {key for key, *_ in wanted}
        with tarfile.open(path) as tar:
            for key, image, label in wanted:
                sample = found[os.fsencode(key)]
                member = tar.extractfile(f"{key}.jpg")
                assert member is not None
                assert Path(path).read_bytes()[sample.offset :][: sample.size] == member.read() == image
                assert sample.label == label


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves shards open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_samples_that_webdataset_finds(tmp_path: Path) -> None:
    junk = [("__meta__", b"m"), ("README", b"r"), ("._0001.png", b"x"), ("info.txt", b"t"), ("__x__/a.cls", b"1")]
    source = opened(tmp_path, [*samples([3, 1]), *junk], [("a.b/c.JPG", b"image"), ("a.b/c.cls", b"2"), *samples([2])])
    expected = [
        (sample["__key__"], sample.get("png", sample.get("jpg")), int(sample["cls"]))
        for sample in webdataset.WebDataset(source.shards, shardshuffle=False)
        if "cls" in sample
    ]
    found = [(source.key(place), content(source, place), int(source.samples["label"][place])) for place in range(4)]
    assert found == expected
    assert [source.load(place)[1] for place in (0, 1, 3)] == [0, 1, 2]
    assert np.asarray(source.load(0)[0])[0, 0, 0] == 3


def test_labels_in_json(tmp_path: Path) -> None:
    """As timm has them: a field that _info.json names goes before .cls, and labels below 0 leave a sample out."""
    members = [("a.png", b"A"), ("a.json", b'{"label": 1, "fine": 4}'), ("b.png", b"B"), ("b.json", b'{"fine": -1}')]
    members += [("b.cls", b"2")]
    assert opened(tmp_path, members).samples["label"].tolist() == [1, 2]
    fine = opened(tmp_path, members, field="fine")
    assert (fine.samples["label"].tolist(), fine.key(0), len(fine.classes)) == ([4], "a", 5)
    part = {"name": "train", "num_samples": 1, "filenames": ["0.tar"], "shard_lengths": [1], "alt_label": "fine"}
    (tmp_path / "_info.json").write_text(json.dumps({"splits": {"train": part}}))
    listed = open_source(replace(DATA, root=str(tmp_path), train_split="train"), "train")
    assert isinstance(listed, Shards)
    assert listed.samples.tolist() == fine.samples.tolist()


def test_of_several_images_the_one_that_timm_takes(tmp_path: Path) -> None:
    source = opened(tmp_path, [("a.webp", b"W"), ("a.png", b"P"), ("a.cls", b"0"), ("a.jpg", b"J")])
    assert content(source, 0) == b"J"


def test_keys_of_shards_that_count_anew(tmp_path: Path) -> None:
    source = opened(tmp_path, samples([0, 1]), samples([0, 2]))
    assert [source.key(index) for index in range(4)] == ["0.tar/0000", "0.tar/0001", "1.tar/0000", "1.tar/0002"]
    assert [source.key(index) for index in range(2)] != [opened(tmp_path, samples([0, 1])).key(0), "0001"]


def test_names_of_any_bytes(tmp_path: Path) -> None:
    source = opened(tmp_path, [(os.fsdecode(b"\xff\xfe.png"), png(0)), (os.fsdecode(b"\xff\xfe.cls"), b"0")])
    assert os.fsencode(source.key(0)) == b"\xff\xfe"


# ---- what is wrong


@given(st.integers(0, 10_000))
@example(0)
@example(512)
@example(4 * 1024)
def test_a_truncated_shard_never_goes_unnoticed(cut: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "0.tar")
        pack(path, samples([0, 1, 2]))
        with tarfile.open(path) as tar:
            end = max(member.offset_data + 512 for member in tar)
        path.write_bytes(path.read_bytes()[:cut])
        if cut >= end + 512:  # behind the zeros that end it
            assert len(module._samples(ShardList([str(path)]), 0)) == 3
        else:
            with pytest.raises(ValueError, match=r"shard .*0\.tar is damaged: .*; make or download it again"):
                module._samples(ShardList([str(path)]), 0)


def test_a_damaged_header_is_not_the_end(tmp_path: Path) -> None:
    opened(tmp_path, samples([0, 1]))
    damaged = bytearray((tmp_path / "0.tar").read_bytes())
    damaged[damaged.index(b"0001.png")] ^= 1
    (tmp_path / "0.tar").write_bytes(damaged)
    with pytest.raises(ValueError, match="is damaged: its end is missing"):
        Shards(ShardList([str(tmp_path / "0.tar")]), str(tmp_path))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([("a.png", b"A")], "has an image a, but no label: a.cls or a.json is missing"),
        ([("a.cls", b"1")], "has a.cls, but no image a.jpg"),
        ([("a.png", b"A"), ("a.cls", b"cat")], "a.cls in the shard .* should hold a class number, not b'cat'"),
        ([("a.png", b"A"), ("a.json", b"{}")], "should hold a class number as 'label', not b'{}'"),
        ([("a.png", b"A"), ("a.json", b'{"label": 0.5}')], "should hold a class number as 'label'"),
        ([("a.png", b"A"), ("a.json", b"[1")], "should hold a class number as 'label'"),
        ([("a.png", b"A"), ("a.cls", b"1"), ("a.PNG", b"B")], "has two members a.PNG"),
        ([("a.png", b"A"), ("a.cls", b"1"), ("a.cls", b"2")], "has two members a.cls"),
        ([("a.v2.png", b"A"), ("a.v2.cls", b"1")], r"no samples in .*0\.tar: one is KEY\.jpg \(or .*\) and KEY\.cls"),
        ([], "no samples in"),
    ],
)
def test_what_is_no_sample_is_named(tmp_path: Path, members: list[Member], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        opened(tmp_path, members)


def test_an_empty_shard_among_others(tmp_path: Path) -> None:
    assert len(opened(tmp_path, samples([0]), [], samples([1]))) == 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train_split": "train-{0..4}.tar"}, r"2 of 5 shards are missing, such as .*train-3\.tar"),
        ({"train_split": "train"}, "no shards are known as 'train' .* has no _info.json.*; name them: --train-split"),
        ({"train_split": "train-{0..2}.tar|many"}, "a number of samples should follow"),
        ({"train_split": "train-{0..2}.tar|33"}, "32 samples in .* but 33 are expected"),
        ({"train_samples": 31}, "32 samples in .* but 31 are expected; .* --train-samples"),
        ({"classes": 2}, r"train-0\.tar\[0002\] has the label 2, but there are 2 classes, from 0 to 1"),
    ],
)
def test_what_does_not_fit_is_told(photos: Data, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_source(replace(photos, **settings), "train")


@pytest.mark.parametrize("text", ["", "[]", '{"splits": {"train": {}}}'])
def test_an_info_file_that_does_not_list_them(photos: Data, text: str) -> None:
    Path(photos.root, "_info.json").write_text(text)
    with pytest.raises(ValueError, match=r"_info\.json does not list shards as timm expects it"):
        open_source(replace(photos, train_split="train"), "train")


def test_images_that_cannot_be_read(photos: Data) -> None:
    pack(Path(photos.root, "val-0.tar"), [*samples([0, 1]), ("broken.png", b"nothing"), ("broken.cls", b"1")])
    (batch,) = eval_batches(open_source(photos, "val"), photos, batch=4, rank=0, processes=1)
    assert batch.weights.tolist() == [1, 1, 0]
    assert [problem.name for problem in batch.problems] == [f"{photos.root}/val-0.tar[broken]"]


# ---- what is said of them


def test_classes_are_those_of_the_training_shards(photos: Data) -> None:
    assert open_source(photos, "val").classes == open_source(photos, "train").classes == ["0", "1", "2"]
    assert len(open_source(replace(photos, classes=5), "val").classes) == 5
    elsewhere = replace(photos, train_split="https://far/train-0.tar")
    for other in (elsewhere, replace(photos, train_split="train"), replace(photos, train_split="gone.tar")):
        assert open_source(other, "val").classes == ["0", "1"]  # those of its own
    pack(Path(photos.root, "val-0.tar"), samples([3], classes=9))
    with pytest.raises(ValueError, match="has the label 3, but there are 3 classes"):
        open_source(photos, "val")


def test_counts_that_are_right(photos: Data) -> None:
    for other in (replace(photos, train_split="train-{0..2}.tar|32"), replace(photos, train_samples=32)):
        assert len(open_source(other, "train")) == 32


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # webdataset leaves files open
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    "split", ["pipe:cat train-0.tar", "https://far/{0..9}.tar", "train-0.tar.gz", "file:train-0.tar"]
)
def test_what_is_remote_or_compressed_stays_a_stream(photos: Data, split: str) -> None:
    told = replace(photos, train_split=split, train_samples=8, classes=3)
    assert isinstance(open_source(told, "train"), Stream)
    with pytest.raises(ValueError, match=re.escape("a stream such as wds has no sample names; use a folder")):
        open_map_style(replace(photos, train_split=split), "train")
    assert isinstance(open_map_style(photos, "train"), Shards)


# ---- the index


def test_shards_are_scanned_once(photos: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    first = open_source(photos, "train")
    assert isinstance(first, Shards)
    with monkeypatch.context() as patched:
        patched.setattr(module, "_scan", None)
        again = open_source(photos, "train")
    assert isinstance(again, Shards)
    assert again.index.file is not None
    assert again.samples.tolist() == first.samples.tolist()


def index_file(source: Shards) -> Path:
    assert source.index.file is not None
    return source.index.file


def test_other_shards_are_scanned_again(photos: Data) -> None:
    """Even if they have the same size and time, as reproducible archives do."""
    shard = Path(photos.root, "train-1.tar")
    os.utime(shard, (1, 1))
    train, val = (index_file(open_source(photos, split)) for split in ("train", "val"))
    before, size = val.read_bytes(), shard.stat().st_size
    time.sleep(0.02)  # longer than a file system's clock takes to move on
    pack(shard, samples(range(40, 47)))
    os.utime(shard, (1, 1))
    assert shard.stat().st_size == size
    source = open_source(photos, "train")
    assert source.key(13) == "0040"
    assert index_file(source) == train
    assert val.read_bytes() == before
    assert Path(photos.root).resolve() not in train.parents


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("FORMAT", 0),
        ("IMAGES", ("png", "jpg")),
        ("MEMBER", re.compile(module.MEMBER.pattern + "()")),
        ("META", re.compile("0001")),
    ],
)
def test_a_version_with_other_rules_scans_again(
    photos: Data, rule: str, other: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = index_file(open_source(photos, "val")).read_bytes()
    monkeypatch.setattr(module, rule, other)
    assert index_file(open_source(photos, "val")).read_bytes() != before


def test_a_damaged_index_is_made_again(photos: Data) -> None:
    """Cut off anywhere, or with any bit flipped."""
    index = index_file(open_source(photos, "val"))
    whole = index.read_bytes()
    for place in range(0, len(whole), 5):
        flipped = whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]
        for damaged in (whole[:place], flipped):
            index.write_bytes(damaged)
            assert open_source(photos, "val").samples["label"].tolist() == [0, 1, 0, 1]
            assert index.read_bytes() == whole


def test_progress_of_a_long_scan(photos: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    open_source(photos, "train", lines.append)
    assert not lines
    monkeypatch.setattr(waiting, "SECONDS", -1.0)
    open_source(photos, "train", lines.append)
    assert not lines  # its index is cached
    monkeypatch.setattr(module, "FORMAT", 0)
    open_source(photos, "val", lines.append)
    train = [f"indexed {done} of 3 shards of {photos.root} ..." for done in (1, 2, 3)]
    assert lines == [*train, f"indexed 1 of 1 shards of {photos.root} ..."]


@pytest.mark.usefixtures("_no_home")
def test_without_a_home(photos: Data) -> None:
    source = pickle.loads(pickle.dumps(open_source(photos, "train")))
    assert (source.index.file, source.load(31)[1]) == (None, 1)


def test_workers_of_a_run_whose_index_was_replaced_get_what_it_started_with(photos: Data) -> None:
    source = open_source(photos, "train")
    sent, before = pickle.dumps(source), source.samples.tolist()
    pack(Path(photos.root, "train-2.tar"), samples([40]))
    open_source(photos, "train")
    assert pickle.loads(pickle.dumps(source)).samples.tolist() == source.samples.tolist() == before
    with pytest.raises(ValueError, match="was replaced or removed while workers started"):
        pickle.loads(sent)


def test_a_cache_that_cannot_be_written(photos: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("LABELFLOW_CACHE", str(tmp_path / "file"))
    source = pickle.loads(pickle.dumps(open_source(photos, "train")))
    assert source.load(31)[1] == 1


def test_workers_get_the_path_of_the_index(photos: Data) -> None:
    many = [(f"{'k' * 80}{number}.{suffix}", b"0") for number in range(300) for suffix in ("png", "cls")]
    source = opened(Path(photos.root), many)
    sent = pickle.dumps(source)
    assert len(sent) < 2000 < source.samples.nbytes
    assert pickle.loads(sent).samples.tolist() == source.samples.tolist()


# ---- runs


def batches(data: Data, **how: Any) -> list[PixelBatch]:
    options = {"batch": 8, "micro_batch": 4, "updates": 6, "seed": 3, **how}
    return list(train_batches(open_source(data, "train"), data, **options))


def same(some: list[PixelBatch], others: list[PixelBatch]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(torch.equal(one.pixels, other.pixels) and one.labels.equal(other.labels) for one, other in pairs)


def test_any_number_of_workers_and_any_start_read_the_same(photos: Data) -> None:
    whole = batches(photos)
    assert same(batches(replace(photos, workers=2)), whole)
    for update in (1, 3, 4):
        assert same(batches(photos, first_update=update), whole[2 * update :])
    parts = [batches(photos, rank=rank, processes=2) for rank in (0, 1)]
    assert same([batch for pair in zip(*parts, strict=True) for batch in pair], whole)
