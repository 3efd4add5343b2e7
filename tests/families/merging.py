"""ViTs that merge tokens (ToMe), written from the paper's definition: one image at a time, in float64."""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import timm
import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

import labelflow as lf
from labelflow import Mix
from oracles import image_label, patch_labels

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 4, "num_heads": 3, "num_classes": 5}


class MergingViT(VisionTransformer):
    """timm's, under a name that its oracle is found by."""


class MergingDistilled(VisionTransformerDistilled):
    """timm's, too."""


def merging(name: str, r: int | Sequence[float], **arguments: Any) -> nn.Module:
    model = timm.create_model(name, **arguments)
    lf.merge_tokens(model, r)
    model.__class__ = MergingDistilled if hasattr(model, "dist_token") else MergingViT
    return model


def small(r: int | Sequence[float], **arguments: Any) -> nn.Module:
    return merging("vit_tiny_patch16_224", r, **{**VIT, **arguments})


def distilled(r: int | Sequence[float]) -> nn.Module:
    return merging("deit_tiny_distilled_patch16_224", r, **VIT)


FAMILIES = {
    "merging": (small, {"r": 3}, (32, 32)),
    "merging, unfused": (small, {"r": 3}, (32, 32)),
    "merging, fewer and fewer": (small, {"r": (3, -1), "qk_norm": True, "init_values": 0.5}, (32, 32)),
    "merging, average": (small, {"r": 3, "global_pool": "avg"}, (32, 32)),
    "merging, all that can be": (small, {"r": 16, "class_token": False, "global_pool": "avg"}, (32, 32)),
    "merging, registers": (small, {"r": 2, "reg_tokens": 4, "img_size": (24, 40)}, (24, 40)),
    "merging, attention pooling": (small, {"r": 3, "global_pool": "map"}, (32, 32)),
    "merging, distilled": (distilled, {"r": (3, 0.5)}, (32, 32)),
}
SOME = ["merging"]


@dataclass
class Token:
    x: Tensor  # (D,)
    label: Tensor  # (C,)
    patches: list[int]  # its place among the first tokens, and of those that were merged into it


def attend(attn: nn.Module, tokens: list[Token], x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Proportional attention: what it makes of tokens (N, D), the mean of its heads (N, N), and of its keys (N, d)"""
    query, key, value = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(1, 2, 0, 3)  # (A, N, d)
    query, key = attn.q_norm(query), attn.k_norm(key)
    size = torch.tensor([float(len(token.patches)) for token in tokens]).double()
    scores = (query @ key.mT / math.sqrt(key.shape[-1])).exp() * size  # exp(score + log s)
    weights = scores / scores.sum(-1, keepdim=True)
    return attn.proj((weights @ value).transpose(0, 1).flatten(1)), weights.mean(0), key.mean(0)


def mean(one: Token, other: Token) -> Token:
    """Weighed by their sizes."""
    a, b = len(one.patches), len(other.patches)
    x, label = ((a * u + b * v) / (a + b) for u, v in ((one.x, other.x), (one.label, other.label)))
    return Token(x, label, one.patches + other.patches)


def merged(tokens: list[Token], keys: Tensor, r: int, prefix: int) -> list[Token]:
    """Bipartite soft matching: even places to odd ones."""
    pairs = []
    for i in range(0, len(tokens), 2):
        found = [
            (float(keys[i] @ keys[j] / keys[i].norm() / keys[j].norm()), i, j)
            for j in range(1, len(tokens), 2)
            if i >= prefix and j >= prefix
        ]
        pairs += [max(found)] if found else []
    patches = len(tokens) - prefix
    result = list(tokens)
    gone = set()
    for _, i, j in sorted(pairs, reverse=True)[: min(r, patches // 2)]:
        result[j] = mean(result[j], tokens[i])
        gone.add(i)
    order = [*range(prefix), *(i for i in range(prefix, len(tokens)) if i % 2 == 0)]
    order += [i for i in range(prefix, len(tokens)) if i % 2 == 1]
    return [result[i] for i in order if i not in gone]


def followed(model: nn.Module, image: Tensor, labels: Tensor) -> list[Token]:
    """The tokens that leave the last block, for one image; of the first ones, labels (N, C)."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image.unsqueeze(0))))[0]
    tokens = [Token(one, label, [i]) for i, (one, label) in enumerate(zip(x, labels.to(x), strict=True))]
    for block in model.blocks:
        x = torch.stack([token.x for token in tokens])
        labels = torch.stack([token.label for token in tokens])
        mixed, weights, keys = attend(block.attn, tokens, block.norm1(x))
        x, labels = x + block.ls1(mixed), (labels + weights @ labels) / 2  # Eq. 11
        tokens = [Token(*pair, token.patches) for *pair, token in zip(x, labels, tokens, strict=True)]
        tokens = merged(tokens, keys, block.match.r, model.num_prefix_tokens)
        for token in tokens:
            token.x = token.x + block.ls2(block.mlp(block.norm2(token.x)))
    return tokens


def unmerged(tokens: list[Token]) -> tuple[Tensor, Tensor]:
    """Each of the first tokens again: (N, D), (N, C)"""
    whole = {patch: token for token in tokens for patch in token.patches}
    ordered = [whole[patch] for patch in range(len(whole))]
    return torch.stack([token.x for token in ordered]), torch.stack([token.label for token in ordered])


def features_and_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> tuple[Tensor, Tensor]:
    """(B, P + N, D), (B, P + N, C)"""
    model = copy.deepcopy(model).double()
    start = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    start = torch.cat([image_label(mix, onehot).expand(-1, model.num_prefix_tokens, -1), start], 1)
    pairs = [unmerged(followed(model, *pair)) for pair in zip(images.double(), start, strict=True)]
    x, labels = (torch.stack(part) for part in zip(*pairs, strict=True))
    return model.norm(x).float(), labels.float()


def oracle(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    x, labels = features_and_labels(model, images, mix, onehot)
    prefix = model.num_prefix_tokens
    if model.attn_pool is not None:  # of all patches, each for itself
        pool = model.attn_pool
        query, key = pool.q(pool.latent).expand(len(x), -1, -1), pool.kv(x[:, prefix:]).chunk(2, -1)[0]
        query, key = (one.unflatten(-1, (pool.num_heads, -1)).transpose(1, 2) for one in (query, key))
        weights = (query @ key.mT / math.sqrt(key.shape[-1])).softmax(-1).mean(1)
        return weights @ labels[:, prefix:]
    if model.global_pool == "avg":
        return labels[:, prefix:].mean(1, keepdim=True)
    return labels[:, : 2 if hasattr(model, "dist_token") else 1]


ORACLES = {"MergingViT": oracle, "MergingDistilled": oracle}
