"""Families whose blocks are convolutions, gates and MLPs, followed along their graphs: ConvMixer, InceptionNeXt,
MambaOut, StarNet, FasterNet, RepViT. Stems and down-sampling convolutions aggregate."""

from timm.models import convmixer, fasternet, inception_next, mambaout, repvit, starnet
from torch import nn

from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import convolutions_in, register_average, staged
from labelflow.adapters.registry import Observed, register
from labelflow.flow import Labels

graph.follow(
    convmixer.Residual,
    inception_next.MetaNeXtBlock,
    mambaout.GatedConvBlock,
    starnet.Block,
    fasternet.MLPBlock,
    repvit.RepViTBlock,
)


@register(fasternet.Partial_conv3)
def partial(module: fasternet.Partial_conv3, observed: Observed, labels: Labels) -> Labels:
    """Some channels are convolved, the others pass: the mean over all of them."""
    mixed = convolutions.convolve(module.partial_conv3, labels.map, still=False)
    part = module.dim_conv3 / (module.dim_conv3 + module.dim_untouched)
    return labels.with_map(part * mixed + (1 - part) * labels.map)


register_average(
    convmixer.ConvMixer,
    path=lambda model: [model.stem[0], *(block[0] for block in model.blocks)],
    pool=lambda model: (model.pooling if hasattr(model, "pooling") else model.global_pool).pool_type,
)
register_average(inception_next.MetaNeXt, path=staged)
register_average(mambaout.MambaOut, path=staged, pool=lambda model: model.head.pool_type)
register_average(
    starnet.StarNet,
    path=lambda model: [model.stem[0].conv, *(part for stage in model.stages for part in (stage[0].conv, *stage[1:]))],
    pool=lambda model: model.global_pool.pool_type,
)


def _fasternet(model: fasternet.FasterNet) -> list[nn.Module]:
    stages = [[*convolutions_in(stage.downsample), *stage.blocks] for stage in model.stages]
    return [model.patch_embed.proj, *(module for stage in stages for module in stage)]


register_average(fasternet.FasterNet, path=_fasternet, pool=lambda model: model.global_pool.pool_type)


def _repvit(model: repvit.RepVit) -> list[nn.Module]:
    path = convolutions_in(model.stem)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            path += [stage.downsample.pre_block, stage.downsample.spatial_downsample.c]
        path += stage.blocks
    return path


register_average(repvit.RepVit, path=_repvit, pool=lambda model: model.global_pool)
