"""The results of a comparison: a Markdown table, a plot, and the page `compare.html`."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from labelflow.comparison.statistics import Row, half_width, seeds_for
from labelflow.html import Interval, document, dot_plot, save, standalone, table
from labelflow.html.chart import ticks

OPTIONAL = ("balanced, %", "worst fifth, %")  # columns that are left out where there is nothing in them
HEAD = (
    "method",
    "top-1, %",
    *OPTIONAL,
    "difference to the first, 95 % interval",
    "verdict",
    "images/s",
    "memory",
    "parameters",
)

NOTE = (
    "Top-1 accuracy after the last epoch, mean ± standard deviation over seeds (how many). balanced is the mean over "
    "classes, shown where they differ in size; worst fifth is that over the fifth of the classes with the lowest "
    "accuracy. The difference is paired, seed by seed, with Student's 95 % confidence interval, not corrected for the "
    "number of methods; a method is better or worse only if the interval excludes 0. images/s is relative to the first "
    "row, all methods in turn in one run. Memory is the largest of a training process; parameters are the model's, and "
    "those of a model beside it in training."
)

MANY = 5  # seeds, from which on intervals are about as wide as their spread


def notes(rows: Sequence[Row]) -> list[str]:
    """What the table's numbers are, and why intervals are wide where they are."""
    gaps = [row.against_first for row in rows if row.against_first is not None]
    fewest = min((gap.seeds for gap in gaps), default=MANY)
    if fewest >= MANY:
        return [NOTE]
    if fewest == 1:
        return [NOTE, "One seed has no interval, so nothing can be said of its difference: --seeds 0 1 2 3 4."]
    deviation = max(gap.deviation for gap in gaps)
    needed = seeds_for(1.0, deviation)
    return [
        NOTE,
        f"The intervals are wide because {fewest} seeds say little about the spread between seeds: they reach "
        f"{half_width(fewest):.1f} standard deviations of the differences to either side, and with {MANY} seeds "
        f"{half_width(MANY):.1f}. The largest standard deviation here is {deviation:.1f} points (what one evaluation "
        f"image adds, at least); to show a difference of 1 point would take "
        f"{f'about {needed}' if needed else 'more than 100'} seeds.",
    ]


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
        *("" if value is None else f"{value:.1f}" for value in (row.balanced, row.worst)),
        difference,
        verdict,
        "" if row.speed is None else f"{row.speed:.2f}",
        f"{row.memory / 2**20:.0f} MB" if row.memory else "",
        f"{row.parameters / 1e6:.2f} M{beside}",
    ]


def columns_of(rows: Sequence[Row]) -> tuple[list[str], list[list[str]]]:
    """The heads and the rows of a table."""
    lines = list(map(cells_of, rows))
    kept = [place for place, head in enumerate(HEAD) if head not in OPTIONAL or any(line[place] for line in lines)]
    return [HEAD[place] for place in kept], [[line[place] for place in kept] for line in lines]


def markdown(rows: Sequence[Row]) -> str:
    head, texts = columns_of(rows)
    lines = [head, ["---"] * len(head), *texts]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def plot(rows: Sequence[Row]) -> str:
    """An <svg>: a dot for each seed, a bar for mean ± standard deviation."""
    intervals = [
        Interval(
            row.method,
            row.mean - (row.spread or 0),
            row.mean,
            row.mean + (row.spread or 0),
            tuple(row.accuracies.values()),
            colour=0 if row is rows[0] else 1,
        )
        for row in rows
    ]
    values = [value for row in intervals for value in (row.low, row.high, *row.points)]
    return dot_plot(intervals, "top-1 accuracy, %", ticks(min(values), max(values)))


def write_svg(path: Path, rows: Sequence[Row]) -> None:
    """The plot as a file of its own."""
    save(path, standalone(plot(rows)))


def write_page(path: Path, title: str, facts: Sequence[str], rows: Sequence[Row]) -> None:
    """facts: what was run, a line each."""
    page = f"""<header><h1>{escape(title)}</h1>{"".join(f"<p>{escape(fact)}</p>" for fact in facts)}</header>
<main>
<section><figure class="wide">{table(*columns_of(rows))}</figure>
{"".join(f"<p>{escape(note)}</p>" for note in notes(rows))}</section>
<section><h2>Seeds and spread</h2><figure class="plot">{plot(rows)}</figure></section>
</main>"""
    save(path, document(title, page))
