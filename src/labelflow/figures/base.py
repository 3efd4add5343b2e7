"""What figures have in common: the request, their style, and how they are saved."""

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
from labelflow.files import atomic_write

MAX_IMAGES = 512  # of files, unless --count chooses some of them
MAX_DRAWN = 16  # images that are drawn, where each takes a row or a column
PAGE = 8.0  # inches: a figure as wide as a page's text, so that its own is about as large
DPI = 110  # of PNGs
SAVING: Any = {".png": {}, ".svg": {"metadata": {"Date": None}}, ".webp": {"pil_kwargs": {"quality": 85, "method": 6}}}
COLOURS = ["#0571b0", "#e08214", "#1b7837", "#762a83", "#8c510a", "#c51b7d", "#01665e", "#636363"]
LINES = ["-", "--", ":", "-."]
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": "medium",
    "legend.fontsize": "medium",
    "figure.titlesize": "medium",
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
class FigureRequest:
    """What a figure should show."""

    models: tuple[str | Classifier, ...] = ()  # folders of runs, or timm's models
    files: tuple[Path, ...] = ()  # images; none: evaluation images
    weights: str = ""  # as `labelflow.classifier.load` takes them; '': best of runs, pretrained of timm's models
    count: int = 0  # of images or pairs; 0: the figure's default
    mixer: str = "cutmix(alpha=1.0, per='sample')"
    annotator: str = ""  # the run or model whose label maps Token Labeling uses; '': the model itself
    data: str = ""  # other evaluation images than the run's own
    top: int = 1  # classes to show relevance for
    method: Literal["lrp", "gradient", "rollout"] = "lrp"  # how relevance is computed
    track: Callable[[list[Any], str], Iterable[Any]] = lambda work, description: work  # shows progress

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f"count must be ≥ 0, not {self.count}")

    def load(self, limit: int = 12) -> list[Classifier]:
        """The models to show."""
        if not 1 <= len(self.models) <= limit:
            wanted = "one run or model" if limit == 1 else f"1 to {limit} runs or models"
            raise ValueError(
                f"this figure needs {wanted}, not {len(self.models)}: name run folders, such as runs/quickstart, or "
                "timm models, such as deit_small_patch16_224"
            )
        return [model if isinstance(model, Classifier) else load(model, self.weights) for model in self.models]

    def evaluation_data(self, classifier: Classifier) -> Data:
        """The evaluation images of a classifier, used where no files are given."""
        return evaluation_data(classifier, self.data)

    def images(self, default: int, of_each: int = 1) -> tuple[int, tuple[Path, ...]]:
        """How many images (or pairs, with of_each=2) to use, and the files to read them from."""
        files = self.files[: of_each * self.count] if self.count else self.files
        if len(files) > MAX_IMAGES:
            raise ValueError(f"{len(files)} images are too many for a figure (at most {MAX_IMAGES}); set --count")
        return self.count or (len(files) // of_each if files else default), files


class Drawing(Protocol):
    """A figure: a module in this folder. The first line of its docstring describes it."""

    @property
    def compute(self) -> Any:
        """FigureRequest -> a dataclass of numbers, tensors and images."""

    @property
    def draw(self) -> Any:
        """That dataclass -> a matplotlib Figure"""

    @property
    def summary(self) -> Any:
        """That dataclass -> a few lines for the terminal"""


def colour(place: int) -> str:
    """The colour of the model at that index."""
    return COLOURS[place % len(COLOURS)]


def look(place: int) -> dict[str, str]:
    """How the line of the model at that index looks: the first 32 differ in colour or dashes."""
    return {"color": colour(place), "ls": LINES[place // len(COLOURS) % len(LINES)]}


def new(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Figure, Any]:
    """A figure with panels of that size, in inches, and its axes as an array (rows, columns)."""
    figure = Figure(figsize=(columns * width, rows * height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def picture(panel: Axes, image: Image.Image | Tensor, title: str = "", **options: Any) -> None:
    """An image in a panel without axes."""
    panel.imshow(image.numpy() if isinstance(image, Tensor) else image, interpolation="nearest", **options)
    panel.set_title(title)
    panel.set_axis_off()


def shorten(name: str, limit: int = 26) -> str:
    """A name that fits into a figure; "random weights" goes on a line of its own."""
    if name.endswith(RANDOM):
        return f"{shorten(name.removesuffix(RANDOM), limit)}\n{RANDOM.strip()}"
    return name if len(name) <= limit else f"{name[: limit - 1]}…"


def save(figure: Figure, data: Any, out: Path, kind: str = "png", moving: str = "") -> list[Path]:
    """OUT.png (or OUT.webp), OUT.svg (of what moves: as it moves), and the numbers in OUT.json."""
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_name(f"{out.name}.{ending}") for ending in (kind, "svg", "json")]
    for path in paths[:2]:
        with styled(), atomic_write(path) as draft, open(draft, "wb") as file:
            if path.suffix == ".svg" and moving:
                file.write(moving.encode())
                continue
            figure.savefig(file, format=path.suffix[1:], dpi=DPI, **SAVING[path.suffix])
    with atomic_write(paths[2]) as draft:
        parts = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in as_json(data).items())
        draft.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")
    return paths


def as_json(value: Any) -> Any:
    """Numbers and text; images are only drawn."""
    if is_dataclass(value) and not isinstance(value, type):
        members = {field.name: getattr(value, field.name) for field in fields(value)}
        return {name: as_json(member) for name, member in members.items() if not _is_image(member)}
    if isinstance(value, Tensor):
        return as_json(value.tolist())
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def _is_image(value: Any) -> bool:
    return isinstance(value[0] if isinstance(value, list | tuple) and value else value, Image.Image)


def styled() -> Any:
    """A context with labelflow's matplotlib style."""
    return matplotlib.rc_context(STYLE)
