"""CoaT-Lite."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, image_label, patch_labels, window_labels

COAT = {
    "img_size": 64,
    "embed_dims": (8, 16, 16, 16),
    "serial_depths": (1, 2, 1, 2),
    "num_heads": 4,
    "mlp_ratios": (2, 2, 2, 2),
    "crpe_window": {3: 1, 5: 1, 7: 2},
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "coat lite": ("coat_lite_tiny", COAT, (64, 64)),
    "coat lite, average": ("coat_lite_tiny", {**COAT, "img_size": (64, 96), "global_pool": "avg"}, (64, 96)),
}
SOME = ["coat lite"]  # for what does not depend on the details


def factorised(attn: nn.Module, x: Tensor) -> Tensor:
    """The mean over heads of Norm(|Q|)·softmax(K)ᵀ: x normed (B, N, D) -> (B, N, N)"""
    query, key, _ = attn.qkv(x).unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    gather = key.exp() / key.exp().sum(2, keepdim=True)
    spread = query.abs() / query.abs().sum(3, keepdim=True)
    return torch.einsum("band,bamd->bnm", spread, gather) / attn.num_heads


def coat(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 1, 1), images
    for stage in range(1, 5):
        embed = getattr(model, f"patch_embed{stage}")
        labels = window_labels(labels, embed.patch_size[0], embed.patch_size[0], 0)
        token, grid = image_label(mix, onehot), tuple(labels.shape[1:3])
        x = torch.cat([getattr(model, f"cls_token{stage}").expand(len(images), -1, -1), embed(x)], 1)
        for block in getattr(model, f"serial_blocks{stage}"):
            attn = block.factoratt_crpe
            labels = (labels + convolved(labels, block.cpe.proj)) / 2
            both = torch.cat([token, labels.flatten(1, 2)], 1)
            attended = factorised(attn, block.norm1(block.cpe(x, grid))) @ both
            count = sum(len(conv.weight) for conv in attn.crpe.conv_list)
            moved = sum(len(conv.weight) / count * convolved(labels, conv) for conv in attn.crpe.conv_list)
            token = (token + attended[:, :1]) / 2
            labels = (labels + (attended[:, 1:].unflatten(1, grid) + moved) / 2) / 2
            x = block(x, grid)
        x = x[:, 1:].transpose(1, 2).unflatten(2, grid)
    return labels.mean((1, 2)).unsqueeze(1) if model.global_pool == "avg" else token


ORACLES = {"CoaT": coat}
