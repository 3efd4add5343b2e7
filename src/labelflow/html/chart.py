"""Charts as SVG, without scripts or libraries.

On a page they take their colours from its style sheet; `standalone` makes one a file of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 330, 220  # about as wide as a page shows it, so that its text is as large as the page's
LEFT, RIGHT, TOP, BOTTOM = 58, 318, 36, 176  # the edges of the plot, in the chart
MAX_POINTS = 400  # of a line
LETTER, LINE = 7.4, 20  # approximate width of a letter, and the height of a line of text
COLOURS = ("#0b7f86", "#c2570c", "#7a4fc0", "#5f7a13", "#b3267a", "#7d6a55")  # --line-0 to --line-5 of style.css
DASHES = ("", "8 4", "3 3", "9 3 2 3", "14 4", "2 4 8 4")
STYLE = (
    """text { fill: #5d646d; font: 14px system-ui, sans-serif; } circle { fill: currentColor; }
.title { font-weight: 600; fill: #1c1f23; } polyline, .swatch { stroke-width: 2; stroke-linejoin: round; }
.rule { stroke: #e3e5e8; } .reference { color: #5d646d; }
.spread { stroke: currentColor; stroke-width: 2; opacity: .55; }
"""
    + "".join(f".line-{index} {{ color: {colour}; }}\n" for index, colour in enumerate(COLOURS))
    + """svg { color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  text { fill: #b3b8c0; } .title { fill: #f1f2f4; } .rule { stroke: #3d424b; } .reference { color: #b3b8c0; }
}
"""
)


def standalone(svg: str) -> str:
    """An <svg> of this module as a file of its own."""
    opening = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opening.replace(">", f"><style>{STYLE}</style>", 1)


def look(index: int) -> str:
    """The attributes of a line: a colour and dashes, which differ for the first 36.

    >>> look(0), look(7)
    ('class="line-0"', 'class="line-1" stroke-dasharray="3 3"')
    """
    dashes = DASHES[(index + index // len(COLOURS)) % len(DASHES)]
    return f'class="line-{index % len(COLOURS)}"' + (f' stroke-dasharray="{dashes}"' if dashes else "")


def swatch(index: int, x: float, y: float) -> str:
    """A piece of the line at that index, 24 wide."""
    return f'<g {look(index)}><path class="swatch" d="M{x:.1f} {y:.1f}h24" stroke="currentColor"/></g>'


def keys(names: Sequence[str], width: float, left: float = 0.0) -> tuple[list[str], int]:
    """A legend of so many lines, from the top of an <svg>, and how many they are."""
    parts, x, line = [], left, 0
    for index, name in enumerate(names):
        wide = 30 + LETTER * len(name)
        if x + wide > width and x > left:
            x, line = left, line + 1
        parts += [swatch(index, x, 10 + LINE * line), _text(x + 30, 15 + LINE * line, name, "start")]
        x += wide + 12
    return parts, line + 1


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[Point]],
    from_zero: bool = False,
    across: str = "epoch",
    legend: bool = True,
    reach: float | None = None,
    reference: Sequence[Point] = (),
) -> str:
    """An <svg> of lines over epochs (or `across`), each with its name and last value. Line i looks like `look(i)`.

    Points that are not finite are dropped, and so are lines without points. legend: False where the page has one.
    reach: minimum upper end of the y axis. reference: a line to compare with, of the class `reference`.

    >>> line_chart("Top-1 accuracy", {"model": [(1, 10.0), (2, 30.0)]})[:4]
    '<svg'
    """
    finite = {name: [point for point in points if all(map(math.isfinite, point))] for name, points in lines.items()}
    drawn = {name: thin(points) for name, points in finite.items() if points}
    if not drawn:
        return _svg(f"{title}: nothing yet", [_text(WIDTH / 2, HEIGHT / 2, "nothing yet", "middle")])
    every = [*reference, *(point for points in drawn.values() for point in points)]
    epochs, values = zip(*every, strict=True)
    highest = max(values) if reach is None else max(reach, *values)
    marks = ticks(min(0.0, *values) if from_zero else min(values), highest)
    last = max(epochs) or 1.0
    named = [f"{name} {number(points[-1][1])}" for name, points in drawn.items()] if legend else []
    parts, lines_of_text = keys(named, WIDTH, left=8)
    top = TOP + LINE * (lines_of_text - 1) if legend else TOP - LINE

    def place(epoch: float, value: float) -> tuple[float, float]:
        across, up = epoch / last, (value - marks[0]) / (marks[-1] - marks[0])
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - top)

    for mark in marks:
        _, y = place(0, mark)
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 5, number(mark), "end"))
    for mark in ticks(0, last):
        x, _ = place(mark, marks[0])
        if x <= RIGHT + 0.1:
            parts.append(_text(x, BOTTOM + 18, number(mark), "middle"))
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 6, across, "middle"))

    if reference:
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in reference)
        dashes = 'stroke="currentColor" stroke-dasharray="1 4"'
        parts.append(f'<polyline class="reference" points="{path}" fill="none" {dashes}/>')
    for index, points in enumerate(drawn.values()):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        x, y = place(*points[-1])
        parts.append(
            f'<g {look(index)}><polyline points="{path}" fill="none" stroke="currentColor"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/></g>'
        )
    ends = ", ".join(f"{name} ends at {number(points[-1][1])}" for name, points in drawn.items())
    return _svg(f"{title}, {across} up to {number(last)}: {ends}", parts)


def bar_chart(title: str, values: Sequence[float], marks: Mapping[float, str], across: str) -> str:
    """An <svg>: bars of equal width, side by side.

    marks: texts below the axis, by where they stand; 0 is the left edge of the first bar, 1 that of the second.

    >>> bar_chart("Images", [3, 4], {0: "1", 1: "10", 2: "100"}, "pixels")[:4]
    '<svg'
    """
    heights = ticks(0, max(values))
    top, wide, parts = TOP - LINE, (RIGHT - LEFT) / len(values), []

    def place(value: float) -> float:
        return BOTTOM - value / heights[-1] * (BOTTOM - top)

    for mark in heights:
        parts.append(f'<path class="rule" d="M{LEFT} {place(mark):.1f}H{RIGHT}"/>')
        parts.append(_text(LEFT - 6, place(mark) + 5, number(mark), "end"))
    gap = 1 if wide > 4 else 0
    bars = "".join(
        f"M{LEFT + index * wide:.2f} {BOTTOM}V{place(value):.1f}h{wide - gap:.2f}V{BOTTOM}z"
        for index, value in enumerate(values)
        if value
    )
    parts.append(f'<path class="line-0" fill="currentColor" d="{bars}"/>')
    for at, text in marks.items():
        parts.append(_text(LEFT + at * wide, BOTTOM + 18, text, "end" if at == len(values) else "middle"))
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 6, across, "middle"))
    return _svg(f"{title}, by {across}: at most {number(max(values))}", parts)


@dataclass(frozen=True)
class Interval:
    """A row of a dot plot."""

    name: str
    low: float
    middle: float
    high: float
    points: Sequence[float] = ()  # single values
    colour: int = 0
    note: str = ""


def dot_plot(
    rows: Sequence[Interval],
    axis: str,
    marks: Sequence[float],
    margins: tuple[int, int] = (150, 20),
    strong: Sequence[float] = (),
) -> str:
    """An <svg>: a line for each row, with a dot for each of its points, or for its middle, and a bar from low to high.

    marks: where the axis has its ticks; a bar that goes on beyond them ends in an arrow. margins: for the names on the
    left and the notes on the right. strong: values with a darker line.
    """
    left, top, step = max([margins[0], *(round(LETTER * len(row.name)) + 14 for row in rows)]), 14, 26
    right, bottom = left + 410, top + step * len(rows)

    def across(value: float) -> float:
        return left + min(1.0, max(0.0, (value - marks[0]) / (marks[-1] - marks[0]))) * (right - left)

    parts = []
    for mark in marks:
        parts.append(f'<path class="rule" d="M{across(mark):.1f} {top}V{bottom}"/>')
        parts.append(_text(across(mark), bottom + 18, number(mark), "middle"))
    if strong:
        path = "".join(f"M{across(value):.1f} {top}V{bottom}" for value in strong)
        parts.append(f'<path class="reference" stroke="currentColor" d="{path}"/>')
    parts.append(_text((left + right) / 2, bottom + 38, axis, "middle"))
    for index, row in enumerate(rows):
        y = top + step * (index + 0.5)
        low, middle, high = map(across, (row.low, row.middle, row.high))
        parts.append(_text(left - 8, y + 5, row.name, "end"))
        bar = f"M{low:.1f} {y}H{high:.1f}" + (f"M{middle:.1f} {y - 7}v14" if row.points else "")
        bar += f"M{left + 6} {y - 5}l-6 5l6 5" if row.low < marks[0] else ""
        bar += f"M{right - 6} {y - 5}l6 5l-6 5" if row.high > marks[-1] else ""
        parts.append(f'<g class="line-{row.colour}"><path class="spread" fill="none" d="{bar}"/>')
        dots, radius = (row.points, 3) if row.points else ([row.middle], 4)
        parts += [f'<circle cx="{across(value):.1f}" cy="{y}" r="{radius}"/>' for value in dots]
        parts.append("</g>")
        if row.note:
            parts.append(_text(right + 8, y + 5, row.note, "start"))
    label = "; ".join(f"{row.name} {row.note or number(row.middle)}" for row in rows)
    return _svg(f"{axis}: {label}", parts, (right + margins[1], bottom + 46))


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers in equal steps that enclose `low` and `high`.

    >>> ticks(0.3, 9.1)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # constant
        around = abs(low) / 10 or 1.0
        low, high = low - around, high + around
    rough = (high - low) / most
    unit = 10.0 ** math.floor(math.log10(rough))
    step = unit * next(factor for factor in (1, 2, 5, 10) if factor >= round(rough / unit, 6))
    first, last = math.floor(round(low / step, 6)), math.ceil(round(high / step, 6))
    return [step * place for place in range(first, last + 1)]


def thin(points: Sequence[Point]) -> list[Point]:
    """At most about MAX_POINTS: neighbours are averaged, the last point is unchanged."""
    size = math.ceil(len(points) / MAX_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [*means, points[-1]]


def number(value: float) -> str:
    """Four significant digits, without trailing zeros."""
    return f"{value:.4g}".replace("e-0", "e-") if abs(value) < 1000 else f"{value:.0f}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(label: str, parts: list[str], size: tuple[int, int] = (WIDTH, HEIGHT)) -> str:
    return f'<svg viewBox="0 0 {size[0]} {size[1]}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
