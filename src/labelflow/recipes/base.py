"""What a named recipe carries beside its settings."""

from dataclasses import dataclass

from labelflow.tasks import Recipe


@dataclass(frozen=True)
class Entry:
    """A recipe, where it comes from, and the number that it aims at."""

    name: str
    recipe: Recipe
    about: str  # what it is, in a few words
    parent: str = ""  # the recipe that it derives from
    source: str = ""  # where its settings come from
    paper: str = ""  # the row that it reproduces
    top1: float | None = None  # what the paper reports, in percent
    gpus: int = 8  # what the command is written for

    @property
    def command(self) -> str:
        data = self.recipe.data
        where = {IMAGENET: " --data /path/to/imagenet", FOLDER: " --data FOLDER"}.get(data.data, "")
        where += " --labels LABELS" if data.labels else ""
        if self.gpus == 1:
            return f"labelflow train {self.name}{where}"
        return f"torchrun --nproc-per-node {self.gpus} -m labelflow train {self.name}{where} --precision bf16"


IMAGENET = "data/imagenet"  # a folder with train/ and val/
FOLDER = "data/images"  # one's own
LABELS = "data/labels"  # what `labelflow annotate` made for it
