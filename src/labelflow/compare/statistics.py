"""The table of a comparison, and what its numbers allow to say."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import mean, stdev

from labelflow.compare.cells import Result, headline

# 97.5 % quantile of Student's t for 1, 2, 3 … degrees of freedom: a two-sided 95 % interval.
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Difference:
    """Of two methods, seed by seed: only what both have is compared."""

    mean: float
    low: float  # the 95 % confidence interval
    high: float
    seeds: int

    @property
    def verdict(self) -> str:
        """A win or a loss only if the interval leaves out 0."""
        if self.seeds < 2:
            return "one seed: no verdict"
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no difference shown"


@dataclass(frozen=True)
class Row:
    method: str
    accuracies: dict[int, float]  # of each seed, after the last epoch, in percent
    speed: float | None  # images/s relative to the first row
    memory: int  # bytes, the largest of its cells
    parameters: int  # of the model
    guide_parameters: int  # of models that run beside it in training
    seconds: float  # of training, all seeds together
    against_first: Difference | None  # None for the first row, or where no seed is shared

    @property
    def mean(self) -> float:
        return mean(self.accuracies.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds."""
        return stdev(self.accuracies.values()) if len(self.accuracies) > 1 else None


def compare(first: Mapping[int, float], other: Mapping[int, float], step: float = 0.0) -> Difference | None:
    """other - first over the seeds that both have, with Student's t for paired differences.

    step: what one more right answer adds to an accuracy. Differences do not spread less than that: if they are equal,
    that is rounding, not certainty.

    >>> compare({0: 70.0, 1: 71.0, 2: 70.5}, {0: 71.0, 1: 72.1, 2: 71.4}).verdict
    'better'
    >>> compare({0: 70.0, 1: 71.0, 2: 70.5}, {0: 72.0, 1: 70.1, 2: 71.4}).verdict
    'no difference shown'
    """
    differences = [other[seed] - first[seed] for seed in sorted(first.keys() & other.keys())]
    if not differences:
        return None
    middle, count = mean(differences), len(differences)
    if count == 1:
        return Difference(middle, float("-inf"), float("inf"), 1)
    free = count - 1  # degrees of freedom; beyond the table, the approximation is right to 0.001
    t = STUDENT[free - 1] if free <= len(STUDENT) else 1.96 / (1 - 1.2 / free)
    reach = t * max(stdev(differences), step) / sqrt(count)
    return Difference(middle, middle - reach, middle + reach, count)


def rows(results: Sequence[Result], speeds: Mapping[str, float], methods: Sequence[str]) -> list[Row]:
    """One for each method that has results; the first method is what the others are compared with."""
    accuracy = {
        method: {
            cell["seed"]: cell["metrics"][headline(cell["metrics"])] for cell in results if cell["method"] == method
        }
        for method in methods
    }
    table: list[Row] = []
    for method in methods:
        cells = [result for result in results if result["method"] == method]
        if not cells:
            continue
        step = 100 / cells[0]["val_samples"]
        table.append(
            Row(
                method,
                accuracy[method],
                speeds.get(method),
                max(cell["peak_memory"] for cell in cells),
                cells[0]["parameters"],
                cells[0]["guide_parameters"],
                sum(cell["seconds"] for cell in cells),
                compare(accuracy[methods[0]], accuracy[method], step) if method != methods[0] else None,
            )
        )
    return table
