"""What figures have in common: what was asked for, how they look, and how they are kept."""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from labelflow.analysis.images import evaluation_data
from labelflow.classifier import RANDOM, Classifier, load
from labelflow.data import Data
from labelflow.engine.run import whole_file

MANY = 512  # images that are still looked at without a word
DRAWN = 16  # of which so many are drawn, where each takes a row or a column
COLOURS = ["#0571b0", "#e08214", "#1b7837", "#762a83", "#8c510a", "#c51b7d", "#01665e", "#636363"]
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "text.parse_math": False,  # a $ in a name is a $
    "svg.hashsalt": "labelflow",  # the same figure is the same file
}


@dataclass(frozen=True)
class Asked:
    """What a figure is to show."""

    models: tuple[str | Classifier, ...] = ()  # folders of runs, or timm's models
    files: tuple[Path, ...] = ()  # images; none: evaluation images
    weights: str = ""  # as `labelflow.classifier.load` takes them; '': best of runs, pretrained of timm's models
    count: int = 0  # of images or pairs; 0: as many as the figure thinks right
    mixer: str = "cutmix(alpha=1.0, per_sample=True)"
    annotator: str = ""  # whose label maps Token Labeling uses: a run, or a model; '': the model's own
    data: str = ""  # other evaluation images than the run's own
    top: int = 1  # how many classes relevance is shown for
    method: Literal["lrp", "gradient", "rollout"] = "lrp"  # of relevance
    track: Callable[[list[Any], str], Iterable[Any]] = lambda work, what: work  # shows how far it is

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count, how many images or pairs, must be at least 0, not {self.count}")

    def load(self, most: int = 12) -> list[Classifier]:
        """The models that are asked about."""
        if not 1 <= len(self.models) <= most:
            wanted = "one run or model" if most == 1 else f"1 to {most} runs or models"
            raise ValueError(
                f"this figure wants {wanted}, not {len(self.models)}: give folders of runs, such as runs/quickstart, "
                "or models, such as deit_small_patch16_224"
            )
        return [one if isinstance(one, Classifier) else load(one, self.weights) for one in self.models]

    def evaluation_data(self, classifier: Classifier) -> Data:
        """What a classifier is shown where no files are given."""
        return evaluation_data(classifier, self.data)

    def images(self, usual: int, of_each: int = 1) -> tuple[int, tuple[Path, ...]]:
        """How many images (or, of two each, pairs) to look at, and the files that they are to come from."""
        files = self.files[: of_each * self.count] if self.count else self.files
        if len(files) > MANY:
            raise ValueError(f"{len(files)} images are too many for a figure: choose some, or say --count")
        return self.count or (len(files) // of_each if files else usual), files


class Drawing(Protocol):
    """A figure: a module in this folder. Its docstring's first line says what it shows."""

    @property
    def compute(self) -> Any:
        """Asked -> a dataclass of numbers, tensors and pictures."""

    @property
    def draw(self) -> Any:
        """That dataclass -> a matplotlib Figure"""

    @property
    def told(self) -> Any:
        """That dataclass -> what is worth a line in a terminal"""


def colour(place: int) -> str:
    """Of the model at that place."""
    return COLOURS[place % len(COLOURS)]


def new(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure of panels of that size each, in inches; its axes are an array (rows, columns)."""
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def picture(panel: Axes, image: Image.Image | Tensor, title: str = "", **options: Any) -> None:
    """An image in a panel without axes."""
    panel.imshow(image.numpy() if isinstance(image, Tensor) else image, interpolation="nearest", **options)
    panel.set_title(title, fontsize=8)
    panel.set_axis_off()


def short(name: str, most: int = 26) -> str:
    """A name that fits into a figure; that weights are random is said in a line of its own."""
    if name.endswith(RANDOM):
        return f"{short(name.removesuffix(RANDOM), most)}\n{RANDOM.strip()}"
    return name if len(name) <= most else f"{name[: most - 1]}…"


def save(figure: Figure, data: Any, out: Path) -> list[Path]:
    """OUT.png, OUT.svg, and the numbers in OUT.json; returns the three paths."""
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_name(f"{out.name}.{kind}") for kind in ("png", "svg", "json")]
    for path in paths[:2]:
        with styled(), whole_file(path) as draft, open(draft, "wb") as file:
            metadata = {"Date": None} if path.suffix == ".svg" else {}
            figure.savefig(file, format=path.suffix[1:], dpi=130, metadata=metadata)
    with whole_file(paths[2]) as draft:
        parts = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in as_json(data).items())
        draft.write_text("{\n" + ",\n".join(parts) + "\n}\n")
    return paths


def as_json(value: Any) -> Any:
    """Numbers and texts; pictures are left to the drawing."""
    if is_dataclass(value) and not isinstance(value, type):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: as_json(one) for name, one in named.items() if not _is_picture(one)}
    if isinstance(value, Tensor):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {str(name): as_json(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(one) for one in value]
    return round(value, 5) if isinstance(value, float) else value


def _is_picture(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, list | tuple) and value else value, Image.Image)


def styled() -> Any:
    """A context in which figures look as ours do."""
    return matplotlib.rc_context(STYLE)
