"""The classes of all samples, and how many there are of each, without opening an image.

Shapes: N samples, C classes.
"""

import hashlib
from typing import Any

import numpy as np
from numpy import ndarray


def labels_of(source: Any) -> ndarray:
    """The `labels` of a source: class ids (N,), or (N, C) bool where an image may have several."""
    if not hasattr(source, "labels"):
        raise ValueError(
            "a stream does not tell the labels of its samples beforehand, which --sampling, --class-weights and "
            "--logit-adjust need; use a folder, hfds/NAME or local WebDataset shards"
        )
    return np.asarray(source.labels)


def class_counts(labels: ndarray, classes: int) -> ndarray:
    """(C,): how many images have each class.

    >>> class_counts(np.array([0, 2, 2]), classes=4).tolist()
    [1, 0, 2, 0]
    """
    return labels.sum(0) if labels.ndim == 2 else np.bincount(labels, minlength=classes)


def labels_checksum(source: Any) -> str:
    """Of labels that are in a table or a column; '' where files or their names have them, which are compared anyway."""
    lists = getattr(source, "lists", None)
    if lists is None:
        return ""
    digest = hashlib.blake2b(digest_size=8)
    for part in (lists.starts.astype("<i8"), lists.ids.astype("<i4")):
        digest.update(part.tobytes())
    return digest.hexdigest()
