"""Arguments of a command line, by tyro: what it refuses is told in one line."""

import contextlib
import functools
import io
import re
from collections.abc import Callable, Sequence
from typing import Any, get_origin

import tyro


def parse_arguments(what: Any, args: Sequence[str], prog: str, **options: Any) -> Any:
    """What tyro makes of the arguments; of a function, its call, left to be made. What it refuses is a ValueError."""
    told = io.StringIO()
    try:
        with contextlib.redirect_stderr(told):
            made, unknown = tyro.cli(_deferred(what), args=args, prog=prog, return_unknown_args=True, **options)
    except SystemExit as stop:
        if not stop.code:  # --help
            raise
        raise ValueError(f"{_first_sentence(told.getvalue())} ({prog} --help tells more)") from None
    if unknown:
        raise ValueError(f"{prog} has no setting {unknown[0]} ({prog} --help tells which there are)")
    return made


def _deferred(what: Any) -> Any:
    if isinstance(get_origin(what) or what, type):
        return what

    @functools.wraps(what)
    def bind(*args: Any, **kwargs: Any) -> Callable[[], None]:
        return functools.partial(what, *args, **kwargs)

    return bind


def _first_sentence(box: str) -> str:
    """What tyro says in a box, with or without borders, below its title and above the next rule: in one line."""
    plain = re.sub(r"\x1b\[[0-9;]*m|[│╭╮╰╯─]", "", box)  # neither colours nor borders
    _, *lines = [line.strip() for line in plain.splitlines()]
    paragraphs = re.split(r"\n(?:-*\n)+", "\n".join(lines).strip("-\n") + "\n")
    return re.sub(r"^Error parsing [\w.]+: ", "", " ".join(paragraphs[0].split()))


def flag(name: str) -> str:
    """Of a setting.

    >>> flag("imagenet_a")
    '--imagenet-a'
    """
    return f"--{name.replace('_', '-')}"
