"""Plain ViTs."""

import torch
from timm.models.vision_transformer import (
    DiffParallelScalingBlock,
    ParallelScalingBlock,
    ParallelThingsBlock,
    ResPostBlock,
)
from timm.models.vitamin import VitCfg
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}

HYBRID = {"img_size": 64, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
VITAMIN = VitCfg(embed_dim=(8, 16, 24), depths=(1, 1, 1), stem_width=8)

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "vit": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, oblong": ("vit_tiny_patch16_224", {**VIT, "img_size": (24, 40)}, (24, 40)),
    "vit, any size": ("vit_tiny_patch16_224", {**VIT, "dynamic_img_size": True, "dynamic_img_pad": True}, (28, 45)),
    "vit, unfused": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, registers": ("vit_tiny_patch16_224", {**VIT, "reg_tokens": 4, "qk_norm": True}, (32, 32)),
    "vit, average": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg"}, (32, 32)),
    "vit, average of all": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 2},
        (32, 32),
    ),
    "vit, post-norm": ("vit_tiny_patch16_224", {**VIT, "block_fn": ResPostBlock, "init_values": 1.0}, (32, 32)),
    "vit, no class token": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg", "class_token": False}, (32, 32)),
    "vit, parallel": ("vit_tiny_patch16_224", {**VIT, "block_fn": ParallelScalingBlock, "qk_norm": True}, (32, 32)),
    "vit, parallel, unfused": ("vit_tiny_patch16_224", {**VIT, "block_fn": ParallelScalingBlock}, (32, 32)),
    "vit, three things": ("vit_tiny_patch16_224", {**VIT, "block_fn": ParallelThingsBlock}, (32, 32)),
    "vit, three things, unfused": ("vit_tiny_patch16_224", {**VIT, "block_fn": ParallelThingsBlock}, (32, 32)),
    "vit, differential": ("vit_dlittle_patch16_reg1_gap_256", VIT, (32, 32)),
    "vit, differential, unfused": ("vit_dlittle_patch16_reg1_gap_256", VIT, (32, 32)),
    "vit, differential, parallel": ("vit_tiny_patch16_224", {**VIT, "block_fn": DiffParallelScalingBlock}, (32, 32)),
    "vit, clip": ("vit_base_patch32_clip_224", VIT, (32, 32)),
    "vit, siglip": ("vit_base_patch16_siglip_224", VIT, (32, 32)),
    "vit, attention pooling of patches": ("vit_tiny_patch16_224", {**VIT, "global_pool": "map"}, (32, 32)),
    "vit, refined": ("vit_tiny_patch16_224", {**VIT, "global_pool": "prr"}, (32, 32)),
    "vit, refined, no class token": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "prr", "class_token": False},
        (32, 32),
    ),
    "vit, hybrid": ("vit_tiny_r_s16_p8_224", {**HYBRID, "patch_size": 4}, (64, 64)),
    "vit, vitamin": ("vitamin_small_224", {**HYBRID, "embed_cfg": VITAMIN}, (64, 64)),
    "deit distilled": ("deit_tiny_distilled_patch16_224", VIT, (32, 32)),
    "deit3": ("deit3_small_patch16_224", VIT, (32, 32)),
}
SOME = ["vit"]  # for what does not depend on the details


def heads_of(attn: nn.Module, tokens: Tensor) -> list[Tensor]:
    """(B, N, 3·D) -> queries and keys (B, A, N, d)"""
    query, key, _ = tokens.chunk(3, -1)
    count = attn.num_heads * (2 if hasattr(attn, "lambda_init") else 1)
    query, key = (part.unflatten(-1, (count, -1)).transpose(1, 2) for part in (query, key))
    return [attn.q_norm(query), attn.k_norm(key)]


def attention(attn: nn.Module, tokens: Tensor, labels: Tensor) -> Tensor:
    """g(Y) of the attention that a block's qkv (B, N, 3·D) make."""
    query, key = heads_of(attn, tokens)
    if not hasattr(attn, "lambda_init"):
        return softmax_attention(query, key) @ labels
    if attn.lambda_a is not None:
        strength = attn.lambda_a.exp() - attn.lambda_b.exp()
    else:
        strength = (attn.lambda_q1 @ attn.lambda_k1).exp() - (attn.lambda_q2 @ attn.lambda_k2).exp()
    mixed = torch.zeros_like(labels)
    for head in range(attn.num_heads):  # each is the difference of two, as a matrix with signs
        one, two = (softmax_attention(query[:, [i]], key[:, [i]]) for i in (2 * head, 2 * head + 1))
        weights = (one - (strength + attn.lambda_init) * two).abs()
        mixed += weights / weights.sum(-1, keepdim=True) @ labels / attn.num_heads
    return mixed


def block_labels(block: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    kind = type(block).__name__
    if kind == "ParallelThingsBlock":
        branches = [attention(branch.attn, branch.attn.qkv(branch.norm(x)), labels) for branch in block.attns]
        return (labels + sum(branches)) / (1 + len(branches))
    if kind in ("ParallelScalingBlock", "DiffParallelScalingBlock"):
        return (labels + attention(block, block.in_proj(block.in_norm(x))[..., -3 * x.shape[-1] :], labels)) / 2
    normed = x if kind == "ResPostBlock" else block.norm1(x)
    return (labels + attention(block.attn, block.attn.qkv(normed), labels)) / 2  # Eq. 11


def pooled(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Attention pooling: (B, 1, C)"""
    pool = model.attn_pool
    first = 0 if model.pool_include_prefix else model.num_prefix_tokens
    x, labels = x[:, first:], labels[:, first:]
    key = x if model.global_pool == "prr" else pool.kv(x).chunk(2, -1)[0]
    query = x if model.global_pool == "prr" else pool.q(pool.latent).expand(len(x), -1, -1)
    query, key = (tokens.unflatten(-1, (pool.num_heads, -1)).transpose(1, 2) for tokens in (query, key))
    labels = softmax_attention(query, key) @ labels
    return labels[:, :1] if model.has_class_token else labels.mean(1, keepdim=True)


def vit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    size = model.patch_embed.feat_ratio()
    labels = patch_labels(mix, onehot, size, size).flatten(1, 2)
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    prefix = x.shape[1] - labels.shape[1]
    labels = torch.cat([image_label(mix, onehot).expand(-1, prefix, -1), labels], 1)
    for block in model.blocks:
        labels = block_labels(block, x, labels)
        x = block(x)
    if getattr(model, "attn_pool", None) is not None:
        return pooled(model, model.norm(x), labels)
    if model.global_pool == "avg":
        return labels[:, 0 if model.pool_include_prefix else prefix :].mean(1, keepdim=True)
    return labels[:, : 2 if hasattr(model, "dist_token") else 1]


ORACLES = {"VisionTransformer": vit, "VisionTransformerDistilled": vit}
