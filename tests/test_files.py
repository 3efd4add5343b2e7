"""Files are replaced whole, and what is listed beside them is what they are: at every moment, and for every damage."""

import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labelflow import files
from labelflow.files import (
    CHECKSUMS,
    atomic_folder,
    atomic_write,
    check_file,
    folder_problem,
    forget_file,
    has_file,
    list_file,
    named_errors,
    read_sealed,
    write_sealed,
)


def written(path: Path, content: bytes) -> Path:
    with atomic_write(path, checked=True) as draft:
        draft.write_bytes(content)
    return path


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "a flipped bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "cut in half": lambda content: content[: len(content) // 2],
    "empty": lambda content: b"",
    "longer": lambda content: content + b"\0",
    "another file": lambda content: content[::-1],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_names_the_file_and_where_its_checksum_is(tmp_path: Path, damage: str) -> None:
    path = written(tmp_path / "a.bin", b"0123456789")
    check_file(path)
    path.write_bytes(DAMAGES[damage](b"0123456789"))
    with pytest.raises(ValueError, match=rf"{path} is damaged: checksum mismatch with {tmp_path / CHECKSUMS}"):
        check_file(path)


def test_the_checksum_is_that_of_sha256sum(tmp_path: Path) -> None:
    written(tmp_path / "abc", b"abc")
    (one,) = json.loads((tmp_path / CHECKSUMS).read_text())["files"]["abc"]
    assert one == {"bytes": 3, "sha256": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"}


def test_what_is_not_listed_is_not_checked(tmp_path: Path) -> None:
    written(tmp_path / "a", b"1")
    (tmp_path / "b").write_bytes(b"2")
    check_file(tmp_path / "b")
    with pytest.raises(FileNotFoundError, match="c is missing"):
        check_file(tmp_path / "c")


def test_a_file_that_grows_keeps_its_start(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    path.write_bytes(b"one\ntwo\n")
    list_file(path)
    path.write_bytes(b"one\ntwo\nthree\n")
    check_file(path, grows=True)
    for damaged in (b"one\nTwo\nthree\n", b"one\n"):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="lines is damaged"):
            check_file(path, grows=True)


OURS = '{"format": "labelflow checksums", "files": '


@pytest.mark.parametrize(
    "content",
    ["", "[]", "5", OURS, OURS + "1}", OURS + '{"a": 1}}', OURS + '{"a": [{"bytes": "x"}]}}', "\udcff"],
)
def test_damaged_checksums_are_one_line(tmp_path: Path, content: str) -> None:
    path = written(tmp_path / "a", b"1")
    (tmp_path / CHECKSUMS).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"{tmp_path / CHECKSUMS} is damaged; .*remove it to go on"):
        check_file(path)
    assert folder_problem(tmp_path) == f"{tmp_path / CHECKSUMS} is damaged"


def test_checksums_of_another_program_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / CHECKSUMS).write_text('{"a": "6b86b273ff34fce1"}')
    check_file(tmp_path / "a")
    assert not has_file(tmp_path / "b")
    assert not has_file(tmp_path / "a" / "b")  # a file is no folder


def test_a_lost_file_is_not_one_that_never_was(tmp_path: Path) -> None:
    path = written(tmp_path / "a", b"1")
    assert has_file(path)
    path.unlink()
    with pytest.raises(ValueError, match=f"{path} is missing; restore it"):
        has_file(path)
    forget_file(path)
    assert not has_file(path)


@pytest.mark.parametrize("damage", ['{"a": 2, ', '{"a": 2}', "[]", '{"a": 1, "b"'])
def test_sealed_json_is_what_was_written(tmp_path: Path, damage: str) -> None:
    write_sealed(tmp_path / "a.json", {"a": 1})
    assert read_sealed(tmp_path / "a.json", "") == {"a": 1}
    whole = (tmp_path / "a.json").read_text()
    (tmp_path / "a.json").write_text(whole.replace('"a": 1', '"a": 3') if damage == '{"a": 2}' else damage)
    with pytest.raises(ValueError, match=r"a\.json is damaged: .*; make it again"):
        read_sealed(tmp_path / "a.json", "make it again")


class TestFolders:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        with atomic_folder(tmp_path / "made", checked=True) as draft:
            (draft / "a").write_bytes(b"one")
            (draft / "b").write_bytes(b"two")
        assert folder_problem(tmp_path / "made") == ""
        return tmp_path / "made"

    @pytest.mark.parametrize("name", ["a", "b", CHECKSUMS])
    def test_a_lost_file_is_missed(self, folder: Path, name: str) -> None:
        (folder / name).unlink()
        assert folder_problem(folder) == f"{folder / name} is missing"

    def test_swapped_files_are_noticed(self, folder: Path) -> None:
        os.rename(folder / "a", folder / "c")
        os.rename(folder / "b", folder / "a")
        os.rename(folder / "c", folder / "b")
        assert folder_problem(folder) == f"{folder / 'a'} is damaged: checksum mismatch"


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    contents=st.lists(st.tuples(st.sampled_from("ab"), st.binary(max_size=4)), min_size=1, max_size=4),
    steps=st.integers(1, 40),
)
def test_a_kill_at_any_moment_leaves_files_that_are_listed(
    tmp_path_factory: pytest.TempPathFactory, contents: list[tuple[str, bytes]], steps: int
) -> None:
    folder = tmp_path_factory.mktemp("killed")
    child = os.fork()
    if not child:
        left = [steps]

        def mortal(source: Any, target: Any) -> None:
            for act in (lambda: None, lambda: replace(source, target)):
                act()
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)

        replace, files.os.replace = os.replace, mortal
        for name, content in contents:
            written(folder / name, content)
        os._exit(0)
    os.waitpid(child, 0)
    for name in "ab":
        if (folder / name).exists():
            check_file(folder / name)
            assert (folder / name).read_bytes() in [content for own, content in contents if own == name]


def test_windows_opens_no_folder_and_syncs_only_what_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, flags: int, *args: Any) -> int:
        if Path(path).is_dir():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return open_file(path, flags, *args)

    def synced(descriptor: int) -> None:
        os.write(descriptor, b"")  # fails if it was opened to be read

    open_file = os.open
    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "fsync", synced)
    written(tmp_path / "a", b"one")
    with atomic_folder(tmp_path / "folder", checked=True) as draft:
        (draft / "b").write_bytes(b"two")
    check_file(tmp_path / "a")
    assert folder_problem(tmp_path / "folder") == ""


def test_a_full_disk_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=rf"cannot write {tmp_path / 'a'}: No space left on device") as raised:  # noqa: SIM117
        with named_errors(tmp_path / "a"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert raised.value.errno == errno.ENOSPC
    if Path("/dev/full").exists():
        with pytest.raises(OSError, match=rf"cannot write {tmp_path / 'b'}"), named_errors(tmp_path / "b"):
            Path("/dev/full").write_text("more than nothing")
