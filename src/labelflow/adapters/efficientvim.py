"""EfficientViM: tokens meet in a few hidden states, which the classifier reads too.

Shapes: B batch, S states, N tokens, h×w grid, K sources.
"""

import itertools

import torch
from timm.models.efficientvim import ConvLayer2d, EfficientViM, EfficientViMBlock, EfficientViMDistilled, PatchMerging
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import check, convolutions_in
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _convolve(layer: ConvLayer2d, fused: bool, observed: Observed, labels: Labels) -> Labels:
    """With a shortcut, unless `fuse` has made it part of the kernel."""
    moved = flow.convolve(layer.conv.weight, labels.map)
    return labels.with_map(moved if fused else observed.residual(labels.map, moved))


def _keep(labels: Labels, state: Tensor) -> Labels:
    """Each block leaves the label of its states, on average, in front of the map: (B, 1, K)"""
    return Labels(torch.cat([labels.prefix, state, labels.map.flatten(1, 2)], 1), labels.grid)


def _idle(module: EfficientViMBlock, observed: Observed, labels: Labels) -> Labels:
    return _keep(labels, labels.map.mean((1, 2)).unsqueeze(1))


@register(EfficientViMBlock, taps=lambda block: {"weights": Tap(block.mixer.dw)}, idle=_idle)
def block(module: EfficientViMBlock, observed: Observed, labels: Labels) -> Labels:
    """Two mixings in a row: each state gathers from all tokens, each token then takes from the states; both signed."""
    labels = _convolve(module.dwconv1, module.fused, observed, labels)
    tokens = labels.map.flatten(1, 2)
    gather, spread, decay = observed["weights"].float().flatten(2).chunk(3, 1)  # (B, S, N)
    states = flow.spatial(decay.softmax(-1) * gather, tokens)  # A, the same for all tokens, falls out of the softmax
    mixed = observed.residual(tokens, flow.spatial(spread.mT, states)).view_as(labels.map)
    labels = _convolve(module.dwconv2, module.fused, observed, labels.with_map(mixed))
    return _keep(labels, states.mean(1, keepdim=True))


@register(PatchMerging, layer=False)
def merge(module: PatchMerging, observed: Observed, labels: Labels) -> Labels:
    merged = patches.merge(module.conv[1].conv, _convolve(module.dwconv1, module.fused, observed, labels))
    return _convolve(module.dwconv2, module.fused, observed, merged)


def _path(model: EfficientViM) -> list[nn.Module]:
    stages = [[*stage.blocks, *([] if stage.downsample is None else [stage.downsample])] for stage in model.stages]
    return [*convolutions_in(model.patch_embed), *(module for stage in stages for module in stage)]


def _heads(model: EfficientViM, labels: Tensor) -> Tensor:
    """Logits are a weighted mean of several classifiers', of each stage's last states and of the map; so are labels."""
    ends = list(itertools.accumulate(len(stage.blocks) for stage in model.stages))
    read = [*(labels[:, end - 1] for end in ends), labels[:, ends[-1] :].mean(1)]
    weights = [model.weights] + ([model.weights_dist] if isinstance(model, EfficientViMDistilled) else [])
    shares = torch.stack(weights).detach().float().softmax(-1)  # (heads, stages + 1)
    return (shares.unsqueeze(-1) * torch.stack(read, 1).unsqueeze(1)).sum(2)  # no product that autocast knows


register_model(
    EfficientViM,
    EfficientViMDistilled,
    path=_path,
    heads=_heads,
    head_tokens=lambda model: check(model.global_pool),
)
