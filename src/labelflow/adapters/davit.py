"""DaViT: window attention, attention among channels, which leaves labels as they are, and convolutions for places."""

from timm.models.davit import ChannelBlock, ConvPosEnc, DaVit, Downsample, SpatialBlock, Stem
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(Stem, Downsample, layer=False)
def merge(module: Stem | Downsample, observed: Observed, labels: Labels) -> Labels:
    whole = module.stride if isinstance(module, Stem) else module.conv.kernel_size if module.even_k else (1, 1)
    return patches.merge(module.conv, labels.with_map(flow.pad(labels.map, whole)))


def _encode(module: ConvPosEnc, observed: Observed, labels: Tensor) -> Tensor:
    """A depth-wise convolution and its shortcut: (B, h, w, K) -> (B, h, w, K)"""
    return observed.residual(labels, flow.convolve(module.proj.weight, labels))


@register(SpatialBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)})
def spatial(module: SpatialBlock, observed: Observed, labels: Labels) -> Labels:
    start = _encode(module.cpe1, observed, labels.map)
    qkv = observed["qkv"].unflatten(-1, (3, module.attn.num_heads, -1))  # (B·windows, places, 3, A, D)
    query, key, _ = qkv.permute(2, 0, 3, 1, 4)
    mixed = windows.mix(start, module.window_size, (0, 0), lambda parts: flow.attend(query, key, parts))
    return labels.with_map(_encode(module.cpe2, observed, observed.residual(start, mixed)))


@register(ChannelBlock)
def channel(module: ChannelBlock, observed: Observed, labels: Labels) -> Labels:
    return labels.with_map(_encode(module.cpe2, observed, _encode(module.cpe1, observed, labels.map)))


def _path(model: DaVit) -> list[nn.Module]:
    stages = [[stage.downsample, *(part for pair in stage.blocks for part in pair)] for stage in model.stages]
    return [model.stem, *(module for stage in stages for module in present(*stage))]


register_average(DaVit, path=_path)
