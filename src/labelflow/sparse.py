"""Labels of which only a few classes matter, one for each token, and the cross-entropy with them.

Shapes: B batch, N tokens, C classes, V classes that a label names.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from labelflow.mix import Mix


class Sparse(NamedTuple):
    """Soft labels over C classes of which only a few matter: every class has `rest`, a few have more.

    The label of class c is `rest + Σ above[v] for classes[v] = c`. A softmax over scores that are 0 for all but V
    classes is of this kind, so a label map's (B, N, 1000) targets need never be made.

    >>> labels = Sparse(torch.tensor([[2, 0]]), torch.tensor([[0.5, 0.1]]), torch.tensor([0.1]))
    >>> labels.dense(4)
    tensor([[0.2000, 0.1000, 0.6000, 0.1000]])
    """

    classes: Tensor  # (..., V) whole numbers, which may be broadcast; the same class may come twice
    above: Tensor  # (..., V) float32: what each has above the rest, 0 where there is nothing
    rest: Tensor  # (...) float32

    def dense(self, num_classes: int) -> Tensor:
        """The same labels in full: (..., C)"""
        full = self.rest.unsqueeze(-1).repeat(*[1] * self.rest.ndim, num_classes)
        return full.scatter_add(-1, self.classes.long().expand_as(self.above), self.above)

    def smoothed(self, smoothing: float, num_classes: int) -> "Sparse":
        """(1-s)·y + s/C"""
        return Sparse(self.classes, (1 - smoothing) * self.above, (1 - smoothing) * self.rest + smoothing / num_classes)

    def mixed(self, partner: Tensor, share: Tensor) -> "Sparse":
        """share·y + (1-share)·y of the partner (B,), for shares (B, ...) as `rest`: Token Labeling, Eqs. 6 and 7."""
        own, pasted = (Sparse(*(part[which] for part in self)) for which in (slice(len(partner)), partner))
        return own.blended(pasted, share)

    def blended(self, other: "Sparse", share: Tensor) -> "Sparse":
        """share·y + (1-share)·y of others."""
        return Sparse(
            torch.cat([self.classes, other.classes], -1),
            torch.cat([share.unsqueeze(-1) * self.above, (1 - share).unsqueeze(-1) * other.above], -1),
            torch.lerp(other.rest, self.rest, share),
        )

    def mixed_tokens(self, mix: Mix, grid: tuple[int, int]) -> "Sparse":
        """The labels of a mixed image's tokens, from those of the images' tokens on a grid, (B, h·w, V): moved and
        resized as the pixels are, and mixed by area."""
        whole = self.classes.shape[1] == 1
        if not whole and mix.box is not None:  # a mean of labels names all their classes
            return self._over_images().mixed_tokens(mix, grid)
        classes = mix.pair(self.classes) if whole else mix.move(self.classes, grid)
        rest = (moved.squeeze(-1) for moved in mix.move(self.rest.unsqueeze(-1), grid))
        own, pasted = (Sparse(*parts) for parts in zip(classes, mix.move(self.above, grid), rest, strict=True))
        return own.blended(pasted, mix.tokens(grid).flatten(1))

    def _over_images(self) -> "Sparse":
        """The same labels (B, N, V), over the classes of each image: (B, N, N·V), classes (B, 1, N·V)."""
        own = torch.eye(self.above.shape[1], device=self.above.device).unsqueeze(-1)  # (N, N, 1)
        return Sparse(self.classes.flatten(1).unsqueeze(1), (own * self.above.unsqueeze(2)).flatten(2), self.rest)


def sparse_cross_entropy(logits: Tensor, labels: Sparse) -> Tensor:
    """H(X, y) for logits (..., C) and labels (..., ): the cross-entropy with `labels.dense(C)`, without making it. No
    gradient flows into the labels.

    -Σ_c y_c·log softmax(X)_c = Σ_c y_c · logsumexp(X) - rest·Σ_c X_c - Σ_v above_v·X[class v]
    """
    if logits.shape[:-1] != labels.rest.shape:
        raise ValueError(
            f"logits {tuple(logits.shape)} and labels {tuple(labels.rest.shape)} are not of the same tokens"
        )
    return _SparseCrossEntropy.apply(logits, labels.classes.long().expand_as(labels.above), labels.above, labels.rest)


class _SparseCrossEntropy(torch.autograd.Function):
    """With a gradient that needs one tensor of the logits' size instead of three."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, classes: Tensor, above: Tensor, rest: Tensor) -> Tensor:
        values = logits.to(torch.promote_types(logits.dtype, torch.float32))
        mass = above.sum(-1) + values.shape[-1] * rest  # Σ y, 1 for a proper label
        level = values.logsumexp(-1)
        ctx.save_for_backward(logits, level, mass, classes, above, rest)
        return mass * level - rest * values.sum(-1) - (above * values.gather(-1, classes)).sum(-1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        logits, level, mass, classes, above, rest = ctx.saved_tensors
        grad = grad.unsqueeze(-1)
        slope = (logits.to(level.dtype) - level.unsqueeze(-1)).exp_()  # softmax
        slope.mul_(mass.unsqueeze(-1)).sub_(rest.unsqueeze(-1))
        slope.scatter_add_(-1, classes, -above.to(slope.dtype)).mul_(grad)
        return slope.to(logits.dtype), None, None, None


class TokenLabels(NamedTuple):
    """The labels of images and of their tokens, over the classes that matter in each image."""

    image: Sparse  # (B, V): of each view as a whole
    above: Tensor  # (B, N, V): what these classes have above the rest, in each token
    rest: Tensor  # (B, N)

    @property
    def tokens(self) -> Sparse:
        """Classes (B, 1, V)"""
        return Sparse(self.image.classes.unsqueeze(1), self.above, self.rest)

    def smoothed(self, smoothing: float, num_classes: int) -> "TokenLabels":
        _, above, rest = self.tokens.smoothed(smoothing, num_classes)
        return TokenLabels(self.image.smoothed(smoothing, num_classes), above, rest)

    def to(self, device: torch.device) -> "TokenLabels":
        image = Sparse(*(part.to(device, non_blocking=True) for part in self.image))
        return TokenLabels(image, *(part.to(device, non_blocking=True) for part in self[1:]))
