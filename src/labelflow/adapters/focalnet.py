"""FocalNet: each token is multiplied by its context, a sum of ever wider averages, weighted by gates of its own."""

import torch
from timm.models.focalnet import Downsample, FocalNet, FocalNetBlock
from torch import nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(Downsample, layer=False)
def merge(module: Downsample, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


@register(FocalNetBlock, taps=lambda block: {"parts": Tap(block.modulation.f)})
def block(module: FocalNetBlock, observed: Observed, labels: Labels) -> Labels:
    modulation = module.modulation
    gates = observed["parts"][:, 2 * modulation.dim :].float().abs().unsqueeze(-1)  # (B, levels + 1, h, w, 1)
    context, levels = labels.map, []
    for layer in modulation.focal_layers:
        context = flow.convolve(layer[0].weight, context)
        levels.append(context)
    levels.append(context.mean((1, 2), keepdim=True).expand_as(context))  # the last gate is for all places alike
    mixed = flow.normalise((gates * torch.stack(levels, 1)).sum(1))
    modulated = (labels.map + mixed) / 2  # a product: both of its factors count
    return labels.with_map(observed.residual(labels.map, modulated))


def _path(model: FocalNet) -> list[nn.Module]:
    stages = [present(stage.downsample, *stage.blocks) for stage in model.layers]
    return [model.stem, *(module for stage in stages for module in stage)]


register_average(FocalNet, path=_path)
