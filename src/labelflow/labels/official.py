"""The label maps that Token Labeling and ReLabel released: a tree of files CLASS/NAME.pt, one an image."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

from labelflow.engine.lock import LOCK, one_writer
from labelflow.files import atomic_write
from labelflow.labels.draft import Draft
from labelflow.labels.store import LabelMap, Manifest, Store

EXACT = 2048  # integers that float16 represents exactly


def import_tree(
    tree: Path | str,
    out: Path | str,
    classes: Sequence[str],
    annotator: str = "",
    seen: str = "whole",
    resume: bool = False,
    advance: Callable[[float], None] = lambda part: None,
    say: Callable[[str], None] = print,
) -> Store:
    """A store of the maps in a tree. The key of TREE/CLASS/NAME.pt is CLASS/NAME.

    `advance` receives the fraction done, 0 to 1; `say` what is worth a line.
    """
    tree = Path(tree)
    keys = _keys(tree)
    first = _read(_path(tree, keys[0]), len(classes))
    k, rows, columns = first.scores.shape
    manifest = Manifest(
        annotator=annotator,
        weights="",
        image_size=0,
        seen=seen,
        scores="logits",
        grid=(rows, columns),
        k=k,
        classes=tuple(classes),
        samples=len(keys),
    )
    with one_writer(Path(out)) as warning:
        if warning:
            say(warning)
        draft = Draft(out, manifest, keys, resume)
        missing = draft.missing()
        for number, shard in enumerate(missing):
            maps = [_read(_path(tree, keys[place]), len(classes)) for place in draft.places(shard)]
            for place, found in zip(draft.places(shard), maps, strict=True):
                if found.scores.shape != first.scores.shape:
                    raise ValueError(
                        f"{_path(tree, keys[place])} has k, rows, columns {found.scores.shape}, "
                        f"but {_path(tree, keys[0])} has {first.scores.shape}; all maps of a store have one shape"
                    )
            draft.write(shard, np.stack([found.scores for found in maps]), np.stack([found.classes for found in maps]))
            advance((number + 1) / len(missing))
        store = draft.finish()
        if draft.repairs():
            say(draft.repairs())
        return store


def export_tree(store: Store, out: Path | str, resume: bool = False, say: Callable[[str], None] = print) -> int:
    """Write the tree; the number of files written. With `resume`, existing files are kept."""
    out = Path(out)
    if len(store.manifest.classes) > EXACT:
        raise ValueError(
            f"{store.folder} has {len(store.manifest.classes)} classes: such a tree stores them in float16, which "
            f"is exact up to {EXACT} only"
        )
    if store.manifest.several:
        raise ValueError(f"{store.folder} holds probabilities of several labels; such a tree holds scores of one class")
    keys = store.keys()
    for key in keys:
        if not _is_below(key):
            raise ValueError(f"the key {key!r} is not a path below {out}; such a tree needs keys like 'CLASS/NAME'")
    store.check()  # before anything is written
    with one_writer(out) as warning:
        if warning:
            say(warning)
        if not resume and any(path.name != LOCK for path in out.iterdir()):
            raise ValueError(f"{out} is not empty; use resume, or choose a new folder")
        return sum(_export(store, place, _path(out, key)) for place, key in enumerate(keys))


def _export(store: Store, place: int, path: Path) -> bool:
    """Whether the file was written."""
    if path.exists():
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    found = store.at(place)
    with atomic_write(path) as draft, open(draft, "wb") as file:
        torch.save(torch.from_numpy(np.stack([found.scores, found.classes.astype("<f2")])), file)
    return True


def _is_below(key: str) -> bool:
    """Whether the path of a key leads to a place below a folder, and to no other key's place."""
    try:
        os.fsencode(key)
    except UnicodeEncodeError:
        return False
    inside = PurePosixPath(key)
    return str(inside) == key and not inside.is_absolute() and ".." not in inside.parts and "\0" not in key


def _path(tree: Path, key: str) -> Path:
    return tree / f"{key}.pt"


def _keys(tree: Path) -> list[str]:
    """Sorted."""
    if not tree.is_dir():
        raise ValueError(f"there is no folder {tree}")
    found = []
    for where, _, files in os.walk(tree, followlinks=True):
        below = Path(where).relative_to(tree)
        found += [(below / name.removesuffix(".pt")).as_posix() for name in files if name[1:].endswith(".pt")]
    if not found:
        raise ValueError(f"{tree} has no label maps; it should hold files CLASS/NAME.pt")
    return sorted(found)


def _read(path: Path, classes: int) -> LabelMap:
    tensor = _load(path)
    if not isinstance(tensor, torch.Tensor) or tensor.ndim != 4 or len(tensor) != 2 or not tensor.is_floating_point():
        found = f"{tensor.dtype} {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
        raise ValueError(f"{path} is not a label map: it holds {found}, not a float tensor [2, k, rows, columns]")
    if tensor.dtype is torch.float16 and classes > EXACT:
        raise ValueError(f"{path} stores classes in float16, which is exact up to {EXACT} only, not up to {classes}")
    scores, ids = tensor.double().numpy()
    if not np.isfinite(tensor[0].half().numpy()).all():
        raise ValueError(f"{path} has scores that are not finite in float16")
    if not (np.equal(ids, np.floor(ids)) & (ids >= 0) & (ids < classes)).all():
        raise ValueError(
            f"{path} has class ids that are not integers from 0 to {classes - 1}: does it use other classes?"
        )
    return LabelMap(scores.astype("<f2"), ids.astype(np.int64))


def _load(path: Path) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch has many names for a file that it cannot read
        raise ValueError(
            f"{path} is not a label map: {str(error).splitlines()[0] if str(error) else error!r}"
        ) from None
