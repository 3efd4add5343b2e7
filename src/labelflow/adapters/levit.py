"""LeViT: attention with a bias for each offset; between stages, fewer queries than keys."""

from timm.models.levit import (
    Attention,
    AttentionDownsample,
    ConvNorm,
    Levit,
    LevitBlock,
    LevitDistilled,
    LevitDownsample,
    Stem8,
    Stem16,
)
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import averages, patches
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(Stem8, Stem16, layer=False)
def embed(module: Stem8 | Stem16, observed: Observed, labels: Labels) -> Labels:
    """Each convolution has stride 2, and aggregates."""
    for layer in module:
        if isinstance(layer, ConvNorm):
            labels = patches.merge(layer.linear, labels)
    return labels


def _parts(module: Attention | AttentionDownsample, projected: Tensor) -> Tensor:
    """What a linear layer made of tokens (B, N, …), or a 1×1 convolution of a map, for each head: (B, A, N, …)"""
    if module.use_conv:
        return projected.flatten(2).unflatten(1, (module.num_heads, -1)).transpose(2, 3)
    return projected.unflatten(2, (module.num_heads, -1)).transpose(1, 2)


def _attend(module: Attention | AttentionDownsample, query: Tensor, key: Tensor, labels: Labels) -> Tensor:
    bias = module.attention_biases[:, module.attention_bias_idxs].unsqueeze(0)  # (1, A, N, M)
    return flow.attend(query, key, labels.values, bias, module.scale)


@register(LevitBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)})
def block(module: LevitBlock, observed: Observed, labels: Labels) -> Labels:
    query, key = _parts(module.attn, observed["qkv"])[..., : 2 * module.attn.key_dim].chunk(2, -1)
    mixed = _attend(module.attn, query, key, labels)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def _subsample(module: LevitDownsample, observed: Observed, labels: Labels) -> Labels:
    """The tokens whose queries are asked."""
    stride = module.attn_downsample.stride
    return labels.with_map(labels.map[:, ::stride, ::stride])


def _downsample_taps(module: LevitDownsample) -> dict[str, Tap]:
    return {"query": Tap(module.attn_downsample.q), "key_value": Tap(module.attn_downsample.kv)}


@register(LevitDownsample, taps=_downsample_taps, idle=_subsample)
def downsample(module: LevitDownsample, observed: Observed, labels: Labels) -> Labels:
    """There is no residual around this attention."""
    attention = module.attn_downsample
    query = _parts(attention, observed["query"])
    key = _parts(attention, observed["key_value"])[..., : attention.key_dim]
    mixed = _attend(attention, query, key, labels)
    return Labels(mixed, _subsample(module, observed, labels).grid)


def _path(model: Levit) -> list[nn.Module]:
    return [model.stem, *(one for stage in model.stages for one in averages.present(stage.downsample, *stage.blocks))]


averages.register_average(Levit, path=_path, pool=lambda model: model.global_pool)
register_model(
    LevitDistilled,  # both heads read the same average
    path=_path,
    heads=lambda model, labels: labels.mean(1, keepdim=True).expand(-1, 2, -1),
    head_tokens=lambda model: averages.check(model.global_pool),
)
