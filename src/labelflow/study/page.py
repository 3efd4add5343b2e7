"""The page of a study: a table of its claims and verdicts, a forest plot, what it cost, what was not run."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from statistics import median

from labelflow.analysis.curves import number, ticks
from labelflow.compare.cells import Result
from labelflow.compare.page import STANDALONE
from labelflow.engine.run import whole_file
from labelflow.study.plan import Experiment, Plan
from labelflow.study.verdicts import Verdict

HEAD = ("claim", "the paper", "here, 95 % interval", "seeds", "p, corrected", "verdict", "cells")


def row(verdict: Verdict) -> list[str]:
    """A claim as text, in the order of HEAD."""
    claim, found = verdict.claim, verdict.difference
    here = "" if found is None else f"{found.mean:+.3g}"
    if found is not None and found.seeds > 1:
        here += f" ({found.low:+.3g} to {found.high:+.3g})"
    done = found is not None and len(verdict.values) == verdict.planned
    p = f"{verdict.p:.2g}" if done else ""
    seeds = f"{len(verdict.values)} of {verdict.planned}" if not done else f"{verdict.planned}"
    reported = f"{claim.reported} ({claim.source})"
    return [claim.says, reported, here, seeds, p, f"**{verdict.word}**" if done else "not decided yet", claim.contrast]


def markdown(plan: Plan, verdicts: Sequence[Verdict], results: Sequence[Result]) -> str:
    """Of all claims, a table for each paper; and of what was run."""
    parts = []
    for paper in dict.fromkeys(verdict.claim.paper for verdict in verdicts):
        lines = [HEAD, ["---"] * len(HEAD), *(row(one) for one in verdicts if one.claim.paper == paper)]
        parts.append(f"### {paper}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    lines = [("experiment", "cells", "core-hours"), ["---"] * 3]
    for experiment in plan.experiments.values():
        mine = [one for one in results if one["method"].partition(".")[0] == experiment.name]
        planned = len(experiment.methods) * len(experiment.seeds)
        lines.append((experiment.name, f"{len(mine)} of {planned}", f"{core_hours(experiment, mine):.1f}"))
    parts.append("### What was run\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines))
    return "\n\n".join(parts) + "\n"


def core_hours(experiment: Experiment, results: Sequence[Result]) -> float:
    """Cells times the median CPU time of a cell: an interrupted one counts its last leg only."""
    times = [one["cpu_seconds"] for one in results if one["method"].partition(".")[0] == experiment.name]
    return len(times) * median(times) / 3600 if times else 0.0


def forest(verdicts: Sequence[Verdict]) -> str:
    """An <svg>: each claim's mean and interval in units of its margin, so that all share one axis."""
    shown = [one for one in verdicts if one.difference is not None and one.difference.seeds > 1]
    left, right, step, top = 250, 640, 26, 14
    bottom = top + step * len(shown)
    ends = [end / one.claim.margin for one in shown for end in (one.difference.low, one.difference.high)]  # type: ignore[union-attr]
    marks = ticks(max(-6.0, min([*ends, -1.0])), min(6.0, max([*ends, 1.0])))

    def across(value: float) -> float:
        part = (value - marks[0]) / (marks[-1] - marks[0])
        return left + min(1.0, max(0.0, part)) * (right - left)

    parts = []
    for mark in marks:
        parts.append(f'<path class="rule" d="M{across(mark):.1f} {top}V{bottom}"/>')
        parts.append(f'<text x="{across(mark):.1f}" y="{bottom + 16}" text-anchor="middle">{number(mark)}</text>')
    parts.append(f'<path class="rule" stroke-width="2" d="M{across(0):.1f} {top}V{bottom}"/>')
    about = "difference, in units of the margin (the gain that the paper reports); right of 0: for the claim"
    parts.append(f'<text x="{(left + right) / 2}" y="{bottom + 34}" text-anchor="middle">{about}</text>')
    for place, one in enumerate(shown):
        found, y = one.difference, top + step * (place + 0.5)
        assert found is not None
        low, middle, high = (across(value / one.claim.margin) for value in (found.low, found.mean, found.high))
        parts.append(f'<text x="{left - 8}" y="{y + 4}" text-anchor="end">{escape(one.claim.name)}</text>')
        parts.append(f'<g class="line-{int(one.word == "holds")}"><path class="spread" d="M{low:.1f} {y}H{high:.1f}"/>')
        parts.append(f'<circle cx="{middle:.1f}" cy="{y}" r="4"/></g>')
        parts.append(f'<text x="{right + 8}" y="{y + 4}">{escape(one.word)}</text>')
    told = "; ".join(f"{one.claim.name}: {one.word}" for one in shown)
    size = f'viewBox="0 0 {right + 130} {bottom + 42}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(told)}">{STANDALONE}'
        f"{''.join(parts)}</svg>"
    )


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
