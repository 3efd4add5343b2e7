"""A page that is one file: its style sheet, tables, legends and images inside."""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from labelflow.files import atomic_write
from labelflow.html.chart import swatch


def document(title: str, body: str) -> str:
    """A complete page, in the style of all pages."""
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)} – labelflow</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """Plain text as a <table>. The first cell of a row is its heading; a row with nothing else heads those below it.

    >>> table((), [("a", "1 < 2")])
    '<table><tbody><tr><th scope="row">a</th><td>1 &lt; 2</td></tr></tbody></table>'
    """
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>'
        if cells
        else f'<tr class="part"><th scope="colgroup" colspan="{max(1, len(head))}">{escape(first)}</th></tr>'
        for first, *cells in rows
    )
    top = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f"<table>{top}{f'<thead><tr>{columns}</tr></thead>' if head else ''}<tbody>{body}</tbody></table>"


def legend(names: Sequence[str]) -> str:
    """The lines of all charts on a page."""
    entries = "".join(
        f'<li><svg viewBox="0 0 24 10" aria-hidden="true">{swatch(index, 0, 5)}</svg>{escape(name)}</li>'
        for index, name in enumerate(names)
    )
    return f'<ul class="legend">{entries}</ul>'


def data_uri(image: Image.Image | bytes, kind: str = "PNG") -> str:
    """An image, or an encoded one, as the `src` of an <img>."""
    if isinstance(image, Image.Image):
        file = io.BytesIO()
        image.save(file, kind)
        image = file.getvalue()
    return f"data:image/{kind.lower()};base64,{base64.b64encode(image).decode()}"


def save(path: Path, text: str) -> None:
    """Atomically, and with the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_text(text, encoding="utf-8")
