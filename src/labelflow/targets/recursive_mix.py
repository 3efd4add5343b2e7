"""RecursiveMix (Yang et al., NeurIPS 2022): the earlier image in its box is to be seen as it was seen before.

Shapes: B batch, C classes, N tokens, h×w their grid.
"""

import torch
from torch import Tensor, nn
from torchvision.ops import roi_align

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.targets.base import Teaching, Truth
from labelflow.tokens import token_grid


class RecursiveMixTarget:
    """Cross-entropy with the label mixed by area, plus ω·(1-λ)·H(softmax of what the model said of the earlier image,
    what it says of the box), mean over images.

    What it says of a box is RoIAlign, 1×1, of its tokens' logits. Tokens have a linear head of their own, so this is
    what the head says of the aligned tokens. Where nothing was pasted from an earlier batch, the second term is 0.

    omega: weight of the second term; the paper's for ImageNet (0.1 for CIFAR).
    """

    dense = False
    teacher: Teaching = ""
    single_label = True

    def __init__(self, omega: float = 0.5) -> None:
        if omega < 0:
            raise ValueError(f"omega, a weight, must not be negative, but is {omega}")
        self.omega = omega

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens"})

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        image = Term("class", truth.loss(output.logits, mix.blend(truth.classes)).mean())
        if truth.earlier is None or mix.box is None:
            nothing = output.tokens[:0].float().sum()  # 0 that knows of the tokens: every parameter has a gradient
            return [image, Term("consistency", nothing, self.omega)]
        seen = box_logits(output.tokens.float(), mix.box, (mix.share.shape[2], mix.share.shape[3]))
        distance = -(truth.earlier.softmax(1) * seen.log_softmax(1)).sum(1)  # (B,)
        return [image, Term("consistency", ((1 - mix.lam) * distance).mean(), self.omega)]


def box_logits(tokens: Tensor, box: Tensor, size: tuple[int, int]) -> Tensor:
    """RoIAlign of tokens' logits (B, N, C) over boxes (B, 4) in an image of that size: (B, C)"""
    grid = token_grid(tokens.shape[1], *size)
    top, left, bottom, right = box.to(tokens.dtype).unbind(1)
    image = torch.arange(len(box), device=box.device, dtype=tokens.dtype)
    # In units of tokens, which may be wider than high.
    rows, columns = grid[0] / size[0], grid[1] / size[1]
    boxes = torch.stack([image, left * columns, top * rows, right * columns, bottom * rows], 1)
    maps = tokens.mT.unflatten(2, grid)  # (B, C, h, w)
    return roi_align(maps, boxes, output_size=1, aligned=True).flatten(1)
