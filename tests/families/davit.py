"""DaViT, and SAM 2's Hiera."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolution_matrix, merge_labels, patch_labels, softmax_attention, window_labels, window_matrix

DAVIT = {"embed_dims": (8, 16), "depths": (1, 1), "num_heads": (2, 4), "window_size": 4, "num_classes": 5}
HIERA = {"embed_dim": 8, "stages": (1, 2, 1), "q_pool": 2, "window_spec": (4, 4, 2), "global_att_blocks": (2,)}
HIERA |= {"num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "davit": ("davit_tiny", DAVIT, (32, 32)),
    "davit, padded, unfused": ("davit_base_fl", DAVIT, (38, 42)),
    "hieradet": ("sam2_hiera_tiny", HIERA, (64, 64)),
    "hieradet, padded, unfused": ("sam2_hiera_tiny", {**HIERA, "global_att_blocks": ()}, (48, 80)),
}
SOME = ["davit", "hieradet"]  # for what does not depend on the details


def attention(attn: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return softmax_attention(q, k)


def davit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    x = model.stem(images)
    labels = torch.zeros(len(x), *x.shape[2:], onehot.shape[1])
    pixels = patch_labels(mix, onehot, 1, 1)
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            rows, columns = slice(max(4 * i - 3, 0), 4 * i + 4), slice(max(4 * j - 3, 0), 4 * j + 4)
            labels[:, i, j] = pixels[:, rows, columns].mean((1, 2))

    def encode(encoder: nn.Module, labels: Tensor) -> Tensor:
        grid = tuple(labels.shape[1:3])
        matrix = torch.stack([convolution_matrix(kernel, grid) for kernel in encoder.proj.weight[:, 0]]).mean(0)
        return (labels + (matrix @ labels.flatten(1, 2)).unflatten(1, grid)) / 2

    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            x = stage.downsample(x)
            wide = stage.downsample.conv.kernel_size == (3, 3)
            labels = window_labels(labels, 3, 2, 1) if wide else merge_labels(labels)
        for block in [block for pair in stage.blocks for block in pair]:
            labels = encode(block.cpe1, labels)
            if type(block).__name__ == "SpatialBlock":
                normed = block.norm1(block.cpe1(x).permute(0, 2, 3, 1))
                matrix = window_matrix(
                    normed, block.window_size, (0, 0), lambda *tokens, attn=block.attn: attention(attn, *tokens)
                )
                flat = labels.flatten(1, 2)
                labels = ((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3])
            labels = encode(block.cpe2, labels)
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


def hieradet(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 7, 4, 3), model._pos_embed(model.patch_embed(images))
    for block in model.blocks:
        attn, (h, w) = block.attn, x.shape[1:3]
        window = block.window_size if block.is_windowed else (h, w)
        pool = 1 if block.q_stride is None else 2
        full = [-(-side // reach) * reach for side, reach in zip((h, w), window, strict=True)]
        tokens = torch.zeros(len(x), *full, x.shape[-1])
        tokens[:, :h, :w] = block.norm1(x)
        q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).unbind(3)  # (B, h, w, A, D)
        q = q.unflatten(1, (-1, pool)).unflatten(3, (-1, pool)).amax((2, 4))
        shortcut = merge_labels(labels) if pool > 1 else labels
        mixed = torch.zeros_like(shortcut)
        for i in range(h // pool):
            for j in range(w // pool):
                top, left = i * pool // window[0] * window[0], j * pool // window[1] * window[1]
                keys = k[:, top : top + window[0], left : left + window[1]]
                scores = torch.einsum("bad,bijad->baij", q[:, i, j], keys) / q.shape[-1] ** 0.5
                weights = scores.flatten(2).softmax(-1).mean(1).unflatten(1, window)
                inside = labels[:, top : top + window[0], left : left + window[1]]  # padding holds no label
                weights = weights[:, : inside.shape[1], : inside.shape[2]]
                weights = weights / weights.sum((1, 2), keepdim=True)
                mixed[:, i, j] = torch.einsum("bij,bijc->bc", weights, inside)
        labels, x = (shortcut + mixed) / 2, block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"DaVit": davit, "HieraDet": hieradet}
