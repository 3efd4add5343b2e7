"""PVT, v1 and v2: keys are tokens pooled R×R, and their labels are pooled alike."""

import torch.nn.functional as F
from timm.models import pvt_v2
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels
from labelflow.models import pvt


def _taps(block: pvt.Block | pvt_v2.Block) -> dict[str, Tap]:
    attention = block.attn
    return {
        "query": Tap(attention.q),
        "key_value": Tap(attention.kv),
        "weights": Tap(attention.attn_drop, "input"),  # only where attention is not fused
    }


def _keys(module: pvt_v2.Attention, labels: Labels) -> Tensor:
    """The labels of the keys: (B, M, K)"""
    if module.pool is not None:  # "linear": pooled to a fixed size, then a 1×1 convolution
        pooled = F.adaptive_avg_pool2d(labels.map.permute(0, 3, 1, 2), module.pool.output_size)
        return pooled.flatten(2).transpose(1, 2)
    if module.sr is not None:
        return patches.merge(module.sr, labels).values
    return labels.values


def _attend(module: pvt_v2.Attention, observed: Observed, labels: Labels) -> Tensor:
    """Eq. 9: (B, N, K)"""
    keys = _keys(module, labels)
    if "weights" in observed:
        return flow.attention(observed["weights"][:, :, observed.rows], keys)
    query = observed["query"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)  # (B, A, N, D)
    key, _ = observed["key_value"].unflatten(-1, (2, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return flow.attend(query[:, :, observed.rows], key, keys)


@register(pvt.Block, taps=_taps)
def block(module: pvt.Block, observed: Observed, labels: Labels) -> Labels:
    mixed = _attend(module.attn, observed, labels)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


@register(pvt_v2.Block, taps=_taps)
def block_v2(module: pvt_v2.Block, observed: Observed, labels: Labels) -> Labels:
    """PVT v2's MLP holds a depth-wise convolution, which moves labels as well (Table 10)."""
    labels = Labels(observed.residual(labels.values, _attend(module.attn, observed, labels)), labels.grid)
    return labels.with_map(observed.residual(labels.map, flow.convolve(module.mlp.dwconv.weight, labels.map)))


@register(pvt.PatchEmbed, pvt_v2.OverlapPatchEmbed, layer=False)
def embed(module: pvt.PatchEmbed | pvt_v2.OverlapPatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


def _path_v2(model: pvt_v2.PyramidVisionTransformerV2) -> list[nn.Module]:
    stages = [[stage.downsample, *stage.blocks] for stage in model.stages]
    return [model.patch_embed, *(module for stage in stages for module in stage if module is not None)]


register_model(
    pvt.PyramidVisionTransformer,
    path=lambda model: [module for embed, _, blocks in model.stages for module in (embed, *blocks)],
    heads=lambda model, labels: labels[:, :1],
    head_tokens=lambda model: 1,
)
register_average(pvt_v2.PyramidVisionTransformerV2, path=_path_v2, pool=lambda model: model.global_pool)
