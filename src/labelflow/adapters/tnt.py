"""TNT: pixels attend to one another inside their patch, and are added to it; patches attend to one another.

Labels hold both: pixels, patch by patch, then the class token and the grid of patches. Here a pixel is what TNT calls
so, a token of 4×4 real ones.
"""

import torch
from timm.models.tnt import TNT, Attention, Block, PixelEmbed
from torch import Tensor

from labelflow import flow
from labelflow.adapters import cait, patches, windows
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(PixelEmbed, layer=False)
def embed(module: PixelEmbed, observed: Observed, labels: Labels) -> Labels:
    """Pixels come from a convolution of the image, cut into patches before it, or, in legacy models, after it."""
    patch = (module.patch_size[0], module.patch_size[1])
    grid = (labels.grid[0] // patch[0], labels.grid[1] // patch[1])
    if module.legacy:
        parts = windows.split(patches.merge(module.proj, labels).map, tuple(module.new_patch_size))  # (B·N, pixels, K)
    else:
        parts = patches.merge(module.proj, Labels(windows.split(labels.map, patch), patch)).values
    pixels = parts.unflatten(0, (len(labels.values), -1))  # (B, N, pixels, K)
    return _join(pixels, observed.image_label.unsqueeze(1), pixels.mean(2), grid)


def _join(pixels: Tensor, token: Tensor, tokens: Tensor, grid: tuple[int, int]) -> Labels:
    return Labels(torch.cat([pixels.flatten(1, 2), token, tokens], 1), grid)


def _attend(module: Attention, qk: Tensor, labels: Tensor) -> Tensor:
    """Not from the model's weights: its dropout changes them where they are."""
    query, key = qk.unflatten(-1, (2, module.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return flow.attend(query, key, labels)


@register(Block, taps=lambda block: {"inner": Tap(block.attn_in.qk), "outer": Tap(block.attn_out.qk)})
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    count, size = labels.places, observed["inner"].shape[1]  # patches, and pixels in each of them
    tokens = labels.values[:, -count:]
    if labels.values.shape[1] > count:
        pixels, token, _ = labels.values.split([count * size, 1, count], 1)
        pixels = pixels.reshape(-1, size, pixels.shape[-1])  # (B·N, pixels, K)
    else:  # patches were given other labels than those of their pixels
        pixels, token = tokens.flatten(0, 1).unsqueeze(1).expand(-1, size, -1), observed.image_label.unsqueeze(1)
    pixels = observed.residual(pixels, _attend(module.attn_in, observed["inner"], pixels))
    pixels = pixels.unflatten(0, (-1, count))
    outer = torch.cat([token, observed.residual(tokens, pixels.mean(2))], 1)
    outer = observed.residual(outer, _attend(module.attn_out, observed["outer"], outer))
    return _join(pixels, outer[:, :1], outer[:, 1:], labels.grid)


def _head_tokens(model: TNT) -> int:
    cait.head_tokens(model)  # refuses what cannot be followed
    return 0  # the class token is not in front


register_model(
    TNT,
    path=lambda model: [model.pixel_embed, *model.blocks],
    heads=lambda model, labels: cait.heads(model, labels[:, -1 - model.num_patches :]),
    head_tokens=_head_tokens,
)
