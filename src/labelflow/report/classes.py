"""Metrics by class: tables of all classes, or of the worst."""

from labelflow.engine import Details
from labelflow.engine.run import DETAILS, Run
from labelflow.html import table

MOST = 20  # classes of a classifier that a table shows
HEADINGS = {
    "iou": "IoU, %",
    "accuracy": "accuracy, %",
    "box_ap": "box AP, %",
    "mask_ap": "mask AP, %",
    "recall": "recall, %",
    "precision": "precision, %",
    "ap": "AP, %",
    "f1": "F1, %",
}


def worst(details: Details, most: int = MOST) -> Details:
    """The classes whose first metric is lowest, in that order; none of those where it is undefined.

    >>> worst({"cat": {"recall": 90.0}, "dog": {"recall": 20.0}, "fox": {"recall": None}})
    {'dog': {'recall': 20.0}, 'cat': {'recall': 90.0}}
    """
    first = {name: next(iter(own.values())) for name, own in details.items()}
    defined = {name: value for name, value in first.items() if value is not None}
    return {name: details[name] for name in sorted(defined, key=lambda name: defined[name])[:most]}


def rows(details: Details) -> tuple[list[str], list[list[str]]]:
    """The heads of a table, and a row for each class."""
    names = list(next(iter(details.values()), {}))
    return ["class", *names], [[name, *(shown(own[key]) for key in names)] for name, own in details.items()]


def shown(value: float | None) -> str:
    """A score of a class."""
    if value is None:
        return "–"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def section(run: Run, only_worst: bool = False) -> str:
    """The scores of each class at the last evaluation, or of the worst."""
    if not run.has(DETAILS):  # not evaluated yet
        return ""
    details: Details = run.read(DETAILS)
    listed = worst(details) if only_worst else details
    heads, lines = rows(listed)
    which = f"{len(listed)} of {len(details)} classes, the worst first." if only_worst else ""
    return f"""<section><h2>Classes</h2><p>At the last evaluation. {which}</p>
<figure class="wide">{table([HEADINGS.get(head, head) for head in heads], lines)}</figure></section>"""
