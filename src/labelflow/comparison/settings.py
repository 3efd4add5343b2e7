"""The settings of `labelflow compare`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional

from labelflow.arguments import flag
from labelflow.recipes.methods import METHODS, find_method
from labelflow.tasks.recipe import Recipe


@dataclass(frozen=True)
class Compare:
    """Train the same model on the same data under several methods and seeds."""

    methods: Positional[tuple[str, ...]]
    """Methods to compare, the baseline first: names, or NAME=MIXER/TARGET."""
    recipe: Annotated[Recipe, OmitArgPrefixes]
    out: Path
    """The folder of the comparison."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Each method is trained once with each seed, instead of --seed."""
    jobs: int = 1
    """Cells to train in parallel, each with its share of the cores."""
    speed_rounds: int = 5
    """Updates of each method, in turn, to measure images/s; 0: do not measure."""
    any_code: bool = False
    """Reuse cells trained by another version of the code."""
    table_only: bool = False
    """Do not train: show the table of finished cells."""
    join: bool = False
    """Work on a comparison beside other processes that do, for example one on each GPU: train cells that no other is
    training."""

    def __post_init__(self) -> None:
        for name, least in (("jobs", 1), ("speed_rounds", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")
        if len(set(self.seeds)) != len(self.seeds) or not self.seeds:
            raise ValueError(f"--seeds must be at least one integer, without repetitions, not {self.seeds}")
        if self.recipe.training.seed:
            raise ValueError(f"--seed {self.recipe.training.seed} would not be used; --seeds says which are trained")
        methods = [find_method(text) for text in self.methods]
        names = [method.name for method in methods]
        if len(names) < 2:
            raise ValueError(f"name at least two methods, the baseline first; there are {', '.join(METHODS)}")
        if len(set(names)) != len(names):
            raise ValueError(f"methods must not repeat: {' '.join(names)}")
        dense = [method.name for method in methods if method.dense]
        if dense and not (self.recipe.data.labels or self.recipe.teacher):
            need = f"{', '.join(dense)} need dense labels"
            raise ValueError(f"{need}: make them with labelflow annotate, and pass --labels (or a --teacher)")
        taught = [method.name for method in methods if method.taught]
        if taught and not self.recipe.teacher:
            raise ValueError(f"{', '.join(taught)} need a teacher: pass --teacher, the folder of a run or a timm model")
