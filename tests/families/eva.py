"""EVA, DINOv3, Perception Encoders: rotary embeddings."""

import torch
from timm.models.eva import EvaBlockPostNorm
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, rotated, softmax_attention

EVA = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
GROUPED = {"attn_type": "rope", "qkv_fused": False, "num_kv_heads": (3, 1), "qk_norm": True}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "eva": ("eva_giant_patch14_224", EVA, (32, 32)),
    "eva 02": ("eva02_tiny_patch14_224", EVA, (32, 32)),
    "eva 02, unfused": ("eva02_tiny_patch14_224", EVA, (32, 32)),
    "eva, post-norm": ("eva02_enormous_patch14_clip_224", {**EVA, "use_rot_pos_emb": True}, (32, 32)),
    "eva, rope": ("vit_small_patch16_rope_224", {**EVA, "img_size": (24, 40)}, (24, 40)),
    "eva, mixed rope": ("vit_small_patch16_rope_mixed_224", EVA, (32, 32)),
    "eva, mixed rope, unfused": ("vit_small_patch16_rope_mixed_224", EVA, (32, 32)),
    "eva, dino v3": ("vit_small_patch16_dinov3", EVA, (24, 48)),
    "eva, grouped heads": ("vit_small_patch16_rope_224", {**EVA, **GROUPED}, (32, 32)),
    "eva, perception encoder": ("vit_pe_core_tiny_patch16_384", {**EVA, "attn_pool_num_heads": 2}, (32, 32)),
}
SOME = ["eva 02"]


def rotary_attention(attn: nn.Module, x: Tensor, rope: Tensor | None, prefix: int) -> Tensor:
    """x normed (B, N, D) -> the mean of the weights over heads (B, N, N)"""
    if attn.qkv is not None:
        bias = 0.0 if getattr(attn, "q_bias", None) is None else torch.cat([attn.q_bias, attn.k_bias, attn.v_bias])
        query, key, _ = (attn.qkv(x) + bias).chunk(3, -1)
    else:
        query, key = attn.q_proj(x), attn.k_proj(x)
    query = attn.q_norm(query.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2))
    key = attn.k_norm(key.unflatten(-1, (-1, query.shape[-1])).transpose(1, 2))
    if rope is not None:
        query, key = (rotated(tokens, rope, attn.rotate_half, prefix) for tokens in (query, key))
    share = attn.num_heads // key.shape[1]
    key = torch.stack([key[:, head // share] for head in range(attn.num_heads)], 1)
    return softmax_attention(query, key)


def pooled_label(pool: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """A latent token attends to the others: (B, 1, C)"""
    query = pool.q(pool.latent).expand(len(x), -1, -1).unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
    key = pool.kv(x).chunk(2, -1)[0].unflatten(-1, (pool.num_heads, -1)).transpose(1, 2)
    return softmax_attention(pool.q_norm(query), pool.k_norm(key)) @ labels


def eva(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    x, rope = model._pos_embed(model.patch_embed(images))
    x, prefix = model.norm_pre(x), model.num_prefix_tokens
    labels = torch.cat([image_label(mix, onehot).expand(-1, prefix, -1), labels], 1)
    for i, block in enumerate(model.blocks):
        turn = rope[i] if model.rope_mixed else rope
        normed = x if isinstance(block, EvaBlockPostNorm) else block.norm1(x)
        labels = (labels + rotary_attention(block.attn, normed, turn, prefix) @ labels) / 2
        x = block(x, rope=turn)
    if model.attn_pool is not None:
        return pooled_label(model.attn_pool, model.norm(x), labels)
    return labels[:, :1] if model.global_pool == "token" else labels[:, prefix:].mean(1, keepdim=True)


ORACLES = {"Eva": eva}
