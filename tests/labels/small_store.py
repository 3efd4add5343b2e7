"""A small store: made whole or in part, by this process or by others, which may die."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labelflow.engine.lock import LOCK
from labelflow.labels import Draft, Manifest, Store

SMALL = Manifest(
    annotator="nfnet",
    weights="",
    image_size=576,
    seen="center(0.956)",
    scores="rest",
    grid=(3, 2),
    k=2,
    classes=("cat", "dog", "owl"),
    samples=7,
    shard=2,
)
KEYS = [f"cat/{n}" for n in range(7)]


def maps(manifest: Manifest) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(0)
    shape = (manifest.samples, manifest.k, *manifest.grid)
    return chance.normal(0, 9, shape).astype(np.float16), chance.integers(0, len(manifest.classes), shape)


def fill(draft: Draft, rank: int = 0, processes: int = 1) -> None:
    scores, classes = maps(draft.manifest)
    for shard in [shard for shard in draft.missing() if shard % processes == rank]:
        places = draft.places(shard)
        draft.write(shard, scores[places], classes[places])


def make(folder: Path, manifest: Manifest = SMALL, names: list[str] = KEYS, resume: bool = False) -> Store:
    draft = Draft(folder, manifest, names, resume)
    fill(draft)
    return draft.finish()


def contents(folder: Path) -> dict[str, bytes]:
    """But for the file of a lock, which a kill leaves behind, unlocked."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != LOCK]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def child(act: Callable[[], Any]) -> int:
    """A process that does this; its number."""
    number = os.fork()
    if not number:
        code = 1
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    return number


def flip(path: Path, place: int = -1) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


def status(number: int) -> int:
    return os.waitpid(number, 0)[1]


def mortal(deaths: int) -> None:
    """Die at the n-th step: before or after something is written, renamed, made or removed."""
    left = [deaths]

    def steps(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for act in (lambda: None, lambda: function(*args, **kwargs)):
                result = act()
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    for owner, names in {
        os: ("replace", "fsync"),
        Path: ("unlink", "mkdir", "write_text", "write_bytes"),
        np: ("save",),
    }.items():
        for name in names:
            setattr(owner, name, steps(getattr(owner, name)))
