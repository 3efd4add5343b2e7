"""XCiT: its cross-covariance attention mixes channels; labels move in depth-wise convolutions and class attention."""

from timm.models.xcit import ConvPatchEmbed, XCABlock, Xcit
from torch import nn

from labelflow import flow
from labelflow.adapters import cait, patches
from labelflow.adapters.registry import Observed, register, register_model
from labelflow.flow import Labels


@register(ConvPatchEmbed, layer=False)
def embed(module: ConvPatchEmbed, observed: Observed, labels: Labels) -> Labels:
    """Each convolution has stride 2, and aggregates."""
    for layer in module.proj.modules():
        if isinstance(layer, nn.Conv2d):
            labels = patches.merge(layer, labels)
    return labels


@register(XCABlock)
def block(module: XCABlock, observed: Observed, labels: Labels) -> Labels:
    """Attention and MLP leave labels as they are; the local patch interaction does not."""
    local = module.local_mp
    mixed = flow.convolve(local.conv2.weight, flow.convolve(local.conv1.weight, labels.map))
    return labels.with_map(observed.residual(labels.map, mixed))


def _path(model: Xcit) -> list[nn.Module]:
    return [model.patch_embed, *model.blocks, *(block.attn for block in model.cls_attn_blocks)]


register_model(Xcit, path=_path, heads=cait.heads, head_tokens=cait.head_tokens)
