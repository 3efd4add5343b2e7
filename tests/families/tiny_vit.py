"""TinyViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels, window_matrix

TINY_VIT = {
    "embed_dims": (8, 8, 16),
    "depths": (1, 2, 1),
    "num_heads": (1, 2, 2),
    "window_sizes": (4, 4, 4),
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "tiny vit": ("tiny_vit_5m_224", TINY_VIT, (64, 64)),
    "tiny vit, unfused": ("tiny_vit_5m_224", TINY_VIT, (64, 64)),
    "tiny vit, padded": ("tiny_vit_5m_224", TINY_VIT, (48, 56)),
}
SOME: list[str] = []  # in eval mode, timm keeps each bias with its graph: neither copies nor a second backward pass


def window_attention(attn: nn.Module, x: Tensor) -> Tensor:
    """The mean over heads, with a bias for each offset, whatever its direction: (B, r·r, D) -> (B, r·r, r·r)"""
    side = attn.resolution[0]
    parts = attn.qkv(attn.norm(x)).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    query, key = parts[..., : attn.key_dim], parts[..., attn.key_dim : 2 * attn.key_dim]
    offsets: dict[tuple[int, int], int] = {}  # in the order in which they are met
    bias = torch.zeros(attn.num_heads, side * side, side * side)
    for a in range(side * side):
        for b in range(side * side):
            offset = abs(a // side - b // side), abs(a % side - b % side)
            bias[:, a, b] = attn.attention_biases[:, offsets.setdefault(offset, len(offsets))]
    return softmax_attention(query, key, bias)


def tiny_vit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    x = model.patch_embed(images)
    for block in model.stages[0].blocks:
        labels = (labels + convolved(labels, block.conv2.conv)) / 2
        x = block(x)
    for stage in model.stages[1:]:
        labels = window_labels(labels, 3, 2, 1)
        x = stage.downsample(x).permute(0, 2, 3, 1)
        for block in stage.blocks:
            window = (block.window_size, block.window_size)
            matrix = window_matrix(x, window, (0, 0), lambda part, _, attn=block.attn: window_attention(attn, part))
            flat = labels.flatten(1, 2)
            labels = convolved(((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3]), block.local_conv.conv)
            x = block(x)
        x = x.permute(0, 3, 1, 2)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"TinyVit": tiny_vit}
