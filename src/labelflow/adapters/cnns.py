"""Convolutional networks, each followed along its graph.

A convolution with a stride, or a pool, that stands between blocks is aggregation; inside a block, a convolution mixes
places with its weights. Classifiers read the average of the last map.
"""

from importlib import import_module

import torch.nn.functional as F
from timm.layers import AttentionPool2d, RotAttentionPool2d
from timm.layers.non_local_attn import BilinearAttnTransform
from timm.models.byobnet import ByobNet
from timm.models.hgnet import StemV2
from timm.models.mobilenetv5 import MobileNetV5, MobileNetV5Encoder
from timm.models.vgg import VGG, ConvMlp
from torch import Tensor, nn

from labelflow.adapters import convolutions, graph, map_attention, pooling  # noqa: F401
from labelflow.adapters.averages import check, pool_of, register_average
from labelflow.adapters.registry import Observed, refuse, register, register_model
from labelflow.flow import Labels

# A file of timm.models: its models that are a chain of blocks, stems and pools; its blocks
CHAINS = {
    "_efficientnet_blocks": (
        "",
        "ConvBnAct CondConvResidual DepthwiseSeparableConv EdgeResidual InvertedResidual MobileAttention "
        "UniversalInvertedResidual",
    ),
    "byobnet": ("", "BasicBlock BottleneckBlock DarkBlock EdgeBlock RepVggBlock MobileOneBlock SelfAttnBlock"),
    "cspnet": ("CspNet", "CrossStage CrossStage3 DarkStage"),
    "cspnext": ("CspNext", "CspNextLayer SPPBottleneck"),
    "densenet": ("DenseNet", "DenseBlock"),
    "dla": ("DLA", "DlaBasic DlaBottleneck DlaBottle2neck DlaTree"),
    "efficientnet": ("EfficientNet", ""),
    "ghostnet": ("GhostNet", "GhostBottleneck GhostBottleneckV3"),
    "hgnet": ("HighPerfGpuNet", "HighPerfGpuBlock"),
    "inception_resnet_v2": ("InceptionResnetV2", "Mixed_5b Mixed_6a Mixed_7a Block8 Block17 Block35"),
    "inception_v3": ("InceptionV3", "InceptionA InceptionB InceptionC InceptionD InceptionE"),
    "inception_v4": (
        "InceptionV4",
        "Mixed3a Mixed4a Mixed5a InceptionA InceptionB InceptionC ReductionA ReductionB",
    ),
    "lcnetv2": ("LCNetV2", "RepDepthwiseSeparable"),
    "mobilenetv3": ("MobileNetV3", ""),
    "nfnet": ("NormFreeNet", "NormFreeBlock"),
    "regnet": ("RegNet", "Bottleneck PreBottleneck"),
    "repghost": ("RepGhostNet", "RepGhostBottleneck"),
    "res2net": ("", "Bottle2neck"),
    "resnest": ("", "ResNestBottleneck"),
    "resnet": ("ResNet", "BasicBlock Bottleneck"),
    "resnetv2": ("ResNetV2", "Bottleneck PreActBasic PreActBottleneck"),
    "rexnet": ("RexNet", "LinearBottleneck"),
    "senet": ("SENet", "SEBottleneck SEResNetBottleneck SEResNeXtBottleneck SEResNetBlock"),
    "sknet": ("", "SelectiveKernelBasic SelectiveKernelBottleneck"),
    "tresnet": ("TResNet", "BasicBlock Bottleneck"),
    "vovnet": ("VovNet", "OsaBlock"),
    "xception": ("Xception", "Block"),
    "xception_aligned": ("XceptionAligned", "XceptionModule PreXceptionModule"),
}
# Models in which several maps run side by side: each is followed as one block.
WHOLE = {
    "dpn": "DPN",
    "hrnet": "HighResolutionNet",
    "nasnet": "NASNetALarge",
    "pnasnet": "PNASNet5Large",
    "selecsls": "SelecSls",
}


def _classes(file: str, names: str) -> list[type[nn.Module]]:
    return [getattr(import_module(f"timm.models.{file}"), name) for name in names.split()]


for _file, (_models, _blocks) in CHAINS.items():
    graph.follow(*_classes(_file, _blocks))
    register_average(*_classes(_file, _models), path=graph.path)

for _file, _name in WHOLE.items():
    (_model,) = _classes(_file, _name)
    register(_model, taps=graph.taps, plan=graph.trace_features, idle=graph.idle)(graph.move)
    register_average(_model, path=lambda model: [model])

register(StemV2, plan=graph.trace, layer=False)(graph.embed)


def _byob_path(model: ByobNet) -> list[nn.Module]:
    pooled = isinstance(model.head, AttentionPool2d | RotAttentionPool2d)  # CLIP's ResNets
    return [*graph.path(model), *([model.head] if pooled else [])]


def _byob_heads(model: ByobNet, labels: Tensor) -> Tensor:
    pooled = isinstance(model.head, AttentionPool2d | RotAttentionPool2d)
    return labels[:, :1] if pooled else labels.mean(1, keepdim=True)


def _byob_check(model: ByobNet) -> int:
    if not isinstance(model.head, AttentionPool2d | RotAttentionPool2d):
        return check(pool_of(model))
    if model.head.pool_type != "token":
        raise ValueError(f"labelflow follows labels to a pooled token, not to global_pool={model.head.pool_type!r}")
    return 0


register_model(ByobNet, path=_byob_path, heads=_byob_heads, head_tokens=_byob_check)


def _vgg_head(module: ConvMlp, labels: Labels, still: bool) -> Labels:
    """VGG's first linear layer: a kernel as large as the map, which is made larger where it is too small."""
    height, width = (max(side, module.input_kernel_size) for side in labels.grid)
    if (height, width) != labels.grid:
        pooled = F.adaptive_avg_pool2d(labels.map.permute(0, 3, 1, 2), (height, width))
        labels = labels.with_map(pooled.permute(0, 2, 3, 1))
    return labels.with_map(convolutions.convolve(module.fc1, labels.map, still))


def _idle_vgg_head(module: ConvMlp, observed: Observed, labels: Labels) -> Labels:
    return _vgg_head(module, labels, still=True)


@register(ConvMlp, idle=_idle_vgg_head)
def move_vgg_head(module: ConvMlp, observed: Observed, labels: Labels) -> Labels:
    return _vgg_head(module, labels, still=False)


refuse(MobileNetV5, MobileNetV5Encoder, why="its fusion of scales depends on the sizes of its maps")
refuse(BilinearAttnTransform, why="it mixes places by matrices that no hook sees")
register_average(VGG, path=lambda model: [*graph.path(model), model.pre_logits])
