"""What a store of label maps says about itself, in its manifest.json."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from labelflow.files import Checksum, read_sealed, write_sealed

FORMAT, VERSION = "labelflow label store", 1
MANIFEST, DRAFT, SAMPLES, INDEX, SHARDS = "manifest.json", "draft.json", "samples.txt", "index.npy", "shards"
REMEDY = "restore it, or make the store again in a new folder"
SCORES = ("rest", "logits", "sigmoid")
MAX_SHARDS = 512


@dataclass(frozen=True)
class Manifest:
    """How the labels of one split of a data set were made, and their shape."""

    annotator: str  # the model's name, or another origin
    weights: str  # where its weights came from; may be empty
    image_size: int  # of the annotator, in pixels; 0: unknown
    seen: str  # "whole": the image stretched to a square; "center(0.956)": that part of the shorter side
    scores: str  # "rest": relative to the absent classes; "logits": as the network gives them; "sigmoid": where images
    # have several labels, the probability of each class
    grid: tuple[int, int]  # rows, columns
    k: int  # scores in a cell
    classes: tuple[str, ...]
    samples: int
    shard: int = 0  # samples in a shard, the last one may hold fewer; 0: so many that there are at most 256 shards

    def __post_init__(self) -> None:
        if len(self.grid) != 2 or min(self.grid) < 1:
            raise ValueError(f"grid must be (rows, columns), at least (1, 1), not {self.grid}")
        if not 1 <= self.k <= len(self.classes):
            raise ValueError(f"k must be between 1 and the number of classes ({len(self.classes)}), not {self.k}")
        if self.samples < 1 or self.shard < 0:
            raise ValueError(f"samples must be ≥ 1 and shard ≥ 0, not {self.samples} and {self.shard}")
        if not self.shard:
            object.__setattr__(self, "shard", 256 * -(-self.samples // 256**2))
        if self.shards > MAX_SHARDS:  # each is kept open by each worker
            raise ValueError(f"{self.shards} shards are too many (at most {MAX_SHARDS}); choose a larger shard")
        if self.image_size < 0:
            raise ValueError(f"image_size must be ≥ 0 (0: unknown), not {self.image_size}")
        if self.scores not in SCORES:
            raise ValueError(f"scores must be 'rest', 'logits' or 'sigmoid', not {self.scores!r}")
        if self.seen != "whole" and not 0 < center_part(self.seen) <= 1:
            raise ValueError(
                f"seen must be 'whole' or 'center(P)' with 0 < P <= 1, such as 'center(0.956)', not {self.seen!r}"
            )

    @property
    def several(self) -> bool:
        """Whether the labels are of images that may show any number of the classes."""
        return self.scores == "sigmoid"

    @property
    def shards(self) -> int:
        return -(-self.samples // self.shard)

    @property
    def ids(self) -> str:
        """numpy's name of the smallest type that holds a class."""
        count = len(self.classes)
        return "|u1" if count <= 1 << 8 else "<u2" if count <= 1 << 16 else "<u4"

    @cached_property
    def record(self) -> np.dtype[Any]:
        """One sample in a shard."""
        shape = (self.k, *self.grid)
        return np.dtype([("scores", "<f2", shape), ("classes", self.ids, shape)])

    def places(self, shard: int) -> range:
        """The samples in a shard."""
        if not 0 <= shard < self.shards:
            raise ValueError(f"there is no shard {shard}; there are {self.shards}, counted from 0")
        return range(shard * self.shard, min((shard + 1) * self.shard, self.samples))

    @property
    def files(self) -> list[str]:
        """The names of those that a whole store has beside its manifest."""
        return [SAMPLES, INDEX, *map(shard_name, range(self.shards))]


def shard_name(shard: int) -> str:
    return f"{SHARDS}/{shard:05d}.npy"


def write_manifest(path: Path, manifest: Manifest, files: Mapping[str, Checksum] | None = None) -> None:
    """files: those of a whole store."""
    value = {"format": FORMAT, "version": VERSION, "manifest": asdict(manifest), "ids": manifest.ids}
    if files is not None:
        value["files"] = {name: file._asdict() for name, file in files.items()}
    write_sealed(path, value)


def read_manifest(path: Path) -> tuple[Manifest, dict[str, Checksum]]:
    """The manifest, and the files of a whole store."""
    value = read_sealed(path, REMEDY)
    if value.get("format") != FORMAT:
        raise ValueError(f"{path.parent} is not a store of labels: its {path.name} has another format")
    if value.get("version") != VERSION:
        raise ValueError(
            f"{path.parent} was made by another version of labelflow: "
            f"its format is {value.get('version')}, this one reads {VERSION}"
        )
    try:
        said = value["manifest"]
        manifest = Manifest(**{**said, "grid": tuple(said["grid"]), "classes": tuple(said["classes"])})
        files = {name: Checksum(file["bytes"], file["sha256"]) for name, file in value.get("files", {}).items()}
        _check_types(manifest, files)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise _damaged(path, f"no {error}" if isinstance(error, KeyError) else str(error)) from None
    if path.name == MANIFEST and list(files) != manifest.files:
        raise _damaged(path, "it does not list the files of its shards")
    return manifest, files


def differences(begun: Manifest, now: Manifest) -> str:
    """Empty if there are none."""
    pairs = {field.name: (getattr(begun, field.name), getattr(now, field.name)) for field in fields(Manifest)}
    return ", ".join(
        "the classes differ" if name == "classes" else f"{name} was {one!r}, not {other!r}"
        for name, (one, other) in pairs.items()
        if one != other
    )


def center_part(seen: str) -> float:
    """The part in "center(part)"; 0 if it is nothing of the kind."""
    try:
        return float(seen.removeprefix("center(").removesuffix(")")) if seen[:7] + seen[-1:] == "center()" else 0.0
    except ValueError:
        return 0.0


def _check_types(manifest: Manifest, files: Mapping[str, Checksum]) -> None:
    """JSON has others."""
    numbers = [manifest.image_size, manifest.k, manifest.samples, manifest.shard, *manifest.grid]
    texts = [manifest.annotator, manifest.weights, manifest.seen, manifest.scores, *manifest.classes]
    for kind, values in ((int, numbers), (str, texts)):
        wrong = [value for value in values if type(value) is not kind]
        if wrong:
            raise TypeError(f"{wrong[0]!r} should be of type {kind.__name__}")
    for file in files.values():
        if (type(file.bytes), type(file.sha256)) != (int, str):
            raise TypeError(f"bytes and sha256 of a file should be a number and a text, not {file!r}")
    assert manifest.record.itemsize  # numpy refuses what is too large


def _damaged(path: Path, why: str) -> ValueError:
    return ValueError(f"{path} is damaged: {why}; {REMEDY}")
