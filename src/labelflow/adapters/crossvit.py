"""CrossViT: two branches, each with patches of its own; each class token looks at the other branch's patches, too.

Labels hold both: the first branch's class token and patches, then the second's, whose grid is theirs.
"""

from typing import Any

import torch
import torch.nn.functional as F
from timm.models.crossvit import CrossVit, MultiScaleBlock, PatchEmbed
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import attention
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(PatchEmbed, layer=False)
def embed(module: PatchEmbed, observed: Observed, labels: Labels) -> Labels:
    """A stem of several convolutions is taken as the patch embedding that it replaces. The first branch's tokens have
    no place in the grid, which stays that of the pixels until the second branch has seen them."""
    pixels = labels.map
    if tuple(module.img_size) != labels.grid:  # the model resizes its images for this branch
        pixels = F.interpolate(pixels.permute(0, 3, 1, 2), module.img_size, mode="bilinear").permute(0, 2, 3, 1)
    tokens = flow.aggregate(pixels, module.patch_size)
    is_first = labels.prefix.shape[1] == 0
    branches = [labels.prefix, observed.image_label.unsqueeze(1), tokens.flatten(1, 2)]
    if is_first:
        return Labels(torch.cat([*branches, labels.map.flatten(1, 2)], 1), labels.grid)
    return Labels(torch.cat(branches, 1), (tokens.shape[1], tokens.shape[2]))


def _taps(module: MultiScaleBlock) -> dict[str, Tap]:
    taps: dict[str, Tap] = {}
    for i, branch in enumerate(module.blocks):
        for j, block in enumerate(branch):
            taps |= attention.taps(block.attn, f"{i}.{j}.")
    for i, fusion in enumerate(module.fusion):
        # Where there are several, all but the first see a class token alone, and leave its label as it is.
        first: Any = fusion[0] if isinstance(fusion, nn.Sequential) else fusion
        taps[f"{i}.cross"] = Tap(first.attn.attn_drop, "input")
    return taps


@register(MultiScaleBlock, taps=_taps)
def block(module: MultiScaleBlock, observed: Observed, labels: Labels) -> Labels:
    sizes = [observed[f"{i}.0.query"].shape[2] for i in range(2)]
    if labels.values.shape[1] != sum(sizes):
        raise ValueError("CrossViT has two grids of tokens, which can't be mixed alike: mix pixels, as CutMix does")
    branches = list(labels.values.split(sizes, 1))
    for i, blocks in enumerate(module.blocks):
        for j, one in enumerate(blocks):
            mixed = attention.mix(one.attn, observed, branches[i], f"{i}.{j}.")
            branches[i] = observed.residual(branches[i], mixed)
    crossed = []
    for i, own in enumerate(branches):
        others = torch.cat([own[:, :1], branches[1 - i][:, 1:]], 1)
        token = observed.residual(own[:, :1], flow.attention(observed[f"{i}.cross"], others))
        crossed += [token, own[:, 1:]]
    return Labels(torch.cat(crossed, 1), labels.grid)


def _path(model: CrossVit) -> list[nn.Module]:
    if model.crop_scale:
        raise ValueError("labelflow follows resized images, not crops of them: create the model with crop_scale=False")
    return [*model.patch_embed, *model.blocks]


def _heads(model: CrossVit, labels: Tensor) -> Tensor:
    """One for each branch."""
    branches = labels.split([1 + embed.num_patches for embed in model.patch_embed], 1)
    if model.global_pool == "avg":
        return torch.cat([branch[:, 1:].mean(1, keepdim=True) for branch in branches], 1)
    return torch.cat([branch[:, :1] for branch in branches], 1)


register_model(CrossVit, path=_path, heads=_heads)
