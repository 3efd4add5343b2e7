"""MViTv2."""

from typing import Any

import torch
from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, image_label, patch_labels, window_labels


def make(img_size: int, num_classes: int, **config: Any) -> nn.Module:
    return MultiScaleVit(MultiScaleVitCfg(**config), img_size=img_size, num_classes=num_classes)


MVIT: dict[str, Any] = {"img_size": 64, "num_classes": 5, "depths": (1, 2), "embed_dim": (8, 16), "num_heads": (1, 2)}
MVIT |= {"stride_q": ((1, 1), (2, 2)), "stride_kv": ((4, 4), (2, 2))}

FAMILIES = {
    "mvitv2": (make, MVIT, (64, 64)),
    "mvitv2, class token": (make, {**MVIT, "use_cls_token": True, "use_abs_pos": True}, (64, 64)),
    "mvitv2, no positions": (
        make,
        {**MVIT, "rel_pos_type": "", "residual_pooling": False, "expand_attn": False},
        (64, 64),
    ),
}
SOME = ["mvitv2"]  # for what does not depend on the details


def mvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 7, 4, 3)
    grid = tuple(labels.shape[1:3])
    prefix = model.num_prefix_tokens
    x, _ = model.patch_embed(images)
    tokens = image_label(mix, onehot)[:, :prefix]
    if prefix:
        x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1) + model.pos_embed
    for block in [block for stage in model.stages for block in stage.blocks]:
        attn, places = block.attn, {}
        parts = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        for name, part in zip("qkv", parts, strict=True):
            pool, norm = getattr(attn, f"pool_{name}"), getattr(attn, f"norm_{name}")
            heads = [pool(part[:, a, prefix:].mT.unflatten(2, grid)).flatten(2).mT for a in range(attn.num_heads)]
            places[name] = norm(torch.cat([part[:, :, :prefix], torch.stack(heads, 1)], 2))
        q_labels, v_labels = convolved(labels, attn.pool_q), convolved(labels, attn.pool_v)
        q_grid, k_grid = tuple(q_labels.shape[1:3]), tuple(v_labels.shape[1:3])
        scores = places["q"] @ places["k"].mT / places["q"].shape[-1] ** 0.5
        if attn.rel_pos_type == "spatial":
            ratio = q_grid[0] // k_grid[0]  # queries are at least as fine as keys here
            for n in range(q_grid[0] * q_grid[1]):
                for m in range(k_grid[0] * k_grid[1]):
                    down = n // q_grid[1] - ratio * (m // k_grid[1]) + ratio * (k_grid[0] - 1)
                    right = n % q_grid[1] - ratio * (m % k_grid[1]) + ratio * (k_grid[1] - 1)
                    position = attn.rel_pos_h[down] + attn.rel_pos_w[right]
                    scores[:, :, prefix + n, prefix + m] += places["q"][:, :, prefix + n] @ position
        weights = scores.softmax(-1).mean(1)
        mixed = weights @ torch.cat([tokens, v_labels.flatten(1, 2)], 1)
        if attn.residual_pooling:
            mixed = (mixed + torch.cat([tokens, q_labels.flatten(1, 2)], 1)) / 2
        shortcut = window_labels(labels, 3, 2, 1) if block.shortcut_pool_attn is not None else labels
        values = (torch.cat([tokens, shortcut.flatten(1, 2)], 1) + mixed) / 2
        x, _ = block(x, grid)
        grid = q_grid
        tokens, labels = values[:, :prefix], values[:, prefix:].unflatten(1, grid)
    return tokens if prefix else labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"MultiScaleVit": mvit}
