"""SHViT: attention with a single head, over some of the channels."""

from timm.models.shvit import SHSA, BasicBlock, Residual, SHViT
from torch import nn

from labelflow import flow
from labelflow.adapters import graph
from labelflow.adapters.averages import convolutions_in, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(BasicBlock, Residual)


@register(SHSA, taps=lambda module: {"qkv": Tap(module.qkv)})
def attention(module: SHSA, observed: Observed, labels: Labels) -> Labels:
    """The mean over channels: those that attention mixes, and the others."""
    query, key = observed["qkv"].flatten(2).mT.unsqueeze(1).split(module.qk_dim, -1)[:2]  # (B, 1, N, D)
    mixed = flow.attend(query, key, labels.values, scale=module.scale)
    part = module.pdim / module.dim
    return Labels(part * mixed + (1 - part) * labels.values, labels.grid)


def _path(model: SHViT) -> list[nn.Module]:
    path = convolutions_in(model.patch_embed)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            before, _, merge, after, _ = stage.downsample
            path += [before, merge.conv2.c, after]
        path += stage.blocks
    return path


register_average(SHViT, path=_path, pool=lambda model: model.global_pool.pool_type)
