"""ViTs with relative position biases."""

import math

import torch
from timm.layers import RelPosMlp
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

RELPOS = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "vit relpos": ("vit_relpos_small_patch16_224", RELPOS, (32, 32)),
    "vit relpos, unfused": ("vit_relpos_small_patch16_224", RELPOS, (32, 32)),
    "vit relpos, class token": ("vit_relpos_medium_patch16_cls_224", {**RELPOS, "img_size": (24, 40)}, (24, 40)),
    "vit relpos, mlp": ("vit_relpos_small_patch16_224", {**RELPOS, "rel_pos_type": "mlp", "rel_pos_dim": 8}, (32, 32)),
    "vit relpos, sigmoid of an mlp": (
        "vit_relpos_medium_patch16_cls_224",
        {**RELPOS, "rel_pos_type": "mlp_swin", "rel_pos_dim": 8},
        (32, 32),
    ),
    "vit relpos, shared": ("vit_srelpos_small_patch16_224", {**RELPOS, "rel_pos_dim": 8}, (32, 32)),
    "vit relpos, shared, unfused": ("vit_srelpos_small_patch16_224", {**RELPOS, "rel_pos_dim": 8}, (32, 32)),
    "vit relpos, post-norm": ("vit_relpos_medium_patch16_rpn_224", RELPOS, (32, 32)),
}
SOME = ["vit relpos, mlp"]


def relative_bias(source: nn.Module, grid: tuple[int, int]) -> Tensor:
    """A bias for each pair of tokens: (A, N, N)"""
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    prefix = source.prefix_tokens

    def pair(down: int, right: int) -> Tensor:
        if not isinstance(source, RelPosMlp):
            return source.relative_position_bias_table[(down + grid[0] - 1) * (2 * grid[1] - 1) + right + grid[1] - 1]
        if source.mode == "swin":
            steps = [8 * step / (side - 1) for step, side in zip((down, right), grid, strict=True)]
            log = [math.copysign(math.log2(1 + abs(step)) / 3, step) for step in steps]
            return 16 * source.mlp(torch.tensor(log)).sigmoid()
        return source.mlp(torch.tensor([math.copysign(math.log(1 + abs(step)), step) for step in (down, right)]))

    count = prefix + len(places)
    bias = torch.stack([pair(i - a, j - b) for i, j in places for a, b in places], -1)
    bias = nn.functional.pad(bias.unflatten(-1, (len(places), -1)), (prefix, 0, prefix, 0))
    if prefix and not isinstance(source, RelPosMlp):
        table = source.relative_position_bias_table[-3:]
        bias[:, 0, 1:], bias[:, 1:, 0], bias[:, 0, 0] = table[0].unsqueeze(1), table[1].unsqueeze(1), table[2]
    assert bias.shape[1:] == (count, count)
    return bias


def vit_relpos(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
    labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    x = model.patch_embed(images)
    if prefix:
        x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
        labels = torch.cat([image_label(mix, onehot), labels], 1)
    shared = None if model.shared_rel_pos is None else model.shared_rel_pos.get_bias()
    for block in model.blocks:
        attn, normed = block.attn, x if type(block).__name__ == "ResPostRelPosBlock" else block.norm1(x)
        query, key, _ = attn.qkv(normed).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
        bias = relative_bias(model.shared_rel_pos if attn.rel_pos is None else attn.rel_pos, grid)
        labels = (labels + softmax_attention(query, key, bias) @ labels) / 2
        x = block(x, shared_rel_pos=shared)
    return labels[:, :1] if model.global_pool == "token" else labels[:, prefix:].mean(1, keepdim=True)


ORACLES = {"VisionTransformerRelPos": vit_relpos}
