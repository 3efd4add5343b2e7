"""Convolutional networks: one of each kind of block, of padding, and of ways to make a kernel."""

import copy
import itertools
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from timm.layers import AttentionPool2d, GroupNormAct, RotAttentionPool2d
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg, MobileOneBlock, RepVggBlock
from timm.models.densenet import DenseBlock
from timm.models.efficientnet import EfficientNet
from timm.models.regnet import RegNet, RegNetCfg
from timm.models.resnetv2 import ResNetV2
from timm.models.selecsls import SelecSls, SelecSlsBlock
from timm.models.vovnet import VovNet
from torch import Tensor, nn

from convolution_oracles import Given, Walk, average, joined, pixels
from labelflow import Mix

RESNET = {"layers": (1, 2, 1, 1), "channels": (8, 8, 12, 12), "stem_width": 8, "num_classes": 5}
MOBILE = [["ds_r1_k3_s1_e1_c8"], ["ir_r2_k5_s2_e2_c12_se0.25"], ["er_r2_k3_s2_e2_c12"], ["uir_r1_a3_k5_s2_e2_c16"]]
ATTENTIVE = [["ir_r1_k3_s2_e2_c16"], ["mqa_r1_k3_h2_s1_v2_d8_c16", "mha_r1_k3_h2_s1_d8_c16", "ir_r1_k3_s2_e2_c16"]]


def regnet(**arguments: object) -> nn.Module:
    shape = {"depth": 5, "w0": 8, "wa": 8.0, "wm": 1.6, "group_size": 4, "stem_width": 8}
    return RegNet(RegNetCfg(**shape, **arguments), num_classes=5)


def efficientnet(blocks: list[list[str]], **arguments: object) -> nn.Module:
    arch = decode_arch_def(blocks)
    return EfficientNet(arch, num_classes=5, num_features=16, stem_size=8, round_chs_fn=lambda x: int(x), **arguments)


def resnetv2() -> nn.Module:
    norm = partial(GroupNormAct, num_groups=4)
    return ResNetV2([1, 2], (16, 24), num_classes=5, stem_chs=8, stem_type="fixed", norm_layer=norm)


def vovnet(**arguments: object) -> nn.Module:
    shape = {"stem_chs": [4, 4, 8], "stage_conv_chs": [4, 6, 6, 6], "stage_out_chs": [8, 12, 12, 16]}
    rest = {"layer_per_block": 2, "block_per_stage": [1, 2, 1, 1], "attn": "ese"}
    return VovNet({**shape, **rest, **arguments}, num_classes=5)


def selecsls() -> nn.Module:
    features = [(32, 0, 8, 8, True, 2), (8, 8, 8, 12, False, 1), (12, 0, 12, 16, True, 2)]
    cfg = {"block": SelecSlsBlock, "features": features, "head": [(16, 8, 3, 2)], "num_features": 8, "feature_info": []}
    return SelecSls(cfg, num_classes=5)


def byobnet(*blocks: ByoBlockCfg, **arguments: object) -> nn.Module:
    size = arguments.pop("img_size", None)
    return ByobNet(ByoModelCfg(blocks, **{"stem_chs": 8, "stem_pool": "", **arguments}), num_classes=5, img_size=size)


def rep(kind: str) -> nn.Module:
    branches = {"block_kwargs": {"num_conv_branches": 3}} if kind == "one" else {}
    blocks = (ByoBlockCfg(kind, d=2, c=8, s=2, gs=0, **branches), ByoBlockCfg(kind, d=1, c=12, s=2, gs=0, **branches))
    return byobnet(*blocks, stem_type=kind)


def clip(head: str) -> nn.Module:
    block = ByoBlockCfg("bottle", d=1, c=16, s=2, br=0.25)
    shape = {"downsample": "avg", "aa_layer": "avg", "head_type": head, "head_hidden_size": 128}
    return byobnet(block, block, block, stem_type="quad", **shape, img_size=64)


def self_attention(layer: str, **arguments: object) -> nn.Module:
    attn = ByoBlockCfg("self_attn", d=2, c=16, s=2, br=0.5)
    plain = ByoBlockCfg("bottle", d=1, c=16, s=2, br=0.5)
    shape = {"self_attn_layer": layer, "self_attn_kwargs": arguments, "fixed_input_size": True, "img_size": 64}
    return byobnet(plain, attn, **shape)


