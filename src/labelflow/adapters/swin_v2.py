"""Swin v2, and timm's other version of it: cosine attention and position bias are in the weights that both show."""

from timm.models import swin_transformer_v2_cr as cr
from timm.models.swin_transformer_v2 import PatchMerging, SwinTransformerV2, SwinTransformerV2Block
from torch import nn

from labelflow import flow
from labelflow.adapters import patches, swin, windows
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@register(
    SwinTransformerV2Block,
    cr.SwinTransformerV2CrBlock,
    taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")},
)
def block(module: SwinTransformerV2Block | cr.SwinTransformerV2CrBlock, observed: Observed, labels: Labels) -> Labels:
    mixed = windows.mix(
        labels.map, module.window_size, module.shift_size, lambda parts: flow.attention(observed["weights"], parts)
    )
    return labels.with_map(observed.residual(labels.map, mixed))


@register(cr.PatchEmbed, layer=False)
def embed(module: cr.PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _cr_path(model: cr.SwinTransformerV2Cr) -> list[nn.Module]:
    return [
        model.patch_embed,
        *(module for stage in model.stages for module in present(stage.downsample, *stage.blocks)),
    ]


register(PatchMerging, cr.PatchMerging, layer=False)(swin.merge)
register_average(SwinTransformerV2, path=swin.path)
register_average(cr.SwinTransformerV2Cr, path=_cr_path)
