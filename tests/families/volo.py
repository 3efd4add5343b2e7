"""VOLO."""

import timm
import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention

VOLO = {
    "img_size": 32,
    "patch_size": 4,
    "stem_hidden_dim": 8,
    "layers": (1, 2),
    "embed_dims": (8, 16),
    "num_heads": (2, 2),
    "downsamples": (True, False),
    "outlook_attention": (True, False),
    "mlp_ratio": 2.0,
    "num_classes": 5,
}  # create_model would take no other layers

# name: (class of the model, its arguments, an image size it takes)
FAMILIES = {
    "volo": (timm.models.VOLO, VOLO, (32, 32)),
    "volo, unfused": (timm.models.VOLO, {**VOLO, "img_size": (40, 24)}, (40, 24)),
    "volo, average": (timm.models.VOLO, {**VOLO, "global_pool": "avg", "use_aux_head": False}, (32, 32)),
}
SOME = ["volo"]  # for what does not depend on the details


def outlook_matrix(attn: nn.Module, x: Tensor) -> Tensor:
    """All windows' weights, put where they belong: x normed (B, h, w, D) -> (B, h·w, h·w)"""
    batch, height, width, _ = x.shape
    matrix = torch.zeros(batch, height * width, height * width)
    for top in range(-1, height - 1, 2):
        for left in range(-1, width - 1, 2):
            pooled = x[:, top + 1 : top + 3, left + 1 : left + 3].mean((1, 2))
            weights = (attn.attn(pooled).view(batch, attn.num_heads, 9, 9) * attn.scale).softmax(-1).mean(1)
            inside = [
                (3 * i + j, (top + i) * width + left + j)
                for i in range(3)
                for j in range(3)
                if 0 <= top + i < height and 0 <= left + j < width
            ]
            for a, row in inside:
                for b, column in inside:
                    matrix[:, row, column] += weights[:, a, b]
    return matrix / matrix.sum(-1, keepdim=True)


def volo(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 4, 4), model.patch_embed(images).permute(0, 2, 3, 1)
    for i, stage in enumerate(model.network):
        x = x + model.pos_embed if i == 2 else x
        if isinstance(stage, nn.Sequential):
            grid = tuple(x.shape[1:3])
            labels = labels.flatten(1, 2)
            for block in stage:
                attn = block.attn
                if type(block).__name__ == "Outlooker":
                    matrix = outlook_matrix(attn, block.norm1(x))
                else:
                    q, k, _ = attn.qkv(block.norm1(x)).flatten(1, 2).unflatten(-1, (3, attn.num_heads, -1)).unbind(2)
                    matrix = softmax_attention(q.transpose(1, 2), k.transpose(1, 2))
                labels = (labels + matrix @ labels) / 2
                x = block(x)
            labels = labels.unflatten(1, grid)
        else:
            x = stage(x)
            labels = labels.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).mean((2, 4))
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x.flatten(1, 2)], 1)
    labels = torch.cat([image_label(mix, onehot), labels.flatten(1, 2)], 1)
    for block in model.post_network:
        attn, normed = block.attn, block.norm1(x)
        query = attn.q(normed[:, :1]).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
        key = attn.kv(normed).unflatten(-1, (2, attn.num_heads, -1))[:, :, 0].transpose(1, 2)
        token = (labels[:, :1] + softmax_attention(query, key) @ labels) / 2
        labels = torch.cat([token, labels[:, 1:]], 1)
        x = block(x)
    return labels.mean(1, keepdim=True) if model.global_pool == "avg" else labels[:, :1]


ORACLES = {"VOLO": volo}
