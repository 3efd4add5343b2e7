"""The page of a study: a table of its claims and verdicts, a forest plot, what it cost, what was not run."""

from collections.abc import Sequence
from statistics import mean, median, stdev

from labelflow.comparison.cells import Result, headline
from labelflow.html import Interval, dot_plot, standalone
from labelflow.html.chart import ticks
from labelflow.study.plan import Claim, Experiment, Plan
from labelflow.study.verdicts import LEVEL, Verdict

HEAD = (
    "claim",
    "what is claimed",
    "the paper's number",
    "margin",
    "here, 95 % interval",
    "p, corrected",
    "seeds",
    "verdict",
    "cells",
)
HOW_TO_READ = f"""\
Each claim stands for a sum of the cells' numbers (the last column), which is positive if the claim is true: points of
accuracy or mIoU, or differences of shares. *Here* is its mean over the seeds, with Student's 95 % interval, which is
about seeds alone: all of them are evaluated on the same images. *p* is that of the two-sided t-test; then the same,
corrected by Holm's method for all claims under the heading. The *margin* is the gain that the paper reports (of
several, one of them); where it has none, the plan's. The first that applies is the verdict:

| verdict | when |
| --- | --- |
| **holds** | the corrected p is at most {LEVEL}, and the mean is positive |
| **does not hold** | the interval (not corrected) lies below the margin: a gain as large as that is ruled out |
| **not decided** | neither: too few seeds, or they differ too much, to tell |

A margin with ≥ belongs to "at least as good", which means: worse by no more than the margin. Such a claim holds if, by
the same test, the mean is above minus the margin, and does not hold if the interval lies below 0. Claims that wait for
their seeds count as p = 1: until all are there, a corrected p may fall, and *not decided* become *holds*."""


def row(verdict: Verdict) -> list[str]:
    """A claim as text, in the order of HEAD. What only some of its seeds say is no result, and not shown."""
    claim, found = verdict.claim, verdict.difference
    p, word, seeds = "", "waiting for seeds", f"{len(verdict.values)} of {verdict.planned}"
    if found is not None and verdict.complete:
        p, word, seeds = f"{_p(verdict.p)}, {_p(verdict.corrected)}", f"**{verdict.word}**", f"{verdict.planned}"
        if verdict.word == "holds" and found.high < (0 if claim.at_least else claim.margin):
            word += ", though it is worse" if claim.at_least else ", by less than the margin"
    margin = f"≥ -{claim.margin:g}" if claim.at_least else f"{claim.margin:g}"
    return [
        f"`{claim.name}`",
        claim.says,
        source(claim),
        margin,
        interval(verdict),
        p,
        seeds,
        word,
        f"`{claim.contrast}`",
    ]


def source(claim: Claim) -> str:
    """What the paper reports, and where."""
    return f"{claim.reported} ({claim.source})" if claim.reported else claim.source


def interval(verdict: Verdict) -> str:
    """Empty until all planned seeds have been run."""
    found = verdict.difference if verdict.complete else None
    return f"{found.mean:+.3g} ({found.low:+.3g} to {found.high:+.3g})" if found else ""


def _p(value: float) -> str:
    return f"{value:.2g}" if value >= 0.001 else "< 0.001"


def markdown(plan: Plan, verdicts: Sequence[Verdict], results: Sequence[Result]) -> str:
    """Of all claims, a table for each heading; and of what was run."""
    parts = [HOW_TO_READ]
    for paper in dict.fromkeys(verdict.claim.paper for verdict in verdicts):
        lines = [HEAD, ["---"] * len(HEAD), *(row(one) for one in verdicts if one.claim.paper == paper)]
        parts.append(f"### {paper}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    lines = [("experiment", "cells", "accuracy, % ± standard deviation between seeds", "core-hours"), ["---"] * 4]
    for experiment in plan.experiments.values():
        mine = [one for one in results if one["method"].partition(".")[0] == experiment.name]
        planned = len(experiment.methods) * len(experiment.seeds)
        scores = accuracies(experiment, mine) if len(mine) == planned else ""
        lines.append((experiment.name, f"{len(mine)} of {planned}", scores, f"{core_hours(mine):.1f}"))
    parts.append("### What was run\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def accuracies(experiment: Experiment, results: Sequence[Result]) -> str:
    """Of each method over its seeds: cutmix 79.3 ± 2.9, tl_align 81.4 ± 3.0"""
    parts = []
    for method in experiment.found:
        all_metrics = [one["metrics"] for one in results if one["method"] == f"{experiment.name}.{method}"]
        values = [metrics[headline(metrics)] for metrics in all_metrics]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{method} {mean(values):.1f}{spread}")
    return ", ".join(parts)


def core_hours(results: Sequence[Result]) -> float:
    """Cells times the median CPU time of a cell: an interrupted one counts its last leg only."""
    times = [one["cpu_seconds"] for one in results if "cpu_seconds" in one]
    return len(results) * median(times) / 3600 if times else 0.0


def forest(verdicts: Sequence[Verdict]) -> str:
    """An <svg>: mean and interval of each complete claim in units of its margin, so that all share one axis."""
    rows = []
    for verdict in verdicts:
        gap, margin = verdict.difference, verdict.claim.margin
        if gap is not None and verdict.complete:
            colour = 1 if verdict.word == "holds" else 0
            low, middle, high = (value / margin for value in (gap.low, gap.mean, gap.high))
            note = verdict.word + (" (≥ -1)" if verdict.claim.at_least else "")
            rows.append(Interval(verdict.claim.name, low, middle, high, colour=colour, note=note))
    marks = ticks(max(-6.0, min([row.low for row in rows] + [-1.0])), min(6.0, max([row.high for row in rows] + [1.0])))
    axis = "difference ÷ margin; right of 0 is on the claim's side"
    return standalone(dot_plot(rows, axis, marks, margins=(250, 190), strong=(0.0, 1.0)))
