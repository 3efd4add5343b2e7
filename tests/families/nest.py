"""NesT."""

import torch
from timm.models.nest import Nest
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels, window_matrix

NEST = {
    "img_size": 32,
    "num_levels": 2,
    "embed_dims": (8, 16),
    "num_heads": (2, 2),
    "depths": (2, 1),
    "num_classes": 5,
}  # create_model would take no other depths

# name: (class of the model, its arguments, an image size it takes)
FAMILIES = {
    "nest": (Nest, NEST, (32, 32)),
    "nest, unfused": (Nest, NEST, (32, 32)),
    "nest, padded as in Jax": (Nest, {**NEST, "img_size": 48, "pad_type": "same"}, (48, 48)),
}
SOME = ["nest"]  # for what does not depend on the details


def block_attention(layer: nn.Module, x: Tensor) -> Tensor:
    q, k, _ = layer.attn.qkv(layer.norm1(x)).unflatten(-1, (3, layer.attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return softmax_attention(q, k)


def nest(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 4, 4), model.patch_embed(images)
    for level in model.levels:
        if not isinstance(level.pool, nn.Identity):
            labels = convolved(labels, level.pool.conv)
            if type(level.pool.pool).__name__ == "MaxPool2dSame":  # only the lower and the right edge are padded
                height, width = labels.shape[1:3]
                pooled = torch.zeros(len(x), height // 2, width // 2, labels.shape[3])
                for i in range(height // 2):
                    for j in range(width // 2):
                        pooled[:, i, j] = labels[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].mean((1, 2))
                labels = pooled
            else:
                labels = window_labels(labels, 3, 2, 1)
            x = level.pool(x)
        side, height, width = level.block_size, *x.shape[2:]
        blocks = x.permute(0, 2, 3, 1).unflatten(1, (-1, side)).unflatten(3, (-1, side)).transpose(2, 3)
        blocks = blocks.flatten(3, 4).flatten(1, 2) + level.pos_embed  # (B, blocks, side·side, D)
        for layer in level.transformer_encoder:
            x = blocks.unflatten(2, (side, side)).unflatten(1, (height // side, width // side)).transpose(2, 3)
            x = x.flatten(3, 4).flatten(1, 2)  # (B, height, width, D)
            matrix = window_matrix(x, (side, side), (0, 0), lambda part, _, layer=layer: block_attention(layer, part))
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, (height, width))
            blocks = layer(blocks)
        x = blocks.unflatten(2, (side, side)).unflatten(1, (height // side, width // side)).transpose(2, 3)
        x = x.flatten(3, 4).flatten(1, 2).permute(0, 3, 1, 2)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"Nest": nest}
