"""EfficientViT, MIT's and Microsoft's: linear attention at several scales, and heads that feed one another."""

import torch
from timm.models import efficientvit_mit as mit
from timm.models import efficientvit_msra as msra
from timm.models.swin_transformer import window_partition, window_reverse
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import convolutions_in, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(mit.ResidualBlock, mit.EfficientVitBlock, msra.ResidualDrop, msra.EfficientVitBlock)


def attend_linearly(query: Tensor, key: Tensor, labels: Tensor) -> Tensor:
    """Norm(φ(Q)·φ(K)ᵀ)·Y for each head, at the cost of linear attention; a query that is all zero takes nothing.
    query and key (B, A, N, D), non-negative, labels (B, N, K) -> (B, A, N, K)"""
    query, key = query.float(), key.float()
    mixed = flow.product(query, flow.product(key.mT, labels.unsqueeze(1)))
    return mixed / mixed.sum(-1, keepdim=True).clamp_min(torch.finfo(mixed.dtype).tiny)


def _taps(module: mit.LiteMLA) -> dict[str, Tap]:
    return {"0": Tap(module.qkv)} | {str(scale): Tap(branch) for scale, branch in enumerate(module.aggreg, 1)}


@register(mit.LiteMLA, taps=_taps)
def multi_scale(module: mit.LiteMLA, observed: Observed, labels: Labels) -> Labels:
    """The mean over the heads of all scales; queries, keys and values of the coarser ones are convolved."""
    maps = [labels.map, *(convolutions.convolve(branch[0], labels.map, still=False) for branch in module.aggreg)]
    total = torch.zeros_like(labels.values)
    for scale, values in enumerate(maps):
        qkv = observed[str(scale)].flatten(2).unflatten(1, (-1, 3 * module.dim)).mT  # (B, A, N, 3·D)
        query, key, _ = qkv.chunk(3, -1)
        mixed = attend_linearly(module.kernel_func(query), module.kernel_func(key), values.flatten(1, 2))
        total = total + mixed.sum(1)
    nothing = total.sum(-1, keepdim=True) == 0  # for a token whose queries are all zero
    return Labels(flow.normalise(torch.where(nothing, labels.values, total)), labels.grid)


def _heads(module: msra.LocalWindowAttention) -> dict[str, Tap]:
    heads = zip(module.attn.dws, module.attn.qkvs, strict=True)
    return {
        f"{name}{head}": Tap(part)
        for head, (query, qkv) in enumerate(heads)
        for name, part in (("query", query), ("qkv", qkv))
    }


@register(msra.LocalWindowAttention, taps=_heads)
def cascade(module: msra.LocalWindowAttention, observed: Observed, labels: Labels) -> Labels:
    """In each window, a head's input is its own channels plus the output of the head before it."""
    size = min(module.window_resolution, module.resolution)
    padded = flow.pad(labels.map, (size, size))
    tokens = window_partition(padded, (size, size)).flatten(1, 2)  # (windows, places, K)
    attention = module.attn
    total, given = torch.zeros_like(tokens), tokens
    for head in range(attention.num_heads):
        query = observed[f"query{head}"].flatten(2).mT.unsqueeze(1)  # (windows, 1, places, D)
        key = observed[f"qkv{head}"][:, attention.key_dim : 2 * attention.key_dim].flatten(2).mT.unsqueeze(1)
        bias = attention.attention_biases[head][attention.attention_bias_idxs][None, None]
        mixed = flow.attend(query, key, given, bias)
        total = total + mixed
        given = flow.normalise(tokens + mixed)
    mixed = flow.normalise(total).unflatten(1, (size, size))
    height, width = labels.grid
    whole = window_reverse(mixed, (size, size), padded.shape[1], padded.shape[2])
    return labels.with_map(whole[:, :height, :width])


def _path_mit(model: mit.EfficientVit | mit.EfficientVitLarge) -> list[nn.Module]:
    first, *others = model.stem
    return [first.conv, *others, *(block for stage in model.stages for block in stage.blocks)]


def _path_msra(model: msra.EfficientVitMsra) -> list[nn.Module]:
    path = convolutions_in(model.patch_embed)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            down = stage.downsample
            path += [down.res1[0], down.patchmerge.conv2.conv, down.res2[0]]
        path += stage.blocks
    return path


register_average(mit.EfficientVit, mit.EfficientVitLarge, path=_path_mit)
register_average(msra.EfficientVitMsra, path=_path_msra, pool=lambda model: getattr(model.global_pool, "pool_type", ""))
