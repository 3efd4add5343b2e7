"""Annotating a data set: a trained classifier scores every image once, at every place of its last feature map.

Shapes: B batch, N = h·w places, D features, C classes, k best classes of a place.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn

from labelflow.classifier import Classifier
from labelflow.data import Data, Preprocessing, Problem, Source, Unreadable, on_device
from labelflow.data.batches import Draw
from labelflow.data.loader import fixed_batches
from labelflow.data.views import Batch
from labelflow.engine.lock import on_main_process, one_writer
from labelflow.engine.progress import Counted
from labelflow.labels.draft import Draft
from labelflow.labels.keys import SourceKeys
from labelflow.labels.manifest import Manifest, center_part
from labelflow.labels.settings import Annotation
from labelflow.labels.store import Store
from labelflow.tokens import final_places, has_token_head, token_grid


def annotator_preprocessing(preprocessing: Preprocessing, seen: str) -> Preprocessing:
    """The whole image, stretched to a square, or its centre; in the annotator's size and colours."""
    mode, part = ("squash", 1.0) if seen == "whole" else ("center", center_part(seen))
    return replace(preprocessing, crop_mode=mode, crop_pct=part, interpolation="bicubic")


def place_logits(model: nn.Module, images: Tensor) -> tuple[Tensor, tuple[int, int]]:
    """The classifier applied at every place: (B, N, C), and the grid (h, w)."""
    height, width = images.shape[2:]
    if has_token_head(model):
        _, logits = model.dense_logits(images)  # type: ignore[operator]
        return logits, token_grid(logits.shape[1], height, width)
    places = final_places(model, model.forward_features(images), height, width)  # type: ignore[operator]
    return places.apply(model.forward_head), places.grid


@torch.no_grad()
def annotator_grid(model: nn.Module, images: Tensor) -> tuple[int, int]:
    """Of the places at which it scores images of that size."""
    try:
        return place_logits(model, images)[1]
    except (AssertionError, RuntimeError, AttributeError) as error:
        size = images.shape[-1]
        raise ValueError(f"the annotator gives no scores per location for images of {size} pixels: {error}") from None


def best_scores(logits: Tensor, k: int, scores: str) -> tuple[Tensor, Tensor]:
    """The k best scores of each place and their classes: (…, C) -> (…, k) each.

    "rest": a score of 0 stands for what the other classes have on average, so that a softmax in which all of these
    have 0 gives the k classes exactly the probabilities that the annotator gives them.
    """
    values, classes = logits.topk(k, dim=-1)
    others = logits.shape[-1] - k
    if scores == "rest" and others:
        level = logits.scatter(-1, classes, -math.inf).logsumexp(-1, keepdim=True) - math.log(others)
        values = values - level
    elif scores == "rest":
        values = values - values.mean(-1, keepdim=True)
    return values, classes


def annotator_columns(annotator: Classifier, classes: Sequence[str]) -> list[int] | None:
    """The columns of the annotator's logits for the classes of the data; None: the same classes in the same order."""
    try:
        return annotator.columns(classes)
    except ValueError as error:
        raise ValueError(
            f"{error}. Train an annotator on this data (labelflow train finetune_cutmix, or on a CPU small_vit_cutmix, "
            "--data …) and give its folder as --model"
        ) from None


def annotate(
    source: Source,
    annotator: Classifier,
    annotation: Annotation,
    out: Path,
    *,
    accelerator: Accelerator,
    loading: Data,
    progress: Counted,
    resume: bool = False,
) -> Store:
    """Annotate every image of a source, divided among all processes. resume: keep what is there and intact."""
    columns = annotator_columns(annotator, source.classes)
    model = annotator.model.to(accelerator.device).to(memory_format=torch.channels_last).eval()  # faster convolutions
    size = annotator.preprocessing.size
    with accelerator.autocast():
        grid = annotator_grid(model, torch.zeros(1, 3, size, size, device=accelerator.device))
    manifest = Manifest(
        annotator=annotator.architecture,
        weights=annotator.weights,
        image_size=size,
        seen=annotation.seen,
        scores=annotation.scores,
        grid=grid,
        k=min(annotation.top, len(source.classes)),
        classes=tuple(source.classes),
        samples=len(source),
        shard=annotation.shard,
    )

    def begin() -> tuple[Draft, list[int]]:
        draft = Draft(out, manifest, SourceKeys(source), resume)
        return draft, draft.missing()

    with one_writer(out) as warning:
        if warning:
            progress.say(warning)
        draft, missing = on_main_process(begin)
        progress.skip(len(source) - sum(len(draft.places(shard)) for shard in missing))
        own = missing[accelerator.process_index :: accelerator.num_processes]
        _write(draft, own, source, annotator, annotation, columns, accelerator, loading, progress)
        store = on_main_process(draft.finish)  # the others have written: _write ends with a gather
        if draft.repairs():
            progress.say(draft.repairs())
        return store


def _write(
    draft: Draft,
    shards: Sequence[int],
    source: Source,
    annotator: Classifier,
    annotation: Annotation,
    columns: Sequence[int] | None,
    accelerator: Accelerator,
    loading: Data,
    progress: Counted,
) -> None:
    """Annotate these shards."""
    device, model, grid, k = accelerator.device, annotator.model, draft.manifest.grid, draft.manifest.k
    problems: list[Problem] = []
    unreadable = Unreadable(loading.skip_unreadable, progress.say)
    size = annotation.batch or (2 if device.type == "cpu" else 64)
    how = annotator_preprocessing(annotator.preprocessing, annotation.seen)
    batches = on_device(fixed_batches(source, how, loading, _draws(draft, shards, size)), device)
    chosen = slice(None) if columns is None else torch.tensor(columns, device=device)
    for shard in shards:
        parts = []
        wanted = len(draft.places(shard))
        while wanted:
            batch: Batch = next(batches)
            unreadable(batch.problems)
            problems += batch.problems
            with torch.inference_mode(), accelerator.autocast():
                logits, _ = place_logits(model, batch.images.to(memory_format=torch.channels_last))
            # image by image: with 21k classes, a batch is large
            found = [best_scores(one[:, chosen].float(), k, annotation.scores) for one in logits]
            scores, classes = (torch.stack(part) for part in zip(*found, strict=True))
            scores = scores * batch.weights.to(scores)[:, None, None]  # unreadable images get empty labels
            parts.append((_maps(scores, grid), _maps(classes, grid)))
            wanted -= len(batch.images)
            progress.advance(len(batch.images) * accelerator.num_processes)
        draft.write(shard, *(np.concatenate(part) for part in zip(*parts, strict=True)))
    unreadable(gather_object(problems))  # of all processes


def _draws(draft: Draft, shards: Sequence[int], batch: int) -> Iterator[list[Draw]]:
    """Batches that never reach over a shard's end: what a shard holds does not depend on who writes it."""
    for shard in shards:
        places = draft.places(shard)
        for start in range(0, len(places), batch):
            yield [Draw(place, 0, place) for place in places[start : start + batch]]


def _maps(values: Tensor, grid: tuple[int, int]) -> np.ndarray:
    """(B, N, k) -> (B, k, h, w)"""
    return values.transpose(1, 2).unflatten(2, grid).cpu().numpy()