# name: (timm model or a function that makes one, its arguments, an image size it takes)
FAMILIES: dict[str, tuple[str | Callable[..., nn.Module], dict, tuple[int, int]]] = {
    "resnet": ("resnet18", RESNET, (64, 64)),
    "resnet, oblong": ("resnet18", RESNET, (72, 104)),
    "resnet, dilated": ("resnet18", {**RESNET, "output_stride": 8}, (64, 64)),
    "resnet, bottlenecks": ("seresnext26d_32x4d", {**RESNET, "cardinality": 2, "base_width": 32}, (64, 64)),
    "resnet, blurred": ("resnetblur18", RESNET, (64, 64)),
    "regnet": (regnet, {}, (64, 64)),
    "regnet, gates": (regnet, {"se_ratio": 0.25, "downsample": "avg"}, (64, 80)),
    "efficientnet": (efficientnet, {"blocks": MOBILE}, (64, 48)),
    "efficientnet, tensorflow": (efficientnet, {"blocks": MOBILE, "pad_type": "same"}, (60, 48)),
    "efficientnet, mixed kernels": (efficientnet, {"blocks": [["ir_r2_k3.5.7_s2_e3_c12"]]}, (32, 32)),
    "efficientnet, conditional": (efficientnet, {"blocks": [["ir_r2_k3_s2_e2_c12_cc4"]]}, (32, 32)),
    "efficientnet, attention": (efficientnet, {"blocks": ATTENTIVE}, (48, 64)),
    "vovnet": (vovnet, {"residual": False, "depthwise": False}, (64, 64)),
    "vovnet, residual": (vovnet, {"residual": True, "depthwise": False, "stage_out_chs": [8, 8, 8, 8]}, (64, 64)),
    "densenet": ("densenet121", {"growth_rate": 4, "block_config": (2, 3), "num_classes": 5}, (48, 64)),
    "resnetv2": (resnetv2, {}, (60, 64)),
    "nfnet": (
        "nf_resnet26", {"depths": (1, 2, 1, 1), "channels": (8, 16, 16, 16), "stem_chs": 8, "num_classes": 5}, (64, 64),
    ),
    "repvgg": (rep, {"kind": "rep"}, (32, 48)),
    "mobileone": (rep, {"kind": "one"}, (32, 48)),
    "clip resnet": (clip, {"head": "attn_abs"}, (64, 64)),
    "clip resnet, rotary": (clip, {"head": "attn_rot"}, (64, 64)),
    "botnet": (self_attention, {"layer": "bottleneck", "dim_head": 4, "num_heads": 2}, (64, 64)),
    "halonet": (
        self_attention, {"layer": "halo", "dim_head": 4, "num_heads": 2, "block_size": 4, "halo_size": 1}, (64, 64),
    ),
    "lambdanet": (self_attention, {"layer": "lambda", "dim_head": 4, "num_heads": 2, "r": 5}, (64, 64)),
    "lambdanet, relative": (self_attention, {"layer": "lambda", "dim_head": 4, "num_heads": 2, "r": None}, (64, 64)),
    "selecsls": (selecsls, {}, (32, 48)),
}  # fmt: skip
SOME = ["resnet", "efficientnet, tensorflow"]  # for what does not depend on the details


def resnet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = walk(pixels(mix, onehot), model.conv1, model.maxpool, stem=True)
    for block in itertools.chain(model.layer1, model.layer2, model.layer3, model.layer4):
        branch = [block.conv1, block.aa, block.conv2] if not hasattr(block, "conv3") else [block.conv2, block.aa]
        labels = average(walk(labels, *branch), walk(labels, block.downsample))
    return labels.mean((1, 2)).unsqueeze(1)


def fixed(stem: nn.Sequential) -> list[nn.Module]:
    """BiT's stem pads before it pools."""
    parts = list(stem.children())
    if not any(isinstance(part, nn.ConstantPad2d) for part in parts):
        return parts
    return [nn.MaxPool2d(3, 2, 1) if isinstance(part, nn.MaxPool2d) else part for part in parts]


