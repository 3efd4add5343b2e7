"""GC-ViT, and FocalNet."""

import inspect

import torch
from timm.models.focalnet import FocalNet
from timm.models.gcvit import GlobalContextVit, WindowAttentionGlobal
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, softmax_attention, window_labels

GCVIT = {"img_size": 32, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "window_size": (4, 2), "num_classes": 5}
FOCAL = {"embed_dim": 8, "depths": (1, 2), "focal_levels": (2, 3), "focal_windows": (3, 3), "num_classes": 5}

LARGE = {"use_overlap_down": True, "use_post_norm": True, "layerscale_value": 0.5, "normalize_modulator": True}

# name: (timm class, its arguments, an image size it takes)
FAMILIES = {
    "gcvit": (GlobalContextVit, GCVIT, (32, 32)),
    "gcvit, scaled": (GlobalContextVit, {**GCVIT, "layer_scale": 0.5}, (32, 32)),
    "focalnet": (FocalNet, FOCAL, (32, 40)),
    "focalnet, overlapping": (FocalNet, {**FOCAL, **LARGE}, (32, 40)),
}
SOME = ["gcvit", "focalnet"]  # for what does not depend on the details

# timm 1.0.30 repeats its global queries as they come: a sample's windows see all samples'
OWN_QUERIES = "repeat_interleave" in inspect.getsource(WindowAttentionGlobal.forward)


def gcvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    def down(module: nn.Module, labels: Tensor) -> Tensor:
        return window_labels((labels + convolved(labels, module.conv_block.conv_dw)) / 2, 3, 2, 1)

    labels, x = down(model.stem.down, patch_labels(mix, onehot, 3, 2, 1)), model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            x, labels = stage.downsample(x), down(stage.downsample, labels)
        query = stage.global_block(x).permute(0, 2, 3, 1).flatten(1, 2)  # (B, places of a window, D)
        x = x.permute(0, 2, 3, 1)
        for block in stage.blocks:
            attn, (rows, columns), mixed = block.attn, block.window_size, torch.zeros_like(labels)
            normed = block.norm1(x)
            windows = range(x.shape[1] // rows), range(x.shape[2] // columns)
            for number, (i, j) in enumerate((i, j) for i in windows[0] for j in windows[1]):
                place = slice(i * rows, (i + 1) * rows), slice(j * columns, (j + 1) * columns)
                parts = attn.qkv(normed[:, *place].flatten(1, 2)).chunk(2 if attn.use_global else 3, -1)
                if attn.use_global:
                    count = len(windows[0]) * len(windows[1])
                    own = [sample if OWN_QUERIES else (sample * count + number) % len(x) for sample in range(len(x))]
                    parts = (query[own], *parts)
                q, k = (part.unflatten(-1, (attn.num_heads, -1)).transpose(1, 2) for part in parts[:2])
                bias = attn.rel_pos(torch.zeros(1, attn.num_heads, rows * columns, rows * columns))
                found = softmax_attention(q, k, bias) @ labels[:, *place].flatten(1, 2)
                mixed[:, *place] = found.unflatten(1, (rows, columns))
            labels, x = (labels + mixed) / 2, block(x, query.unflatten(1, (rows, columns)))
        x = x.permute(0, 3, 1, 2)
    return labels.mean((1, 2)).unsqueeze(1)


def focalnet(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    size, padding = model.stem.proj.kernel_size[0], model.stem.proj.padding[0]
    labels, x = patch_labels(mix, onehot, size, 4, padding), model.stem(images)
    for stage in model.layers:
        if not isinstance(stage.downsample, nn.Identity):
            conv = stage.downsample.proj
            x, labels = stage.downsample(x), window_labels(labels, conv.kernel_size[0], 2, conv.padding[0])
        for block in stage.blocks:
            gates = block.modulation.f(block.norm1(x))[:, 2 * x.shape[1] :].abs()
            gates = gates / gates.sum(1, keepdim=True)
            level, context = labels, torch.zeros_like(labels)
            for number, layer in enumerate(block.modulation.focal_layers):
                level = convolved(level, layer[0])
                context += gates[:, number].unsqueeze(-1) * level
            context += gates[:, -1].unsqueeze(-1) * level.mean((1, 2), keepdim=True)
            labels = (labels + (labels + context) / 2) / 2
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"GlobalContextVit": gcvit, "FocalNet": focalnet}
