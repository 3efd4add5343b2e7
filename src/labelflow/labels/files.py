"""The files of a store: how they are written and opened, and what is wrong with one."""

from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from labelflow.files import Checksum, atomic_write, checksum
from labelflow.labels.keys import Array
from labelflow.labels.manifest import SHARDS, Manifest, shard_name

REPAIR_HINT = "to make it again, run the command that made the store (annotate or labels import) with --resume"


def save_array(path: Path, array: Array) -> None:
    with atomic_write(path) as draft, open(draft, "wb") as file:
        np.save(file, array, allow_pickle=False)


def open_array(path: Path, shape: tuple[int, ...], dtype: Any) -> Array:
    """Mapped, not read."""
    try:
        array = np.lib.format.open_memmap(path, mode="r")
    except (ValueError, SyntaxError, TokenError) as error:  # of its header
        raise ValueError(f"{path} is damaged: {error}; {REPAIR_HINT}") from None
    if (array.shape, array.dtype) != (shape, dtype):
        raise ValueError(
            f"{path} is damaged: it holds {array.shape} of {array.dtype}, not {shape} of {dtype}; {REPAIR_HINT}"
        )
    return np.asarray(array)


def open_shard(folder: Path, manifest: Manifest, shard: int) -> Array:
    return open_array(folder / shard_name(shard), (len(manifest.places(shard)),), manifest.record)


def label_problem(scores: Array, classes: Array, manifest: Manifest) -> str:
    """What is wrong with label maps; '' if nothing is."""
    if not np.isfinite(scores).all():
        return "some scores are not finite in float16"
    if manifest.several and not ((scores >= 0) & (scores <= 1)).all():
        return "some scores, which are probabilities, do not lie in [0, 1]"
    if classes.dtype.kind not in "iu" or classes.min() < 0 or classes.max() >= len(manifest.classes):
        return f"classes must be integers from 0 to {len(manifest.classes) - 1}"
    return ""


def size_problem(path: Path, wanted: Checksum) -> str:
    """What is wrong with a file, as far as its size tells; '' if nothing is."""
    if not path.is_file():
        return f"{path} is missing; {REPAIR_HINT}"
    size = path.stat().st_size
    return "" if size == wanted.bytes else f"{path} is damaged: it has {size} bytes, not {wanted.bytes}; {REPAIR_HINT}"


def file_problem(folder: Path, manifest: Manifest, name: str, wanted: Checksum) -> str:
    """What is wrong with a file of a store, all of which is read; '' if nothing is."""
    path = folder / name
    if problem := size_problem(path, wanted):
        return problem
    if checksum(path) != wanted:
        return f"{path} is damaged: checksum mismatch; {REPAIR_HINT}"
    if name.startswith(SHARDS):
        try:
            shard = open_shard(folder, manifest, int(path.stem))
        except ValueError as error:
            return str(error)
        if problem := label_problem(shard["scores"], shard["classes"], manifest):
            return f"{path} is damaged: {problem}; {REPAIR_HINT}"
    return ""
