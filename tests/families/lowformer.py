"""iFormer, LowFormer and CPUBone."""

import torch
import torch.nn.functional as F
from timm.models.cpubone import CPUBone, CPUBoneBlock
from timm.models.iformer import ConvBlock, IFormer, RepCPE, SHMABlock
from timm.models.lowformer import LowFormer, LowFormerBlock
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolve_labels, convolved, patch_labels, window_labels

IFORMER = {"dims": (8, 16, 24), "depths": (1, 5, 3), "attn_groups": (0, 1, 1), "attn_head_dim_reduction": (0, 2, 1)}
LOWFORMER = {"width_list": [8, 8, 12, 16, 120], "depth_list": [0, 1, 1, 1, 1], "head_widths": (8, 8), "num_classes": 5}
CPUBONE = {**LOWFORMER, "expand_groups": 2, "proj_drop_rate": 0.0}
SMALL = {"fused_conv": True, "fused_downsample": True, "small_kernels": True, "attn_upsample": "nearest"}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "iformer, fused": (IFormer, {**IFORMER, "num_classes": 5}, (64, 64)),
    "iformer, distilled, unfused": (
        IFormer,
        {**IFORMER, "layer_scale_init_value": 0.1, "distillation": True, "num_classes": 5},
        (64, 80),
    ),
    "lowformer, fused": (LowFormer, {**LOWFORMER, "depth_list": [1, 1, 2, 2, 1]}, (64, 64)),
    "lowformer, odd map, unfused": (LowFormer, {**LOWFORMER, "fused_conv": False}, (80, 112)),
    "lowformer, no mlp": (LowFormer, {**LOWFORMER, "attn_mlp": False}, (64, 96)),
    "lowformer, convolutions alone": (LowFormer, {**LOWFORMER, "attn": False, "attn_mlp": False}, (64, 64)),
    "cpubone, fused": (CPUBone, {**CPUBONE, **SMALL}, (64, 64)),
    "cpubone, odd map, unfused": (CPUBone, {**CPUBONE, **SMALL, "fused_conv": False}, (80, 112)),
    "cpubone, transposed": (CPUBone, CPUBONE, (80, 80)),
}
SOME = [
    "iformer, distilled, unfused",
    "lowformer, fused",
    "cpubone, odd map, unfused",
]  # for what does not depend on the details


def averaged(labels: Tensor) -> Tensor:
    return labels.mean((1, 2)).unsqueeze(1)


def iformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 5, 2, 2), 5, 2, 2)
    x = model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels, x = window_labels(labels, 3, 2, 1), stage.downsample(x)
        for block in stage.blocks:
            if isinstance(block, ConvBlock):
                labels = (labels + convolved(labels, block.mixer.module[0].c)) / 2
            elif isinstance(block, RepCPE):
                labels = (labels + convolved(labels, block.cpe.module.c)) / 2
            elif isinstance(block, SHMABlock):
                attn = block.mixer.module
                query, key = (part(x).flatten(2).mT.unsqueeze(1) for part in (attn.q, attn.k))
                matrix = (query @ key.mT * attn.scale).softmax(-1)[:, 0]  # its scores are large
                moved = (matrix @ labels.flatten(1, 2)).view_as(labels)
                gated = (moved + labels) / 2  # a product
                labels = (labels + gated) / 2
            x = block(x)
    return averaged(labels)


def responses(layer: nn.Module, places: Tensor) -> Tensor:
    """What each output channel of a layer makes of maps (n, 1, h, w), with the sizes of its weights: (n, C, i, j)"""
    if isinstance(layer, nn.Sequential):
        for part in layer:
            places = responses(part, places)
        return places
    if isinstance(layer, nn.ConvTranspose2d):
        kernel = layer.weight.abs()
        kernel = kernel.sum(0, keepdim=True) if layer.groups == 1 else kernel.transpose(0, 1)  # (1, C, r, s)
        return F.conv_transpose2d(places, kernel, None, layer.stride, layer.padding)
    if isinstance(layer, nn.Conv2d) and layer.kernel_size != (1, 1):
        return F.conv2d(places, layer.weight.abs().sum(1, keepdim=True), None, layer.stride, layer.padding)
    return places if isinstance(layer, nn.Conv2d) else layer(places)  # pads, repeats, or nothing


def moved_by(layer: nn.Module, labels: Tensor) -> Tensor:
    """A map of labels (B, h, w, C) moved by any of these layers, with the mean over channels of Norm(|W|)"""
    places = torch.eye(labels.shape[1] * labels.shape[2]).view(-1, 1, *labels.shape[1:3])
    columns = responses(layer, places)
    matrices = columns.flatten(2).permute(1, 2, 0)  # (C, i·j, h·w)
    matrix = (matrices / matrices.sum(-1, keepdim=True)).mean(0)
    return (matrix @ labels.flatten(1, 2)).unflatten(1, columns.shape[2:])


def coarse_attention(attn: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    height, width = labels.shape[1:3]
    project = attn.conv_proj.conv
    if getattr(attn, "small_kernels", False) and attn.att_stride == 2:
        around = nn.ZeroPad2d((0, width % 2, 0, height % 2))
        x, project = around(x), nn.Sequential(around, project)
    qkv = attn.pwise(attn.conv_proj(x)).flatten(2).unflatten(1, (attn.num_heads, 3, -1)).mT  # (B, A, 3, N, D)
    labels = moved_by(project, labels)
    matrix = (qkv[:, :, 0] @ qkv[:, :, 1].mT * attn.head_dim**-0.5).softmax(-1).mean(1)
    labels = (matrix @ labels.flatten(1, 2)).view_as(labels)
    return moved_by(attn.upsampling, labels)[:, :height, :width]


def spatial_layer(block: nn.Module) -> nn.Module:
    return (block.spatial_conv if hasattr(block, "spatial_conv") else block.depth_conv).conv


def lowformer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 3, 2, 1), model.stem[0](images)
    for block in [*model.stem[1:], *(block for stage in model.stages for block in stage)]:
        local = block
        if isinstance(block, LowFormerBlock | CPUBoneBlock):
            if isinstance(block, LowFormerBlock):
                first, local = block.attn, block.local
            else:
                first, local = block.total[0][0], block.total[1]
            if not isinstance(first, nn.Identity):
                norm, attn = first.main if isinstance(first.main, nn.Sequential) else (nn.Identity(), first.main)
                labels = (labels + coarse_attention(attn, norm(x), labels)) / 2
        layer = spatial_layer(local.main)  # of 2×2 it is padded on one side
        moved = convolve_labels(layer, labels) if isinstance(layer, nn.Conv2d) else moved_by(layer, labels)
        labels = moved if local.shortcut is None else (labels + moved) / 2
        x = block(x)
    return averaged(labels)


ORACLES = {"CPUBone": lowformer, "IFormer": iformer, "LowFormer": lowformer}