def staged_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    """RegNet, ResNetV2, NFNet: bottlenecks, of which only the convolution in the middle looks around."""
    walk = Walk(model, images)
    labels = walk(pixels(mix, onehot), *fixed(model.stem), stem=True)
    for block in (module for module in model.modules() if hasattr(module, "conv2") and hasattr(module, "downsample")):
        labels = average(walk(labels, block.conv2), walk(labels, block.downsample))
    return labels.mean((1, 2)).unsqueeze(1)


def efficientnet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = walk(pixels(mix, onehot), model.conv_stem, stem=True)
    for block in itertools.chain(*model.blocks):
        branch = walk(labels, block)
        labels = average(labels, branch) if block.has_skip else branch
    return labels.mean((1, 2)).unsqueeze(1)


def vovnet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = walk(pixels(mix, onehot), model.stem, stem=True)
    for stage in model.stages:
        labels = walk(labels, stage.pool)
        for block in stage.blocks:
            parts = [(labels, block.conv_mid[0].conv.in_channels)]
            for convolution in block.conv_mid:
                parts.append((walk(parts[-1][0], convolution), convolution.conv.out_channels))
            labels = average(joined(parts), labels) if block.residual else joined(parts)
    return labels.mean((1, 2)).unsqueeze(1)


def densenet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = pixels(mix, onehot)
    for module in model.features.children():
        if not isinstance(module, DenseBlock):
            labels = walk(labels, module, stem=True)
            continue
        parts = [(labels, module["denselayer1"].norm1.num_features)]
        for layer in module.values():
            parts.append((walk(joined(parts), layer.conv2), layer.conv2.out_channels))
        labels = joined(parts)
    return labels.mean((1, 2)).unsqueeze(1)


def selecsls_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels, kept = walk(pixels(mix, onehot), model.stem), None
    for block in model.features:
        first = walk(labels, block.conv1)
        second = walk(first, block.conv2, block.conv3)
        third = walk(second, block.conv4, block.conv5)
        parts = [
            (part, conv[0].out_channels)
            for part, conv in ((first, block.conv1), (second, block.conv3), (third, block.conv5))
        ]
        if kept is not None and not block.is_first:
            parts.append((kept, block.conv6[0].in_channels - sum(channels for _, channels in parts)))
        labels = walk(joined(parts), block.conv6)
        kept = labels if block.is_first else kept
    return walk(labels, model.head).mean((1, 2)).unsqueeze(1)


def byobnet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = pixels(mix, onehot)
    blocks = [model.stem] if isinstance(model.stem, RepVggBlock | MobileOneBlock) else []
    labels = labels if blocks else walk(labels, model.stem, stem=True)
    for block in [*blocks, *itertools.chain(*model.stages)]:
        if isinstance(block, RepVggBlock):
            branches = [block.conv_1x1, block.conv_kxk]
        elif isinstance(block, MobileOneBlock):
            branches = [block.conv_scale, *block.conv_kxk]
        else:
            within = [block.conv2_kxk, *([block.self_attn] if hasattr(block, "self_attn") else [])]
            branches = [nn.ModuleList(within)]
        shortcut = getattr(block, "shortcut", getattr(block, "identity", None))
        maps = [walk(labels, branch) for branch in branches if branch is not None]
        labels = average(*maps, *([] if shortcut is None else [walk(labels, shortcut)]))
    if not isinstance(model.head, AttentionPool2d | RotAttentionPool2d):
        return labels.mean((1, 2)).unsqueeze(1)
    (x,), twin = walk.inputs[model.head], copy.deepcopy(model.head)
    count = labels.shape[1] * labels.shape[2] + 1  # the mean of all places is in front of them
    eye = F.pad(torch.eye(count), (0, twin.head_dim - count)).repeat(1, twin.num_heads)
    twin.v = Given(eye.expand(len(x), -1, -1))
    weights = twin(x, pre_logits=True).unflatten(1, (twin.num_heads, -1)).mean(1)[:, :count]
    flat = labels.flatten(1, 2)
    return weights.unsqueeze(1) @ torch.cat([flat.mean(1, keepdim=True), flat], 1)


ORACLES = {
    "ResNet": resnet_labels,
    "RegNet": staged_labels,
    "ResNetV2": staged_labels,
    "NormFreeNet": staged_labels,
    "EfficientNet": efficientnet_labels,
    "VovNet": vovnet_labels,
    "DenseNet": densenet_labels,
    "SelecSls": selecsls_labels,
    "ByobNet": byobnet_labels,
}
