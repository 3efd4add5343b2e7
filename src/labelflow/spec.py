"""Names with arguments, as recipes and the command line write them: `cutmix(alpha=1.0)`, `deit_tiny_patch16_224`."""

import ast
import difflib
import inspect
import unicodedata
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A name and its arguments.

    >>> parse("vit_tiny_patch16_224(depth=6, patch_size=8)")
    Call(name='vit_tiny_patch16_224', arguments={'depth': 6, 'patch_size': 8})
    """

    name: str
    arguments: dict[str, Any]


def parse(text: str) -> Call:
    """`name` or `name(key=value, ...)`, values being plain Python literals. Nothing is executed."""
    name, bracket, rest = text.strip().partition("(")
    if not name or (bracket and not rest.endswith(")")):
        raise ValueError(f"{text!r} is not of the form name or name(key=value, ...)")
    if not bracket:
        return Call(name, {})
    try:
        call = ast.parse(f"_({rest}", mode="eval").body
        assert isinstance(call, ast.Call)
        if call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("arguments need their names")
        return Call(name, {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords})
    except (SyntaxError, ValueError, AssertionError) as error:
        raise ValueError(f"{text!r} is not of the form name(key=value, ...): {error}") from None


def mixture(text: str) -> list[tuple[float, str]]:
    """`0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)` as weights and names; a name alone has the weight 1.

    >>> mixture("0.5*mixup(alpha=0.8) + 0.5*cutmix")
    [(0.5, 'mixup(alpha=0.8)'), (0.5, 'cutmix')]
    """
    parts = []
    for part in split(text, "+"):
        weight, *rest = split(part, "*")
        star, name = bool(rest), "*".join(rest) if rest else weight
        try:
            parts.append((float(weight) if star else 1.0, name.strip()))
        except ValueError:
            raise ValueError(f"{weight.strip()!r} in {text!r} is not a number; write 0.5*name + 0.5*name") from None
    return parts


def split(text: str, mark: str) -> list[str]:
    """At every mark that stands outside of brackets and quotes.

    >>> split("0.5*cnn(init='a+b*c') + 0.5*cutmix", "+")
    ["0.5*cnn(init='a+b*c') ", ' 0.5*cutmix']
    """
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
        if letter == mark and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def known(name: str, names: Collection[str], kind: str, listed_by: str = "") -> str:
    """The name, if there is one; a ValueError that names the nearest otherwise, or all, unless a command lists them."""
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, n=3)
    if close:
        hint = f"did you mean {' or '.join(close)}?"
    elif listed_by:
        hint = f"the nearest are {', '.join(difflib.get_close_matches(name, names, n=3, cutoff=0))}"
    else:
        hint = f"there are {', '.join(sorted(names))}"
    raise ValueError(f"there is no {kind} {name!r}; {hint}{f' ({listed_by} shows all)' if listed_by else ''}")


def printable(text: str) -> str:
    """Text as a terminal may show it in one line, whatever a file is called: control characters are escaped.

    >>> printable("caf\u00e9\x1b[2J\\n.jpg")
    'caf\u00e9\\\\x1b[2J\\\\n.jpg'
    """
    escaped = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, formatting, undecodable, ends of lines and paragraphs
    letters = (
        letter.encode("unicode_escape").decode() if unicodedata.category(letter) in escaped else letter
        for letter in text
    )
    return "".join(letters)


def build(text: str, registry: Mapping[str, Callable[..., Any]], kind: str) -> Any:
    """What the text names in a registry, called with its arguments."""
    call = parse(text)
    make = registry[known(call.name, registry, kind)]
    try:
        return make(**call.arguments)
    except TypeError as error:
        settings = ", ".join(inspect.signature(make).parameters)
        raise ValueError(f"{kind} {text!r}: {error}; its settings are: {settings or 'none'}") from None
