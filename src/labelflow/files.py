"""Files on disk: written completely or not at all, and compared with their checksums before they are trusted.

A folder's checksums.json lists the size and the SHA-256 of files beside it, as the manifest of a label store does.
While a file is being replaced, two versions of it are listed, so that a kill at any moment leaves one that is. JSON in
a folder that several processes write to carries its own checksum.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

CHECKSUMS, FORMAT = "checksums.json", "labelflow checksums"
SEAL = "sha256"  # in JSON that carries its own checksum


class Checksum(NamedTuple):
    bytes: int
    sha256: str


Checksums = dict[str, list[Checksum]]  # of the versions of each file


@contextmanager
def atomic_write(path: Path, mark: str = "", checked: bool = False) -> Iterator[Path]:
    """A temporary path to write to, which replaces `path` on success. mark: tells several writers apart. checked: lists
    its checksum, which only one process at a time may do in a folder."""
    draft = path.with_name(f".{path.name}{mark}.draft")
    try:
        with named_errors(path):
            draft.touch()
            mode = draft.stat().st_mode  # as the umask says; safetensors would leave 0600
            yield draft
            draft.chmod(mode)
            _to_disk(draft)
            if checked:
                _replace_checked(draft, path)
            else:
                os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def atomic_folder(path: Path, checked: bool = False) -> Iterator[Path]:
    """A temporary folder to write to, which becomes `path` on success. checked: lists the checksums of its files."""
    draft = path.with_name(f".{path.name}.draft")
    shutil.rmtree(draft, ignore_errors=True)
    try:
        with named_errors(path):
            draft.mkdir(parents=True)
            mode = draft.stat().st_mode & 0o666  # as the umask says
            yield draft
            if checked:
                _write_checksums(draft, {file.name: [checksum(file)] for file in sorted(draft.iterdir())})
            for file in draft.iterdir():
                file.chmod(mode)
                _to_disk(file)
            os.replace(draft, path)
            _to_disk(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def named_errors(path: Path) -> Iterator[None]:
    """What fails while a file is written (a full disk, for example) names it."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.strerror is None:
            raise
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}") from error


def checksum(path: Path) -> Checksum:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return Checksum(file.tell(), digest)


def check_file(path: Path, grows: bool = False) -> None:
    """ValueError if the file is listed beside it with another checksum. grows: lines may have been added since."""
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing")
    if not _is_listed(path, grows):
        raise ValueError(
            f"{path} is damaged: checksum mismatch with {path.parent / CHECKSUMS}; restore it or, if you changed it "
            "yourself, remove its entry there"
        )


def has_file(path: Path) -> bool:
    """Whether a file is there; ValueError if it is listed, and so has been lost."""
    exists = path.exists()
    if not exists and path.name in read_checksums(path.parent):
        raise ValueError(f"{path} is missing; restore it or, if you removed it, remove its entry in {CHECKSUMS}")
    return exists


def folder_problem(folder: Path) -> str:
    """What is wrong with a folder that was written with all its checksums; '' if nothing is."""
    try:
        listed = read_checksums(folder)
    except ValueError:
        return f"{folder / CHECKSUMS} is damaged"
    for path in [folder / name for name in listed] or [folder / CHECKSUMS]:
        if not path.exists():
            return f"{path} is missing"
        if not _is_listed(path):
            return f"{path} is damaged: checksum mismatch"
    return "" if listed else f"{folder / CHECKSUMS} lists no files"


def list_file(path: Path) -> None:
    """List a file as it is now."""
    _write_checksums(path.parent, {**read_checksums(path.parent), path.name: [checksum(path)]})


def forget_file(path: Path) -> None:
    """Remove a file, and what is listed of it."""
    path.unlink(missing_ok=True)
    listed = read_checksums(path.parent)
    if listed.pop(path.name, None):
        _write_checksums(path.parent, listed)


def read_checksums(folder: Path) -> Checksums:
    """{} if there are none, or if they are those of another program."""
    path = folder / CHECKSUMS
    try:
        found: Any = json.loads(path.read_bytes())
        if found.get("format") != FORMAT:
            return {}
        return {
            name: [Checksum(int(one["bytes"]), one["sha256"]) for one in versions]
            for name, versions in found["files"].items()
        }
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, AttributeError, KeyError, TypeError):
        raise ValueError(f"{path} is damaged; restore it, or remove it to go on without checks") from None


def write_sealed(path: Path, value: dict[str, Any]) -> None:
    """JSON with its own checksum, for files in a folder that several processes write to."""
    with atomic_write(path) as draft:
        draft.write_text(json.dumps({**value, SEAL: _digest(value)}, indent=1) + "\n", encoding="utf-8")


def read_sealed(path: Path, remedy: str) -> dict[str, Any]:
    """What `write_sealed` wrote; or any JSON object without a checksum."""
    try:
        value = json.loads(path.read_bytes())
        if not isinstance(value, dict):
            raise ValueError("it holds no JSON object")
        if value.pop(SEAL, None) not in (None, _digest(value)):
            raise ValueError(f'checksum mismatch (if you changed it yourself, remove its "{SEAL}")')
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged: {error}; {remedy}") from None
    return value


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _write_checksums(folder: Path, listed: Checksums) -> None:
    files = {name: [version._asdict() for version in versions] for name, versions in listed.items()}
    with atomic_write(folder / CHECKSUMS) as draft:
        draft.write_text(json.dumps({"format": FORMAT, "files": files}, indent=1) + "\n", encoding="utf-8")


def _replace_checked(draft: Path, path: Path) -> None:
    new, listed = checksum(draft), read_checksums(path.parent)
    if before := [version for version in listed.get(path.name, []) if version != new]:
        _write_checksums(path.parent, {**listed, path.name: [new, *before]})
    os.replace(draft, path)
    _write_checksums(path.parent, {**listed, path.name: [new]})


def _is_listed(path: Path, grows: bool = False) -> bool:
    """Whether a file is as it is listed; one that is not listed is."""
    before = None
    while (versions := read_checksums(path.parent).get(path.name, [])) != before:  # again, if it was just replaced
        if not versions or any(_matches(path, version, grows) for version in versions):
            return True
        before = versions
    return False


def _matches(path: Path, version: Checksum, grows: bool) -> bool:
    if not grows:
        return path.stat().st_size == version.bytes and checksum(path) == version
    with open(path, "rb") as file:
        start = file.read(version.bytes)
    return Checksum(len(start), hashlib.sha256(start).hexdigest()) == version


def _to_disk(path: Path) -> None:
    """fsync, so that a power cut leaves either the old file or the new one. Windows opens no folders, and syncs only
    what can be written to."""
    try:
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except PermissionError:
        if path.is_dir():
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
