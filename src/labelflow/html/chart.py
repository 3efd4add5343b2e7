"""Charts as SVG, without scripts or libraries.

On a page they take their colours from its style sheet; `standalone` makes one a file of its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 350, 30, 178  # the edges of the plot, in the chart
MAX_POINTS = 400  # of a line
LETTER = 6.1  # approximate width of a letter
COLOURS = ("#0b7f86", "#c2570c", "#7a4fc0", "#5f7a13", "#b3267a", "#7d6a55")  # --line-0 to --line-5 of style.css
STYLE = """text { fill: #5d646d; font: 11px system-ui, sans-serif; } circle { fill: currentColor; }
.title { font-weight: 600; fill: #1c1f23; font-size: 12px; } polyline { stroke-width: 1.8; stroke-linejoin: round; }
.rule { stroke: #e3e5e8; } .reference { color: #5d646d; }
.spread { stroke: currentColor; stroke-width: 2; opacity: .55; }
""" + "".join(f".line-{index} {{ color: {colour}; }}\n" for index, colour in enumerate(COLOURS))


def standalone(svg: str) -> str:
    """An <svg> of this module as a file of its own."""
    opening = svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    return opening.replace(">", f"><style>{STYLE}</style>", 1)


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[Point]],
    from_zero: bool = False,
    across: str = "epoch",
    legend: bool = True,
    reach: float | None = None,
    reference: Sequence[Point] = (),
) -> str:
    """An <svg> of lines over epochs (or `across`), each with its name and last value. Line i has the class `line-i`.

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

    def place(epoch: float, value: float) -> tuple[float, float]:
        across, up = epoch / last, (value - marks[0]) / (marks[-1] - marks[0])
        return LEFT + across * (RIGHT - LEFT), BOTTOM - up * (BOTTOM - TOP)

    parts = []
    for mark in marks:
        _, y = place(0, mark)
        parts.append(f'<path class="rule" d="M{LEFT} {y:.1f}H{RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 4, number(mark), "end"))
    for mark in ticks(0, last):
        x, _ = place(mark, marks[0])
        if x <= RIGHT + 0.1:
            parts.append(_text(x, BOTTOM + 15, number(mark), "middle"))
    parts.append(_text((LEFT + RIGHT) / 2, HEIGHT - 3, across, "middle"))

    if reference:
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in reference)
        parts.append(f'<polyline class="reference" points="{path}" fill="none" stroke="currentColor"/>')
    start = float(LEFT)
    for index, (name, points) in enumerate(drawn.items()):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        x, y = place(*points[-1])
        parts.append(
            f'<g class="line-{index}"><polyline points="{path}" fill="none" stroke="currentColor"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3"/>'
            + (f'<circle cx="{start + 4:.1f}" cy="10" r="4"/></g>' if legend else "</g>")
        )
        if legend:
            label = f"{name} {number(points[-1][1])}"
            parts.append(_text(start + 12, 14, label, "start"))
            start += 28 + LETTER * len(label)
    ends = ", ".join(f"{name} ends at {number(points[-1][1])}" for name, points in drawn.items())
    return _svg(f"{title}, {across} up to {number(last)}: {ends}", parts)


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


def dot_plot(rows: Sequence[Interval], axis: str, marks: Sequence[float], margins: tuple[int, int] = (150, 20)) -> str:
    """An <svg>: a line for each row, with a dot for each of its points, or for its middle, and a bar from low to high.

    marks: where the axis has its ticks; what lies beyond the first and the last is drawn there. margins: for the names
    on the left and the notes on the right.
    """
    left, top, step = margins[0], 14, 24
    right, bottom = left + 410, top + step * len(rows)

    def across(value: float) -> float:
        return left + min(1.0, max(0.0, (value - marks[0]) / (marks[-1] - marks[0]))) * (right - left)

    parts = []
    for mark in marks:
        parts.append(f'<path class="rule" d="M{across(mark):.1f} {top}V{bottom}"/>')
        parts.append(_text(across(mark), bottom + 16, number(mark), "middle"))
    parts.append(_text((left + right) / 2, bottom + 32, axis, "middle"))
    for index, row in enumerate(rows):
        y = top + step * (index + 0.5)
        low, middle, high = map(across, (row.low, row.middle, row.high))
        parts.append(_text(left - 8, y + 4, row.name, "end"))
        parts.append(f'<g class="line-{row.colour}"><path class="spread" d="M{low:.1f} {y}H{high:.1f}')
        parts.append(f'M{middle:.1f} {y - 7}v14"/>' if row.points else '"/>')
        dots, radius = (row.points, 3) if row.points else ([row.middle], 4)
        parts += [f'<circle cx="{across(value):.1f}" cy="{y}" r="{radius}"/>' for value in dots]
        parts.append("</g>")
        if row.note:
            parts.append(_text(right + 8, y + 4, row.note, "start"))
    label = "; ".join(f"{row.name} {row.note or number(row.middle)}" for row in rows)
    return _svg(f"{axis}: {label}", parts, (right + margins[1], bottom + 40))


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
