"""SHViT, SwiftFormer, EdgeNeXt and EfficientFormer, v1 and v2."""

import torch
from timm.models.edgenext import EdgeNeXt
from timm.models.efficientformer import EfficientFormer, Flat, MetaBlock1d
from timm.models.efficientformer_v2 import EfficientFormerV2
from timm.models.shvit import SHViT
from timm.models.swiftformer import Block, SwiftFormer
from torch import Tensor, nn

from families.metaformer import pooling_matrix
from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels

SHVIT = {"embed_dim": (16, 24), "partial_dim": (6, 12), "qk_dim": (8, 8), "depth": (1, 2), "types": ("s", "s")}
EDGENEXT = {"dims": (12, 16, 24, 32), "depths": (1, 2, 2, 2), "heads": (2, 2, 2, 2), "kernel_sizes": (3, 5, 7, 7)}
EFFICIENTFORMER = {"depths": (1, 2), "embed_dims": (8, 16), "num_vit": 1, "num_classes": 5}
EFFICIENTFORMER_V2 = {"depths": (1, 1, 2, 2), "embed_dims": (8, 8, 16, 16), "num_vit": 1}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "shvit": (SHViT, {**SHVIT, "num_classes": 5}, (96, 96)),
    "shvit, convolutions alone": (SHViT, {**SHVIT, "types": ("i", "s"), "num_classes": 5}, (64, 96)),
    "swiftformer": (SwiftFormer, {"layers": [1, 2, 1, 2], "embed_dims": [8, 12, 16, 20], "num_classes": 5}, (64, 64)),
    "edgenext": (EdgeNeXt, {**EDGENEXT, "num_classes": 5}, (64, 64)),
    "edgenext, down-sampling blocks": (
        EdgeNeXt,
        {**EDGENEXT, "downsample_block": True, "stem_type": "overlap", "dims": (12, 12, 24, 24), "num_classes": 5},
        (64, 72),
    ),
    "efficientformer": (EfficientFormer, EFFICIENTFORMER, (56, 56)),
    "efficientformer, attention alone": (EfficientFormer, {**EFFICIENTFORMER, "num_vit": 2}, (56, 56)),
    "efficientformer v2": (EfficientFormerV2, {**EFFICIENTFORMER_V2, "img_size": 96, "num_classes": 5}, (96, 96)),
}
SOME = ["shvit", "swiftformer"]  # for what does not depend on the details


def averaged(labels: Tensor) -> Tensor:
    return labels.mean((1, 2)).unsqueeze(1)


def mixed_by(matrix: Tensor, labels: Tensor) -> Tensor:
    """A map (B, h, w, C) mixed by a matrix over its places"""
    return (matrix @ labels.flatten(1, 2)).unflatten(1, labels.shape[1:3])


def shvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    for _ in range(3):
        labels = window_labels(labels, 3, 2, 1)
    x = model.patch_embed(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = (labels + convolved(labels, stage.downsample[0].m.c)) / 2
            labels = window_labels(labels, 3, 2, 1)
            labels = (labels + convolved(labels, stage.downsample[3].m.c)) / 2
            x = stage.downsample(x)
        for block in stage.blocks:
            labels = (labels + convolved(labels, block.conv.m.c)) / 2
            if not isinstance(block.mixer, nn.Identity):
                attn = block.mixer.m
                qkv = attn.qkv(attn.pre_norm(block.conv(x)[:, : attn.pdim])).flatten(2).mT.unsqueeze(1)
                query, key = qkv[..., : attn.qk_dim], qkv[..., attn.qk_dim : 2 * attn.qk_dim]
                moved = mixed_by(softmax_attention(query, key), labels)
                moved = (attn.pdim * moved + (attn.dim - attn.pdim) * labels) / attn.dim
                labels = (labels + moved) / 2
            x = block(x)
    return averaged(labels)


def swiftformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    x = model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels, x = window_labels(labels, 3, 2, 1), stage.downsample(x)
        for block in stage.blocks:
            if isinstance(block, Block):
                labels = (labels + convolved(labels, block.local_representation.dwconv)) / 2
                attn, tokens = block.attn, block.local_representation(x).flatten(2).mT
                query = attn.to_query(tokens)
                query = query / query.norm(dim=-1, keepdim=True)
                weights = (query @ attn.w_g).abs()[..., 0]  # (B, N)
                weights = weights / weights.sum(1, keepdim=True)
                everywhere = torch.einsum("bn,bnc->bc", weights, labels.flatten(1, 2))[:, None, None]
                labels = (labels + ((everywhere + labels) / 2 + labels) / 2) / 2
            else:
                labels = (labels + convolved(labels, block.dwconv)) / 2
            x = block(x)
    return averaged(labels)


def edgenext(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    stem = model.stem[0]
    labels = patch_labels(mix, onehot, stem.kernel_size[0], 4, stem.padding[0])
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(labels, 2, 2, 0)
        for block in stage.blocks:
            if hasattr(block, "xca"):
                parts = [labels]
                for number, conv in enumerate(block.convs):
                    given = (parts[-1] + labels) / 2 if number else labels
                    parts.append(convolved(given, conv))
                width, channels = block.convs[0].out_channels, block.mlp.fc1.in_features
                moved = sum(width * part for part in parts[1:]) + (channels - width * len(block.convs)) * labels
                labels = (labels + moved / channels) / 2
            elif block.shortcut_after_dw:
                labels = convolved(labels, block.conv_dw)
            else:
                labels = (labels + convolved(labels, block.conv_dw)) / 2
    return averaged(labels)


def absolute_bias(attn: nn.Module, rows: list[tuple[int, int]], columns: list[tuple[int, int]], width: int) -> Tensor:
    """(A, queries, keys), by how far apart they are"""
    far = [[abs(a - c) * width + abs(b - d) for c, d in columns] for a, b in rows]
    return attn.attention_biases[:, torch.tensor(far)]


def places(height: int, width: int, step: int = 1) -> list[tuple[int, int]]:
    return [(i, j) for i in range(0, height, step) for j in range(0, width, step)]


def efficientformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    x = model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels, x = window_labels(labels, 3, 2, 1), stage.downsample(x)
        grid = tuple(labels.shape[1:3])
        for block in stage.blocks:
            if isinstance(block, MetaBlock1d):
                attn = block.token_mixer
                qkv = attn.qkv(block.norm1(x)).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
                bias = absolute_bias(attn, places(*grid), places(*grid), grid[1])
                matrix = softmax_attention(qkv[..., : attn.key_dim], qkv[..., attn.key_dim : 2 * attn.key_dim], bias)
                labels = (labels + mixed_by(matrix, labels)) / 2
            elif not isinstance(block, Flat):
                labels = (labels + mixed_by(pooling_matrix(3, grid), labels)) / 2
            x = block(x)
    return averaged(labels)


def talking_heads(attn: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    whole = labels.shape[1:3]
    if attn.stride_conv is not None:
        x, labels = attn.stride_conv(x), convolved(labels, attn.stride_conv.conv)
    grid = tuple(labels.shape[1:3])
    query, key = (part(x).flatten(2).unflatten(1, (attn.num_heads, -1)).mT for part in (attn.q, attn.k))
    scores = query @ key.mT * attn.key_dim**-0.5 + absolute_bias(attn, places(*grid), places(*grid), grid[1])
    weights = attn.talking_head2(attn.talking_head1(scores).softmax(-1)).abs()
    matrix = (weights / weights.sum(-1, keepdim=True)).mean(1)
    labels = (mixed_by(matrix, labels) + convolved(labels, attn.v_local.conv)) / 2
    if attn.upsample is not None:
        assert tuple(whole) == (2 * grid[0], 2 * grid[1])
        labels = attn.upsample(labels.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
    return labels


def efficientformer_v2(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    x = model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            merged, attn = window_labels(labels, 3, 2, 1), stage.downsample.attn
            if attn is not None:
                height, width = labels.shape[1:3]
                query, key = (part(x).flatten(2).unflatten(1, (attn.num_heads, -1)).mT for part in (attn.q, attn.k))
                bias = absolute_bias(attn, places(height, width, 2), places(height, width), width)
                matrix = (query @ key.mT * attn.key_dim**-0.5 + bias).softmax(-1).mean(1)  # its scores are large
                moved = (matrix @ labels.flatten(1, 2)).view_as(merged)
                merged = (merged + (moved + convolved(labels, attn.v_local.conv)) / 2) / 2
            labels, x = merged, stage.downsample(x)
        for block in stage.blocks:
            if block.token_mixer is not None:
                labels = (labels + talking_heads(block.token_mixer, x, labels)) / 2
            labels = (labels + convolved(labels, block.mlp.mid.conv)) / 2
            x = block(x)
    return averaged(labels)


ORACLES = {
    "EdgeNeXt": edgenext,
    "EfficientFormer": efficientformer,
    "EfficientFormerV2": efficientformer_v2,
    "SHViT": shvit,
    "SwiftFormer": swiftformer,
}
