"""A teacher: a trained classifier that runs beside the one that is trained, and what it says of the same images.

It is no part of the student: its weights are neither trained nor saved, it is in eval mode and without gradients, and
it does not run in evaluations.

Shapes: B batch, C classes, H×W pixels.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from shlex import quote
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from labelflow.align import Student, head_width
from labelflow.classifier import Classifier, load, weights_key
from labelflow.data.several import HOW_MANY
from labelflow.engine import Run
from labelflow.engine.setup import resolve_precision
from labelflow.guides.base import per_channel
from labelflow.labels.annotation import annotator_grid, place_logits
from labelflow.labels.online import online_labels
from labelflow.labels.sampling import whole_view_weights
from labelflow.mix import Mix
from labelflow.mixers import NoMix
from labelflow.models.create import read_weights
from labelflow.precision import product
from labelflow.sparse import Sparse, TokenLabels
from labelflow.targets import Target, Taught
from labelflow.tasks.recipe import Recipe
from labelflow.tokens import has_token_head

ToLabels = Callable[[Tensor, Generator], Sparse]
TOP = Recipe.teacher_top
RAND_AUGMENT = "rand-m9-mstd0.5-inc1"
HEAD = "token_head."  # of a student, in its heads' file
PRECISIONS = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Teacher:
    """The teacher of a recipe, for data with these classes.

    It sees what the student sees, in its own colours (mean and std), and stretched to its own size where that differs.
    Of its classes those of the data count: a softmax over its answers is one over these. Where its features alone are
    needed, its classes may be any.

    to_labels: what makes labels of its tokens' logits, where these are needed; it has a token head then.
    """

    def __init__(
        self,
        recipe: Recipe,
        classes: Sequence[str],
        need: str,
        annotates: bool,
        several: bool = False,
        to_labels: ToLabels | None = None,
    ) -> None:
        classifier = load(recipe.teacher, image_size=recipe.teacher_size, classes=classes)
        columns = None
        if need in ("logits", "tokens") or annotates:  # features know no classes
            columns = teacher_columns(classifier, recipe, classes, several)
        self.key, self.several, self.to_labels = classifier.key, several, to_labels
        self.name = classifier.architecture
        who = f"teacher: {self.name}, weights: {classifier.weights}"
        self.about = [line for line in (who, classifier.data_notice) if line]  # for people
        self.need, self.annotates, self.top = need, annotates, recipe.teacher_top
        self.size, self.data = classifier.preprocessing.size, recipe.data
        self.mean, self.std = classifier.preprocessing.mean, classifier.preprocessing.std
        self.precision = PRECISIONS.get(resolve_precision(recipe.training.precision))
        self.model: Any = classifier.model.requires_grad_(False).to(memory_format=torch.channels_last)
        self.labeller = with_token_head(classifier, recipe).requires_grad_(False) if need == "tokens" else None
        if self.labeller is not None and self.labeller.token_head is not None:
            self.key += f" {weights_key(self.labeller.token_head)}"
        self.parameters = sum(parameter.numel() for parameter in (self.labeller or self.model).parameters())
        self.columns = None if columns is None else torch.tensor(columns)
        if annotates:
            annotator_grid(self.model, torch.zeros(1, 3, self.size, self.size))
        if need == "features" and not head_width(self.model):
            raise ValueError(f"--teacher {recipe.teacher} does not say how wide its features are; a timm model does")

    def fit(self, student: Student) -> None:
        """Let the student give features as wide as the teacher's, if they are compared."""
        if self.need == "features":
            student.project(head_width(self.model))

    @torch.no_grad()
    def taught(self, images: Tensor, mix: Mix) -> Taught | None:
        """What it says of the mixed images: images (B, 3, H, W), normalised for the student. A mix of tokens is for
        the teacher, which has others, one of pixels."""
        if self.need not in ("logits", "features"):
            return None
        seen = self.see(replace(mix, at="image").apply(images))
        with self.autocast(seen):
            if self.need == "features":
                return Taught(features=self.model.forward_head(self.model.forward_features(seen), pre_logits=True))
            return Taught(self.of_data(self.model(seen)), several=self.several)

    @torch.no_grad()
    def labels(self, images: Tensor, student: Student) -> TokenLabels | None:
        """What it sees at every place of the images, before they are mixed, as labels of the student's tokens."""
        if not self.annotates:
            return None
        seen = self.see(images)
        with self.autocast(seen):
            logits, cells = place_logits(self.model, seen)
        grid = student.token_grid((images.shape[2], images.shape[3]))
        return online_labels(self.of_data(logits), cells, grid, self.top, "sigmoid" if self.several else "rest")

    @torch.no_grad()
    def token_labels(self, images: Tensor | None, student: Student, generator: Generator) -> Sparse | None:
        """The labels of the student's tokens, by its own token head: images before they are mixed, without changes of
        colours."""
        if self.labeller is None or images is None:
            return None
        assert self.to_labels is not None
        seen = self.see(images)
        with self.autocast(seen):
            logits = self.labeller(seen, NoMix()(seen)).tokens
        assert logits is not None
        grid, own = student.token_grid((images.shape[2], images.shape[3])), self.labeller.token_grid((self.size,) * 2)
        logits = self.of_data(logits)
        if own != grid:
            logits = product(whole_view_weights(grid, own, logits.device)[:, 1:], logits)
        return self.to_labels(logits, generator)

    def see(self, images: Tensor) -> Tensor:
        """The student's images as the teacher takes them, (B, 3, size, size), and the teacher where they are."""
        if next(self.model.parameters()).device != images.device:
            (self.labeller or self.model).to(images.device)
        ours, theirs = (self.data.mean, self.data.std), (self.mean, self.std)
        if ours != theirs:
            mean, std, own_mean, own_std = (per_channel(values, images) for values in (*ours, *theirs))
            images = (images * std + mean - own_mean) / own_std
        if images.shape[2:] != (self.size, self.size):
            images = F.interpolate(images, (self.size, self.size), mode="bicubic", antialias=True)
        return images.contiguous(memory_format=torch.channels_last)

    def autocast(self, images: Tensor) -> AbstractContextManager[Any]:
        """In the student's precision."""
        return torch.autocast(images.device.type, self.precision, enabled=self.precision is not None)

    def of_data(self, logits: Tensor) -> Tensor:
        """The columns of the data's classes, in their order: (..., C)"""
        if self.columns is None:
            return logits.float()
        self.columns = self.columns.to(logits.device)
        return logits.index_select(-1, self.columns).float()


