"""Hiera."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import merge_labels, patch_labels

HIERA = {"img_size": (64, 32), "embed_dim": 8, "stages": (1, 2, 1), "q_pool": 2, "mask_unit_size": (4, 4)}
HIERA |= {"mask_unit_attn": (True, True, False), "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "hiera": ("hiera_tiny_224", HIERA, (64, 32)),
    "hiera, unfused": ("hiera_tiny_224", HIERA, (64, 32)),
    "hiera, one pooling": (
        "hiera_small_abswin_256",
        {**HIERA, "q_pool": 1, "mask_unit_attn": (False, True, True), "use_expand_proj": True},
        (64, 32),
    ),
}
SOME = ["hiera"]  # for what does not depend on the details


def hiera(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 7, 4, 3)
    x = model.unroll(model._pos_embed(model.patch_embed(images)))
    for index, block in enumerate(model.blocks):
        attn = block.attn
        h, w = labels.shape[1:3]
        before = max(index - 1, 0)  # the block after which tokens lie as they come in here
        order = model.reroll(torch.arange(h * w).view(1, -1, 1), before).flatten()
        unit = 2 ** len(model.reroll.schedule[before][0])
        qkv = attn.qkv(block.norm1(x))[:, order].unflatten(1, (h, w)).unflatten(-1, (3, attn.heads, -1))
        q, k = qkv[:, :, :, 0], qkv[:, :, :, 1]  # (B, h, w, A, D)
        rows, columns = (unit, unit) if attn.use_mask_unit_attn else (h, w)
        pool = 2 if attn.q_stride > 1 else 1
        q = q.unflatten(1, (-1, pool)).unflatten(3, (-1, pool)).amax((2, 4))
        mixed = torch.zeros(len(x), h // pool, w // pool, labels.shape[-1])
        for i in range(h // pool):
            for j in range(w // pool):
                top, left = i * pool // rows * rows, j * pool // columns * columns  # the mask unit of the query
                window = slice(top, top + rows), slice(left, left + columns)
                scores = torch.einsum("bad,bijad->baij", q[:, i, j], k[:, *window]) / q.shape[-1] ** 0.5
                weights = scores.flatten(2).softmax(-1).mean(1)
                mixed[:, i, j] = torch.einsum("bn,bnc->bc", weights, labels[:, *window].flatten(1, 2))
        labels = ((merge_labels(labels) if pool > 1 else labels) + mixed) / 2
        x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"Hiera": hiera}
