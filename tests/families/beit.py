"""BEiT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

BEIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "beit": ("beit_base_patch16_224", BEIT, (32, 32)),
    "beit, unfused": ("beit_base_patch16_224", BEIT, (32, 32)),
    "beit, oblong": ("beit_base_patch16_224", {**BEIT, "img_size": (24, 40), "global_pool": "token"}, (24, 40)),
    "beit, both biases": ("beit_base_patch16_224", {**BEIT, "use_shared_rel_pos_bias": True}, (32, 32)),
    "beit, one bias for all, unfused": (
        "beit_base_patch16_224",
        {**BEIT, "use_shared_rel_pos_bias": True, "use_rel_pos_bias": False, "qkv_bias": False},
        (32, 32),
    ),
    "beit, no bias": ("beit_base_patch16_224", {**BEIT, "use_rel_pos_bias": False, "qkv_bias": False}, (32, 32)),
}
SOME = ["beit, both biases"]


def relative_bias(table: Tensor, grid: tuple[int, int]) -> Tensor:
    """A bias for each pair of tokens, the class token in front: (rows, A) -> (A, N, N)"""
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    bias = torch.zeros(table.shape[1], 1 + len(places), 1 + len(places))
    bias[:, 0, 1:], bias[:, 1:, 0], bias[:, 0, 0] = table[-3].unsqueeze(1), table[-2].unsqueeze(1), table[-1]
    for m, (i, j) in enumerate(places):
        for n, (a, b) in enumerate(places):
            row = (i - a + grid[0] - 1) * (2 * grid[1] - 1) + j - b + grid[1] - 1
            bias[:, 1 + m, 1 + n] = table[row]
    return bias


def beit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    grid = model.patch_embed.grid_size
    labels = torch.cat([image_label(mix, onehot), patch_labels(mix, onehot, 8, 8).flatten(1, 2)], 1)
    x = torch.cat([model.cls_token.expand(len(images), -1, -1), model.patch_embed(images)], 1)
    x = x if model.pos_embed is None else x + model.pos_embed
    shared = None if model.rel_pos_bias is None else model.rel_pos_bias()
    for block in model.blocks:
        attn, bias = block.attn, torch.zeros(1)
        if attn.relative_position_bias_table is not None:
            bias = bias + relative_bias(attn.relative_position_bias_table, grid)
        if shared is not None:
            bias = bias + relative_bias(model.rel_pos_bias.relative_position_bias_table, grid)
        query, key, _ = attn.qkv(block.norm1(x)).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        if attn.q_bias is not None:  # keys have none
            query = query + attn.q_bias.view(1, attn.num_heads, 1, -1)
        labels = (labels + softmax_attention(query, key, bias) @ labels) / 2
        x = block(x, shared_rel_pos_bias=shared)
    return labels[:, :1] if model.global_pool == "token" else labels[:, 1:].mean(1, keepdim=True)


ORACLES = {"Beit": beit}