def with_token_head(classifier: Classifier, recipe: Recipe) -> Student:
    """A classifier with a head for its tokens: its own, an LV-ViT's, or the one that was trained beside it."""
    model = classifier.model
    file = Run(classifier.folder).heads() if classifier.folder else None
    heads = read_weights(file) if file else {}
    head = {name.removeprefix(HEAD): value for name, value in heads.items() if name.startswith(HEAD)}
    if not head and not has_token_head(model):
        raise ValueError(
            f"--teacher {recipe.teacher} has no head for tokens, which the target {recipe.target} takes labels from: "
            "give the folder of a run that was trained with --target stl_labeler, stl or token_label, or any LV-ViT"
        )
    labeller = Student(model, {"tokens"}).eval()
    if labeller.token_head is not None:
        labeller.token_head.load_state_dict(head)
    return labeller


def teacher_columns(classifier: Classifier, recipe: Recipe, classes: Sequence[str], several: bool) -> list[int] | None:
    """Of its logits for the classes of the data; None: all of them. It has to see images as these are labelled."""
    if classifier.multi_label != several:
        raise ValueError(
            f"--teacher {recipe.teacher} was trained on images with {HOW_MANY[classifier.multi_label]}, but those of "
            f"{recipe.data.source} have {HOW_MANY[several]}: give one that was trained on such images, or take its "
            "features, --target \"distill(kind='features')\""
        )
    try:
        return classifier.columns(classes)
    except ValueError as error:
        raise ValueError(f"--teacher {recipe.teacher}: {error}") from None


def make_teacher(recipe: Recipe, target: Target, classes: Sequence[str], several: bool) -> Teacher | None:
    """The one that a recipe names, if any; it annotates where a target needs dense labels and there is no store."""
    annotates = target.dense and not recipe.data.labels
    to_labels = getattr(target, "token_labels", None)
    return Teacher(recipe, classes, target.teacher, annotates, several, to_labels) if recipe.teacher else None


def check_teaching(recipe: Recipe, target: Target) -> None:
    """Dense labels and a teacher, where they are needed and only there; and a view that is one affine map of its image
    where stored labels have to follow it."""
    labels, teacher = recipe.data.labels, recipe.teacher
    if target.teacher == "tokens" and not teacher:
        raise ValueError(f"the target {recipe.target} needs a labeller: --teacher RUN, a run with --target stl_labeler")
    if target.teacher and not teacher:
        raise ValueError(
            f"the target {recipe.target} needs a teacher: --teacher RUN, the folder of a run, or a timm model such as "
            "--teacher tf_efficientnet_lite0=packaged"
        )
    if target.dense and not (labels or teacher):
        raise ValueError(f"the target {recipe.target} needs dense labels: {how_to_label(recipe)}")
    if labels and not target.dense:
        raise ValueError(f"the target {recipe.target} does not use --labels; token_label, for example, does")
    if not teacher and (recipe.teacher_size or recipe.teacher_top != TOP):
        raise ValueError("--teacher-size and --teacher-top are for a --teacher, and there is none")
    if teacher and not (target.teacher or target.dense):
        raise ValueError(f"the target {recipe.target} has no use for --teacher; distill, for example, does")
    if teacher and labels and not target.teacher:
        raise ValueError(
            f"the target {recipe.target} takes dense labels from a store, --labels {labels}, or from a teacher that "
            f"runs beside, --teacher {teacher}, not from both; leave out one (--labels '' or --teacher '')"
        )
    if (labels or target.teacher == "tokens") and recipe.data.auto_augment.startswith("augmix"):
        what = "dense labels" if labels else "a labeller that sees no changes of colours"
        raise ValueError(f"augmix blends several views, which {what} cannot follow; use --auto-augment {RAND_AUGMENT}")


def how_to_label(recipe: Recipe) -> str:
    how = f"labelflow annotate {quote(recipe.data.source)} --model MODEL --out LABELS"
    return f"make them with {how}, and train with --labels LABELS (or let a --teacher make them on the way)"
