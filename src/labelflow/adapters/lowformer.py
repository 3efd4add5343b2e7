"""LowFormer and CPUBone: attention on a coarser map, between a convolution and one that undoes it."""

import torch.nn.functional as F
from timm.models import cpubone, lowformer
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(lowformer.ResidualBlock, lowformer.LowFormerBlock, cpubone.ResidualBlock, cpubone.CPUBoneBlock)


def _transposed(module: nn.ConvTranspose2d, labels: Tensor) -> Tensor:
    """The same as a convolution with the kernel turned around, of a map whose places stand apart: (B, h, w, K) ->
    (B, i, j, K). Between them, and around, there is no label."""
    batch, height, width, sources = labels.shape
    (rows, columns), (down, right) = module.stride, convolutions.pair(module.padding)
    apart = labels.new_zeros(batch, (height - 1) * rows + 1, (width - 1) * columns + 1, sources)
    apart[:, ::rows, ::columns] = labels
    around = (module.kernel_size[0] - 1 - down, module.kernel_size[1] - 1 - right)
    apart = F.pad(apart, (0, 0, around[1], around[1], around[0], around[0]))
    kernel = module.weight.float().abs().unflatten(0, (module.groups, -1)).sum(1)  # (groups, C/groups, r, s)
    return flow.convolve(kernel.flatten(0, 1).unsqueeze(1).flip(2, 3), apart, padding=(0, 0))


def _through(module: nn.Module, labels: Tensor) -> Tensor:
    """A map through a layer of the projection, or of the way back up; 1×1 convolutions are the identity."""
    if isinstance(module, nn.Sequential):
        for part in module:
            labels = _through(part, labels)
        return labels
    if isinstance(module, nn.ZeroPad2d):
        return convolutions.surround(module, labels, still=False)
    if isinstance(module, nn.Conv2d):
        return convolutions.convolve(module, labels, still=False)
    if isinstance(module, nn.ConvTranspose2d):
        return _transposed(module, labels)
    if isinstance(module, nn.Upsample):
        repeated = F.interpolate(labels.permute(0, 3, 1, 2), scale_factor=module.scale_factor, mode="nearest")
        return repeated.permute(0, 2, 3, 1)
    return labels


@register(lowformer.ConvAttention, cpubone.ConvAttention, taps=lambda module: {"qkv": Tap(module.pwise)})
def attention(module: lowformer.ConvAttention, observed: Observed, labels: Labels) -> Labels:
    height, width = labels.grid
    full = labels.map
    if getattr(module, "small_kernels", False):  # CPUBone's, which do not reach beyond the map
        full = flow.pad(full, (module.att_stride, module.att_stride))
    coarse = _through(module.conv_proj.conv, full)
    qkv = observed["qkv"].unflatten(1, (module.num_heads, -1)).flatten(3).mT  # (B, A, N, 3·D)
    query, key, _ = qkv.chunk(3, -1)
    mixed = flow.attend(query, key, coarse.flatten(1, 2)).view_as(coarse)
    return labels.with_map(_through(module.upsampling, mixed)[:, :height, :width])


def _path(model: lowformer.LowFormer | cpubone.CPUBone) -> list[nn.Module]:
    embed, *stem = model.stem
    return [embed.conv, *stem, *(block for stage in model.stages for block in stage)]


register_average(lowformer.LowFormer, path=_path, pool=lambda model: model.global_pool.pool_type)
register_average(cpubone.CPUBone, path=_path, pool=lambda model: model.head.pool_type)
