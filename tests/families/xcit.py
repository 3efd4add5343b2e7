"""XCiT."""

import torch
from torch import Tensor, nn

from families.cait import class_attention
from labelflow import Mix
from oracles import convolution_matrix, image_label, patch_labels, window_labels

XCIT = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "xcit": ("xcit_nano_12_p8_224", {**XCIT, "tokens_norm": True, "eta": 1.0}, (32, 32)),
    "xcit, unfused": ("xcit_nano_12_p8_224", XCIT, (24, 40)),
    "xcit, patches of 16": ("xcit_nano_12_p16_224", {**XCIT, "patch_size": 16}, (64, 64)),
    "xcit, average": ("xcit_nano_12_p8_224", {**XCIT, "global_pool": "avg"}, (32, 32)),
}
SOME = ["xcit"]  # for what does not depend on the details


def xcit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    for _ in range({8: 2, 16: 3}[model.patch_embed.patch_size]):
        labels = window_labels(labels, 3, 2, 1)
    x, grid = model.patch_embed(images)
    x = x + model.pos_embed(len(x), *grid).flatten(2).transpose(1, 2)
    labels = labels.flatten(1, 2)
    for block in model.blocks:
        mixed = labels
        for convolution in (block.local_mp.conv1, block.local_mp.conv2):
            matrix = torch.stack([convolution_matrix(kernel[0], grid) for kernel in convolution.weight]).mean(0)
            mixed = matrix @ mixed
        labels = (labels + mixed) / 2
        x = block(x, *grid)
    x = torch.cat([model.cls_token.expand(len(x), -1, -1), x], 1)
    label = image_label(mix, onehot)
    for block in model.cls_attn_blocks:
        label = (label + class_attention(block.attn, block.norm1(x)) @ torch.cat([label, labels], 1)) / 2
        x = block(x)
    return labels.mean(1, keepdim=True) if model.global_pool == "avg" else label


ORACLES = {"Xcit": xcit}
