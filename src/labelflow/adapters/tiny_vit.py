"""TinyViT: convolutions in the first stage, then windows of attention, each followed by a depth-wise convolution."""

from timm.models.tiny_vit import Attention, MBConv, PatchEmbed, PatchMerging, TinyVit, TinyVitBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches, windows
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.conv2.conv, patches.merge(module.conv1.conv, labels))  # both have stride 2


@register(PatchMerging, layer=False)
def merge(module: PatchMerging, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.conv2.conv, labels)  # the others are 1×1


@register(MBConv)
def convolution(module: MBConv, observed: Observed, labels: Labels) -> Labels:
    mixed = flow.convolve(module.conv2.conv.weight, labels.map)  # the others are 1×1
    return labels.with_map(observed.residual(labels.map, mixed))


def _attend(module: Attention, qkv: Tensor, labels: Tensor) -> Tensor:
    """In each window: qkv (windows, places, …), labels (windows, places, K)"""
    parts = qkv.unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
    query, key = parts[..., : 2 * module.key_dim].chunk(2, -1)  # (windows, A, places, D)
    bias = module.attention_biases[:, module.attention_bias_idxs].unsqueeze(0)
    return flow.attend(query, key, labels, bias)


@register(TinyVitBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)})
def block(module: TinyVitBlock, observed: Observed, labels: Labels) -> Labels:
    """There is no residual around the convolution."""
    window = (module.window_size, module.window_size)
    mixed = windows.mix(labels.map, window, (0, 0), lambda parts: _attend(module.attn, observed["qkv"], parts))
    return labels.with_map(flow.convolve(module.local_conv.conv.weight, observed.residual(labels.map, mixed)))


def _path(model: TinyVit) -> list[nn.Module]:
    first, *others = model.stages  # the first has no merger
    return [model.patch_embed, *first.blocks, *(one for stage in others for one in (stage.downsample, *stage.blocks))]


register_average(TinyVit, path=_path)
