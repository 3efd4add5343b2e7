"""What a comparison looks like: a Markdown table, a plot, and `compare.html`, one file that needs nothing else."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from labelflow.analysis.curves import number, ticks
from labelflow.analysis.html import document
from labelflow.compare.statistics import Row
from labelflow.engine.run import whole_file

HEAD = ("method", "top-1, %", "difference to the first, 95 % interval", "verdict", "images/s", "memory", "parameters")

NOTE = (
    "Top-1 accuracy after the last epoch, mean ± standard deviation over seeds (how many). The difference is paired, "
    "seed by seed, with Student's 95 % confidence interval, not corrected for the number of methods; a method is "
    "better or worse only if the interval leaves out 0. images/s is relative to the first row, all methods in turn in "
    "one run. Memory is the largest of a training process; parameters are the model's, and those of a model beside it "
    "in training."
)


def cells_of(row: Row) -> list[str]:
    """A row as text, in the order of HEAD."""
    spread = "" if row.spread is None else f" ± {row.spread:.1f}"
    difference, verdict = "", ""
    if row.against_first is not None:
        gap = row.against_first
        verdict = gap.verdict
        difference = f"{gap.mean:+.1f}" + (f" ({gap.low:+.1f} to {gap.high:+.1f})" if gap.seeds > 1 else "")
    beside = f" + {row.guide_parameters / 1e6:.1f} M" if row.guide_parameters else ""
    return [
        row.method,
        f"{row.mean:.1f}{spread} ({len(row.accuracies)})",
        difference,
        verdict,
        "" if row.speed is None else f"{row.speed:.2f}",
        f"{row.memory / 2**20:.0f} MB" if row.memory else "",
        f"{row.parameters / 1e6:.2f} M{beside}",
    ]


def markdown(rows: Sequence[Row]) -> str:
    lines = [HEAD, ["---"] * len(HEAD), *map(cells_of, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def plot(rows: Sequence[Row]) -> str:
    """An <svg>: a line for each method, a dot for each seed, a bar for mean ± standard deviation."""
    left, right, step, top = 150, 560, 24, 14
    values = [value for row in rows for value in row.accuracies.values()]
    reach = [row.mean + sign * (row.spread or 0) for row in rows for sign in (-1, 1)]
    marks = ticks(min(values + reach), max(values + reach))
    bottom = top + step * len(rows)

    def across(value: float) -> float:
        return left + (value - marks[0]) / (marks[-1] - marks[0]) * (right - left)

    parts = []
    for mark in marks:
        x = across(mark)
        parts.append(f'<path class="rule" d="M{x:.1f} {top}V{bottom}"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle">{number(mark)}</text>')
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 32}" text-anchor="middle">top-1 accuracy, %</text>')
    for place, row in enumerate(rows):
        y, spread = top + step * (place + 0.5), row.spread or 0
        low, middle, high = (across(row.mean + shift) for shift in (-spread, 0, spread))
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(row.method)}</text>')
        parts.append(f'<g class="line-{int(place > 0)}">')
        parts.append(f'<path class="spread" d="M{low:.1f} {y}H{high:.1f}M{middle:.1f} {y - 7}v14"/>')
        parts += [f'<circle cx="{across(value):.1f}" cy="{y}" r="3"/>' for value in row.accuracies.values()]
        parts.append("</g>")
    told = "; ".join(f"{row.method} {row.mean:.1f}" for row in rows)
    size = f'viewBox="0 0 {right + 20} {bottom + 40}"'
    return f'<svg {size} role="img" aria-label="Top-1 accuracy, %: {escape(told)}">{"".join(parts)}</svg>'


STYLE = """
.wide { overflow-x: auto; padding: .75rem; } .wide table { border-collapse: collapse; }
.wide th, .wide td { padding: .25rem .9rem .25rem 0; text-align: left; white-space: nowrap; }
.wide thead th { white-space: normal; vertical-align: bottom; }
.spread { stroke: currentColor; stroke-width: 2; opacity: .55; } .plot { max-width: 46rem; padding: .75rem; }
"""
STANDALONE = """<style>text { fill: #5d646d; font: 11px system-ui, sans-serif; } circle { fill: currentColor; }
.rule { stroke: #e3e5e8; } .spread { stroke: currentColor; stroke-width: 2; opacity: .55; }
.line-0 { color: #0b7f86; } .line-1 { color: #c2570c; }</style>"""


def write_svg(path: Path, rows: Sequence[Row]) -> None:
    """The plot as a file of its own."""
    drawing = plot(rows).replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1)
    with whole_file(path) as draft:
        draft.write_text(drawing.replace(">", f">{STANDALONE}", 1), encoding="utf-8")


def write_page(path: Path, title: str, facts: Sequence[str], rows: Sequence[Row]) -> None:
    """facts: what was run, a line each."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEAD)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(text)}</td>" for text in rest)}</tr>'
        for first, *rest in map(cells_of, rows)
    )
    page = f"""<header><h1>{escape(title)}</h1>{"".join(f"<p>{escape(fact)}</p>" for fact in facts)}</header>
<main>
<section><figure class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></figure>
<p>{escape(NOTE)}</p></section>
<section><h2>Seeds and spread</h2><figure class="plot">{plot(rows)}</figure></section>
</main>"""
    with whole_file(path) as draft:
        draft.write_text(document(title, page, STYLE), encoding="utf-8")
