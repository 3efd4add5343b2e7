"""The plan of a study, `plan.toml`: experiments, which are made of cells, and the claims that their numbers decide.

[experiments.world]                 # cells world.cutmix and world.tl_align, with the seeds 0 to 15
recipe = "quickstart_cutmix"
methods = ["cutmix", "tl_align"]
seeds = 16
settings = { epochs = 30 }          # of all its cells
only.tl_align = { lr = 0.002 }      # of one method's

[claims.tl_align]
paper = "TL-Align"
source = "Table 2"
says = "TL-Align beats CutMix"
reported = "+0.8"
contrast = "world.tl_align - world.cutmix"    # positive if the claim is true
margin = 0.8                        # if the gain is surely smaller than this, the claim does not hold
"""

import hashlib
import json
import re
import tomllib
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple

from labelflow.comparison import Cell, make_cells
from labelflow.recipes import find
from labelflow.recipes.methods import Method, find_method
from labelflow.spec import known
from labelflow.study.measures import MEASURES

EVALUATED = ("top1", "top5", "balanced", "map", "macro_f1", "micro_f1", "loss")  # also as ema_top1 and so on
TERM = re.compile(r"\s*([+-]?)\s*(\w+)\.(\w+)(?::(\w+))?\s*")


@dataclass(frozen=True)
class Experiment:
    """The same training under several methods and seeds."""

    name: str
    recipe: str
    methods: tuple[str, ...]  # as `labelflow compare` names them
    seeds: tuple[int, ...]
    settings: dict[str, Any] = field(default_factory=dict)
    only: dict[str, dict[str, Any]] = field(default_factory=dict)  # of single methods
    measures: tuple[str, ...] = ()  # names in MEASURES: what is computed of each trained model
    pilot: bool = False  # tunes or estimates; no claim may use it

    def __post_init__(self) -> None:
        for measure in self.measures:
            known(measure, MEASURES, "measure")
        for method in self.only:
            known(method, self.found, f"method in experiments.{self.name}.only")

    @property
    def found(self) -> dict[str, Method]:
        return {method.name: method for method in map(find_method, self.methods)}

    def digest(self, method: str) -> str:
        """Of what decides the numbers of one of its methods, whatever the seed."""
        text = next(text for text in self.methods if find_method(text).name == method)
        decides = [self.recipe, text, self.settings, self.only.get(method, {}), self.measures]
        return hashlib.blake2b(json.dumps(decides, sort_keys=True).encode(), digest_size=6).hexdigest()

    def cells(self) -> list[Cell]:
        """Seed by seed, so that all methods have as many when time runs out."""
        made: list[Cell] = []
        for name, method in self.found.items():
            recipe = find(self.recipe).recipe.change(**(self.settings | self.only.get(name, {})))
            made += make_cells(recipe, [method], self.seeds)
        made = [Cell(f"{self.name}.{cell.method}", cell.recipe, cell.data, cell.code) for cell in made]
        return sorted(made, key=lambda cell: self.seeds.index(cell.seed))


class Term(NamedTuple):
    sign: int
    experiment: str
    method: str
    metric: str  # of a cell's metrics


@dataclass(frozen=True)
class Claim:
    """What a paper says, and the sum of numbers that is positive if it is so."""

    name: str
    paper: str
    source: str  # the table or figure
    says: str
    reported: str  # the paper's number; empty: it has none
    contrast: str  # "world.tl_align - world.cutmix", or with another metric: "world.cutmix:rmse"
    margin: float  # in the unit of the metric; above 0
    at_least: bool = False  # the claim is "no worse by more than the margin"
    about: str = ""

    @property
    def terms(self) -> list[Term]:
        place = 0
        terms: list[Term] = []
        while place < len(self.contrast):
            match = TERM.match(self.contrast, place)
            if not match or (terms and not match[1]):
                raise ValueError(
                    f"claims.{self.name}: {self.contrast!r} is not of the form world.tl_align - world.cutmix"
                )
            terms.append(Term(-1 if match[1] == "-" else 1, match[2], match[3], match[4] or "top1"))
            place = match.end()
        return terms


