"""Vision encoders of Qwen3-VL, DeepSeek-V4 and Gemma 4 as classifiers."""

import torch
from torch import Tensor, nn

from families.eva import rotary_attention
from labelflow import Mix
from oracles import patch_labels, rotated, softmax_attention, window_labels

VLM = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}
GEMMA = {
    **VLM,
    "head_dim": 8,
    "intermediate_size": 32,
    "position_embedding_size": 8,
    "pooling_kernel_size": 2,
    "num_kv_heads": 1,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "qwen3": ("qwen3_vit_88m", {**VLM, "pos_embed_grid_size": 3}, (24, 40)),
    "qwen3, merged": ("qwen3_vit_88m_merge", {**VLM, "pos_embed_grid_size": 4, "out_features": 16}, (32, 32)),
    "deepseek": ("deepseek_vit_412m", VLM, (32, 32)),
    "deepseek, unfused": ("deepseek_vit_412m", VLM, (32, 32)),
    "deepseek, aligned": ("deepseek_vit_412m_align", {**VLM, "out_features": 16, "dynamic_img_pad": True}, (28, 45)),
    "gemma4": ("gemma4_vit_167m", GEMMA, (24, 40)),
    "gemma4, unfused": ("gemma4_vit_167m", GEMMA, (24, 40)),
    "gemma4, pooled": ("gemma4_vit_167m", {**GEMMA, "encoder_pool": "soft", "num_kv_heads": 3}, (32, 32)),
}
SOME = ["qwen3, merged"]  # timm's Gemma 4 looks at its tensors in Python: it cannot be compiled in one graph


def merged(labels: Tensor, size: int) -> Tensor:
    """The mean label of size×size tokens; those beyond the edge do not count."""
    rows, columns = (-(-side // size) for side in labels.shape[1:3])
    return torch.stack(
        [
            labels[:, size * i : size * (i + 1), size * j : size * (j + 1)].mean((1, 2))
            for i in range(rows)
            for j in range(columns)
        ],
        1,
    )


def encoder_labels(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Qwen3 and DeepSeek: (B, h, w, C)"""
    encoder, grid = model.encoder, labels.shape[1:3]
    x, rope = encoder._pos_embed(encoder.patch_embed(images))
    labels = labels.flatten(1, 2)
    for block in encoder.blocks:
        labels = (labels + rotary_attention(block.attn, block.norm1(x), rope, 0) @ labels) / 2
        x = block(x, rope=rope)
    return labels.unflatten(1, grid)


def qwen3(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = encoder_labels(model, images, patch_labels(mix, onehot, 8, 8))
    labels = window_labels(labels, 2, 2, 0) if model.encoder_pool == "merge" else labels
    return labels.mean((1, 2)).unsqueeze(1)


def deepseek(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = encoder_labels(model, images, patch_labels(mix, onehot, 8, 8))
    labels = merged(labels, 3) if model.encoder_pool == "align" else labels.flatten(1, 2)
    return labels.mean(1, keepdim=True)


def gemma4(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    encoder, labels = model.encoder, patch_labels(mix, onehot, 8, 8)
    grid, labels = labels.shape[1:3], labels.flatten(1, 2)
    x, places, _ = encoder.patch_embed(images)
    cosine, sine = encoder.rotary_emb(x, places)
    rope = torch.cat([sine, cosine], -1).unsqueeze(1)
    for block in encoder.blocks:
        attn, normed = block.attn, block.norm1(x)
        query, key = (
            norm(project(normed).unflatten(-1, (-1, attn.head_dim))).transpose(1, 2)
            for norm, project in ((attn.q_norm, attn.q_proj), (attn.k_norm, attn.k_proj))
        )
        query, key = (  # the first half of the channels turns with the column, the second with the row
            torch.cat(
                [
                    rotated(part, torch.cat([s, c], -1), True, 0)
                    for part, s, c in zip(
                        tokens.chunk(2, -1), *(turn.chunk(2, -1) for turn in rope.chunk(2, -1)), strict=True
                    )
                ],
                -1,
            )
            for tokens in (query, key)
        )
        key = key.expand(-1, attn.num_heads, -1, -1) if attn.num_kv_heads == 1 else key
        labels = (labels + softmax_attention(query * attn.head_dim**0.5, key) @ labels) / 2  # its scale is 1
        x = block(x, cosine, sine)
    labels = labels.unflatten(1, grid)
    return (merged(labels, 2) if encoder.global_pool == "soft" else labels.flatten(1, 2)).mean(1, keepdim=True)


ORACLES = {"DeepseekVitClassifier": deepseek, "Gemma4VitClassifier": gemma4, "Qwen3VitClassifier": qwen3}
