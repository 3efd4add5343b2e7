"""What the cells of a study decide of its claims.

A claim's contrast is computed for each seed. Its mean has Student's 95 % interval; the test that it differs from 0
(from minus the margin, for "at least as good") is corrected over the claims of a paper by Holm's method.

The first that applies:

- holds: the corrected test rejects, and the mean lies on the claim's side (of minus the margin);
- does not hold: the whole interval lies below the margin (below 0, for "at least as good");
- not decided: neither.

Nothing is decided before all planned seeds have been run: looking often would find something in the end.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import mean, stdev

from labelflow.comparison.cells import Result
from labelflow.comparison.statistics import Difference, difference, student_cdf
from labelflow.study.plan import Claim, Plan

LEVEL = 0.05


@dataclass(frozen=True)
class Verdict:
    claim: Claim
    values: dict[int, float]  # the contrast of each seed
    planned: int  # seeds
    difference: Difference | None  # None: no seed has been run
    p: float  # 1 where not all seeds have been run
    corrected: float  # p by Holm's method, over the claims of its paper

    @property
    def complete(self) -> bool:
        """Whether all planned seeds have been run."""
        return len(self.values) == self.planned

    @property
    def word(self) -> str:
        claim, found = self.claim, self.difference
        if found is None or not self.complete:
            return f"waiting for seeds: {len(self.values)} of {self.planned}"
        if self.corrected <= LEVEL and found.mean + claim.at_least * claim.margin > 0:
            return "holds"
        return "does not hold" if found.high < (0 if claim.at_least else claim.margin) else "not decided"


def decide(plan: Plan, results: Sequence[Result]) -> list[Verdict]:
    """All claims, in the order of the plan."""
    metrics = {(result["method"], result["seed"]): result["metrics"] for result in results}
    verdicts = []
    for claim in plan.claims.values():
        seeds = plan.seeds(claim)
        values = {seed: value for seed in seeds if (value := contrast(claim, metrics, seed)) is not None}
        p = p_value(values, claim) if len(values) == len(seeds) else 1.0
        verdicts.append(Verdict(claim, values, len(seeds), difference(list(values.values())), p, p))
    for paper in {claim.paper for claim in plan.claims.values()}:
        family = [place for place, verdict in enumerate(verdicts) if verdict.claim.paper == paper]
        for place, p in zip(family, holm([verdicts[place].p for place in family]), strict=True):
            verdicts[place] = replace(verdicts[place], corrected=p)
    return verdicts


def contrast(claim: Claim, metrics: Mapping[tuple[str, int], Mapping[str, float]], seed: int) -> float | None:
    """The sum of a claim's terms for a seed; None: a cell is missing."""
    total = 0.0
    for term in claim.terms:
        cell = metrics.get((f"{term.experiment}.{term.method}", seed))
        if cell is None:
            return None
        if term.metric not in cell:
            raise ValueError(f"claims.{claim.name}: the cells of {term.experiment} have no {term.metric}")
        total += term.sign * cell[term.metric]
    return total


def p_value(values: Mapping[int, float], claim: Claim) -> float:
    """Two-sided, of Student's test that the mean is 0 (minus the margin, for "at least as good")."""
    shifted = [value + claim.at_least * claim.margin for value in values.values()]
    if len(shifted) < 2 or not stdev(shifted):
        return 1.0
    t = mean(shifted) / (stdev(shifted) / sqrt(len(shifted)))
    return 2 * (1 - student_cdf(abs(t), len(shifted) - 1))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrected for their number (Holm, 1979).

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[place]))
        corrected[place] = largest
    return corrected
