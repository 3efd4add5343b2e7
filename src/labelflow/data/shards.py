"""WebDataset shards on disk, of which any sample can be read: an index says where each of them lies.

A shard is a tar file. Members whose names are the same up to the first dot are a sample: cat_1.jpg and cat_1.cls.

Shapes: N samples.
"""

import hashlib
import io
import json
import os
import re
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from numpy import ndarray
from PIL import Image

from labelflow.data.cache import CachedBytes, cache_folder, map_cached, write_cached
from labelflow.data.images import Decode, to_rgb
from labelflow.data.waiting import map_threads, now_and_then
from labelflow.spec import printable

IMAGES = ("jpg", "jpeg", "png", "webp")  # if a sample has several, the first of these
MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]*)", re.DOTALL)  # key and suffix, as webdataset tells them apart
META = re.compile(r"__[^/]*__($|/)")  # members that belong to no sample
FORMAT = 1  # of an index


class ShardList(NamedTuple):
    """The shards of a split, and what is known of them beforehand."""

    shards: list[str]
    samples: int = 0  # 0: unknown
    field: str = ""  # of the samples' JSON that holds their labels; '': they are in .cls


class Place(NamedTuple):
    """Of an image in its shard."""

    offset: int
    size: int


class Sample(NamedTuple):
    """As the index has it."""

    key: bytes
    label: int
    shard: int
    offset: int
    size: int


class Shards:
    """The samples of shards, in their order. Classes are numbers; 0 of them: as many as the labels say."""

    def __init__(
        self, listing: ShardList, root: str, classes: int = 0, tell: Callable[[str], None] = lambda line: None
    ) -> None:
        """tell: called with progress messages."""
        self.shards = listing.shards
        self.index = _read_index(listing, cache_folder(root), tell)
        self.samples = _unpack(self.index.array)  # (N,)
        where = self.shards[0] if len(self.shards) == 1 else f"{self.shards[0]} … {self.shards[-1]}"
        if not len(self.samples):
            raise ValueError(f"no samples in {where}: one is KEY.jpg (or {', '.join(IMAGES[1:])}) and KEY.cls")
        if listing.samples not in (0, len(self.samples)):
            raise ValueError(
                f"{len(self.samples)} samples in {where}, but {listing.samples} are expected; restore the shards, or "
                "correct --train-samples, --val-samples or _info.json"
            )
        last = int(self.samples["label"].argmax())
        found = int(self.samples["label"][last]) + 1
        if classes and found > classes:
            raise ValueError(
                f"{self.name(last)} has the label {found - 1}, but there are {classes} classes, from 0 to {classes - 1}"
            )
        self.classes = [str(number) for number in range(classes or found)]

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def labels(self) -> ndarray:
        """(N,)"""
        return self.samples["label"]

    def load(self, index: int, decode: Decode = to_rgb) -> tuple[Any, int]:
        _, label, shard, offset, size = self.samples[index].item()
        with open(self.shards[shard], "rb", buffering=0) as file:
            file.seek(offset)
            content = file.read(size)
        return decode(Image.open(io.BytesIO(content))), label

    def name(self, index: int) -> str:
        return f"{self.shards[self.samples[index]['shard']]}[{self.key(index)}]"

    def key(self, index: int) -> str:
        """Its members' name; where that is not unique, with the name of their shard before it."""
        return os.fsdecode(self.samples[index]["key"])

    def files(self) -> list[str]:
        return self.shards

    def __getstate__(self) -> dict[str, Any]:
        """For workers that are not forked: the path of the index, not its contents."""
        return {name: value for name, value in vars(self).items() if name != "samples"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, samples=_unpack(state["index"].array))


def is_remote(place: str) -> bool:
    return len(urlsplit(place).scheme) > 1  # C:\\ is a drive


def local_shards(root: str, split: str) -> ShardList | None:
    """Those of a split as timm takes it: names with braces, perhaps `|SAMPLES` after them, or a part that _info.json
    lists. None if they can only be read in order: because they lie elsewhere, or are compressed."""
    if is_remote(root):
        return None
    names, _, samples = split.partition("|")
    if samples and not samples.isdecimal():
        raise ValueError(f"wds: a number of samples should follow the | of {split!r}")
    if "tar" in names or ".." in names:
        from webdataset.shardlists import expand_urls

        listing = ShardList(expand_urls(names), int(samples or 0))
    else:
        listing = _listed(root, names)
    shards = [os.path.join(root, name) for name in listing.shards]
    if any(is_remote(shard) or not shard.endswith(".tar") for shard in [*listing.shards, *shards]):
        return None
    return listing._replace(shards=shards)


def _listed(root: str, split: str) -> ShardList:
    """As _info.json says."""
    path = next((path for name in ("_info.json", "info.json") if (path := Path(root, name)).exists()), None)
    try:
        splits = json.loads(path.read_bytes())["splits"] if path else {}
        if split in splits:
            part = splits[split]
            return ShardList(list(part["filenames"]), int(part["num_samples"]), part.get("alt_label", ""))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} does not list shards as timm expects it: {error!r}") from None
    there = f"{path} lists {', '.join(splits) or 'none'}" if path else f"{root} has no _info.json"
    raise ValueError(
        f"wds: no shards are known as {split!r} ({there}); name them: --train-split 'train-{{0000..1023}}.tar' and "
        "--val-split"
    )


