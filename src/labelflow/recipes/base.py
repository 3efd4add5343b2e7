"""What a named recipe carries beside its settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from labelflow.tasks import AnyRecipe
from labelflow.tasks.recipe import Kind, kind_of

R = TypeVar("R", bound=AnyRecipe)


@dataclass(frozen=True)
class Entry(Generic[R]):
    """A recipe, where it comes from, and the number that it aims at."""

    name: str
    recipe: R
    about: str  # what it is, in a few words
    parent: str = ""  # the recipe that it derives from
    source: str = ""  # where its settings come from
    paper: str = ""  # the row that it reproduces
    aim: float | Mapping[str, float] | None = None  # what the paper reports, in percent, by metric; a number alone is
    # that of the task: top-1, mIoU or box AP
    gpus: int = 8  # what the command is written for

    @property
    def kind(self) -> Kind:
        return kind_of(self.recipe)

    @property
    def numbers(self) -> dict[str, float]:
        """What the paper reports, in percent, by metric."""
        own = self.kind.unit.removeprefix("% ")
        return dict(self.aim) if isinstance(self.aim, Mapping) else {} if self.aim is None else {own: self.aim}

    @property
    def reported(self) -> str:
        """The same for people: 44.7 % mIoU, 46.5 % mIoU (MS)."""
        return ", ".join(f"{number:.1f} % {metric}" for metric, number in self.numbers.items())

    @property
    def command(self) -> str:
        data = self.recipe.data
        where = f" --data {WHERE[data.source]}" if data.source in WHERE else ""
        where += " --labels LABELS" if getattr(data, "labels", "") else ""
        where += " --teacher RUN" if getattr(self.recipe, "teacher", "") == TEACHER else ""
        if self.gpus == 1:
            return f"labelflow {self.kind.command} {self.name}{where}"
        launch = f"torchrun --nproc-per-node {self.gpus} -m labelflow"
        return f"{launch} {self.kind.command} {self.name}{where}"


IMAGENET = "data/imagenet"  # a folder with train/ and val/
FOLDER = "data/images"  # one's own
TABLE = "data/labels.csv"  # of one's own images, with several labels each
ADE20K = "data/ade20k"  # images/ and annotations/, each with training/ and validation/
COCO = "data/coco"  # annotations/, train2017/ and val2017/
WHERE = {
    IMAGENET: "/path/to/imagenet",
    ADE20K: "/path/to/ade20k",
    COCO: "/path/to/coco",
    FOLDER: "FOLDER",
    TABLE: "TABLE",
}
TEACHER = "runs/teacher"  # a run on the same classes
LABELS = "data/labels"  # what `labelflow annotate` made for it
