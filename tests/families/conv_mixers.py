"""ConvMixer, InceptionNeXt, MambaOut, StarNet, FasterNet and RepViT."""

from timm.models.convmixer import ConvMixer
from timm.models.fasternet import FasterNet
from timm.models.inception_next import MetaNeXt
from timm.models.mambaout import MambaOut
from timm.models.repvit import RepVit
from timm.models.starnet import StarNet
from torch import Tensor, nn

from labelflow import Mix
from oracles import convolved, patch_labels, window_labels

CONVMIXER = {"dim": 12, "depth": 2, "kernel_size": 5, "patch_size": 4, "num_classes": 5}
STAGES = {"depths": (1, 2, 1), "dims": (16, 24, 32), "num_classes": 5}
FASTERNET = {"embed_dim": 8, "depths": (1, 2, 1), "feature_dim": 16, "num_classes": 5}
REPVIT = {"embed_dim": (8, 16), "depth": (2, 2), "num_classes": 5}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "convmixer": (ConvMixer, CONVMIXER, (32, 32)),
    "convmixer, oblong": (ConvMixer, {**CONVMIXER, "kernel_size": 9}, (24, 44)),
    "inception next": (MetaNeXt, {**STAGES, "mlp_ratios": (2, 2, 2)}, (64, 64)),
    "mambaout": (MambaOut, STAGES, (64, 64)),
    "mambaout, part of the channels": (MambaOut, {**STAGES, "conv_ratio": 0.5, "downsample": "conv_nf"}, (64, 72)),
    "starnet": (StarNet, {"base_dim": 8, "depths": (1, 2, 1), "num_classes": 5}, (64, 64)),
    "fasternet": (FasterNet, FASTERNET, (64, 64)),
    "fasternet, slicing": (
        FasterNet,
        {**FASTERNET, "pconv_fw_type": "slicing", "layer_scale_init_value": 0.1},
        (64, 64),
    ),
    "repvit": (RepVit, REPVIT, (64, 64)),
    "repvit, legacy": (RepVit, {**REPVIT, "legacy": True, "distillation": False}, (64, 64)),
}
SOME = ["mambaout", "repvit"]  # for what does not depend on the details


def averaged(labels: Tensor) -> Tensor:
    return labels.mean((1, 2)).unsqueeze(1)


def convmixer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    for block in model.blocks:
        labels = (labels + convolved(labels, block[0].fn[0])) / 2
    return averaged(labels)


def inception_next(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(labels, 2, 2, 0)
        for block in stage.blocks:
            mixer, (whole, part, _, _) = block.token_mixer, block.token_mixer.split_indexes
            moved = sum(part * convolved(labels, conv) for conv in (mixer.dwconv_hw, mixer.dwconv_w, mixer.dwconv_h))
            labels = (labels + (whole * labels + moved) / (whole + 3 * part)) / 2
    return averaged(labels)


def mambaout(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(labels, 3, 2, 1)
        for block in stage.blocks:
            _, still, moved = block.split_indices
            value = (still * labels + moved * convolved(labels, block.conv)) / (still + moved)
            gated = (labels + value) / 2  # a product
            labels = (labels + gated) / 2
    return averaged(labels)


def starnet(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 3, 2, 1)
    for stage in model.stages:
        labels = window_labels(labels, 3, 2, 1)
        for block in stage[1:]:
            labels = (labels + convolved(convolved(labels, block.dwconv.conv), block.dwconv2.conv)) / 2
    return averaged(labels)


def fasternet(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(labels, 2, 2, 0)
        for block in stage.blocks:
            moved = convolved(labels, block.spatial_mixing.partial_conv3)  # a quarter of the channels
            mixed = (moved + 3 * labels) / 4
            labels = (labels + mixed) / 2
    return averaged(labels)


def repvit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = window_labels(patch_labels(mix, onehot, 3, 2, 1), 3, 2, 1)

    def token_mixer(block: nn.Module, labels: Tensor) -> Tensor:
        """3×3 + 1×1 + identity"""
        return (convolved(labels, block.token_mixer.conv.c) + labels + labels) / 3

    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels = window_labels(token_mixer(stage.downsample.pre_block, labels), 3, 2, 1)
        for block in stage.blocks:
            labels = token_mixer(block, labels)
    return averaged(labels)


ORACLES = {
    "ConvMixer": convmixer,
    "FasterNet": fasternet,
    "MambaOut": mambaout,
    "MetaNeXt": inception_next,
    "RepVit": repvit,
    "StarNet": starnet,
}
