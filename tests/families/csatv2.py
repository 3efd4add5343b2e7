"""CSATv2."""

import torch
import torch.nn.functional as F
from timm.models.csatv2 import Block, CSATv2, TransformerBlock
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, window_labels

CSATV2 = {"dims": (8, 16), "depths": (1, 3), "transformer_depths": (0, 2), "num_classes": 5}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "csatv2, fused": (CSATv2, CSATV2, (64, 96)),
    "csatv2, unfused": (CSATv2, {**CSATV2, "ls_init_value": 0.1}, (80, 64)),
}
SOME = ["csatv2, fused"]  # for what does not depend on the details


def averages(side: int, count: int = 7) -> Tensor:
    """Which of `side` places are in each of `count` windows: (count, side)"""
    matrix = torch.zeros(count, side)
    for i in range(count):
        matrix[i, i * side // count : -(-(i + 1) * side // count)] = 1
    return matrix / matrix.sum(1, keepdim=True)


def between(side: int, count: int = 7) -> Tensor:
    """Each of `side` places lies between two of `count`, and takes from both: (side, count)"""
    matrix = torch.zeros(side, count)
    for i in range(side):
        place = i * (count - 1) / (side - 1)
        low = min(int(place), count - 2)
        matrix[i, low], matrix[i, low + 1] = 1 - (place - low), place - low
    return matrix


def gate(attn: nn.Module, labels: Tensor) -> Tensor:
    height, width = labels.shape[1:3]
    coarse = torch.einsum("ih,jw,bhwc->bijc", averages(height), averages(width), labels)
    coarse = convolved(coarse, attn.conv)
    noise = torch.randn(2, 1, 7, 7)
    added = attn.attn(noise) - noise  # by attention among single channels, each of them normalised to its bias
    torch.testing.assert_close(added[0], added[1], atol=1e-5, rtol=0)
    return torch.einsum("hi,wj,bijc->bhwc", between(height), between(width), coarse)


def csatv2(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 8, 8), model.stem_dct(images)
    for module in [module for stage in model.stages for module in stage]:
        if isinstance(module, nn.Conv2d):
            labels = window_labels(labels, 2, 2, 0)
        elif isinstance(module, Block):
            moved = convolved(labels, module.dwconv)
            labels = (labels + (moved + gate(module.attn, moved)) / 2) / 2
        elif isinstance(module, TransformerBlock):
            attn, grid = module.attn, tuple(x.shape[2:])
            tokens = module.pos_embed(module.norm1(x.flatten(2).mT), grid)
            query, key, _ = F.linear(tokens, attn.qkv.weight, attn.qkv.bias).chunk(3, -1)
            query, key = (part.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for part in (query, key))
            matrix = (query @ key.mT * query.shape[-1] ** -0.5).softmax(-1).mean(1)
            placed = (labels + convolved(labels, module.pos_embed.proj)) / 2
            labels = (labels + (matrix @ placed.flatten(1, 2)).view_as(labels)) / 2
        x = module(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"CSATv2": csatv2}
