"""report.html of a check: problems, sizes, classes, and a contact sheet, in one file."""

import io
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

import numpy as np
from numpy import ndarray
from PIL import Image

from labelflow.checking.listing import Listing
from labelflow.checking.problems import DUPLICATES, KINDS, Finding, duplicates, readable
from labelflow.checking.summary import Summary, aspects
from labelflow.data.images import to_rgb
from labelflow.data.scan import below
from labelflow.html import bar_chart, data_uri, document, number, table
from labelflow.spec import printable

SIDE = 112  # pixels of a thumbnail, at most
NAMES, SHOWN = 5, 8  # files of a problem: named, and shown
CLASSES, OF_EACH = 30, 8  # of the contact sheet
GROUPS = 24  # of duplicates
BARS = 24


def make_page(listing: Listing, rows: ndarray, problems: Sequence[Finding], summary: Summary) -> str:
    """rows: (N,) FILE"""
    name = printable(listing.root.resolve().name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PIL's, of odd metadata and large images
        body = f"""<header>
<h1>{escape(name)}</h1>
<p>{escape(printable(str(listing.root)))}</p>
<dl class="tiles">{"".join(_tiles(summary))}</dl>
</header>
<main>
<section><h2>Problems</h2>{_problems(listing, problems)}{_duplicates(listing, rows)}</section>
<section><h2>Images</h2><div class="charts">{"".join(_charts(rows[readable(rows)], summary))}</div>
<div class="tables">{_kinds(summary)}</div></section>
{_classes(listing, rows)}
</main>"""
    return document(name, body)


def _tiles(summary: Summary) -> Iterator[str]:
    parts, sizes = summary["splits"], list(summary["classes"].values())
    levels = {level: _count(summary, level) for level in ("error", "warning")}
    tiles = [
        ("Images", f"{summary['images']:,}", ", ".join(f"{part} {count:,}" for part, count in parts.items())),
        ("Classes", f"{len(sizes):,}", f"of {min(sizes):,} to {max(sizes):,} images" if sizes else "no class folders"),
        ("Size", size_text(summary["bytes"]), f"{size_text(summary['bytes'] / summary['images'])} per image"),
        ("Errors", f"{levels['error']:,}", "stop or spoil training"),
        ("Warnings", f"{levels['warning']:,}", "worth a look"),
    ]
    for heading, value, note in tiles:
        yield f"<div><dt>{heading}</dt><dd><b>{value}</b> {note}</dd></div>"


def _count(summary: Summary, level: str) -> int:
    return sum(found["count"] for found in summary["problems"].values() if found["level"] == level)


def size_text(size: float) -> str:
    """
    >>> size_text(1234), size_text(147_900_000_000)
    ('1.23 kB', '148 GB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def _problems(listing: Listing, problems: Sequence[Finding]) -> str:
    """A card for each kind of them."""
    cards = []
    for kind, group in groupby(problems, key=lambda problem: problem.problem):
        found = list(group)
        level, about = KINDS[kind]
        shown = [] if kind in DUPLICATES else [_thumbnail(one.file, one.detail) for one in found[:SHOWN]]
        names = [(printable(below(one.file, listing.root)), printable(one.detail)) for one in found[:NAMES]]
        more = f'<p class="note">and {len(found) - NAMES:,} more in problems.csv</p>' if len(found) > NAMES else ""
        cards.append(
            f'<figure class="finding {level}"><h3>{escape(kind.capitalize())} <small>{len(found):,}</small></h3>'
            f"<p>{level.capitalize()}. {escape(about)}</p>{table((), names)}{more}{_strip(shown)}</figure>"
        )
    return "".join(cards) or "<p>None were found: every file can be read, and no two have the same contents.</p>"


def _duplicates(listing: Listing, rows: ndarray) -> str:
    """Groups of files with the same contents: the image and its files. Those of several classes or parts first."""
    groups = duplicates(rows)
    if not groups:
        return ""
    homes = [len({(listing.labels[place], listing.parts[place]) for place in group}) for group in groups]
    worst = sorted(range(len(groups)), key=lambda index: -homes[index])[:GROUPS]
    entries = []
    for group in (groups[index] for index in worst):
        names = "<br>".join(escape(printable(below(listing.paths[place], listing.root))) for place in group[:NAMES])
        more = f"<br>and {len(group) - NAMES:,} more" if len(group) > NAMES else ""
        entries.append(f'<div class="same">{_thumbnail(listing.paths[group[0]])}<small>{names}{more}</small></div>')
    shown = f"{len(worst)} of {len(groups):,} groups" if len(groups) > len(worst) else f"{len(groups):,} groups"
    return f"""<h3>Same contents</h3><p class="note">{shown} of files, those in several classes or in both train and val
first.</p><div class="twins">{"".join(entries)}</div>"""


def _charts(whole: ndarray, summary: Summary) -> Iterator[str]:
    """whole: rows of readable files."""
    if len(whole):
        shorter = np.minimum(whole["width"], whole["height"])
        yield _histogram("Shorter side", shorter, "pixels")
        yield _histogram("Aspect", aspects(whole), "width / height")
        yield _histogram("File size", whole["size"] / 1000, "kB")
    if sizes := sorted(summary["classes"].values(), reverse=True):
        chart = bar_chart("Images of each class", sizes, {}, "classes, the largest first")
        yield f"<figure><figcaption>Images of each class</figcaption>{chart}</figure>"


def _histogram(title: str, values: ndarray, across: str) -> str:
    """On a logarithmic axis."""
    low, high = np.log2(values.min()), np.log2(values.max())
    if high - low < 0.1:  # practically all the same
        low, high = low - 0.5, high + 0.5
    counts, edges = np.histogram(np.log2(values), BARS, (low, high))
    marks: dict[float, str] = {
        place: number(float(f"{2 ** edges[place]:.2g}")) for place in range(0, BARS + 1, BARS // 4)
    }
    chart = bar_chart(title, counts.tolist(), marks, across)
    return f"<figure><figcaption>{title}</figcaption>{chart}</figure>"


def _kinds(summary: Summary) -> str:
    captions = {"formats": "Formats", "colours": "Colours", "special": "Handled on the way"}
    return "".join(
        table((), [(name, f"{count:,}") for name, count in summary[key].items()], caption)
        for key, caption in captions.items()
    )


def _classes(listing: Listing, rows: ndarray) -> str:
    """A strip of images for each class, or for some of many; and all of them in a table."""
    chosen = np.linspace(0, len(listing.classes) - 1, min(CLASSES, len(listing.classes))).round().astype(int).tolist()
    counts, strips = listing.class_counts(), []
    for label in chosen:
        of_class = np.flatnonzero((listing.labels == label) & readable(rows))
        strips.append(_row(listing, of_class, listing.classes[label], f"{int(counts[label].sum()):,} images"))
    if not listing.classes:
        every = np.flatnonzero(readable(rows))
        return f"<section><h2>Contact sheet</h2>{_row(listing, every, '', '', CLASSES)}</section>"
    some = f" (some of {len(listing.classes):,})" if len(chosen) < len(listing.classes) else ""
    head = ["class", *(split or "images" for split in listing.splits)]
    names = [
        [printable(name), *(f"{count:,}" for count in row)]
        for name, row in zip(listing.classes, counts.tolist(), strict=True)
    ]
    return f"""<section><h2>Classes{some}</h2><figure class="sheet">{"".join(strips)}</figure>
<details><summary>All classes</summary><figure class="wide numbers">{table(head, names)}</figure></details></section>"""


def _row(listing: Listing, places: ndarray, name: str, note: str, most: int = OF_EACH) -> str:
    """Images at equal distances among these."""
    chosen = places[np.linspace(0, len(places) - 1, min(most, len(places))).round().astype(int)]
    heading = f"<h3>{escape(printable(name))} <small>{note}</small></h3>" if name else ""
    return f"<div>{heading}{_strip([_thumbnail(listing.paths[place]) for place in chosen.tolist()])}</div>"


def _strip(thumbnails: Sequence[str]) -> str:
    return f'<div class="thumbs">{"".join(thumbnails)}</div>' if any(thumbnails) else ""


def _thumbnail(path: str, caption: str = "") -> str:
    """'' if it can't be shown. The name of the file appears under the pointer."""
    try:
        with Image.open(path) as image:
            image.draft("RGB", (2 * SIDE, 2 * SIDE))
            small = to_rgb(image)
            small.thumbnail((SIDE, SIDE))
    except Exception:  # it is damaged, or has gone
        return ""
    encoded = io.BytesIO()
    small.save(encoded, "JPEG", quality=75)
    name, below = escape(printable(path)), f"<small>{escape(printable(caption))}</small>" if caption else ""
    return f'<div><img alt="" title="{name}" src="{data_uri(encoded.getvalue(), "JPEG")}">{below}</div>'
