"""NaFlexViT."""

import torch
from torch import Tensor, nn

from families.eva import pooled_label, rotary_attention
from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

NAFLEX = {"patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5, "pos_embed_grid_size": (4, 4)}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "naflex": ("naflexvit_base_patch16_gap", NAFLEX, (32, 32)),
    "naflex, unfused": ("naflexvit_base_patch16_gap", NAFLEX, (32, 32)),
    "naflex, attention pooling": ("naflexvit_base_patch16_map", NAFLEX, (24, 40)),
    "naflex, factorised": ("naflexvit_base_patch16_parfac_gap", {**NAFLEX, "embed_proj_type": "conv"}, (24, 40)),
    "naflex, padded": ("naflexvit_base_patch16_gap", {**NAFLEX, "dynamic_img_pad": True}, (28, 45)),
    "naflex, rope": (
        "naflexvit_base_patch16_gap",
        {**NAFLEX, "rope_type": "axial", "class_token": True, "global_pool": "token"},
        (24, 40),
    ),
    "naflex, mixed rope": ("naflexvit_base_patch16_gap", {**NAFLEX, "rope_type": "mixed"}, (32, 32)),
}
SOME = ["naflex"]


def naflexvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8)
    grid, labels = (labels.shape[1], labels.shape[2]), labels.flatten(1, 2)
    x, prefix = model.norm_pre(model.embeds(images)[0]), model.num_prefix_tokens
    labels = torch.cat([image_label(mix, onehot).expand(-1, prefix, -1), labels], 1)
    rope = None if model.rope is None else model.rope.get_embed(grid)
    for i, block in enumerate(model.blocks):
        attn = block.attn
        if rope is None:
            query, key, _ = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
            weights, x = softmax_attention(attn.q_norm(query), attn.k_norm(key)), block(x)
        else:
            turn = rope[i] if model.rope_is_mixed else rope
            weights, x = rotary_attention(attn, block.norm1(x), turn, prefix), block(x, rope=turn)
        labels = (labels + weights @ labels) / 2
    if model.attn_pool is not None:
        return pooled_label(model.attn_pool, model.norm(x)[:, prefix:], labels[:, prefix:])
    return labels[:, :1] if model.global_pool == "token" else labels[:, prefix:].mean(1, keepdim=True)


ORACLES = {"NaFlexVit": naflexvit}
