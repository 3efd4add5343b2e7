"""Visformer."""

import torch
from timm.layers import LayerNorm2d
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolution_matrix, patch_labels, softmax_attention, window_labels

VISFORMER = {
    "img_size": 64,
    "embed_dim": 16,
    "depth": (1, 2, 1),
    "num_heads": 2,
    "num_classes": 5,
    "norm_layer": LayerNorm2d,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "visformer": ("visformer_tiny", {**VISFORMER, "init_channels": 8}, (64, 64)),
    "visformer, unfused": ("visformer_tiny", {**VISFORMER, "init_channels": 8, "img_size": (64, 96)}, (64, 96)),
    "visformer, attention and convolution": (
        "visformer_tiny",
        {**VISFORMER, "init_channels": None, "attn_stage": "111", "spatial_conv": "111", "group": 4},
        (64, 64),
    ),
}
SOME = ["visformer"]  # for what does not depend on the details


def visformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 1, 1), images
    if model.stem is not None:
        labels, x = window_labels(labels, 7, 2, 3), model.stem(x)
    for stage in (1, 2, 3):
        embed = getattr(model, f"patch_embed{stage}")
        labels = window_labels(labels, embed.patch_size[0], embed.patch_size[0], 0)
        x = embed(x) + getattr(model, f"pos_embed{stage}")
        grid = tuple(x.shape[2:])
        labels = labels.flatten(1, 2)
        for block in getattr(model, f"stage{stage}"):
            if block.attn is not None:
                q, k, _ = (
                    block.attn.qkv(block.norm1(x)).flatten(2).unflatten(1, (3, block.attn.num_heads, -1)).unbind(1)
                )
                labels = (labels + softmax_attention(q.mT, k.mT) @ labels) / 2
            if block.mlp.spatial_conv:
                kernels = block.mlp.conv2.weight.abs().sum(1)  # all that an output channel takes from a place
                labels = (labels + torch.stack([convolution_matrix(k, grid) for k in kernels]).mean(0) @ labels) / 2
            x = block(x)
        labels = labels.unflatten(1, grid)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"Visformer": visformer}
