"""MaxViT, CoAtNet, MaxxViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolve_labels, merge_labels, patch_labels, softmax_attention, window_labels

SMALL = {"img_size": 32, "embed_dim": (16, 16), "depths": (1, 2), "stem_width": 8, "num_classes": 5}
SMALL |= {"transformer_dim_head": 8, "transformer_window_size": (4, 4), "transformer_grid_size": (4, 4)}
SMALL |= {"transformer_rel_pos_dim": 16, "head_hidden_size": None}
MAXVIT = {**SMALL, "block_type": ("M", "M")}
COATNET = {**SMALL, "block_type": ("C", "T")}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "maxvit": ("maxvit_tiny_tf_224", MAXVIT, (32, 32)),
    "maxvit, unfused": ("maxvit_tiny_tf_224", MAXVIT, (32, 32)),
    "maxvit, channels first": ("maxvit_pico_rw_256", {**MAXVIT, "transformer_use_nchw_attn": True}, (32, 32)),
    "maxvit, parallel": ("maxvit_tiny_pm_256", {**SMALL, "block_type": ("PM", "PM")}, (32, 32)),
    "maxxvit": ("maxxvit_rmlp_nano_rw_256", MAXVIT, (32, 32)),
    "coatnet": ("coatnet_pico_rw_224", COATNET, (32, 32)),
    "coatnet, unfused": ("coatnet_0_rw_224", COATNET, (32, 32)),
    "coatnet, 1×1 stride": ("coatnet_rmlp_1_rw_224", {**COATNET, "conv_stride_mode": "1x1"}, (32, 32)),
}
SOME = ["maxvit"]  # for what does not depend on the details


def weights(attn: nn.Module, x: Tensor) -> Tensor:
    """The mean of a module's attention weights over heads, for tokens (B, N, D): (B, N, N)"""
    kernel = attn.qkv.weight.flatten(1)
    qkv = x @ kernel.T + attn.qkv.bias
    if attn.head_first:
        q, k, _ = qkv.unflatten(-1, (attn.num_heads, 3, -1)).permute(3, 0, 2, 1, 4)
    else:
        q, k, _ = qkv.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return softmax_attention(q, k, attn.rel_pos(torch.zeros(1, attn.num_heads, x.shape[1], x.shape[1])))


def partition(attn: nn.Module, x: Tensor, labels: Tensor, block: bool) -> Tensor:
    """4×4 windows, or grids of 4×4 places: x (B, h, w, D), labels (B, h, w, C)"""
    mixed = torch.zeros_like(labels)
    rows, columns = x.shape[1] // 4, x.shape[2] // 4
    for i in range(rows):
        for j in range(columns):
            if block:
                places = slice(4 * i, 4 * i + 4), slice(4 * j, 4 * j + 4)
            else:
                places = slice(i, None, rows), slice(j, None, columns)
            found = weights(attn, x[:, *places].flatten(1, 2)) @ labels[:, *places].flatten(1, 2)
            mixed[:, *places] = found.unflatten(1, (4, 4))
    return mixed


def attention(block: nn.Module, x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """A partition's block: x (B, h, w, D)"""
    name = type(block).__name__
    if name == "PartitionAttention2d":
        normed = block.norm1(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        mixed = partition(block.attn, normed, labels, block.partition_block)
        return block(x.permute(0, 3, 1, 2)).permute(0, 2, 3, 1), (labels + mixed) / 2
    if name == "PartitionAttentionCl":
        mixed = partition(block.attn, block.norm1(x), labels, block.partition_block)
    else:
        normed = block.norm1(x)
        mixed = partition(block.attn_block, normed, labels, True) + partition(block.attn_grid, normed, labels, False)
        mixed = mixed / 2
    return block(x), (labels + mixed) / 2


def pooled(down: nn.Module, labels: Tensor) -> Tensor:
    if isinstance(down, nn.Identity):
        return labels
    wide = down.pool.kernel_size in (3, (3, 3))  # "max" or "avg", with padding; else "max2" or "avg2"
    return window_labels(labels, 3, 2, 1) if wide else merge_labels(labels)


def convolution(block: nn.Module, labels: Tensor) -> Tensor:
    shortcut, mixed = pooled(block.shortcut, labels), pooled(block.down, labels)
    if hasattr(block, "conv_dw"):
        return (shortcut + convolve_labels(block.conv_dw, mixed)) / 2
    if block.conv1_1x1.stride == (2, 2):
        mixed = mixed[:, ::2, ::2]
    return (shortcut + convolve_labels(block.conv2_kxk, mixed)) / 2


def maxxvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    if type(model.stem.conv1).__name__ == "Conv2dSame":  # 3×3, padded below and on the right only
        pixels = patch_labels(mix, onehot, 1, 1)
        labels = torch.zeros(len(images), 16, 16, 5)
        for i in range(16):
            for j in range(16):
                labels[:, i, j] = pixels[:, 2 * i : 2 * i + 3, 2 * j : 2 * j + 3].mean((1, 2))
    else:
        labels = patch_labels(mix, onehot, 3, 2, 1)
    labels = convolve_labels(model.stem.conv2, labels)
    x = model.stem(images)
    for stage in model.stages:
        for block in stage.blocks:
            name = type(block).__name__
            if name == "TransformerBlock2d":
                labels = pooled(block.shortcut, labels)
                flat = labels.flatten(1, 2)
                mixed = weights(block.attn, block.norm1(x).flatten(2).mT) @ flat
                x, labels = block(x), ((flat + mixed) / 2).unflatten(1, labels.shape[1:3])
                continue
            for part in block.conv if isinstance(getattr(block, "conv", None), nn.Sequential) else [block]:
                inner = getattr(part, "conv", part)
                labels = convolution(inner, labels)
                x = inner(x)
            if name == "MaxxVitBlock" or name == "ParallelMaxxVitBlock":
                rest = [block.attn] if name[0] == "P" else [block.attn_block, block.attn_grid]
                x = x.permute(0, 2, 3, 1)
                for part in rest:
                    x, labels = attention(part, x, labels) if part is not None else (x, labels)
                x = x.permute(0, 3, 1, 2)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"MaxxVit": maxxvit}
