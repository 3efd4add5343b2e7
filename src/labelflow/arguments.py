"""Arguments of a command line, by tyro, with one-line error messages."""

import contextlib
import difflib
import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, get_origin

import tyro


def parse_arguments(what: Any, args: Sequence[str], prog: str, **options: Any) -> Any:
    """What tyro makes of the arguments; of a function, its call, left to be made. What it refuses is a ValueError."""
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed):
            return tyro.cli(_deferred(what), args=args, prog=prog, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(_refusal(printed.getvalue(), prog)) from None


def _deferred(what: Any) -> Any:
    if isinstance(get_origin(what) or what, type):
        return what

    @functools.wraps(what)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(what, *args, **kwargs)

    return bind


def _refusal(box: str, prog: str) -> str:
    """What tyro says in a box, with or without borders, below its title and above the next rule: in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", box)  # neither colours nor borders
    if unknown := re.search(r"Unrecognized options: ([^\s,]+)", plain):
        kind = "option" if unknown[1].startswith("-") else "argument"
        likely = re.findall(r"^\s*(--[\w-]+)", plain.partition("Perhaps you meant:")[2], re.MULTILINE)
        closest = difflib.get_close_matches(unknown[1], likely, n=1, cutoff=0)
        hint = "".join(f"; did you mean {name}?" for name in closest)
        return f"{prog} has no {kind} {unknown[1]}{hint} (see {prog} --help)"
    _, *lines = [line.strip() for line in plain.splitlines()]
    paragraphs = re.split(r"\n(?:-*\n)+", "\n".join(lines).strip("-\n") + "\n")
    first = re.sub(r"^Error parsing [\w.]+: ", "", " ".join(paragraphs[0].split()))
    return f"{first} (see {prog} --help)"


def flag(name: str) -> str:
    """Of a setting.

    >>> flag("imagenet_a")
    '--imagenet-a'
    """
    return f"--{name.replace('_', '-')}"
