"""CaiT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

CAIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "cait": ("cait_xxs24_224", CAIT, (32, 32)),
    "cait, unfused": ("cait_xxs24_224", {**CAIT, "img_size": (24, 40)}, (24, 40)),
    "cait, average": ("cait_xxs24_224", {**CAIT, "global_pool": "avg"}, (32, 32)),
}
SOME = ["cait"]  # for what does not depend on the details


def talking_heads(attn: nn.Module, x: Tensor) -> Tensor:
    """The mean over heads of each head's own |W|, normalised per row: x normed (B, N, D) -> (B, N, N)"""
    q, k, _ = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    scores = torch.einsum("band,bamd->bnma", q, k) / q.shape[-1] ** 0.5
    weights = attn.proj_w(attn.proj_l(scores).softmax(2))  # (B, N, N, A), signed
    matrix = torch.zeros(weights.shape[:3])
    for head in weights.unbind(-1):
        matrix += head.abs() / head.abs().sum(-1, keepdim=True) / attn.num_heads
    return matrix


def class_attention(attn: nn.Module, x: Tensor) -> Tensor:
    """The class token's attention to all tokens: x normed, class token first (B, N, D) -> (B, 1, N)"""
    query = attn.q(x[:, :1]).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    key = attn.k(x).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    return softmax_attention(query, key)


def cait(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    x = model.patch_embed(images) + model.pos_embed
    for block in model.blocks:
        labels = (labels + talking_heads(block.attn, block.norm1(x)) @ labels) / 2
        x = block(x)
    token, label = model.cls_token.expand(len(x), -1, -1), image_label(mix, onehot)
    for block in model.blocks_token_only:
        weights = class_attention(block.attn, block.norm1(torch.cat([token, x], 1)))
        label = (label + weights @ torch.cat([label, labels], 1)) / 2
        token = block(x, token)
    return labels.mean(1, keepdim=True) if model.global_pool == "avg" else label


ORACLES = {"Cait": cait}
