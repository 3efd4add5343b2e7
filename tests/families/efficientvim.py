"""EfficientViM."""

from typing import Any

import torch
from timm.models.efficientvim import EfficientViM, EfficientViMDistilled
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, window_labels

EFFICIENTVIM = {"embed_dim": (16, 24, 32), "depths": (2, 1, 2), "state_dim": (7, 5, 3), "num_classes": 5}


def merged(**arguments: Any) -> nn.Module:
    """Ready for deployment: shortcuts around convolutions are part of their kernels."""
    model = EfficientViM(**arguments).eval()
    for module in model.modules():
        if hasattr(module, "fused"):
            module.fuse()
    return model


# name: (timm's class, or a function, its arguments, an image size it takes)
FAMILIES = {
    "efficientvim": (EfficientViM, EFFICIENTVIM, (96, 96)),
    "efficientvim, distilled": (EfficientViMDistilled, EFFICIENTVIM, (64, 96)),
    "efficientvim, merged kernels": (merged, EFFICIENTVIM, (96, 64)),
}
SOME = ["efficientvim"]  # for what does not depend on the details


def normalised(weights: Tensor) -> Tensor:
    return weights.abs() / weights.abs().sum(-1, keepdim=True)


def with_shortcut(module: nn.Module, layer: nn.Module, labels: Tensor) -> Tensor:
    moved = convolved(labels, layer.conv)
    return moved if module.fused else (labels + moved) / 2


def through_block(block: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The map's labels, and those of the hidden states (B, S, C)"""
    mixer, alpha = block.mixer, block.alpha.sigmoid()[0].view(1, -1, 1, 1)
    labels = with_shortcut(block, block.dwconv1, labels)
    x = block.norm(block.dwconv1(x) if block.fused else x + alpha * (block.dwconv1(x) - x))
    projected = mixer.BCdt_proj(x.flatten(2)).unflatten(2, x.shape[2:])
    b, c, dt = mixer.dw(projected).flatten(2).unflatten(1, (3, -1)).unbind(1)  # (B, S, N)
    exponents = (dt + mixer.A.view(1, -1, 1)).exp()
    states = normalised(exponents / exponents.sum(-1, keepdim=True) * b) @ labels.flatten(1, 2)
    labels = (labels + (normalised(c.mT) @ states).view_as(labels)) / 2
    return with_shortcut(block, block.dwconv2, labels), states


def efficientvim(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 3, 2, 1), model.patch_embed(images)
    for _ in range(3):
        labels = window_labels(labels, 3, 2, 1)
    read = []
    for stage in model.stages:
        for block in stage.blocks:
            labels, states = through_block(block, x, labels)
            x, _ = block(x)
        read.append(states.mean(1))
        if stage.downsample is not None:
            merge = stage.downsample
            labels = window_labels(with_shortcut(merge, merge.dwconv1, labels), 3, 2, 1)
            labels, x = with_shortcut(merge, merge.dwconv2, labels), merge(x)
    read.append(labels.mean((1, 2)))
    weights = [model.weights, *([model.weights_dist] if hasattr(model, "weights_dist") else [])]
    heads = [sum(share * part for share, part in zip(one.softmax(0), read, strict=True)) for one in weights]
    return torch.stack(heads, 1)


ORACLES = {"EfficientViM": efficientvim, "EfficientViMDistilled": efficientvim}
