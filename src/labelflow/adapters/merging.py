"""ViTs that merge tokens (ToMe): aggregation, in which a token counts as many times as there are patches in it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels
from labelflow.models import merging


@dataclass(frozen=True, eq=False)
class Merged(Labels):
    """Labels of tokens that are merged. On the map, each place has the label of its token."""

    place: Tensor  # (B, P + h·w): the token that each of the first ones is a part of

    @property
    def unmerged(self) -> Labels:
        return Labels(merging.unmerge(self.values, self.place), self.grid)

    @property
    def prefix(self) -> Tensor:
        return self.unmerged.prefix

    @property
    def map(self) -> Tensor:
        return self.unmerged.map


def _taps(block: merging.Block) -> dict[str, Tap]:
    return {
        "query": Tap(block.attn.q_norm),
        "key": Tap(block.attn.k_norm),
        "weights": Tap(block.attn.attn_drop, "input"),  # only where attention is not fused
        "bias": Tap(block.attn, "bias"),  # log s, where tokens are merged
        "target": Tap(block.match),  # where each token goes, if the block merges any
    }


def _merge(module: merging.Block, observed: Observed, labels: Labels) -> Labels:
    """Y ← Σ sᵢYᵢ / Σ sᵢ, with the model's own groups and sizes; behind the last block, every patch again."""
    if "target" in observed:
        target, tokens = observed["target"], labels.values.shape[1]
        left = module.match.remaining(tokens)
        if isinstance(labels, Merged):
            size, place = merging.sizes(labels.place, tokens), target.gather(1, labels.place)
        else:
            size, place = torch.ones_like(target), target
        labels = Merged(merging.merge(labels.values, size, target, left), labels.grid, place)
    return labels.unmerged if module.last and isinstance(labels, Merged) else labels


@register(merging.Block, taps=_taps, idle=_merge)
def block(module: merging.Block, observed: Observed, labels: Labels) -> Labels:
    """Eq. 11 with proportional attention, then the merge."""
    rows, values = observed.rows, labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"][:, :, rows], values)
    else:
        query = observed["query"][:, :, rows]
        bias = observed["bias"].float().expand(-1, *query.shape[1:3], -1) if "bias" in observed else None
        mixed = flow.attend(query, observed["key"], values, bias)
    moved = replace(labels, values=observed.residual(values[:, rows], mixed))
    return moved if rows.stop else _merge(module, observed, moved)  # a class token is not merged
