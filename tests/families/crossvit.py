"""CrossViT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention, window_labels

CROSSVIT = {
    "img_size": 48,
    "img_scale": (1.0, 2 / 3),
    "patch_size": (12, 16),
    "embed_dim": (8, 16),
    "depth": ((1, 2, 0), (1, 1, 1)),
    "num_heads": (2, 2),
    "mlp_ratio": (2, 2, 1),
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "crossvit": ("crossvit_tiny_240", CROSSVIT, (48, 48)),
    "crossvit, unfused": ("crossvit_tiny_240", {**CROSSVIT, "patch_size": (6, 8)}, (48, 48)),
    "crossvit, dagger": ("crossvit_9_dagger_240", CROSSVIT, (48, 48)),
    "crossvit, average": ("crossvit_tiny_240", {**CROSSVIT, "global_pool": "avg"}, (48, 48)),
}
SOME = ["crossvit"]  # for what does not depend on the details


def crossvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    xs, labels = [], []
    pixels = patch_labels(mix, onehot, 1, 1)
    for i, embed in enumerate(model.patch_embed):
        size = embed.img_size
        resized = nn.functional.interpolate(images, size, mode="bicubic") if i else images
        x = torch.cat([getattr(model, f"cls_token_{i}").expand(len(images), -1, -1), embed(resized)], 1)
        xs.append(x + getattr(model, f"pos_embed_{i}"))
        resized = nn.functional.interpolate(pixels.permute(0, 3, 1, 2), size, mode="bilinear").permute(0, 2, 3, 1)
        patches = window_labels(resized if i else pixels, embed.patch_size[0], embed.patch_size[0], 0)
        labels.append(torch.cat([image_label(mix, onehot), patches.flatten(1, 2)], 1))
    for multi in model.blocks:
        inner = list(xs)
        for i, blocks in enumerate(multi.blocks):
            for block in blocks:
                attn = block.attn
                q, k, _ = attn.qkv(block.norm1(inner[i])).unflatten(-1, (3, attn.num_heads, -1)).unbind(2)
                labels[i] = (labels[i] + softmax_attention(q.transpose(1, 2), k.transpose(1, 2)) @ labels[i]) / 2
                inner[i] = block(inner[i])
        tokens = []
        for i, fusion in enumerate(multi.fusion):
            fusion = fusion if hasattr(fusion, "attn") else fusion[0]
            x = torch.cat([multi.projs[i](inner[i][:, :1]), inner[1 - i][:, 1:]], 1)
            attn, normed = fusion.attn, fusion.norm1(x)
            query = attn.wq(normed[:, :1]).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
            key = attn.wk(normed).unflatten(-1, (attn.num_heads, -1)).transpose(1, 2)
            seen = torch.cat([labels[i][:, :1], labels[1 - i][:, 1:]], 1)
            tokens.append((labels[i][:, :1] + softmax_attention(query, key) @ seen) / 2)
        labels = [torch.cat([token, label[:, 1:]], 1) for token, label in zip(tokens, labels, strict=True)]
        xs = multi(xs)
    if model.global_pool == "avg":
        return torch.stack([label[:, 1:].mean(1) for label in labels], 1)
    return torch.stack([label[:, 0] for label in labels], 1)


ORACLES = {"CrossVit": crossvit}
