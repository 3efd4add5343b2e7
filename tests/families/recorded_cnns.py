"""Convolutional networks of timm's own layouts, with fewer channels: what they call is watched, not what they are."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest import mock

import timm
import torch.nn.functional as F
from timm.layers import GroupNormAct
from timm.layers.space_to_depth import SpaceToDepth
from timm.models.cspnet import CspNet
from timm.models.cspnet import model_cfgs as cspnet_shapes
from timm.models.regnet import RegNet, RegNetCfg
from timm.models.resnetv2 import ResNetV2
from timm.models.selecsls import SelecSls, SelecSlsBlock
from timm.models.vovnet import VovNet
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from labelflow import Mix
from recording_oracles import average_label

NFNET = {"depths": (1, 2, 1, 1), "channels": (8, 16, 16, 16), "stem_chs": 8, "num_classes": 5}
RESNET = {"layers": (1, 2, 1, 1), "channels": (8, 8, 12, 12), "stem_width": 8, "num_classes": 5}


def narrow(name: str, by: int = 8, **arguments: Any) -> nn.Module:
    """A model of timm's, whose layers have so many times fewer channels."""

    def part(channels: int) -> int:
        return channels if channels in (1, 3, 5) else -(-channels // by)

    def divided(make: Callable[..., None], *counts: str) -> Callable[..., None]:
        signature = inspect.signature(make)

        def init(*args: Any, **named: Any) -> None:
            given = signature.bind(*args, **named).arguments
            named = {**given.pop("kwargs", {}), **given}
            make(named.pop("self"), **{key: part(one) if key in counts else one for key, one in named.items()})

        return init

    layers = {nn.Conv2d: ("in_channels", "out_channels", "groups"), _NormBase: ("num_features",)}
    with contextlib.ExitStack() as patches:
        for layer, counts in {**layers, nn.Linear: ("in_features", "out_features")}.items():
            patches.enter_context(mock.patch.object(layer, "__init__", divided(layer.__init__, *counts)))
        return timm.create_model(name, num_classes=5, **arguments)


def cspnet(name: str) -> nn.Module:
    shape = cspnet_shapes[name]
    count = len(shape.stages.depth)
    stages = dataclasses.replace(shape.stages, out_chs=(8, 16, 16, 24, 24)[:count], depth=(1, 2, 1, 1, 1)[:count])
    return CspNet(dataclasses.replace(shape, stages=stages), num_classes=5)


def regnet(**arguments: object) -> nn.Module:
    shape = {"depth": 5, "w0": 8, "wa": 8.0, "wm": 1.6, "group_size": 4, "stem_width": 8}
    return RegNet(RegNetCfg(**shape, **arguments), num_classes=5)


def resnetv2(**arguments: object) -> nn.Module:
    norm = partial(GroupNormAct, num_groups=4)
    return ResNetV2([1, 2], (16, 24), num_classes=5, stem_chs=8, stem_type="fixed", norm_layer=norm, **arguments)


def vovnet(**arguments: object) -> nn.Module:
    shape = {"stem_chs": [4, 4, 8], "stage_conv_chs": [4, 6, 6, 6], "stage_out_chs": [8, 12, 12, 16]}
    rest = {"layer_per_block": 2, "block_per_stage": [1, 2, 1, 1], "attn": "ese"}
    return VovNet({**shape, **rest, **arguments}, num_classes=5)


def selecsls() -> nn.Module:
    features = [(32, 0, 8, 8, True, 2), (8, 8, 8, 12, False, 1), (12, 0, 12, 16, True, 2)]
    cfg = {"block": SelecSlsBlock, "features": features, "head": [(16, 8, 3, 2)], "num_features": 8, "feature_info": []}
    return SelecSls(cfg, num_classes=5)


# name: (a function that makes a model, its arguments, an image size it takes)
FAMILIES: dict[str, tuple[str | Callable[..., nn.Module], dict, tuple[int, int]]] = {
    "cspnet": (cspnet, {"name": "cspresnet50"}, (64, 96)),
    "cspnet, darknet": (cspnet, {"name": "cspdarknet53"}, (64, 96)),
    "cspnet, three": (cspnet, {"name": "cs3se_edgenet_x"}, (64, 96)),
    "cspnet, not crossed": (narrow, {"name": "darknet53"}, (64, 96)),
    "cspnext": ("cspnext_tiny", {"channels": (16, 24, 32, 48), "depths": (1, 2, 1, 1), "num_classes": 5}, (64, 96)),
    "dla": (narrow, {"name": "dla34"}, (64, 96)),
    "dla, grouped": (narrow, {"name": "dla46x_c"}, (64, 96)),
    "dla, scales": ("dla60_res2net", {"channels": (8, 8, 16, 16, 32, 32), "num_classes": 5}, (64, 96)),
    "dpn": ("dpn48b", {"k_sec": (1, 2, 1, 1), "k_r": 16, "groups": 4, "num_classes": 5}, (64, 96)),
    "ghostnet": ("ghostnet_050", {"num_classes": 5}, (64, 96)),
    "ghostnet v2": ("ghostnetv2_100", {"num_classes": 5}, (64, 96)),
    "ghostnet v3": ("ghostnetv3_050", {"num_classes": 5}, (64, 96)),
    "hgnet": (narrow, {"name": "hgnet_tiny"}, (64, 96)),
    "hgnet v2": (narrow, {"name": "hgnetv2_b0"}, (64, 96)),
    "hrnet": (narrow, {"name": "hrnet_w18_small"}, (64, 96)),
    "inception v3": (narrow, {"name": "inception_v3"}, (107, 139)),
    "inception v4": (narrow, {"name": "inception_v4"}, (107, 139)),
    "inception resnet": (narrow, {"name": "inception_resnet_v2"}, (107, 139)),
    "lcnet v2": (narrow, {"name": "lcnetv2_base"}, (64, 96)),
    "mobilenet v3": (narrow, {"name": "mobilenetv3_small_100", "by": 4}, (64, 96)),
    "nasnet": ("nasnetalarge", {"num_features": 192, "stem_size": 8, "num_classes": 5}, (75, 107)),
    "pnasnet": (narrow, {"name": "pnasnet5large", "by": 6}, (75, 107)),
    "repghost": ("repghostnet_050", {"num_classes": 5}, (64, 96)),
    "resnet": ("resnet18", RESNET, (64, 64)),
    "resnet, oblong": ("resnet18", RESNET, (72, 104)),
    "resnet, dilated": ("resnet18", {**RESNET, "output_stride": 8}, (64, 64)),
    "resnet, bottlenecks": ("seresnext26d_32x4d", {**RESNET, "cardinality": 2, "base_width": 32}, (64, 64)),
    "resnet, blurred": ("resnetblur18", RESNET, (64, 64)),
    "regnet": (regnet, {}, (64, 64)),
    "regnet, gates": (regnet, {"se_ratio": 0.25, "downsample": "avg"}, (64, 80)),
    "vovnet": (vovnet, {"residual": False, "depthwise": False}, (64, 64)),
    "vovnet, residual": (vovnet, {"residual": True, "depthwise": False, "stage_out_chs": [8, 8, 8, 8]}, (64, 64)),
    "densenet": ("densenet121", {"growth_rate": 4, "block_config": (2, 3), "num_classes": 5}, (48, 64)),
    "resnetv2": (resnetv2, {}, (60, 64)),
    "resnetv2, basic": (resnetv2, {"basic": True}, (60, 64)),
    "resnetv2, post-activation": (resnetv2, {"preact": False}, (60, 64)),
    "regnet, pre-activation": (regnet, {"preact": True}, (64, 80)),
    "res2net": ("res2net50_26w_4s", {**RESNET, "layers": (1, 2, 1, 1)}, (64, 64)),
    "resnest": ("resnest14d", {**RESNET}, (64, 64)),
    "sknet": ("skresnet18", RESNET, (64, 64)),
    "sknet, bottlenecks": ("skresnet50", RESNET, (64, 64)),
    "selecsls": (selecsls, {}, (32, 48)),
    "nfnet": ("nf_resnet26", NFNET, (64, 64)),
    "nfnet, same": ("dm_nfnet_f0", {**NFNET, "stem_chs": 64, "group_size": 4}, (64, 64)),
    "rexnet": (narrow, {"name": "rexnet_100", "by": 1}, (64, 96)),
    "senet, basic": (narrow, {"name": "legacy_seresnet18"}, (64, 96)),
    "senet, bottlenecks": (narrow, {"name": "legacy_seresnet50"}, (64, 96)),
    "senet, grouped": (narrow, {"name": "legacy_seresnext26_32x4d"}, (64, 96)),
    "senet": (narrow, {"name": "legacy_senet154"}, (64, 96)),
    "tresnet": ("tresnet_m", {"layers": [1, 2, 1, 1], "width_factor": 0.125, "num_classes": 5}, (64, 96)),
    "vgg": (narrow, {"name": "vgg11", "by": 16}, (64, 96)),
    "vgg, large": (narrow, {"name": "vgg11_bn", "by": 16}, (224, 256)),
    "xception": (narrow, {"name": "legacy_xception"}, (107, 139)),
    "xception, aligned": (narrow, {"name": "xception41"}, (64, 96)),
    "xception, aligned, pre-activation": (narrow, {"name": "xception41p"}, (64, 96)),
}  # fmt: skip
SOME = ["resnet"]

# Where a convolution with a stride stands between blocks, and aggregates
STEMS: dict[str, tuple[str, ...]] = {
    "CspNet": ("stem.*",),
    "CspNext": ("stem.*", "stages.*.0.conv"),
    "DLA": ("base_layer.*", "level0.*", "level1.*"),
    "DPN": (),
    "GhostNet": ("conv_stem",),
    "HighPerfGpuNet": ("stem.*", "stages.*.downsample.conv"),
    "HighResolutionNet": (),
    "InceptionV3": ("Conv2d_1a_3x3.*",),
    "InceptionV4": ("features.0.*",),
    "InceptionResnetV2": ("conv2d_1a.*",),
    "LCNetV2": ("stem.*",),
    "DenseNet": ("features.conv0", "features.transition*.conv"),
    "MobileNetV3": ("conv_stem",),
    "NASNetALarge": (),
    "PNASNet5Large": (),
    "RepGhostNet": ("conv_stem",),
    "RegNet": ("stem*",),
    "ResNet": ("conv1", "conv1.*"),
    "ResNetV2": ("stem.*",),
    "NormFreeNet": ("stem.*",),
    "SelecSls": (),
    "VovNet": ("stem.*",),
    "RexNet": ("stem.*",),
    "SENet": ("layer0.*",),
    "TResNet": (),
    "VGG": (),
    "Xception": ("conv1",),
    "XceptionAligned": ("stem.*",),
}


def pixels(mix: Mix, onehot: Tensor) -> Tensor:
    own = mix.share.permute(0, 2, 3, 1)
    return own * onehot[:, None, None] + (1 - own) * onehot[mix.partner, None, None]


def labels_of(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    # The same places in another order of channels, in one call
    with mock.patch.object(SpaceToDepth, "forward", lambda self, x: F.pixel_unshuffle(x, self.bs)):
        return average_label(model, images, pixels(mix, onehot), STEMS[type(model).__name__])


ORACLES = dict.fromkeys(STEMS, labels_of)
