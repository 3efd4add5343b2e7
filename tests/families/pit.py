"""PiT."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import image_label, patch_labels, softmax_attention, window_labels

PIT = {"img_size": 32, "patch_size": 8, "stride": 4, "base_dims": (8, 8), "heads": (2, 4), "depth": (2, 1)}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "pit": ("pit_ti_224", {**PIT, "num_classes": 5}, (32, 32)),
    "pit, unfused": ("pit_ti_224", {**PIT, "img_size": (24, 40), "num_classes": 5}, (24, 40)),
    "pit distilled": ("pit_ti_distilled_224", {**PIT, "num_classes": 5}, (32, 32)),
}
SOME = ["pit"]  # for what does not depend on the details


def pit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 1, 1), 8, 4, 0)
    x, tokens = model.patch_embed(images) + model.pos_embed, model.cls_token.expand(len(images), -1, -1)
    label = image_label(mix, onehot).expand(-1, tokens.shape[1], -1)  # of the class and distillation tokens
    for stage in model.transformers:
        if stage.pool is not None:
            labels = window_labels(labels, 3, 2, 1)
            x, tokens = stage.pool(x, tokens)
        grid, count = tuple(x.shape[2:]), tokens.shape[1]
        x = torch.cat([tokens, x.flatten(2).transpose(1, 2)], 1)
        both = torch.cat([label, labels.flatten(1, 2)], 1)
        for block in stage.blocks:
            q, k, _ = block.attn.qkv(block.norm1(x)).unflatten(-1, (3, block.attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
            both = (both + softmax_attention(q, k) @ both) / 2
            x = block(x)
        tokens, x = x[:, :count], x[:, count:].transpose(1, 2).unflatten(2, grid)
        label, labels = both[:, :count], both[:, count:].unflatten(1, grid)
    return label


ORACLES = {"PoolingVisionTransformer": pit}
