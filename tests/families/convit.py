"""ConViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels

CONVIT = {"img_size": 32, "patch_size": 8, "embed_dim": 8, "depth": 3, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "convit": ("convit_tiny", {**CONVIT, "local_up_to_layer": 2}, (32, 32)),
    "convit, average": ("convit_tiny", {**CONVIT, "local_up_to_layer": 1, "global_pool": "avg"}, (32, 32)),
}
SOME = ["convit"]  # for what does not depend on the details


def gated_attention(attn: nn.Module, x: Tensor, side: int) -> Tensor:
    """(1 - σ(λ))·content + σ(λ)·position, the mean over heads: x normed (B, N, D) -> (B, N, N)"""
    qk = attn.qk(x).unflatten(-1, (2, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    content = (qk[0] @ qk[1].mT / qk.shape[-1] ** 0.5).softmax(-1)
    offsets = torch.zeros(side * side, side * side, 3)
    for a in range(side * side):
        for b in range(side * side):
            across, down = b % side - a % side, b // side - a // side
            offsets[a, b] = torch.tensor([across, down, across**2 + down**2])
    position = attn.pos_proj(offsets).permute(2, 0, 1).softmax(-1)  # (A, N, N)
    gate = 1 / (1 + (-attn.gating_param).exp()).view(-1, 1, 1)
    return ((1 - gate) * content + gate * position).mean(1)


def convit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8)
    side = labels.shape[1]
    labels = labels.flatten(1, 2)
    x = model.patch_embed(images) + model.pos_embed
    for i, block in enumerate(model.blocks):
        if i < model.local_up_to_layer:
            matrix = gated_attention(block.attn, block.norm1(x), side)
        else:
            if i == model.local_up_to_layer:
                x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
                labels = torch.cat([image_label(mix, onehot), labels], 1)
            q, k, _ = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
            matrix = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).mean(1)
        labels = (labels + matrix @ labels) / 2
        x = block(x)
    return labels[:, 1:].mean(1, keepdim=True) if model.global_pool == "avg" else labels[:, :1]


ORACLES = {"ConVit": convit}
