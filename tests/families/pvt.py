"""PVT, v1 and v2."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolution_matrix, image_label, patch_labels, softmax_attention

PVT = {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "depths": (1, 2, 1, 2), "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "pvt": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 64)),
    "pvt, unfused": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 64)),
    "pvt, oblong": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 96)),
    "pvt v2": ("pvt_v2_b0", PVT, (64, 64)),
    "pvt v2, linear": ("pvt_v2_b2_li", PVT, (96, 64)),
}
SOME = ["pvt", "pvt v2"]  # for what does not depend on the details


def pvt_attention(attn: nn.Module, x: Tensor, labels: Tensor, grid: tuple[int, int]) -> Tensor:
    """g(Y) of PVT's attention, x normed (B, N, D), labels (B, N, C)."""
    query = attn.q(x).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
    keys, key_labels = x, labels
    if attn.sr is not None:
        image = x.transpose(1, 2).unflatten(2, grid)
        image = attn.pool(image) if attn.pool is not None else image
        reduced = attn.sr(image)
        rows, columns = reduced.shape[2:]
        keys = attn.norm(reduced.flatten(2).transpose(1, 2))
        keys = attn.act(keys) if attn.act is not None else keys
        label_map = labels.unflatten(1, grid)
        key_labels = torch.zeros(len(x), rows, columns, labels.shape[-1])
        for i in range(rows):
            for j in range(columns):
                if attn.pool is not None:  # adaptive pooling's windows
                    a, b = i * grid[0] // rows, -(-(i + 1) * grid[0] // rows)
                    c, d = j * grid[1] // columns, -(-(j + 1) * grid[1] // columns)
                else:
                    r = attn.sr.kernel_size[0]
                    a, b, c, d = i * r, (i + 1) * r, j * r, (j + 1) * r
                key_labels[:, i, j] = label_map[:, a:b, c:d].mean((1, 2))
        key_labels = key_labels.flatten(1, 2)
    key = attn.kv(keys).unflatten(-1, (2, attn.num_heads, -1))[:, :, 0].transpose(1, 2)
    return softmax_attention(query, key) @ key_labels


def pvt(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 4, 4), images
    for stage in range(1, 5):
        embed, blocks = getattr(model, f"patch_embed{stage}"), getattr(model, f"block{stage}")
        if stage > 1:
            h, w = labels.shape[1] // 2, labels.shape[2] // 2
            labels = labels.unflatten(1, (h, 2)).unflatten(3, (w, 2)).mean((2, 4))
        x = embed(x)
        grid = tuple(x.shape[1:3])
        x, labels = x.flatten(1, 2), labels.flatten(1, 2)
        if stage == 4:
            x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
            labels = torch.cat([image_label(mix, onehot), labels], 1)
        positions = getattr(model, f"pos_embed{stage}")
        old, extra = model.grids[stage - 1], int(stage == 4)
        if old != grid:
            spatial = positions[:, extra:].transpose(1, 2).unflatten(2, old)
            spatial = nn.functional.interpolate(spatial, size=grid, mode="bilinear").flatten(2).transpose(1, 2)
            positions = torch.cat([positions[:, :extra], spatial], 1)
        x = x + positions
        for block in blocks:
            labels = (labels + pvt_attention(block.attn, block.norm1(x), labels, grid)) / 2
            x = block(x, grid)
        if stage < 4:
            x, labels = x.transpose(1, 2).unflatten(2, grid), labels.unflatten(1, grid)
    return labels[:, :1]


def pvt_v2(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 7, 4, 3)
    x = model.patch_embed(images)
    for stage in model.stages:
        if stage.downsample is not None:
            x = stage.downsample(x)
            merged = torch.zeros(*x.shape[:3], labels.shape[-1])
            for i in range(x.shape[1]):
                for j in range(x.shape[2]):
                    rows, columns = slice(max(2 * i - 1, 0), 2 * i + 2), slice(max(2 * j - 1, 0), 2 * j + 2)
                    merged[:, i, j] = labels[:, rows, columns].mean((1, 2))
            labels = merged
        grid = tuple(x.shape[1:3])
        x, labels = x.flatten(1, 2), labels.flatten(1, 2)
        for block in stage.blocks:
            labels = (labels + pvt_attention(block.attn, block.norm1(x), labels, grid)) / 2
            kernels = block.mlp.dwconv.weight[:, 0]
            matrix = torch.stack([convolution_matrix(kernel, grid) for kernel in kernels]).mean(0)
            labels = (labels + matrix @ labels) / 2
            x = block(x, grid)
        x = stage.norm(x).transpose(1, 2).unflatten(2, grid)
        labels = labels.unflatten(1, grid)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"PyramidVisionTransformer": pvt, "PyramidVisionTransformerV2": pvt_v2}
