"""Data sets by name: one function, one line in SOURCES."""

import os
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray

from labelflow.data.folder import Folder
from labelflow.data.hugging_face import ColumnLabels, arrow_pair, column_lists, find_labels, sample_pair
from labelflow.data.images import Decode, to_rgb
from labelflow.data.rows import is_table
from labelflow.data.settings import Data
from labelflow.data.shards import ShardList, Shards, is_remote, local_shards
from labelflow.data.table import Table
from labelflow.data.views import Source
from labelflow.data.world import World
from labelflow.spec import known, parse

Tell = Callable[[str], None]  # called with progress messages


class Indexed:
    """A torchvision or Hugging Face data set as a source; `pair` takes a sample apart, `list_labels` reads the labels
    of all of them, and no image."""

    def __init__(
        self,
        dataset: Any,
        classes: list[str],
        title: str,
        pair: Callable[[Any], tuple[Any, Any]],
        list_labels: Callable[[Any], Any],
        multi_label: bool = False,
    ) -> None:
        self.dataset, self.classes, self.title, self.pair = dataset, classes, title, pair
        self.list_labels, self.multi_label = list_labels, multi_label

    def __len__(self) -> int:
        return len(self.dataset)

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, Any]:
        image, label = self.pair(self.dataset[index])
        return decode(image), label if self.multi_label else int(label)

    @property
    def labels(self) -> ndarray:
        """(N,)"""
        return np.asarray(self.list_labels(self.dataset))

    def name(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def key(self, index: int) -> str:
        """Of a place in a named part of a named data set; where its files lie makes no difference."""
        return f"{self.title.rsplit('/', 1)[-1]}/{index:08d}"


class Columned(Indexed):
    """A Hugging Face data set, one of whose columns has the labels."""

    def __init__(self, dataset: Any, labels: ColumnLabels, title: str) -> None:
        super().__init__(dataset, labels.classes, title, partial(arrow_pair, labels), self._list, labels.several)
        self.lists = column_lists(labels, dataset, title)

    def _list(self, dataset: Any) -> ndarray:
        return self.lists.dense() if self.multi_label else self.lists.ids


class Stream:
    """A data set that can only be read in order. `open(epoch)` starts it, in that epoch's order, in a worker."""

    def __init__(
        self,
        samples: int,
        classes: list[str],
        opening: Callable[[int], Iterator[tuple[Any, Any]]],
        shards: Sequence[str] = (),
        multi_label: bool = False,
    ) -> None:
        self.samples, self.classes, self.opening, self.shards = samples, classes, opening, shards
        self.multi_label = multi_label

    def __len__(self) -> int:
        return self.samples

    def open(self, epoch: int, decode: Decode = to_rgb) -> Iterator[tuple[Any, Any]]:
        several = self.multi_label
        return ((decode(image), label if several else int(label)) for image, label in self.opening(epoch))

    def files(self) -> list[str]:
        """Shards that lie here."""
        return [shard for shard in self.shards if not is_remote(shard)]


def _world(name: str, data: Data, split: str, tell: Tell) -> Source:
    """`world(train=8192, val=2048, seed=0, objects=1, scale=1.0)`"""
    lengths = {"train": 8192, "val": 2048}
    given = parse(data.source).arguments
    if unknown := given.keys() - lengths.keys() - {"seed", "objects", "scale"}:
        raise ValueError(
            f"the sample world takes train, val, seed, objects and scale, not {', '.join(sorted(unknown))}"
        )
    if split == "train" and Path(data.source).is_dir():
        tell(f"{data.source} is the sample world here; for the folder of that name: --data ./{data.source}")
    size = round(data.image_size / data.test_crop)
    drawn = {name: value for name, value in given.items() if name not in lengths}
    return World(split, given.get(split, lengths[split]), size, **drawn)


def _torchvision(name: str, data: Data, split: str, tell: Tell) -> Source:
    """Downloaded if they are not there."""
    from torch.utils.data import ConcatDataset
    from torchvision import datasets

    known(name, TORCHVISION, "torchvision data set")
    kind, splits = TORCHVISION[name]
    made = getattr(datasets, kind)
    options = [{**part, "root": data.root} for part in splits[split]]
    try:
        parts = [made(**option) for option in options]
    except RuntimeError as error:  # not there yet
        if "scipy" in str(error).lower():
            raise ValueError(f"torch/{name} needs scipy: pip install scipy") from None
        parts = [made(**option, download=True) for option in options]
    classes = [str(label) for label in parts[0].classes]
    dataset = parts[0] if len(parts) == 1 else ConcatDataset(parts)
    return Indexed(dataset, classes, f"torch/{name} {split}", pair=tuple, list_labels=_torchvision_labels)


def _torchvision_labels(dataset: Any) -> list[int]:
    """torchvision has no common name for them."""
    if hasattr(dataset, "datasets"):  # several parts, one after another
        return [label for part in dataset.datasets for label in _torchvision_labels(part)]
    if hasattr(dataset, "_samples"):
        return [label for _, label in dataset._samples]
    return list(dataset.targets if hasattr(dataset, "targets") else dataset._labels)


# name: (class in torchvision.datasets, {our split: the parts that make it up})
_BY_FLAG = {"train": [{"train": True}], "val": [{"train": False}]}
TORCHVISION: dict[str, tuple[str, dict[str, list[dict[str, Any]]]]] = {
    "cifar10": ("CIFAR10", _BY_FLAG),
    "cifar100": ("CIFAR100", _BY_FLAG),
    "flowers102": ("Flowers102", {"train": [{"split": "train"}, {"split": "val"}], "val": [{"split": "test"}]}),
    "stanford_cars": ("StanfordCars", {"train": [{"split": "train"}], "val": [{"split": "test"}]}),
    "oxford_pets": ("OxfordIIITPet", {"train": [{"split": "trainval"}], "val": [{"split": "test"}]}),
    "food101": ("Food101", {"train": [{"split": "train"}], "val": [{"split": "test"}]}),
}


def _hugging_face(name: str, data: Data, split: str, tell: Tell) -> Source:
    datasets = _import("datasets", "hfds/… needs Hugging Face's datasets: pip install datasets")
    dataset = datasets.load_dataset(name, split=_split(data, split), cache_dir=data.root)
    labels = find_labels(dataset.features, name, data.columns)
    if not labels.classes:  # texts
        trained = datasets.load_dataset(name, split=data.train_split, cache_dir=data.root).select_columns(labels.column)
        texts = {text for row in trained for text in row[labels.column] or []}
        labels = labels._replace(classes=sorted(texts - {None}))
    dataset = dataset.cast_column("image", datasets.Image(decode=False)).with_format("arrow")
    title = f"hfds/{name.rstrip('/')} {_split(data, split)}"
    return Columned(dataset, labels, title)


def _hugging_face_stream(name: str, data: Data, split: str, tell: Tell) -> Stream:
    datasets = _import("datasets", "hfids/… needs Hugging Face's datasets: pip install datasets")
    from datasets.distributed import split_dataset_by_node
    from torch import distributed

    part = _split(data, split)
    dataset = datasets.load_dataset(name, split=part, streaming=True)
    samples = data.train_samples if split == "train" else data.val_samples
    if not samples:
        if not dataset.info.splits:
            raise ValueError(f"hfids/{name} does not say how many samples it has: --train-samples and --val-samples do")
        samples = dataset.info.splits[part].num_examples
    labels = find_labels(dataset.features, name, data.columns)
    if not labels.classes:
        raise ValueError(f"hfids/{name} does not say which classes {labels.column} has: --class-names A B … does")
    dataset = dataset.cast_column("image", datasets.Image(decode=False))

    if split == "train":
        dataset = dataset.shuffle(seed=data.split_seed, buffer_size=1000)
    if distributed.is_initialized():
        dataset = split_dataset_by_node(dataset, distributed.get_rank(), distributed.get_world_size())
    return Stream(samples, labels.classes, partial(_open_hugging_face, dataset, labels), multi_label=labels.several)


def _open_hugging_face(dataset: Any, labels: ColumnLabels, epoch: int) -> Iterator[tuple[Any, Any]]:
    dataset.set_epoch(epoch)
    return map(partial(sample_pair, labels), dataset)


def _web_dataset(name: str, data: Data, split: str, tell: Tell) -> Shards | Stream:
    listing = _local_shards(data, split)
    samples = data.train_samples if split == "train" else data.val_samples
    if listing is None:
        return _web_dataset_stream(data, split, samples)
    listing = listing._replace(samples=samples or listing.samples)
    classes = data.classes or (_training_classes(data, tell) if split == "val" else 0)
    return Shards(listing, data.root, classes, tell)


def _local_shards(data: Data, split: str) -> ShardList | None:
    _import("webdataset", "wds needs WebDataset: pip install webdataset")
    return local_shards(data.root, _split(data, split))


def _training_classes(data: Data, tell: Tell) -> int:
    """As many as the training shards have; 0 if those are not here."""
    try:
        listing = _local_shards(data, "train")
    except ValueError:
        return 0
    if listing is None or not all(map(os.path.exists, listing.shards)):
        return 0
    return len(Shards(listing, data.root, tell=tell).classes)


def _web_dataset_stream(data: Data, split: str, samples: int) -> Stream:
    from timm.data.readers.reader_wds import ReaderWds

    try:
        reader = ReaderWds(
            data.root, split=_split(data, split), is_training=split == "train", num_samples=samples or None
        )
    except RuntimeError as error:  # timm does not know how many samples there are
        raise ValueError(f"wds: {error} Pass --train-samples and --val-samples") from None
    if not data.classes:
        raise ValueError("wds: say how many classes there are, with --classes")

    classes = [str(number) for number in range(data.classes)]
    shards = [os.path.join(data.root, name) for name in reader.split_info.filenames]
    return Stream(reader.num_samples, classes, partial(_open_reader, reader), shards)


def _open_reader(reader: Any, epoch: int) -> Iterator[tuple[Any, Any]]:
    reader = copy(reader)  # which would go on shuffling where it was
    reader.set_epoch(epoch)
    return iter(reader)


def _import(package: str, hint: str) -> Any:
    try:
        return __import__(package)
    except ImportError:
        raise ValueError(hint) from None


def _split(data: Data, split: str) -> str:
    return data.train_split if split == "train" else data.val_split


SOURCES: dict[str, Callable[[str, Data, str, Tell], Source | Stream]] = {
    "world": _world,
    "torch": _torchvision,
    "hfds": _hugging_face,
    "hfids": _hugging_face_stream,
    "wds": _web_dataset,
}


def is_named(source: str) -> bool:
    """Whether it is a name in SOURCES; otherwise it is a folder, even one such as world/photos."""
    prefix, _, name = source.partition("/")
    return prefix.partition("(")[0] in SOURCES and bool(name) == (prefix in ("torch", "hfds", "hfids"))


def open_source(data: Data, split: str, tell: Tell = lambda line: None) -> Source | Stream:
    """The part "train" or "val" of a recipe's data: a name in SOURCES, a table, or a folder. tell: called with
    progress messages."""
    if is_named(data.source):
        prefix, _, name = data.source.partition("/")
        return SOURCES[prefix.partition("(")[0]](name, data, split, tell)
    if is_table(data.source):
        parts = (data.train_split, data.val_split)
        return Table(data.source, split, data.columns, data.val_fraction, data.split_seed, parts, tell)
    return Folder(data.source, split, data.val_fraction, data.split_seed, tell)


def open_map_style(data: Data, split: str, tell: Tell = lambda line: None) -> Source:
    """The same, of samples that have names. A stream is refused before it asks for settings."""
    remote = data.source == "wds" and _local_shards(data, split) is None
    if remote or data.source.startswith("hfids/"):
        raise ValueError(
            f"a stream such as {data.source} has no sample names; use a folder, hfds/NAME or local WebDataset shards"
        )
    source = open_source(data, split, tell)
    assert not isinstance(source, Stream)
    return source
