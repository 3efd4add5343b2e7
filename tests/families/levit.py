"""LeViT."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import patch_labels, softmax_attention, window_labels

LEVIT = {"img_size": 64, "key_dim": 4, "embed_dim": (16, 24), "num_heads": (2, 3), "depth": (2, 1), "num_classes": 5}


def trained(name: str, **arguments: Any) -> nn.Module:
    """With batch norms that keep scores small, as those of a trained model do."""
    model = timm.create_model(name, **arguments)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_var.fill_(4.0)
    return model


# name: (function that makes a model, its arguments, an image size it takes)
FAMILIES = {
    "levit": (trained, {"name": "levit_256d", **LEVIT, "stem_type": "s8"}, (64, 64)),
    "levit, map": (trained, {"name": "levit_conv_256", **LEVIT, "stem_type": "s8", "img_size": (40, 72)}, (40, 72)),
    "levit, patches of 16": (trained, {"name": "levit_128s", **LEVIT}, (64, 64)),
}
SOME: list[str] = []  # in eval mode, timm keeps each bias with its graph: neither copies nor a second backward pass


def levit_bias(attn: nn.Module, step: int) -> Tensor:
    """A bias for each offset, whatever its direction: (A, queries, keys)"""
    rows, columns = attn.resolution
    queries = [(i, j) for i in range(0, rows, step) for j in range(0, columns, step)]
    keys = [(i, j) for i in range(rows) for j in range(columns)]
    return torch.stack(
        [
            torch.stack([attn.attention_biases[:, abs(a - c) * columns + abs(b - d)] for c, d in keys], -1)
            for a, b in queries
        ],
        1,
    )


def levit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 1, 1), model.stem(images)
    while labels.shape[1] > x.shape[2]:
        labels = window_labels(labels, 3, 2, 1)
    grid = tuple(x.shape[2:])
    labels = labels.flatten(1, 2)
    tokens = x if model.use_conv else x.flatten(2).transpose(1, 2)

    def rows(x: Tensor) -> Tensor:
        return x.flatten(2).transpose(1, 2) if x.ndim == 4 else x

    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            attn = stage.downsample.attn_downsample
            query = rows(attn.q(tokens)).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
            key = rows(attn.kv(tokens)).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)[..., : attn.key_dim]
            labels = softmax_attention(query, key, levit_bias(attn, 2)) @ labels  # without a residual
            tokens = stage.downsample(tokens)
            grid = tuple((side + 1) // 2 for side in grid)
            assert labels.shape[1] == grid[0] * grid[1]
        for block in stage.blocks:
            attn = block.attn
            qkv = rows(attn.qkv(tokens)).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
            query, key = qkv[..., : attn.key_dim], qkv[..., attn.key_dim : 2 * attn.key_dim]
            labels = (labels + softmax_attention(query, key, levit_bias(attn, 1)) @ labels) / 2
            tokens = block(tokens)
    return labels.mean(1, keepdim=True).expand(-1, 2 if hasattr(model, "head_dist") else 1, -1)


ORACLES = {"Levit": levit, "LevitDistilled": levit}
