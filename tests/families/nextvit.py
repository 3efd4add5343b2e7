"""Next-ViT; timm fixes the width of its stages."""

import torch
from timm.models.nextvit import NextTransformerBlock, NextViT
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, merge_labels, patch_labels, softmax_attention, window_labels

NEXTVIT = {
    "in_chans": 3,
    "depths": (1, 2, 5, 1),
    "stem_chs": (8, 8, 8),
    "norm_layer": "layernorm2d",  # batch norms of random weights leave scores too large
    "num_classes": 5,
}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "nextvit": (NextViT, NEXTVIT, (64, 64)),
    "nextvit, oblong, unfused": (NextViT, NEXTVIT, (48, 72)),  # odd maps, and a rest that the keys leave out
}
SOME = ["nextvit"]  # for what does not depend on the details


def transformer(block: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """x and labels behind the block's pool"""
    attn, tokens = block.e_mhsa, block.norm1(x).flatten(2).mT
    flat = labels.flatten(1, 2)
    keys, sources = tokens, flat
    if attn.sr is not None:
        count = attn.sr_ratio**2
        runs = range(0, tokens.shape[1] - count + 1, count)
        keys = torch.stack([tokens[:, start : start + count].mean(1) for start in runs], 1)
        keys = attn.norm(keys.mT).mT
        sources = torch.stack([flat[:, start : start + count].mean(1) for start in runs], 1)
    query, key = (
        part.unflatten(-1, (attn.num_heads, attn.head_dim)).transpose(1, 2) for part in (attn.q(tokens), attn.k(keys))
    )
    first = (labels + (softmax_attention(query, key) @ sources).view_as(labels)) / 2
    second = (first + convolved(first, block.mhca.group_conv3x3)) / 2
    return (block.mhsa_out_chs * first + block.mhca_out_chs * second) / block.out_chs


def nextvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    labels = convolved(convolved(labels, model.stem[1].conv), model.stem[2].conv)
    labels = window_labels(labels, 3, 2, 1)
    x = model.stem(images)
    for stage in model.stages:
        for block in stage.blocks:
            if not isinstance(block.patch_embed.pool, nn.Identity):
                labels = merge_labels(labels)
            if isinstance(block, NextTransformerBlock):
                labels = transformer(block, block.patch_embed(x), labels)
            else:
                labels = (labels + convolved(labels, block.mhca.group_conv3x3)) / 2
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"NextViT": nextvit}
