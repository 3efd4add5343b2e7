"""Recipes: everything that decides what a run computes, one dataclass for each kind of task. Neither torch nor timm is
imported here, so that a recipe can be listed, shown and changed at once."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple, Self

from tyro.conf import arg

from labelflow.data.settings import IMAGENET_MEAN, IMAGENET_STD, Data
from labelflow.engine.run import Run
from labelflow.engine.settings import Training
from labelflow.lazy import deferred
from labelflow.mixers import MIXERS
from labelflow.settings import change, from_json
from labelflow.spec import parse
from labelflow.targets import TARGETS
from labelflow.tasks.detect.settings import DetectData, Sizes
from labelflow.tasks.segment.settings import Inference, SegmentData

SEVERAL = "0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)"


class BaseRecipe:
    """A dataclass, some of whose fields are dataclasses of settings themselves."""

    def change(self, **settings: Any) -> Self:
        """Another recipe with these settings, of its own or of its parts: `recipe.change(epochs=40, erasing=0)`."""
        return change(self, **settings)


@dataclass(frozen=True)
class Recipe(BaseRecipe):
    """Everything that decides what a run computes."""

    model: str = "deit_small_patch16_224"
    """A timm model, with arguments where wanted: 'vit_tiny_patch16_224(patch_size=8, depth=6)'."""
    init: str = ""
    """Weights to start from: '' for random ones, 'pretrained' for timm's, a checkpoint file, or the folder of a run."""
    drop_path: float = 0.1
    """Stochastic depth: the rate at which blocks are left out."""
    drop_path_schedule: Literal["linear", "constant"] = "linear"
    """linear: stochastic depth grows from 0 in the first block to drop_path in the last; constant: the same in all."""
    mixer: Annotated[str, arg(help=f"How images are mixed: {', '.join(MIXERS)}; or several, such as {SEVERAL!r}.")] = (
        "cutmix(alpha=1.0)"
    )
    """How images are mixed, such as '0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)', or none."""
    mix_off_epoch: int = 0
    """The first epoch whose images are not mixed any more, counted from 0; 0: they are mixed to the end."""
    target: Annotated[str, arg(help=f"What it is trained on: {', '.join(TARGETS)}.")] = "tl_align"
    """What it is trained on, such as plain or tl_align; some targets need --labels or --teacher."""
    loss: str = "ce"
    """The loss: ce (cross-entropy), bce (binary, each class on its own; bce(threshold=0) is DeiT III's) or asl
    (asymmetric, for several labels an image)."""
    smoothing: float = 0.1
    """Label smoothing."""
    teacher: str = ""
    """A trained classifier that runs beside, for --target distill and stl, or, without --labels, for targets that need
    dense labels: the folder of a run, or a timm model, such as 'tf_efficientnet_lite0=packaged'."""
    teacher_size: int = 0
    """Side of the images that the teacher sees, in pixels; 0: what its weights were tested with."""
    teacher_top: int = 5
    """How many classes are kept for each place where the teacher makes dense labels."""
    class_weights: str = ""
    """For unbalanced data, how much each class counts in the loss: inverse (to its images), effective(beta=0.9999), or
    a file: JSON of classes and numbers, or CSV with columns class and weight. Scaled to a mean of 1 over the images."""
    logit_adjust: float = 0.0
    """For unbalanced data: τ·log(part of the images that are of a class) is added to logits in training; usually 1."""
    best: Literal["top1", "balanced"] = "top1"
    """Which accuracy the best weights have: of all images, or balanced, the mean over classes."""
    data: Data = field(default_factory=Data)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        check_drop_path(self.drop_path)
        if not 0 <= self.smoothing < 1:
            raise ValueError(f"smoothing must lie in [0, 1), not {self.smoothing}")
        if self.mix_off_epoch < 0:
            raise ValueError(f"mix_off_epoch must be at least 0, not {self.mix_off_epoch}")
        if not 0 <= self.logit_adjust < math.inf:
            raise ValueError(f"logit_adjust must be ≥ 0 and finite, not {self.logit_adjust}")
        sampling = "" if self.data.sampling == "uniform" else self.data.sampling
        remedies = {"class-weights": self.class_weights, "logit-adjust": self.logit_adjust, "sampling": sampling}
        if len(given := [f"--{name} {value}" for name, value in remedies.items() if value]) > 1:
            raise ValueError(f"{' and '.join(given)} would correct the same imbalance twice: use one of them")
        if self.smoothing and parse(self.loss).arguments.get("threshold") is not None:
            raise ValueError(f"{self.loss} makes every label 0 or 1, smoothed or not: set --smoothing 0")
        for name, least in (("teacher_size", 0), ("teacher_top", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    @property
    def title(self) -> str:
        taught = f", taught by {self.teacher}" if self.teacher else ""
        return f"{self.model}, {self.mixer}, {self.target}{taught}"


@dataclass(frozen=True)
class SegmentRecipe(BaseRecipe):
    """Everything that decides what a segmenter's run computes."""

    backbone: str = "swin_tiny_patch4_window7_224"
    """A timm model, with arguments where wanted, or the folder of a run, whose model and weights are taken."""
    init: str = ""
    """A timm model's weights: '' for random ones, pretrained for timm's, a checkpoint file, or the folder of a run."""
    head: Literal["upernet", "fcn"] = "upernet"
    """What makes classes of features."""
    width: int = 0
    """Channels of the head; 0: as published."""
    drop_path: float = 0.1
    """Stochastic depth of the backbone, growing linearly to this rate."""
    auxiliary: float = 0.4
    """Weight of the auxiliary head's loss."""
    window: int = 0
    """In evaluation, the side of a sliding window; 0: the whole image at once."""
    stride: int = 0
    """How far windows are apart; 0: two thirds of one."""
    scales: tuple[float, ...] = (1.0,)
    """Test-time scales, whose scores are averaged, such as 0.75 1 1.25 1.5 1.75 (Token Labeling's)."""
    flips: bool = False
    """In evaluation, average with the scores of the flipped image."""
    data: SegmentData = field(default_factory=SegmentData)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        check_drop_path(self.drop_path)
        if self.width < 0 or self.auxiliary < 0:
            raise ValueError(f"width and auxiliary must not be negative: {self.width}, {self.auxiliary}")
        assert self.inference  # a ValueError now, not at the first evaluation

    @property
    def title(self) -> str:
        return f"{self.head} on {self.backbone}"

    @property
    def inference(self) -> Inference:
        return Inference(self.data.short, self.data.long, self.window, self.stride, self.scales, self.flips)


@dataclass(frozen=True)
class DetectRecipe(BaseRecipe):
    """Everything that decides what a detector's run computes."""

    backbone: str = "swin_tiny_patch4_window7_224"
    """A timm model with maps at strides 4, 8, 16 and 32, or the folder of a run, whose model and weights are taken."""
    init: str = ""
    """A timm model's weights: '' for random ones, pretrained for timm's, a checkpoint file, or the folder of a run."""
    drop_path: float = 0.2
    """Stochastic depth of the backbone, growing linearly to this rate."""
    short_side: int = 800
    """In evaluation, images are resized until their shorter side is this long, …"""
    long_side: int = 1333
    """… or their longer side that long, whichever is less."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Per-channel mean, which is subtracted."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Per-channel standard deviation, which is divided by."""
    sizes: Sizes = field(default_factory=Sizes)
    data: DetectData = field(default_factory=DetectData)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        check_drop_path(self.drop_path)
        if not 1 <= self.short_side <= self.long_side:
            raise ValueError(f"sides must be 1 ≤ short_side ≤ long_side, not {self.short_side} and {self.long_side}")

    @property
    def title(self) -> str:
        return f"Cascade Mask R-CNN on {self.backbone}"


AnyRecipe = Recipe | SegmentRecipe | DetectRecipe


def check_drop_path(rate: float) -> None:
    if not 0 <= rate < 1:
        raise ValueError(f"drop_path must lie in [0, 1), not {rate}")


class Kind(NamedTuple):
    """Of a task."""

    name: str  # in recipe.json and config.json
    command: str  # labelflow COMMAND RECIPE trains it
    what: str  # it trains
    recipe: type[Any]
    headline: str  # the metric that counts; a run's config.json may name another
    task: Callable[..., Any]  # (recipe, tell) -> an engine.Task with a config
    evaluation: Callable[..., Any]  # (recipe, tell) -> an engine.Evaluated with an eval_source
    student: Callable[..., Any]  # (model) -> what an evaluation asks
    build: Callable[..., Any] | None  # (recipe, config) -> its run's model, with random weights; None: a classifier

    @property
    def unit(self) -> str:
        """Of its headline."""
        return UNITS[self.headline]


UNITS = {  # of headlines
    "top1": "% top-1",
    "balanced": "% balanced accuracy",
    "map": "% mAP",
    "miou": "% mIoU",
    "box_ap": "% box AP",
}

KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            name="classify",
            command="train",
            what="classifier",
            recipe=Recipe,
            headline="top1",
            task=deferred("labelflow.tasks.classify:Classification"),
            evaluation=deferred("labelflow.tasks.classify:Evaluation"),
            student=deferred("labelflow.align:Student"),
            build=None,
        ),
        Kind(
            name="segment",
            command="segment",
            what="segmenter",
            recipe=SegmentRecipe,
            headline="miou",
            task=deferred("labelflow.tasks.segment.task:Segmentation"),
            evaluation=partial(deferred("labelflow.tasks.segment.task:Segmentation"), training=False),
            student=deferred("labelflow.tasks.dense.task:DenseStudent"),
            build=deferred("labelflow.tasks.segment.task:build_segmenter"),
        ),
        Kind(
            name="detect",
            command="detect",
            what="detector",
            recipe=DetectRecipe,
            headline="box_ap",
            task=deferred("labelflow.tasks.detect.task:Detection"),
            evaluation=partial(deferred("labelflow.tasks.detect.task:Detection"), training=False),
            student=deferred("labelflow.tasks.dense.task:DenseStudent"),
            build=deferred("labelflow.tasks.detect.task:build_detector"),
        ),
    )
}


def kind_of(recipe: AnyRecipe) -> Kind:
    return next(kind for kind in KINDS.values() if isinstance(recipe, kind.recipe))


def headline_of(run: Run) -> str:
    """The metric that decides which of a run's weights are best."""
    config = run.config()
    headline: str = config.get("headline") or KINDS[config.get("task", "classify")].headline
    return headline


def read_recipe(run: Run) -> Recipe:
    """Of a classifier."""
    recipe: Recipe = read_any_recipe(run, "classify")
    return recipe


def read_any_recipe(run: Run, kind: str = "") -> Any:
    """Of any task, or of the one that it must be."""
    values = run.read("recipe.json")
    try:
        own = KINDS[values.get("task", "classify")]
        recipe = from_json(own.recipe, {key: value for key, value in values.items() if key not in ("name", "task")})
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{run / 'recipe.json'} was written by another version of labelflow: {error}") from None
    if kind and own.name != kind:
        raise ValueError(f"{run.folder} is the run of a {own.what}, but a {KINDS[kind].what} is needed here")
    return recipe
