"""The loss of a recipe on unbalanced data: class weights, or logits adjusted by how frequent classes are.

Shapes: C classes.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from numpy import ndarray
from torch import Tensor

from labelflow.data import Source, Stream
from labelflow.data.class_labels import class_counts, labels_of
from labelflow.data.folder import shorten
from labelflow.loss import Loss, make_loss
from labelflow.tasks.class_weights import class_weights
from labelflow.tasks.recipe import Recipe


def training_loss(recipe: Recipe, source: Source | Stream) -> Loss:
    """With the weights or the prior of the training data, where the recipe wants them."""
    if not (recipe.class_weights or recipe.logit_adjust):
        return make_loss(recipe.loss)
    counts = class_counts(labels_of(source), len(source.classes))
    if recipe.logit_adjust:
        return make_loss(recipe.loss, log_prior=recipe.logit_adjust * log_frequencies(counts, source.classes))
    weights = class_weights(recipe.class_weights, source.classes, counts)
    return make_loss(recipe.loss, weights=torch.from_numpy(weights).float())


def log_frequencies(counts: ndarray, classes: Sequence[str]) -> Tensor:
    """(C,): log π, what logit adjustment adds τ times in training (Menon et al., 2021, Eq. 10)."""
    if empty := [name for name, count in zip(classes, counts, strict=True) if not count]:
        raise ValueError(f"no training images of {shorten(empty)}: --logit-adjust needs some of every class")
    return torch.from_numpy(np.log(counts / counts.sum())).float()


def weights_checksum(loss: Loss) -> str:
    """Of the class weights that a run is trained with; '' if there are none."""
    return "" if loss.weights is None else hashlib.blake2b(loss.weights.numpy().tobytes(), digest_size=8).hexdigest()
