"""The page of a study: a table of its claims and verdicts, a forest plot, what it cost, what was not run."""

from collections.abc import Sequence
from statistics import mean, median, stdev

from labelflow.comparison.cells import Result
from labelflow.html import Interval, dot_plot, standalone
from labelflow.html.chart import ticks
from labelflow.study.plan import Experiment, Plan
from labelflow.study.verdicts import Verdict

HEAD = ("claim", "", "the paper", "here, 95 % interval", "seeds", "p, corrected", "verdict", "cells")


def row(verdict: Verdict) -> list[str]:
    """A claim as text, in the order of HEAD. What only some of its seeds say is no result, and not shown."""
    claim, found = verdict.claim, verdict.difference
    here, p, word, seeds = "", "", "not decided yet", f"{len(verdict.values)} of {verdict.planned}"
    if found is not None and verdict.complete:
        here, p = f"{found.mean:+.3g} ({found.low:+.3g} to {found.high:+.3g})", f"{verdict.p:.2g}"
        word, seeds = f"**{verdict.word}**", f"{verdict.planned}"
    paper = f"{claim.reported} ({claim.source})" if claim.reported else claim.source
    return [f"`{claim.name}`", claim.says, paper, here, seeds, p, word, f"`{claim.contrast}`"]


def markdown(plan: Plan, verdicts: Sequence[Verdict], results: Sequence[Result]) -> str:
    """Of all claims, a table for each paper; and of what was run."""
    parts = []
    for paper in dict.fromkeys(verdict.claim.paper for verdict in verdicts):
        lines = [HEAD, ["---"] * len(HEAD), *(row(one) for one in verdicts if one.claim.paper == paper)]
        parts.append(f"### {paper}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    lines = [("experiment", "cells", "top-1, ± standard deviation between seeds", "core-hours"), ["---"] * 4]
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
        values = [one["metrics"]["top1"] for one in results if one["method"] == f"{experiment.name}.{method}"]
        spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
        parts.append(f"{method} {mean(values):.1f}{spread}")
    return ", ".join(parts)


def core_hours(results: Sequence[Result]) -> float:
    """Cells times the median CPU time of a cell: an interrupted one counts its last leg only."""
    times = [one["cpu_seconds"] for one in results]
    return len(times) * median(times) / 3600 if times else 0.0


def forest(verdicts: Sequence[Verdict]) -> str:
    """An <svg>: mean and interval of each complete claim in units of its margin, so that all share one axis."""
    rows = []
    for verdict in verdicts:
        gap, margin = verdict.difference, verdict.claim.margin
        if gap is not None and verdict.complete:
            colour = 1 if verdict.word == "holds" else 0
            low, middle, high = (value / margin for value in (gap.low, gap.mean, gap.high))
            rows.append(Interval(verdict.claim.name, low, middle, high, colour=colour, note=verdict.word))
    marks = ticks(max(-6.0, min([row.low for row in rows] + [-1.0])), min(6.0, max([row.high for row in rows] + [1.0])))
    axis = "difference, in units of the margin (the gain that the paper reports); right of 0: for the claim"
    return standalone(dot_plot(rows, axis, marks, margins=(250, 170)))
