"""MobileViT, v1 and v2. Each place in a patch has a lattice of its own: every second pixel of every second row."""

import torch
from timm.models.byobnet import BottleneckBlock, ByobNet, ByoModelCfg
from timm.models.mobilevit import MobileVitBlock, MobileVitV2Block, _mobilevit_block, _mobilevitv2_block
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention


class MobileVit(ByobNet):
    """timm has no name for it."""


def mobilevit(patch: int = 2, fusion: bool = True) -> nn.Module:
    stages = [
        _mobilevit_block(d=1, c=width, s=2, transformer_dim=16, transformer_depth=2, patch_size=patch, br=2.0)
        for width in (12, 16)
    ]
    for _, last in stages:
        last.block_kwargs["no_fusion"] = not fusion
    return _model(stages, num_features=20)


def mobilevit_v2(patch: int = 2) -> nn.Module:
    return _model([_mobilevitv2_block(d=1, c=width, s=2, transformer_depth=2, patch_size=patch) for width in (16, 24)])


def _model(stages: list, **arguments: int) -> nn.Module:
    kept = {"stem_chs": 8, "stem_type": "3x3", "stem_pool": "", "downsample": "", "act_layer": "silu"}
    return MobileVit(ByoModelCfg(tuple(stages), **kept, **arguments), num_classes=5)


# name: (a function that makes the model, its arguments, an image size it takes)
FAMILIES = {
    "mobilevit": (mobilevit, {}, (48, 48)),
    "mobilevit, oblong, unfused": (mobilevit, {"patch": 3}, (40, 56)),  # 10×14 and 5×7 places
    "mobilevit, no fusion": (mobilevit, {"fusion": False}, (48, 48)),
    "mobilevit v2": (mobilevit_v2, {}, (48, 48)),
    "mobilevit v2, resized": (mobilevit_v2, {"patch": 3}, (40, 56)),
}
SOME = ["mobilevit", "mobilevit v2"]  # for what does not depend on the details


def resized(maps: Tensor, patch: int, align_corners: bool) -> Tensor:
    """(B, D, h, w), to whole patches"""
    size = [-(-side // patch) * patch for side in maps.shape[2:]]
    return nn.functional.interpolate(maps, size, mode="bilinear", align_corners=align_corners)


def last(maps: Tensor) -> Tensor:
    return maps.permute(0, 2, 3, 1)


def first(maps: Tensor) -> Tensor:
    return maps.permute(0, 3, 1, 2)


def block_v1(block: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    patch, shortcut, shape = block.patch_size[0], labels, labels.shape[1:3]
    x = resized(block.conv_1x1(block.conv_kxk(x)), patch, align_corners=False)
    labels = last(resized(first(convolved(labels, block.conv_kxk.conv)), patch, align_corners=False))
    moved = torch.zeros_like(labels)
    for i in range(patch):
        for j in range(patch):
            tokens, lattice = x[:, :, i::patch, j::patch].flatten(2).mT, labels[:, i::patch, j::patch]
            flat = lattice.flatten(1, 2)
            for inner in block.transformer:
                qkv = inner.attn.qkv(inner.norm1(tokens)).unflatten(-1, (3, inner.attn.num_heads, -1))
                query, key, _ = qkv.permute(2, 0, 3, 1, 4)
                flat = (flat + softmax_attention(query, key) @ flat) / 2
                tokens = inner(tokens)
            moved[:, i::patch, j::patch] = flat.view_as(lattice)
    moved = last(nn.functional.interpolate(first(moved), shape, mode="bilinear", align_corners=False))
    if block.conv_fusion is None:
        return moved
    assert block.conv_fusion.conv.in_channels == 2 * block.conv_proj.conv.out_channels  # so both count alike
    return convolved((shortcut + moved) / 2, block.conv_fusion.conv)


def block_v2(block: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    patch = block.patch_size[0]
    x, labels = (resized(maps, patch, align_corners=True) for maps in (x, first(labels)))
    x, labels = block.conv_1x1(block.conv_kxk(x)), convolved(last(labels), block.conv_kxk.conv)
    lattices = [(i, j) for i in range(patch) for j in range(patch)]
    x = torch.stack([x[:, :, i::patch, j::patch].flatten(2) for i, j in lattices], 2)  # (B, D, P, N)
    for inner in block.transformer:
        scores = inner.attn.qkv_proj(inner.norm1(x))[:, 0]  # (B, P, N)
        moved = torch.zeros_like(labels)
        for (i, j), score in zip(lattices, scores.unbind(1), strict=True):
            weights = score.exp() / score.exp().sum(1, keepdim=True)
            lattice = labels[:, i::patch, j::patch]
            context = (weights.unsqueeze(2) * lattice.flatten(1, 2)).sum(1)[:, None, None]
            moved[:, i::patch, j::patch] = (lattice + context) / 2  # a product
        labels = (labels + moved) / 2
        x = inner(x)
    return labels


def labels_of(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 3, 2, 1), model.stem(images)
    for block in (block for stage in model.stages for block in stage):
        if isinstance(block, BottleneckBlock):
            moved = convolved(labels, block.conv2_kxk.conv)
            labels = moved if block.shortcut is None else (labels + moved) / 2
        else:
            labels = {MobileVitBlock: block_v1, MobileVitV2Block: block_v2}[type(block)](block, x, labels)
        x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"MobileVit": labels_of}
