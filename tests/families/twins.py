"""Twins."""

from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels, window_matrix

TWINS = {
    "img_size": 64,
    "embed_dims": (8, 16),
    "num_heads": (1, 2),
    "mlp_ratios": (2, 2),
    "depths": (2, 3),
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "twins svt": ("twins_svt_small", {**TWINS, "wss": (4, 4), "sr_ratios": (4, 2)}, (64, 64)),
    "twins svt, unfused": ("twins_svt_small", {**TWINS, "wss": (4, 4), "sr_ratios": (4, 1)}, (64, 64)),
    "twins svt, padded": ("twins_svt_small", {**TWINS, "wss": (3, 5), "sr_ratios": (4, 2)}, (48, 64)),
    "twins pcpvt": ("twins_pcpvt_small", {**TWINS, "sr_ratios": (4, 2)}, (64, 64)),
    "twins pcpvt, unfused": ("twins_pcpvt_small", {**TWINS, "sr_ratios": (8, 1)}, (64, 64)),
}
SOME = ["twins svt"]  # for what does not depend on the details


def local_attention(attn: nn.Module, x: Tensor) -> Tensor:
    q, k, _ = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return softmax_attention(q, k)


def attended(attn: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """x normed (B, h, w, D), labels (B, h, w, C) -> (B, h·w, C)"""
    if hasattr(attn, "ws"):
        matrix = window_matrix(x, (attn.ws, attn.ws), (0, 0), lambda part, _: local_attention(attn, part))
        return matrix @ labels.flatten(1, 2)
    query = attn.q(x).flatten(1, 2).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    keys = x.flatten(1, 2)
    if attn.sr is not None:
        keys = attn.norm(attn.sr(x.permute(0, 3, 1, 2)).flatten(2).transpose(1, 2))
        labels = window_labels(labels, attn.sr_ratio, attn.sr_ratio, 0)
    key = attn.kv(keys).unflatten(-1, (2, attn.num_heads, -1))[:, :, 0].transpose(1, 2)
    return softmax_attention(query, key) @ labels.flatten(1, 2)


def twins(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 1, 1), images
    for embed, blocks, positions in zip(model.patch_embeds, model.blocks, model.pos_block, strict=True):
        labels = window_labels(labels, embed.patch_size[0], embed.patch_size[0], 0)
        x, grid = embed(x)
        for i, block in enumerate(blocks):
            mixed = attended(block.attn, block.norm1(x).unflatten(1, grid), labels)
            labels = (labels + mixed.unflatten(1, grid)) / 2
            x = block(x, grid)
            if i == 0:
                labels = (labels + convolved(labels, positions.proj[0])) / 2
                x = positions(x, grid)
        x = x.transpose(1, 2).unflatten(2, grid)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"Twins": twins}
