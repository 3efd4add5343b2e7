"""Dense labels of views from an annotator that looks at them while a model is trained: what a store would give, without
one.

Shapes: B batch, N = h·w places of the annotator's map, C classes, k best classes of a place.
"""

from torch import Tensor

from labelflow.labels.annotation import best_scores
from labelflow.labels.sampling import view_labels, whole_view_weights
from labelflow.sparse import TokenLabels


def online_labels(
    logits: Tensor, cells: tuple[int, int], grid: tuple[int, int], top: int, scores: str = "rest"
) -> TokenLabels:
    """The labels of views and of their tokens on a grid, from what an annotator saw at every place of them.

    logits (B, N, C), on cells (h, w) that cover the view: `place_logits`. top: classes kept for each place, with scores
    in half precision, as a store has them. scores: `Manifest.scores`.
    """
    num_classes = logits.shape[2]
    k = min(top, num_classes)
    values, classes = best_scores(logits.float(), k, scores)
    values, classes = (part.transpose(1, 2).unflatten(2, cells) for part in (values.half().float(), classes))
    weights = whole_view_weights(grid, cells, logits.device).expand(len(logits), -1, -1)
    vocabulary = min(num_classes, k * cells[0] * cells[1])  # at most: the device is not asked how many there are
    return view_labels(weights, values, classes, vocabulary, num_classes, scores)
