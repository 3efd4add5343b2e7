"""Line charts as SVG: no script and no library. A chart takes its colours from the page that it stands in."""

import math
from collections.abc import Mapping, Sequence
from html import escape

Point = tuple[float, float]

WIDTH, HEIGHT = 360, 210
LEFT, RIGHT, TOP, BOTTOM = 48, 350, 30, 178  # the edges of the plot, in the chart
MOST_POINTS = 400  # of a line; more could not be told apart
LETTER = 6.1  # roughly how wide one is


def line_chart(
    title: str,
    lines: Mapping[str, Sequence[Point]],
    from_zero: bool = False,
    across: str = "epoch",
    legend: bool = True,
    reach: float | None = None,
    reference: Sequence[Point] = (),
) -> str:
    """An <svg> of lines over epochs, or what is `across`, each with its name and its last value. Line i has the class
    `line-i`.

    Points that are not finite are left out, and so are lines without any. legend: False where the page has one. reach:
    how high the chart is at least. reference: a line to compare with, of the class `reference`.

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
            + f'<circle cx="{start + 4:.1f}" cy="10" r="4"/>' * legend
            + "</g>"
        )
        if legend:
            told = f"{name} {number(points[-1][1])}"
            parts.append(_text(start + 12, 14, told, "start"))
            start += 28 + LETTER * len(told)
    ends = ", ".join(f"{name} ends at {number(points[-1][1])}" for name, points in drawn.items())
    return _svg(f"{title}, {across} up to {number(last)}: {ends}", parts)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers in equal steps, from `low` or just below to `high` or just above.

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
    """About MOST_POINTS at most: neighbours are averaged, and the last point stays as it is."""
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points) - 1, size)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [*means, points[-1]]


def number(value: float) -> str:
    """Four digits, without those that say nothing."""
    return f"{value:.4g}".replace("e-0", "e-") if abs(value) < 1000 else f"{value:.0f}"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _svg(label: str, parts: list[str]) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label)}">{"".join(parts)}</svg>'
