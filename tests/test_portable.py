"""What macOS and Windows lack, or do differently. tests/smoke.py runs the commands there."""

import ast
import ntpath
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from labelflow.data.folder import Listed
from labelflow.data.scan import images_below

ROOT = Path(__file__).parent.parent
PROGRAMS = sorted(path for name in ("src", "examples", "docs") for path in (ROOT / name).rglob("*.py"))
ABSENT = """
import multiprocessing.context, os, signal, sys

for name in ("fcntl", "grp", "pwd", "resource", "termios", "triton"):
    sys.modules[name] = None
for name in ("fork", "getuid", "killpg", "mkfifo", "sched_getaffinity", "sync", "O_DIRECTORY"):
    delattr(os, name)
for name in ("SIGHUP", "SIGKILL", "SIGUSR1", "alarm"):
    delattr(signal, name)
for name in ("Fork", "ForkServer"):
    delattr(multiprocessing.context, f"{name}Context"), delattr(multiprocessing.context, f"{name}Process")
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""


def calls(path: Path) -> Iterator[tuple[ast.Call, str, set[str]]]:
    """Each call in a file, the name of what is called, and the names of its arguments."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            yield node, called, {str(keyword.arg) for keyword in node.keywords}


def is_text(node: ast.Call, called: str, given: set[str]) -> bool:
    """Whether a call reads or writes text, in an encoding that Windows would choose if it is not given."""
    if called == "open" and isinstance(node.func, ast.Name):
        modes = [argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)]
        return not any("b" in str(mode) for mode in modes)
    return called in ("read_text", "write_text") or (called in ("run", "Popen", "check_output") and "text" in given)


def test_text_has_an_encoding() -> None:
    """cp1252 on Windows otherwise, in which "→" can't be written."""
    assert len(PROGRAMS) > 300
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in PROGRAMS
        for node, called, given in calls(path)
        if is_text(node, called, given) and "encoding" not in given
    ]
    assert not found


def test_where_there_is_no_fork() -> None:
    """Everything that the command line imports, without the modules and functions that Windows lacks."""
    code = f"""{ABSENT}
import pkgutil
import labelflow.comparison.cells

here, sys.platform = sys.platform, "win32"  # not before: torch would look for DLLs
from labelflow.comparison.runner import HOW, _CellContext

sys.platform = here
import labelflow.api, labelflow.commands

for module in pkgutil.iter_modules(labelflow.commands.__path__):
    __import__(f"labelflow.commands.{{module.name}}")
assert (HOW, _CellContext().get_start_method()) == ("spawn", "spawn")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("encoding", ["cp1252", "ascii"])
def test_a_console_that_lacks_letters(encoding: str) -> None:
    command = [sys.executable, "-m", "labelflow", "list", "\u2192"]
    done = subprocess.run(command, capture_output=True, check=False, env={**os.environ, "PYTHONIOENCODING": encoding})
    assert (done.returncode, done.stderr.count(b"\n")) == (2, 1)
    assert b"\\u2192" in done.stderr


def test_names_of_samples_have_slashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everywhere: stores, splits and results of one system are those of the others."""
    (tmp_path / "cat" / "more").mkdir(parents=True)
    (tmp_path / "cat" / "more" / "1.png").touch()
    scandir = os.scandir
    monkeypatch.setattr(os, "scandir", lambda path: scandir(path.replace("\\", "/")))
    monkeypatch.setattr(os, "sep", "\\")
    for name in ("join", "relpath"):
        monkeypatch.setattr(os.path, name, getattr(ntpath, name))
    found = images_below(str(tmp_path))
    assert found.files == ["cat/more/1.png"]
    assert [state.path for state in found.states] == ["", "cat", "cat/more"]
    assert Listed(Path("C:\\photos"), ["C:\\photos\\cat\\more/1.png"], [0], ["cat"]).key(0) == "cat/more/1.png"
