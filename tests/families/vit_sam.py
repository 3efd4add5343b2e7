"""SAM's ViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolution_matrix, patch_labels, rotated, softmax_attention, window_matrix

SAM = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 24,
    "depth": 3,
    "num_heads": 3,
    "window_size": 3,
    "global_attn_indexes": (1,),
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "vit sam": ("samvit_base_patch16", {**SAM, "neck_chans": 8}, (32, 32)),
    "vit sam, unfused": ("samvit_base_patch16", {**SAM, "neck_chans": 8}, (32, 32)),
    "vit sam, oblong": ("samvit_base_patch16_224", {**SAM, "img_size": (24, 40)}, (24, 40)),
    "vit sam, rope": ("samvit_base_patch16_224", {**SAM, "use_rel_pos": False, "use_rope": True}, (32, 32)),
}
SOME = ["vit sam"]


def attention(attn: nn.Module, tokens: Tensor, grid: tuple[int, int]) -> Tensor:
    """The mean of the weights over heads, among places in rows of a window: (B, h·w, D) -> (B, h·w, h·w)"""
    query, key, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    if attn.rope is not None:
        rope = attn.rope.get_embed()
        return softmax_attention(rotated(query, rope, False, 0), rotated(key, rope, False, 0))
    bias = torch.zeros(len(tokens), attn.num_heads, tokens.shape[1], tokens.shape[1])
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    for m, (i, j) in enumerate(places):
        for n, (a, b) in enumerate(places):
            down, right = attn.rel_pos_h[i - a + grid[0] - 1], attn.rel_pos_w[j - b + grid[1] - 1]
            bias[:, :, m, n] = query[:, :, m] @ down + query[:, :, m] @ right
    return softmax_attention(query, key, bias)


def vit_sam(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8)
    grid = (labels.shape[1], labels.shape[2])
    labels = labels.flatten(1, 2)
    x = model.patch_embed(images)
    x = model.norm_pre(x if model.pos_embed is None else x + model.pos_embed)
    for block in model.blocks:
        window = (block.window_size, block.window_size) if block.window_size else grid
        matrix = window_matrix(
            block.norm1(x),
            window,
            (0, 0),
            lambda tokens, _, attn=block.attn, side=window: attention(attn, tokens, side),
        )
        labels = (labels + matrix @ labels) / 2
        x = block(x)
    if isinstance(model.neck, nn.Sequential):  # what an output channel takes from a place, over all input channels
        kernels = model.neck[2].weight.abs().sum(1)
        labels = torch.stack([convolution_matrix(kernel, grid) for kernel in kernels]).mean(0) @ labels
    return labels.mean(1, keepdim=True)


ORACLES = {"VisionTransformerSAM": vit_sam}
