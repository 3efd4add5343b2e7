"""Swin."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import patch_labels

SWIN = {"patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "swin": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": 32}, (32, 32)),
    "swin, fused": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": 32}, (32, 32)),
    "swin, padded": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": (40, 60)}, (40, 60)),
    "swin, padded, fused": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": (40, 60)}, (40, 60)),
    "swin, any size": (
        "swin_tiny_patch4_window7_224",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
    "swin, any size, fused": (
        "swin_tiny_patch4_window7_224",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
}
SOME = ["swin"]  # for what does not depend on the details


def swin_matrix(block: nn.Module, x: Tensor) -> Tensor:
    """What each token's label is made of, over the whole map: (B, H, W, D) -> (B, H·W, H·W)."""
    batch, height, width, dim = x.shape
    (wh, ww), (sh, sw), attn = block.window_size, block.shift_size, block.attn
    full_h, full_w = -(-height // wh) * wh, -(-width // ww) * ww
    tokens = torch.zeros(batch, full_h, full_w, dim)  # rolled, then padded with zeros
    source = torch.full((full_h, full_w), -1)
    for i in range(height):
        for j in range(width):
            a, b = (i - sh) % height, (j - sw) % width
            tokens[:, a, b] = x[:, i, j]
            source[a, b] = i * width + j
    q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(3, 0, 4, 1, 2, 5)
    table = attn.relative_position_bias_table.unflatten(0, (2 * wh - 1, 2 * ww - 1))

    def region(a: int, b: int) -> tuple[int, int]:
        return (
            0 if not sh or a < full_h - wh else 1 if a < full_h - sh else 2,
            0 if not sw or b < full_w - ww else 1 if b < full_w - sw else 2,
        )

    matrix = torch.zeros(batch, height * width, height * width)
    for top in range(0, full_h, wh):
        for left in range(0, full_w, ww):
            places = [(top + i, left + j) for i in range(wh) for j in range(ww)]
            for a in places:
                if source[a] < 0:
                    continue
                scores = torch.stack(
                    [
                        (q[..., a[0], a[1], :] * k[..., b[0], b[1], :]).sum(-1) / q.shape[-1] ** 0.5
                        + table[a[0] - b[0] + wh - 1, a[1] - b[1] + ww - 1]
                        - (0 if region(*a) == region(*b) or not (sh or sw) else 100)
                        for b in places
                    ],
                    -1,
                )  # (B, A, places)
                weights = scores.softmax(-1).mean(1)
                for b, weight in zip(places, weights.unbind(-1), strict=True):
                    if source[b] >= 0:  # padding holds no label
                        matrix[:, source[a], source[b]] += weight
    return matrix / matrix.sum(-1, keepdim=True)


def swin(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    x = model.patch_embed(images)
    for stage in model.layers:
        if not isinstance(stage.downsample, nn.Identity):
            x = stage.downsample(x)
            merged = torch.zeros(*x.shape[:3], labels.shape[-1])
            for i in range(x.shape[1]):
                for j in range(x.shape[2]):
                    merged[:, i, j] = labels[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
            labels = merged
        for block in stage.blocks:
            matrix = swin_matrix(block, block.norm1(x))
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3])
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"SwinTransformer": swin}
