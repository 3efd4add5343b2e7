"""MLP-Mixer, ResMLP and gMLP: tokens are mixed by matrices that are weights, signed ones."""

import torch
from timm.layers import GluMlp, Mlp
from timm.models.mlp_mixer import MixerBlock, MlpMixer, ResBlock, SpatialGatingBlock, SpatialGatingUnit
from torch import Tensor

from labelflow import flow
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _check_mlp(block: MixerBlock) -> dict[str, Tap]:
    if type(block.mlp_tokens) not in (Mlp, GluMlp):
        name = type(block.mlp_tokens).__name__
        raise ValueError(f"labelflow follows labels through a Mixer's Mlp or GluMlp over tokens, not {name}")
    return {}


def _check_gate(block: SpatialGatingBlock) -> dict[str, Tap]:
    gate = getattr(block.mlp_channels, "gate", None)
    if type(gate) is not SpatialGatingUnit:
        raise ValueError(f"labelflow follows labels through gMLP's SpatialGatingUnit, not {type(gate).__name__}")
    return {}


def _hidden(mlp: Mlp | GluMlp, labels: Tensor) -> Tensor:
    """The labels of a token MLP's hidden units: (B, N, K) -> (B, M, K)"""
    if isinstance(mlp, Mlp):
        return flow.spatial(mlp.fc1.weight, labels)
    one, other = mlp.fc1.weight.chunk(2)  # a product: both of its factors count alike
    return torch.lerp(flow.spatial(one, labels), flow.spatial(other, labels), 0.5)


@register(MixerBlock, taps=_check_mlp)
def mixer(module: MixerBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = flow.spatial(module.mlp_tokens.fc2.weight, _hidden(module.mlp_tokens, labels.values))
    return Labels(observed.residual(labels.values, mixed), labels.grid)


@register(ResBlock)
def res_mlp(module: ResBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = flow.spatial(module.linear_tokens.weight, labels.values)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


@register(SpatialGatingBlock, taps=_check_gate)
def gated(module: SpatialGatingBlock, observed: Observed, labels: Labels) -> Labels:
    """u·(W v): the gate brings other tokens' labels, u a token's own."""
    mixed = flow.spatial(module.mlp_channels.gate.proj.weight, labels.values)
    return Labels(observed.residual(labels.values, torch.lerp(labels.values, mixed, 0.5)), labels.grid)


register_average(MlpMixer, path=lambda model: [model.stem, *model.blocks], pool=lambda model: model.global_pool)
