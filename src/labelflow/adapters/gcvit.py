"""GC-ViT: attention in windows, where every other block's queries come from the whole image; they only decide where a
token looks, so their own way through the feature blocks is of no interest."""

from timm.models.gcvit import Downsample2d, GlobalContextVit, GlobalContextVitBlock
from torch import nn

from labelflow import flow
from labelflow.adapters import convolutions, patches, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(GlobalContextVitBlock, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def block(module: GlobalContextVitBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = windows.mix(
        labels.map, module.window_size, (0, 0), lambda parts: flow.attention(observed["weights"], parts)
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(Downsample2d, layer=False)
def downsample(module: Downsample2d, observed: Observed, labels: Labels) -> Labels:
    """A depth-wise convolution with a shortcut, then the reduction."""
    mixed = flow.convolve(module.conv_block.conv_dw.weight, labels.map)
    labels = labels.with_map(observed.residual(labels.map, mixed))
    if isinstance(module.reduction, nn.Conv2d):
        return patches.merge(module.reduction, labels)
    return labels.with_map(convolutions.pool(module.reduction, labels.map, still=False))


def _path(model: GlobalContextVit) -> list[nn.Module]:
    stages = [present(stage.downsample, *stage.blocks) for stage in model.stages]
    return [model.stem.conv1, model.stem.down, *(module for stage in stages for module in stage)]


register_average(GlobalContextVit, path=_path)
