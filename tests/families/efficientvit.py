"""EfficientViT, MIT's and Microsoft's."""

import torch
from timm.models.efficientvit_mit import EfficientVit, EfficientVitBlock, EfficientVitLarge
from timm.models.efficientvit_msra import EfficientVitMsra
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, window_labels

MIT = {"widths": (8, 12, 16), "depths": (1, 2, 1), "head_dim": 8, "head_widths": (16, 16), "num_classes": 5}
MSRA = {
    "embed_dim": (16, 32),
    "key_dim": (4, 4),
    "depth": (1, 1),
    "num_heads": (2, 2),
    "window_size": (4, 4),
    "kernels": (5, 3),
    "down_ops": (("", 1), ("subsample", 2)),
    "num_classes": 5,
}


# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "efficientvit": (EfficientVit, {**MIT, "widths": (8, 8, 12, 16), "depths": (1, 2, 1, 1)}, (64, 64)),
    "efficientvit large": (
        EfficientVitLarge,
        {**MIT, "widths": (8, 8, 8, 12, 16), "depths": (1, 1, 1, 1, 1)},
        (64, 64),
    ),
    "efficientvit, cascaded": (EfficientVitMsra, {**MSRA, "img_size": 128}, (128, 128)),
    "efficientvit, cascaded, padded": (EfficientVitMsra, {**MSRA, "img_size": 96}, (96, 96)),
}
SOME = ["efficientvit"]  # for what does not depend on the details


def averaged(labels: Tensor) -> Tensor:
    return labels.mean((1, 2)).unsqueeze(1)


def local(main: nn.Module, labels: Tensor) -> Tensor:
    """One convolution after another; 1×1 ones move nothing."""
    for conv in main.modules():
        if isinstance(conv, nn.Conv2d) and conv.kernel_size != (1, 1):
            labels = convolved(labels, conv)
    return labels


def linear_attention(attn: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    qkv = attn.qkv(x)
    matrices, sources = [], []
    for branch in [None, *attn.aggreg]:
        values = labels if branch is None else convolved(labels, branch[0])
        part = (qkv if branch is None else branch(qkv)).flatten(2).unflatten(1, (-1, 3 * attn.dim))  # (B, A, 3·D, N)
        for head in part.unbind(1):
            query, key = head[:, : attn.dim].relu(), head[:, attn.dim : 2 * attn.dim].relu()
            scores = query.mT @ key  # (B, N, N)
            total = scores.sum(-1, keepdim=True)
            matrices.append(torch.where(total > 0, scores / total.clamp_min(1e-30), scores))
            sources.append(values.flatten(1, 2))
    moved = sum(matrix @ values for matrix, values in zip(matrices, sources, strict=True))
    total = moved.sum(-1, keepdim=True)
    moved = torch.where(total > 0, moved / total.clamp_min(1e-30), labels.flatten(1, 2))
    return moved.unflatten(1, labels.shape[1:3])


def mit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    x = model.stem.in_conv(images)
    blocks = [*list(model.stem)[1:], *(block for stage in model.stages for block in stage.blocks)]
    for block in blocks:
        if isinstance(block, EfficientVitBlock):
            labels = (labels + linear_attention(block.context_module.main, x, labels)) / 2
            labels = (labels + local(block.local_module.main, labels)) / 2
        else:
            moved = local(block.main, labels)
            labels = moved if block.shortcut is None else (labels + moved) / 2
        x = block(x)
    return averaged(labels)


def window(attn: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    """Heads one after another: x (B, D, r, r), labels (B, r·r, C), zero where there is no token"""
    side, parts, outputs = x.shape[-1], x.chunk(attn.num_heads, 1), []
    places = [(i, j) for i in range(side) for j in range(side)]
    offsets = list(dict.fromkeys((abs(a - c), abs(b - d)) for a, b in places for c, d in places))
    near = torch.tensor([[offsets.index((abs(a - c), abs(b - d))) for c, d in places] for a, b in places])
    feature, source = parts[0], labels
    for head, (qkv, spread) in enumerate(zip(attn.qkvs, attn.dws, strict=True)):
        if head:
            feature, source = feature + parts[head], source + labels
            source = source / source.sum(-1, keepdim=True)
        query, key, value = qkv(feature).split([attn.key_dim, attn.key_dim, attn.val_dim], 1)
        scores = spread(query).flatten(2).mT @ key.flatten(2) * attn.key_dim**-0.5
        weights = (scores + attn.attention_biases[head][near]).softmax(-1)
        feature = (value.flatten(2) @ weights.mT).unflatten(2, (side, side))
        source = weights @ source
        source = source / source.sum(-1, keepdim=True)
        outputs.append(source)
    return sum(outputs) / len(outputs)


def windows(mixer: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    side, grid = min(mixer.window_resolution, mixer.resolution), labels.shape[1]
    full = -(-grid // side) * side
    x = nn.functional.pad(x, (0, full - grid, 0, full - grid))
    padded = nn.functional.pad(labels, (0, 0, 0, full - grid, 0, full - grid))
    moved = torch.zeros_like(padded)
    for top in range(0, full, side):
        for left in range(0, full, side):
            rows, columns = slice(top, top + side), slice(left, left + side)
            part = window(mixer.attn, x[:, :, rows, columns], padded[:, rows, columns].flatten(1, 2))
            moved[:, rows, columns] = part.unflatten(1, (side, side))
    return moved[:, :grid, :grid]


def msra(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    for _ in range(3):
        labels = window_labels(labels, 3, 2, 1)
    x = model.patch_embed(images)

    def residual(part: nn.Module, labels: Tensor) -> Tensor:
        return (labels + convolved(labels, part.m.conv)) / 2

    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(residual(stage.downsample.res1[0], labels), 3, 2, 1)
            labels, x = residual(stage.downsample.res2[0], labels), stage.downsample(x)
        for block in stage.blocks:
            labels = residual(block.dw0, labels)
            labels = (labels + windows(block.mixer.m, block.ffn0(block.dw0(x)), labels)) / 2
            labels, x = residual(block.dw1, labels), block(x)
    return averaged(labels)


ORACLES = {"EfficientVit": mit, "EfficientVitLarge": mit, "EfficientVitMsra": msra}
