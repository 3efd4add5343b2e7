"""How much each class counts in the loss: by its number of training images, or as a file says.

Shapes: C classes.
"""

import csv
import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy import ndarray

from labelflow.data.folder import shorten
from labelflow.spec import build

Weighting = Callable[[ndarray], ndarray]  # from images of each class (C,) to weights (C,)


def inverse() -> Weighting:
    """1 / n"""
    return lambda counts: 1 / counts


def effective(beta: float = 0.9999) -> Weighting:
    """1 over the effective number of images, (1 - βⁿ) / (1 - β) (Cui et al., 2019, Eq. 2): β 0 is no weighting,
    towards 1 it becomes `inverse`."""
    if not 0 <= beta < 1:
        raise ValueError(f"class_weights: beta must lie in [0, 1), not {beta}")
    return lambda counts: (1 - beta) / -np.expm1(counts * math.log(beta)) if beta else np.ones(len(counts))


WEIGHTINGS = {made.__name__: made for made in (inverse, effective)}


def class_weights(how: str, classes: Sequence[str], counts: ndarray) -> ndarray:
    """(C,), scaled so that the average training image has weight 1: Σ n·w = Σ n. how: a name in WEIGHTINGS, or a file.

    A class without training images has weight 0, unless a file says otherwise.

    >>> class_weights("inverse", ["cat", "dog"], np.array([30, 10])).round(3).tolist()
    [0.667, 2.0]
    """
    if Path(how).suffix.lower() in READERS:
        weights = read_weights(Path(how), classes)
    else:
        weights = np.zeros(len(counts))
        weighting: Weighting = build(how, WEIGHTINGS, "class weighting (or file, .json or .csv)")
        weights[counts > 0] = weighting(counts[counts > 0])
    scale = (counts * weights).sum()
    if not scale > 0:
        raise ValueError(f"the weights in {how} are 0 for all classes that have training images")
    return weights * (counts.sum() / scale)


def read_weights(path: Path, classes: Sequence[str]) -> ndarray:
    """(C,), as in the file: a JSON object of classes and numbers, or a CSV file with columns class and weight."""
    if not path.is_file():
        raise ValueError(f"there is no file {path} with class weights")
    try:
        found = READERS[path.suffix.lower()](path.read_text(encoding="utf-8-sig"))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f'{path} should hold a number for each class, as JSON {{"cat": 1.5}} or as CSV with the columns class '
            f"and weight: {error!r}"
        ) from None
    if unknown := [name for name in found if name not in set(classes)]:
        raise ValueError(f"{path} has weights for classes that the training data lacks: {shorten(unknown)}")
    if missing := [name for name in classes if name not in found]:
        raise ValueError(f"{path} has no weights for {shorten(missing)}")
    for name, weight in found.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"{path}: the weight of {name} must be finite and not negative, but is {weight:g}")
    return np.array([found[name] for name in classes])


def _read_json(text: str) -> dict[str, float]:
    return {name: float(weight) for name, weight in json.loads(text).items()}


def _read_csv(text: str) -> dict[str, float]:
    return {row["class"]: float(row["weight"]) for row in csv.DictReader(text.splitlines())}


READERS = {".json": _read_json, ".csv": _read_csv}
