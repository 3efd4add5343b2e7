"""Hiera: tokens lie in the order in which they will be pooled, and so do their labels until they are shown as a map."""

import math
from dataclasses import dataclass

from timm.models.hiera import Hiera, HieraBlock, PatchEmbed, Unroll
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


@dataclass(frozen=True, eq=False)
class Unrolled(Labels):
    """Labels whose values lie as Hiera's tokens do: first by their place in the window of the first pooling to come,
    then by that in the second's, and so on; last, row by row."""

    strides: tuple[tuple[int, int], ...] = ()  # of the poolings to come

    @property
    def map(self) -> Tensor:
        places = [side for stride in self.strides for side in stride]
        rows, columns = (math.prod(stride[axis] for stride in self.strides) for axis in (0, 1))
        parts = self.values.unflatten(1, (*places, self.grid[0] // rows, self.grid[1] // columns))
        last = parts.ndim - 2  # the dimensions 1, 3, 5, … are of rows, the finest first
        order = (*range(last - 1, 0, -2), *range(last, 0, -2))
        return parts.permute(0, *order, -1).reshape(len(parts), *self.grid, -1)


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.proj, labels)


@register(Unroll, layer=False)
def unroll(module: Unroll, observed: Observed, labels: Labels) -> Labels:
    strides = tuple((rows, columns) for rows, columns in module.schedule)
    return Unrolled(module.forward(labels.values), labels.grid, strides)


def _pool(module: HieraBlock, observed: Observed, labels: Labels) -> Unrolled:
    """The shortcut, pooled."""
    assert isinstance(labels, Unrolled)
    if module.attn.q_stride == 1:
        return labels
    (rows, columns), *strides = labels.strides
    pooled = labels.values.unflatten(1, (module.attn.q_stride, -1)).mean(1)
    return Unrolled(pooled, (labels.grid[0] // rows, labels.grid[1] // columns), tuple(strides))


@register(HieraBlock, taps=lambda block: {"qkv": Tap(block.attn.qkv)}, idle=_pool)
def block(module: HieraBlock, observed: Observed, labels: Labels) -> Labels:
    attention, batch = module.attn, len(labels.values)
    places = labels.values.shape[1]
    windows = places // (attention.q_stride * attention.window_size) if attention.use_mask_unit_attn else 1
    qkv = observed["qkv"].reshape(batch, -1, windows, 3, attention.heads, attention.head_dim)
    query, key, _ = qkv.permute(3, 0, 2, 4, 1, 5).flatten(1, 2)  # (B·windows, A, places, D)
    query = query.unflatten(2, (attention.q_stride, -1)).amax(2)
    sources = labels.values.unflatten(1, (-1, windows)).transpose(1, 2).flatten(0, 1)
    mixed = flow.attend(query, key, sources)  # (B·windows, places, K)
    mixed = mixed.unflatten(0, (batch, windows)).transpose(1, 2).flatten(1, 2)
    pooled = _pool(module, observed, labels)
    return Unrolled(observed.residual(pooled.values, mixed), pooled.grid, pooled.strides)


def _path(model: Hiera) -> list[nn.Module]:
    if model.patch_embed.spatial_dims != 2:
        raise ValueError("labelflow follows the labels of images, not those of videos")
    if model.patch_drop_rate:
        raise ValueError("patch dropout hides which tokens are left: create the model with patch_drop_rate=0")
    return [model.patch_embed, model.unroll, *model.blocks]


register_average(Hiera, path=_path, pool=lambda model: model.head.pool_type)
