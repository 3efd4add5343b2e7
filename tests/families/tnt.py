"""TNT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention, window_labels

TNT = {
    "img_size": 32,
    "patch_size": 8,
    "first_stride": 2,
    "embed_dim": 16,
    "inner_dim": 8,
    "depth": 2,
    "num_heads_inner": 2,
    "num_heads_outer": 2,
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "tnt": ("tnt_s_patch16_224", TNT, (32, 32)),
    "tnt, legacy": ("tnt_s_legacy_patch16_224", {**TNT, "img_size": (24, 40)}, (24, 40)),
    "tnt, average": ("tnt_s_patch16_224", {**TNT, "global_pool": "avg"}, (32, 32)),
}
SOME = ["tnt"]  # for what does not depend on the details


def matrix(attn: nn.Module, x: Tensor) -> Tensor:
    q, k = attn.qk(x).unflatten(-1, (2, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return softmax_attention(q, k)


def tnt(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    embed, whole = model.pixel_embed, patch_labels(mix, onehot, 1, 1)
    whole = window_labels(whole, 7, 2, 3) if embed.legacy else whole
    side = 4 if embed.legacy else 8  # of a patch
    inner = []  # for each patch, its pixels' labels
    for i in range(whole.shape[1] // side):
        for j in range(whole.shape[2] // side):
            part = whole[:, i * side : (i + 1) * side, j * side : (j + 1) * side]
            inner.append((part if embed.legacy else window_labels(part, 7, 2, 3)).flatten(1, 2))
    pixels = torch.stack(inner, 1)  # (B, N, 16, C)
    labels = torch.cat([image_label(mix, onehot), pixels.mean(2)], 1)
    x = embed(images, model.pixel_pos)
    patches = model.norm2_proj(model.proj(model.norm1_proj(x.reshape(len(images), pixels.shape[1], -1))))
    patches = torch.cat([model.cls_token.expand(len(images), -1, -1), patches], 1) + model.patch_pos
    for block in model.blocks:
        weights = matrix(block.attn_in, block.norm_in(x)).unflatten(0, (len(images), -1))  # (B, N, 16, 16)
        pixels = (pixels + weights @ pixels) / 2
        labels = torch.cat([labels[:, :1], (labels[:, 1:] + pixels.mean(2)) / 2], 1)
        seen: list[Tensor] = []  # the outer attention's input
        hook = block.norm_out.register_forward_hook(lambda module, inputs, output, seen=seen: seen.append(output))
        x, patches = block(x, patches)
        hook.remove()
        labels = (labels + matrix(block.attn_out, seen[0]) @ labels) / 2
    return labels[:, 1:].mean(1, keepdim=True) if model.global_pool == "avg" else labels[:, :1]


ORACLES = {"TNT": tnt}
