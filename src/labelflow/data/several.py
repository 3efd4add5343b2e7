"""Images with any number of labels.

Shapes: N images, C classes, L labels of all images.
"""

from collections.abc import Sequence

import numpy as np
from numpy import ndarray


class LabelLists:
    """The labels of images as arrays, not as objects: those of image i are `ids[starts[i]:starts[i + 1]]`.

    >>> lists = LabelLists(np.array([2, 0, 1]), np.array([0, 1, 1, 3]), classes=3)
    >>> lists.dense().astype(int).tolist()
    [[0, 0, 1], [0, 0, 0], [1, 1, 0]]
    """

    def __init__(self, ids: ndarray, starts: ndarray, classes: int) -> None:
        """ids: (L,); starts: (N + 1,)"""
        self.ids, self.starts, self.classes = ids, starts, classes

    def __len__(self) -> int:
        return len(self.starts) - 1

    def of(self, index: int) -> ndarray:
        return self.ids[self.starts[index] : self.starts[index + 1]]

    def at(self, places: ndarray) -> "LabelLists":
        """Those of some images."""
        counts = np.diff(self.starts)[places]
        starts = np.concatenate([[0], np.cumsum(counts)])
        within = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)  # (L,): which label of its image
        return LabelLists(self.ids[np.repeat(self.starts[places], counts) + within], starts, self.classes)

    def dense(self) -> ndarray:
        """(N, C) bool"""
        full = np.zeros((len(self), self.classes), bool)
        full[np.repeat(np.arange(len(self)), np.diff(self.starts)), self.ids] = True
        return full


def multi_hot(ids: Sequence[int] | ndarray, classes: int) -> ndarray:
    """What an image is trained on: (C,) float32, 1 for each of its classes."""
    hot: ndarray = np.zeros(classes, np.float32)
    hot[np.asarray(ids, np.int64)] = 1
    return hot


def is_multi_label(source: object) -> bool:
    """Whether the images of a source have any number of labels, each a `multi_hot` array instead of a number."""
    return bool(getattr(source, "multi_label", False))
