"""MetaFormer: PoolFormer, ConvFormer, CAFormer."""

import torch
from timm.models.metaformer import Attention, LayerNorm2dNoBias, LayerNormNoBias, MetaFormer, Pooling, SepConv
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels

SMALL = {"depths": (1, 2, 1), "dims": (8, 12, 16), "num_classes": 5, "res_scale_init_values": (None, 1.0, 1.0)}
CAFORMER = {
    **SMALL,
    "token_mixers": [SepConv, nn.Identity, Attention],
    "norm_layers": [LayerNorm2dNoBias, LayerNorm2dNoBias, LayerNormNoBias],
    "head_dim": 8,
}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "poolformer": (MetaFormer, {**SMALL, "token_mixers": Pooling, "layer_scale_init_values": 1e-5}, (64, 64)),
    "poolformer, oblong": (MetaFormer, {**SMALL, "token_mixers": Pooling, "pool_size": 5}, (48, 88)),
    "poolformer, down to a token": (MetaFormer, {**SMALL, "token_mixers": Pooling, "use_mlp_head": False}, (16, 32)),
    "convformer": (MetaFormer, {**SMALL, "token_mixers": SepConv}, (64, 64)),
    "caformer": (MetaFormer, CAFORMER, (64, 64)),
    "caformer, unfused": (MetaFormer, CAFORMER, (64, 64)),
}
SOME = ["poolformer", "caformer"]  # for what does not depend on the details


def pooling_matrix(size: int, grid: tuple[int, int]) -> Tensor:
    """Norm(|AvgPool - I|)"""
    places = [(i, j) for i in range(grid[0]) for j in range(grid[1])]
    matrix = torch.zeros(len(places), len(places))
    for a, (i, j) in enumerate(places):
        window = [b for b, (k, m) in enumerate(places) if max(abs(i - k), abs(j - m)) <= size // 2]
        matrix[a, window] = 1 / len(window)
    if len(places) == 1:  # nothing comes out of it but 0
        return matrix
    matrix = (matrix - torch.eye(len(places))).abs()
    return matrix / matrix.sum(1, keepdim=True)


def mixed(block: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """g(Y), x (B, D, h, w) or (B, N, D), labels (B, h, w, C)"""
    mixer, grid = block.token_mixer, tuple(labels.shape[1:3])
    if isinstance(mixer, nn.Identity):
        return labels
    if isinstance(mixer, SepConv):
        return convolved(labels, mixer.dwconv)
    if isinstance(mixer, Pooling):
        return (pooling_matrix(mixer.pool.kernel_size, grid) @ labels.flatten(1, 2)).unflatten(1, grid)
    query, key, _ = mixer.qkv(block.norm1(x)).unflatten(-1, (3, mixer.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return (softmax_attention(query, key) @ labels.flatten(1, 2)).unflatten(1, grid)


def metaformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 7, 4, 2), model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels, x = window_labels(labels, 3, 2, 1), stage.downsample(x)
        size = x.shape
        x = x if stage.use_nchw else x.flatten(2).transpose(1, 2)
        for block in stage.blocks:
            labels = (labels + mixed(block, x, labels)) / 2
            x = block(x)
        x = x if stage.use_nchw else x.transpose(1, 2).reshape(size)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"MetaFormer": metaformer}
