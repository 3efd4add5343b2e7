"""EfficientNets and ByobNets: kinds of blocks, conditional kernels, self-attention, attention pooling."""

import copy
import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from timm.layers import AttentionPool2d, RotAttentionPool2d
from timm.models._efficientnet_builder import decode_arch_def
from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg, MobileOneBlock, RepVggBlock
from timm.models.efficientnet import EfficientNet
from torch import Tensor, nn

from convolution_oracles import Given, Walk, average, pixels
from labelflow import Mix

MOBILE = [["ds_r1_k3_s1_e1_c8"], ["ir_r2_k5_s2_e2_c12_se0.25"], ["er_r2_k3_s2_e2_c12"], ["uir_r1_a3_k5_s2_e2_c16"]]
ATTENTIVE = [["ir_r1_k3_s2_e2_c16"], ["mqa_r1_k3_h2_s1_v2_d8_c16", "mha_r1_k3_h2_s1_d8_c16", "ir_r1_k3_s2_e2_c16"]]


def efficientnet(blocks: list[list[str]], **arguments: object) -> nn.Module:
    arch = decode_arch_def(blocks)
    return EfficientNet(arch, num_classes=5, num_features=16, stem_size=8, round_chs_fn=lambda x: int(x), **arguments)


def byobnet(*blocks: ByoBlockCfg, **arguments: object) -> nn.Module:
    size = arguments.pop("img_size", None)
    return ByobNet(ByoModelCfg(blocks, **{"stem_chs": 8, "stem_pool": "", **arguments}), num_classes=5, img_size=size)


def plain(kinds: tuple[str, ...]) -> nn.Module:
    return byobnet(*(ByoBlockCfg(kind, d=2, c=16, s=2, gs=0, br=0.5) for kind in kinds))


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
    "efficientnet": (efficientnet, {"blocks": MOBILE}, (64, 48)),
    "efficientnet, tensorflow": (efficientnet, {"blocks": MOBILE, "pad_type": "same"}, (60, 48)),
    "efficientnet, mixed kernels": (efficientnet, {"blocks": [["ir_r2_k3.5.7_s2_e3_c12"]]}, (32, 32)),
    "efficientnet, conditional": (efficientnet, {"blocks": [["ir_r2_k3_s2_e2_c12_cc4"]]}, (32, 32)),
    "efficientnet, attention": (efficientnet, {"blocks": ATTENTIVE}, (48, 64)),
    "byobnet": (plain, {"kinds": ("basic", "dark", "edge")}, (32, 48)),
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
}  # fmt: skip
SOME = ["efficientnet, tensorflow"]  # for what does not depend on the details


def efficientnet_labels(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    walk = Walk(model, images)
    labels = walk(pixels(mix, onehot), model.conv_stem, stem=True)
    for block in itertools.chain(*model.blocks):
        branch = walk(labels, block)
        labels = average(labels, branch) if block.has_skip else branch
    return labels.mean((1, 2)).unsqueeze(1)


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
            within = [part for name, part in block.named_children() if name.startswith(("conv", "self_attn"))]
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


ORACLES = {"EfficientNet": efficientnet_labels, "ByobNet": byobnet_labels}