@dataclass(frozen=True)
class Plan:
    folder: Path
    experiments: dict[str, Experiment]
    claims: dict[str, Claim]

    def seeds(self, claim: Claim) -> tuple[int, ...]:
        """Those that all of its experiments have."""
        lists = [self.experiments[term.experiment].seeds for term in claim.terms]
        return tuple(seed for seed in lists[0] if all(seed in seeds for seeds in lists))


def read_plan(folder: Path) -> Plan:
    """Of `folder/plan.toml`, checked as far as it can be without data."""
    path = folder / "plan.toml"
    if not path.exists():
        raise ValueError(f"{folder} is not a study: it has no plan.toml")
    try:
        text = tomllib.loads(path.read_text(encoding="utf-8"))
        experiments = {name: _experiment(name, values) for name, values in _table(text, "experiments").items()}
        claims = {name: _claim(name, values) for name, values in _table(text, "claims").items()}
        plan = Plan(folder, experiments, claims)
        for claim in claims.values():
            _check(claim, plan)
    except (tomllib.TOMLDecodeError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None
    return plan


def _table(text: dict[str, Any], name: str) -> dict[str, dict[str, Any]]:
    values = text.get(name, {})
    if not isinstance(values, dict) or not all(isinstance(one, dict) for one in values.values()):
        raise ValueError(f"{name} should be tables, such as [{name}.NAME]")
    return values


def _experiment(name: str, values: dict[str, Any]) -> Experiment:
    if not name.isidentifier():
        raise ValueError(f"experiments.{name}: a name is one word of letters, digits and _")
    where = f"experiments.{name}"
    for key in ("settings", "only"):
        if not isinstance(values.get(key, {}), dict):
            raise ValueError(f"{where}: {key} should be a table, not {values[key]!r}")
    for key in ("methods", "measures"):
        if not _all_are(values.get(key, []), str):
            raise ValueError(f"{where}: {key} should be a list of names, not {values[key]!r}")
    seeds = values.get("seeds", 0)
    if type(seeds) is int:
        seeds = list(range(seeds))
    if not _all_are(seeds, int) or len(set(seeds)) < len(seeds):
        raise ValueError(f"{where}: seeds should be their number, or a list of different numbers, not {seeds!r}")
    lists: dict[str, Any] = {key: tuple(values[key]) for key in ("methods", "measures") if key in values}
    settings = {key: tuple(v) if isinstance(v, list) else v for key, v in values.get("settings", {}).items()}
    made: dict[str, Any] = {**values, **lists, "name": name, "settings": settings, "seeds": tuple(seeds)}
    return Experiment(**_fields(Experiment, made, where))


def _all_are(values: Any, kind: type) -> bool:
    return isinstance(values, list) and all(type(value) is kind for value in values)


def _claim(name: str, values: dict[str, Any]) -> Claim:
    claim = Claim(**_fields(Claim, {**values, "name": name}, f"claims.{name}"))
    if type(claim.margin) not in (int, float) or not claim.margin > 0:
        raise ValueError(f"claims.{name}: margin should be a number above 0, not {claim.margin!r}")
    return claim


def _fields(kind: type[Any], values: dict[str, Any], where: str) -> dict[str, Any]:
    names = {one.name: one for one in fields(kind)}
    for name in values:
        known(name, names, f"setting of {where}")
    needed = [name for name, one in names.items() if one.default is MISSING and one.default_factory is MISSING]
    if missing := [name for name in needed if name not in values]:
        raise ValueError(f"{where} has no {', '.join(missing)}")
    return values


def _check(claim: Claim, plan: Plan) -> None:
    for term in claim.terms:
        experiment = plan.experiments[known(term.experiment, plan.experiments, "experiment")]
        known(term.method, experiment.found, f"method of {experiment.name}")
        if experiment.pilot:
            raise ValueError(f"claims.{claim.name} uses {experiment.name}, which is a pilot")
        measured = [metric for measure in experiment.measures for metric in MEASURES[measure].metrics]
        if term.metric.removeprefix("ema_") not in EVALUATED:
            known(term.metric, [*EVALUATED, *measured], f"metric of {experiment.name}")
    if not plan.seeds(claim):
        raise ValueError(f"claims.{claim.name}: its experiments share no seed")