def _read_index(listing: ShardList, cache: Path | None, tell: Callable[[str], None]) -> CachedBytes:
    """Where samples lie: from the cache, unless a shard has changed."""
    if missing := [shard for shard in listing.shards if not os.path.isfile(shard)]:
        raise ValueError(f"{len(missing)} of {len(listing.shards)} shards are missing, such as {missing[0]}")
    status = [os.stat(shard) for shard in listing.shards]
    states = [(one.st_size, one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for one in status]
    version = (FORMAT, IMAGES, MEMBER.pattern, META.pattern, states)
    file = cache / f"shards-{_digest(listing)}.index" if cache else None
    return map_cached(file, version) or write_cached(_pack(_scan(listing, tell)), file, version)


def _digest(listing: ShardList) -> str:
    """Which shards these are. Machines that share a home may have different ones there, in different folders."""
    paths = [os.path.realpath(shard) for shard in listing.shards]
    folders = [str(os.stat(folder).st_ino) for folder in sorted({os.path.dirname(path) for path in paths})]
    return hashlib.blake2b(os.fsencode("\n".join([listing.field, *folders, *paths])), digest_size=8).hexdigest()


def _scan(listing: ShardList, tell: Callable[[str], None]) -> list[Sample]:
    samples: list[Sample] = []
    tell, count = now_and_then(tell), len(listing.shards)
    for done, part in enumerate(map_threads(partial(_samples, listing), range(count)), 1):
        samples += part
        tell(f"indexed {done} of {count} shards of {printable(os.path.dirname(listing.shards[0]))} ...")
    if len({sample.key for sample in samples}) < len(samples):  # each shard counts anew
        names = [os.fsencode(os.path.basename(shard)) for shard in listing.shards]
        samples = [sample._replace(key=names[sample.shard] + b"/" + sample.key) for sample in samples]
    return samples


def _pack(samples: list[Sample]) -> ndarray:
    """As in a file: how many bytes a key takes, and the samples."""
    width = np.array([max((len(sample.key) for sample in samples), default=1)], np.int64)
    return np.concatenate([width.view(np.uint8), np.array(samples, _dtype(width.item())).view(np.uint8)])


def _unpack(content: ndarray) -> ndarray:
    return content[8:].view(_dtype(content[:8].view(np.int64).item()))


def _dtype(width: int) -> np.dtype:
    return np.dtype([("key", f"S{width}"), ("label", "i8"), ("shard", "i4"), ("offset", "i8"), ("size", "i8")])


def _samples(listing: ShardList, number: int) -> list[Sample]:
    """Of one shard. Those with a label below 0 are left out, as timm does."""
    shard = listing.shards[number]
    images, texts = _members(shard)
    if alone := [key for key, text in texts.items() if "cls" in text and key not in images]:
        raise ValueError(f"the shard {shard} has {alone[0]}.cls, but no image {alone[0]}.jpg")
    samples = [
        Sample(
            os.fsencode(key),
            _label(shard, key, texts.get(key, {}), listing.field),
            number,
            *next(places[suffix] for suffix in IMAGES if suffix in places),
        )
        for key, places in images.items()
    ]
    return [sample for sample in samples if sample.label >= 0]


def _members(shard: str) -> tuple[dict[str, dict[str, Place]], dict[str, dict[str, bytes]]]:
    """Where images are, and what .cls and .json hold, by key and suffix."""
    images: dict[str, dict[str, Place]] = {}
    texts: dict[str, dict[str, bytes]] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            assert tar.fileobj is not None
            for member in tar:
                tar.members = []  # type: ignore[attr-defined]  # which it would keep
                named = MEMBER.fullmatch(member.name)
                if not (named and member.isreg()) or META.match(member.name):
                    continue
                key, suffix = named[1], named[2].lower()
                if suffix in images.get(key, ()) or suffix in texts.get(key, ()):
                    raise ValueError(f"the shard {shard} has two members {member.name}")
                if suffix in IMAGES:
                    images.setdefault(key, {})[suffix] = Place(member.offset_data, member.size)
                elif suffix in ("cls", "json"):
                    tar.fileobj.seek(member.offset_data)
                    texts.setdefault(key, {})[suffix] = tar.fileobj.read(member.size)
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(512) != bytes(512):  # tarfile takes anything that is no header for the end
                raise tarfile.ReadError("its end is missing")
    except tarfile.TarError as error:
        raise ValueError(f"the shard {shard} is damaged: {error}; make or download it again") from None
    return images, texts


def _label(shard: str, key: str, texts: dict[str, bytes], field: str) -> int:
    """The number of a sample's class: in its .cls, or in a field of its .json."""
    suffix = "json" if field or "cls" not in texts else "cls"
    if suffix not in texts:
        expected = f"{key}.json" if field else f"{key}.cls or {key}.json"
        raise ValueError(f"the shard {shard} has an image {key}, but no label: {expected} is missing")
    try:
        return int(texts["cls"] if suffix == "cls" else str(json.loads(texts["json"])[field or "label"]))
    except (ValueError, TypeError, KeyError):
        number = "a class number" if suffix == "cls" else f"a class number as {field or 'label'!r}"
        raise ValueError(
            f"{key}.{suffix} in the shard {shard} should hold {number}, not {texts[suffix][:80]!r}"
        ) from None
