"""Which images lie below a folder, and what has to stay the same for that to be still true."""

import glob
import os
import time
from pathlib import Path
from typing import NamedTuple

from labelflow.data.images import EXTENSIONS

SETTLED = 2 * 10**9  # nanoseconds: a folder modified later than that may be modified again with the same time
MISSING = (0, 0, 0)  # the state of what is not there
NEVER = (-1, -1, -1)  # no folder's state: it has to be listed again


class State(NamedTuple):
    """Of something that decides which images there are: a folder, or a link that may become one."""

    path: str  # below the folder that was listed; "" for itself
    state: tuple[int, int, int]


class Found(NamedTuple):
    files: list[str]  # paths of images below the folder, with slashes on every system, sorted
    states: list[State]


def images_below(folder: str) -> Found:
    """Hidden ones are left out, links to folders followed. A folder that is missing or can't be read has none."""
    files, states, waiting = [], [], [""]
    while waiting:
        below = waiting.pop()
        where = os.path.join(folder, below)
        states.append(State(below, settled_state(where)))  # before it is listed: changes from now on are noticed
        try:
            entries = list(os.scandir(where))
        except OSError:
            continue
        for entry in entries:
            path = f"{below}/{entry.name}".lstrip("/")
            if entry.name[0] == ".":
                continue
            if is_folder(entry):
                _check_link(entry)
                waiting.append(path)
            elif is_image(entry.name):
                files.append(path)
            if leads_nowhere(entry):
                states.append(State(path, state_of(entry.path)))
    return Found(sorted(files), states)


def image_files(folder: Path) -> list[str]:
    """Paths below the folder, sorted, hidden ones left out. A class that a split lacks has none."""
    return images_below(str(folder)).files


def state_of(path: str) -> tuple[int, int, int]:
    """Which folder it is, when its entries changed, and when that or its permissions did."""
    try:
        found = os.stat(path)
    except OSError:
        return MISSING
    return found.st_ino % 2**63, found.st_mtime_ns, found.st_ctime_ns


def settled_state(path: str) -> tuple[int, int, int]:
    """NEVER if the folder could change without a difference in its state."""
    state = state_of(path)
    modified = max(state[1:])
    timeless = state[1] == 0 and state != MISSING  # as some mounts of object stores are
    return NEVER if timeless or modified > time.time_ns() - SETTLED else state


def leads_nowhere(entry: os.DirEntry[str]) -> bool:
    """Whether it is a link to nothing, which could be a folder as soon as a disk is mounted."""
    try:
        return entry.is_symlink() and not entry.is_file()
    except OSError:  # to itself
        return True


def find_images(given: Path | str) -> list[str]:
    """A file; the images below a folder; or those that a pattern such as `photos/**/*.jpg` matches, sorted."""
    path = str(given)
    if os.path.exists(path) and not os.path.isdir(path):
        return [path]
    matches = [path] if os.path.isdir(path) else sorted(glob.glob(path, recursive=True))
    found = dict.fromkeys(file for match in matches for file in _images_of(match))
    if found:
        return list(found)
    if os.path.isdir(path):
        raise ValueError(f"{path} has no images; they end in {', '.join(sorted(EXTENSIONS))}")
    raise ValueError(f"no image matches {path}" if glob.has_magic(path) else f"there is no file or folder {path}")


def _images_of(path: str) -> list[str]:
    """Of a folder, and of all below it; or the file itself, if it is an image."""
    if os.path.isdir(path):
        return [os.path.join(path, name.replace("/", os.sep)) for name in image_files(Path(path))]
    return [path] if is_image(path) else []


def below(path: str, folder: Path | str) -> str:
    """The path as seen from the folder that it lies in. Paths below . may lack that.

    >>> below("photos/cat/1.jpg", "photos"), below("cat/1.jpg", ".")
    ('cat/1.jpg', 'cat/1.jpg')
    """
    return path.removeprefix(os.path.join(folder, ""))


def is_image(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in EXTENSIONS


def is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _check_link(entry: os.DirEntry[str]) -> None:
    """One that leads back would lead to the same images again and again."""
    if not entry.is_symlink():
        return
    target = os.path.realpath(entry.path)
    if Path(os.path.realpath(os.path.dirname(entry.path))).is_relative_to(target):
        raise ValueError(f"{entry.path} is a link to {target}, which it lies in; remove it")
