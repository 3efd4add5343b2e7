"""Swin v2."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import merge_labels, patch_labels, window_matrix

SWIN = {"patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "swin v2": ("swinv2_tiny_window8_256", {**SWIN, "img_size": 32}, (32, 32)),
    "swin v2, any size": (
        "swinv2_tiny_window8_256",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
    "swin v2 cr": ("swinv2_cr_tiny_ns_224", {**SWIN, "img_size": 32}, (32, 32)),
    "swin v2 cr, any size": (
        "swinv2_cr_tiny_224",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
}
SOME = ["swin v2"]  # for what does not depend on the details


def cosine_attention(attn: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    """(B, places, D) -> (B, places, places)"""
    window = attn.window_size
    bias = torch.cat([attn.q_bias, torch.zeros_like(attn.q_bias), attn.v_bias])
    q, k, _ = (tokens @ attn.qkv.weight.T + bias).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    cosine = (q @ k.mT) / (q.norm(dim=-1).unsqueeze(-1) * k.norm(dim=-1).clamp_min(1e-12).unsqueeze(-2))
    places = [(i, j) for i in range(window[0]) for j in range(window[1])]
    offsets = torch.tensor([[(a[0] - b[0], a[1] - b[1]) for b in places] for a in places], dtype=torch.float32)
    far = 8 * offsets / torch.tensor([window[0] - 1, window[1] - 1])
    position = 16 * torch.sigmoid(attn.cpb_mlp(far.sign() * (1 + far.abs()).log2() / 3)).permute(2, 0, 1)
    scores = cosine * attn.logit_scale.exp().clamp(max=100) + position + mask
    return scores.softmax(-1).mean(1)


def cosine_attention_cr(attn: nn.Module, tokens: Tensor, mask: Tensor) -> Tensor:
    window = attn.window_size
    q, k, _ = attn.qkv(tokens).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    cosine = nn.functional.cosine_similarity(q.unsqueeze(3), k.unsqueeze(2), -1)
    places = [(i, j) for i in range(window[0]) for j in range(window[1])]
    far = torch.tensor([[(a[0] - b[0], a[1] - b[1]) for b in places] for a in places], dtype=torch.float32)
    position = attn.meta_mlp(far.sign() * (1 + far.abs()).log()).permute(2, 0, 1)
    scores = cosine * attn.logit_scale.exp().clamp(max=100)[:, None, None] + position + mask
    return scores.softmax(-1).mean(1)


def swin_v2(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    x = model.patch_embed(images)
    cr = type(model).__name__ == "SwinTransformerV2Cr"
    x, weigh = (x.permute(0, 2, 3, 1), cosine_attention_cr) if cr else (x, cosine_attention)
    for stage in model.stages if cr else model.layers:
        if not isinstance(stage.downsample, nn.Identity):
            x = stage.downsample(x)
            labels = merge_labels(labels)
        for block in stage.blocks:
            matrix = window_matrix(
                x, block.window_size, block.shift_size, lambda *window, attn=block.attn: weigh(attn, *window)
            )
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, labels.shape[1:3])
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"SwinTransformerV2": swin_v2, "SwinTransformerV2Cr": swin_v2}
