"""The table of a comparison, and what its numbers show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import atan, ceil, cos, pi, sin, sqrt
from statistics import mean, stdev

from labelflow.comparison.cells import Result, headline


@dataclass(frozen=True)
class Difference:
    """Of two methods, paired by seed, over the seeds that both have."""

    mean: float
    low: float  # the 95 % confidence interval
    high: float
    seeds: int

    @property
    def deviation(self) -> float:
        """The standard deviation of the differences, at least two."""
        return (self.high - self.mean) / half_width(self.seeds)

    @property
    def verdict(self) -> str:
        """better or worse only if the interval excludes 0."""
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
    balanced: float | None = None  # accuracy, mean over classes; None where they have as many images
    worst: float | None = None  # accuracy, mean over the worst fifth of the classes; None for older cells

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
    return difference([other[seed] - first[seed] for seed in sorted(first.keys() & other.keys())], step)


def difference(values: Sequence[float], step: float = 0.0) -> Difference | None:
    """The mean of paired differences, one for each seed, and Student's interval; None if there are none."""
    if not values:
        return None
    middle, count = mean(values), len(values)
    if count == 1:
        return Difference(middle, float("-inf"), float("inf"), 1)
    reach = half_width(count) * max(stdev(values), step)
    return Difference(middle, middle - reach, middle + reach, count)


def half_width(seeds: int) -> float:
    """Of Student's 95 % interval, in standard deviations.

    >>> [round(half_width(seeds), 2) for seeds in (2, 3, 5, 10)]
    [8.98, 2.48, 1.24, 0.72]
    """
    return student_quantile(0.975, seeds - 1) / sqrt(seeds)


def seeds_for(reach: float, deviation: float, most: int = 100) -> int | None:
    """How many seeds make the interval reach no further than that to either side; None: more than `most`."""
    return next((seeds for seeds in range(2, most + 1) if half_width(seeds) * deviation <= reach), None)


def student_cdf(t: float, freedom: int) -> float:
    """The probability of less than t under Student's distribution with so many degrees of freedom (Abramowitz and
    Stegun, 26.7.3 and 26.7.4: a finite sum for whole numbers)."""
    angle = atan(t / sqrt(freedom))
    odd = freedom % 2
    term, total = cos(angle) if odd else 1.0, 0.0
    for k in range(1, (freedom - odd) // 2 + 1):
        total += term
        term *= cos(angle) ** 2 * (2 * k - 1 + odd) / (2 * k + odd)
    within = 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total  # P(-t < T < t), with t's sign
    return 0.5 + within / 2


def student_quantile(probability: float, freedom: int) -> float:
    """Where `student_cdf` is that probability, which is at least 0.5.

    >>> round(student_quantile(0.975, 3), 3)
    3.182
    """
    low, high = 0.0, 1.0
    while student_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if student_cdf(middle, freedom) < probability else (low, middle)
    return high


def worst_fifth(recalls: Sequence[float]) -> float:
    """The mean over the fifth of the classes that are recognised worst, at least one.

    >>> worst_fifth([80.0, 10.0, 90.0, 20.0, 70.0, 95.0])
    15.0
    """
    return mean(sorted(recalls)[: ceil(len(recalls) / 5)])


def _balanced(cell: Result) -> str:
    return headline(cell["metrics"]).replace("top1", "balanced")


def _mean(values: Sequence[float]) -> float | None:
    return mean(values) if values else None


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
                _mean([cell["metrics"][name] for cell in cells if (name := _balanced(cell)) in cell["metrics"]]),
                _mean([worst_fifth(cell["recalls"]) for cell in cells if cell.get("recalls")]),
            )
        )
    return table
