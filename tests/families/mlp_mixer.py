"""MLP-Mixer, ResMLP and gMLP."""

from timm.layers import GatedMlp, GluMlp
from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock, SpatialGatingBlock
from torch import Tensor, nn

from labelflow import Mix
from oracles import patch_labels

MIXER = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_blocks": 2, "num_classes": 5}

# name: (timm's class, its arguments, an image size it takes)
FAMILIES = {
    "mixer": (MlpMixer, MIXER, (32, 32)),
    "mixer, oblong": (MlpMixer, {**MIXER, "img_size": (24, 40)}, (24, 40)),
    "mixer, gated": (MlpMixer, {**MIXER, "mlp_ratio": (1.0, 4.0), "mlp_layer": GluMlp}, (32, 32)),
    "resmlp": (MlpMixer, {**MIXER, "mlp_ratio": 4, "block_layer": ResBlock, "norm_layer": Affine}, (32, 32)),
    "gmlp": (
        MlpMixer,
        {**MIXER, "mlp_ratio": 4, "block_layer": SpatialGatingBlock, "mlp_layer": GatedMlp, "stem_norm": True},
        (32, 32),
    ),
}
SOME = ["mixer"]  # for what does not depend on the details


def rows(weights: Tensor) -> Tensor:
    """Norm(|W|)"""
    return weights.abs() / weights.abs().sum(1, keepdim=True)


def mixing(block: nn.Module) -> Tensor:
    """What each token's label is made of: (N, N)"""
    kind = type(block).__name__
    if kind == "ResBlock":
        return rows(block.linear_tokens.weight)
    if kind == "SpatialGatingBlock":
        gate = rows(block.mlp_channels.gate.proj.weight)
        return (gate + gate.new_ones(len(gate)).diag()) / 2  # u, and v from everywhere
    first, second = block.mlp_tokens.fc1.weight, rows(block.mlp_tokens.fc2.weight)
    if isinstance(block.mlp_tokens, GluMlp):
        half = len(first) // 2
        return second @ ((rows(first[:half]) + rows(first[half:])) / 2)
    return second @ rows(first)


def mixer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    for block in model.blocks:
        labels = (labels + mixing(block) @ labels) / 2
    return labels.mean(1, keepdim=True)


ORACLES = {"MlpMixer": mixer}
