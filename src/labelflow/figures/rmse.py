"""How far the aligned label is from CutMix's λ, over models and over training (TL-Align, Figure 3)."""

from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from labelflow.analysis.images import images_of
from labelflow.analysis.rmse import Rmse, alignment_rmse, mixed_batches
from labelflow.classifier import Classifier, build
from labelflow.engine.run import Run
from labelflow.figures.base import PAGE, FigureRequest, colour, look, new, shorten
from labelflow.mix import Mix
from labelflow.models.create import load_exactly
from labelflow.tasks.recipe import read_recipe

IMAGES = 256


@dataclass(frozen=True)
class Row:
    """One model."""

    name: str
    parameters: int
    now: Rmse
    random: Rmse | None  # the same with random weights, for a run
    training: list[tuple[float, float]]  # (epoch, TL-Align's RMSE), at the checkpoints that a run has kept


@dataclass(frozen=True)
class Data:
    images: int
    mixer: str
    rows: list[Row]


def compute(request: FigureRequest) -> Data:
    rows, images = [], 0
    for classifier in request.load():
        found = images_of(classifier, *request.images(IMAGES), request.evaluation_data(classifier))
        batches = mixed_batches(classifier, found, request.mixer)
        images = sum(len(batch) for batch, _ in batches)
        rows.append(_row(classifier, batches, request))
    return Data(images, request.mixer, rows)


def _row(classifier: Classifier, batches: list[tuple[Tensor, Mix]], request: FigureRequest) -> Row:
    now = alignment_rmse(classifier.model, batches)
    parameters = sum(parameter.numel() for parameter in classifier.model.parameters())
    if classifier.folder is None:
        return Row(classifier.label, parameters, now, None, [])
    random = alignment_rmse(_fresh(classifier), batches)
    training = []
    kept = sorted(classifier.folder.glob("checkpoints/[0-9]*"))
    if len(kept) > 1:
        model = _fresh(classifier)
        for checkpoint in request.track(kept, f"checkpoints of {classifier.name}"):
            average = checkpoint / "ema.safetensors"  # as the run's best weights are
            file = average if average.exists() else checkpoint / "model.safetensors"
            epoch = _epoch(Run(classifier.folder), int(checkpoint.name))
            training.append((epoch, alignment_rmse(load_exactly(model, file), batches).tl_align))
        training.insert(0, (0.0, random.tl_align))
    return Row(classifier.name, parameters, now, random, training)


def _fresh(classifier: Classifier) -> Any:
    """The model of a run with random weights."""
    assert classifier.folder is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return build(Run(classifier.folder).config()).eval()


def _epoch(run: Run, update: int) -> float:
    """Of a run's update."""
    return update / max(1, run.config()["samples"] // read_recipe(run).training.batch)


def draw(data: Data) -> Figure:
    curves = [row for row in data.rows if row.training]
    figure, axes = new(1, 1 + bool(curves), PAGE / 2 if curves else 6.0, 1.1 + max(2.4, 0.5 * len(data.rows)))
    bars, places = axes[0, 0], range(len(data.rows))
    bars.barh(places, [row.now.tl_align for row in data.rows], color=colour(0), height=0.5)
    for place, row in zip(places, data.rows, strict=True):
        bars.text(row.now.tl_align, place, f" {row.now.tl_align:.3f}", va="center")
        if row.random:
            bars.plot([row.random.tl_align] * 2, [place - 0.3, place + 0.3], color="black", lw=2)
    bars.set_yticks(places, [f"{shorten(row.name)}\n{row.parameters / 1e6:.2g} M" for row in data.rows])
    bars.set_ylim(len(data.rows) - 0.3, -0.7)  # the first on top
    random = "\nblack: with random weights" if any(row.random for row in data.rows) else ""
    bars.set_xlabel(f"RMSE of (aligned share - λ), {data.images} images{random}")
    bars.xaxis.set_major_locator(MaxNLocator(4))
    bars.grid(visible=False, axis="y")
    bars.margins(x=0.3)
    if curves:
        for place, row in enumerate(curves):
            axes[0, 1].plot(*zip(*row.training, strict=True), **look(place), marker=".", label=shorten(row.name))
        axes[0, 1].set_xlabel("epoch (0: random weights)")
        axes[0, 1].set_ylabel("RMSE")
        axes[0, 1].set_ylim(bottom=0)
        axes[0, 1].legend()
    return figure


def summary(data: Data) -> str:
    lines = [f"{'':32}{'TL-Align':>10}{'> 0.05':>8}{'TransMix':>10}{'random weights':>16}"]
    for row in data.rows:
        random = f"{row.random.tl_align:16.3f}" if row.random else ""
        lines.append(f"{row.name:32}{row.now.tl_align:10.3f}{row.now.large:8.2f}{row.now.transmix:10.3f}{random}")
    return "\n".join(lines)
