"""Token merging (Bolya et al., "Token Merging: Your ViT But Faster", ICLR 2023), for timm's ViTs as they are.

In every block, between attention and MLP, r tokens are merged into those that are most similar to them. A merged token
is the mean of the patches that it stands for, and counts as often in attention. What leaves the last block is every
patch again, equal within a token: averages and attention pooling count tokens by their sizes without knowing of them,
and token labels find every place of the grid. There are no new weights: a `state_dict` goes from a model that
merges to one that does not, and back.

Shapes: B batch, A heads, N tokens, M tokens after a merge, N₀ tokens at first, D width; P tokens have no place.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from timm import layers
from timm.models import vision_transformer
from torch import Tensor, nn

from labelflow.models import lvvit
from labelflow.precision import full_precision, product


class Tokens(NamedTuple):
    """Tokens of which some are merged, on their way from block to block."""

    x: Tensor  # (B, N, D)
    place: Tensor  # (B, N₀): the token that each of the first ones is a part of


def match(key: Tensor, r: int, prefix: int) -> Tensor:
    """Bipartite soft matching (Section 3): where each token (B, N, D) goes among the N - r after a merge, (B, N).

    Each token at an even place has its nearest one at an odd place, by cosine. The r nearest pairs are merged. The
    first P = `prefix` tokens are not, and stay in front; then come the even ones that are left, then the odd ones.
    """
    key = F.normalize(key.float(), dim=-1)
    even, odd = (prefix + 1) // 2, prefix // 2  # of the prefix
    with full_precision(key.device.type):  # in half precision, the nearest ones would all be as near
        similarity = product(key[:, ::2], key[:, 1::2].mT)  # (B, evens, odds)
    similarity[:, :even].fill_(-torch.inf)
    similarity[:, :, :odd].fill_(-torch.inf)
    best, nearest = similarity.max(-1)  # (B, evens)
    evens, odds = similarity.shape[1:]
    leaving = best.topk(r).indices
    stays = torch.ones_like(nearest).scatter(1, leaving, 0)
    first_odd = evens - r
    place = torch.arange(odds, device=key.device)
    place_of_odd = torch.where(place < odd, 2 * place + 1, first_odd + place)  # (odds,)
    place_of_even = torch.where(stays > 0, stays.cumsum(1) - 1 + odd, first_odd + nearest)
    place_of_even[:, :even] = 2 * torch.arange(even, device=key.device)
    target = key.new_empty(key.shape[:2], dtype=torch.long)
    target[:, ::2], target[:, 1::2] = place_of_even, place_of_odd
    return target


def sizes(place: Tensor, tokens: int) -> Tensor:
    """How many of the first tokens each token stands for: (B, N₀) -> (B, N), integers"""
    return place.new_zeros(place.shape[0], tokens).scatter_add(1, place, torch.ones_like(place))


def merge(x: Tensor, size: Tensor, target: Tensor, tokens: int) -> Tensor:
    """Σ sᵢxᵢ / Σ sᵢ over those that go to the same place: x (B, N, D), size and target (B, N) -> (B, M, D)"""
    size, target = size.unsqueeze(-1).to(x.dtype), target.unsqueeze(-1)
    total = x.new_zeros(x.shape[0], tokens, 1).scatter_add(1, target, size)
    merged = x.new_zeros(x.shape[0], tokens, x.shape[2]).scatter_add(1, target.expand_as(x), x * size)
    return merged / total


def unmerge(x: Tensor, place: Tensor) -> Tensor:
    """A copy of its token for each of the first ones: (B, M, D) -> (B, N₀, D)"""
    return x.gather(1, place.unsqueeze(-1).expand(-1, -1, x.shape[2]))


class Match(nn.Module):
    """`match`, as a module, so that what it finds can be seen."""

    def __init__(self, r: int, prefix: int) -> None:
        super().__init__()
        self.r, self.prefix = r, prefix

    def remaining(self, tokens: int) -> int:
        """How many of so many tokens are left: at most half of the patches can be merged."""
        return tokens - min(self.r, (tokens - self.prefix) // 2)

    @torch.no_grad()
    def forward(self, key: Tensor) -> Tensor:
        return match(key, key.shape[1] - self.remaining(key.shape[1]), self.prefix)

    def extra_repr(self) -> str:
        return f"r={self.r}"


class Attention(layers.Attention):
    """timm's, with a bias for each key, and the mean over heads of its keys as a second result."""

    def forward(self, x: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """(B, N, D), (B, 1, 1, N) -> (B, N, D), (B, N, D/A)"""
        gate = self.gate(x).sigmoid() if self.gate is not None else None
        qkv = self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim)).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)  # (B, A, N, D/A)
        query, key = self.q_norm(query), self.k_norm(key)
        if self.fused_attn:
            dropout = self.attn_drop.p if self.training else 0.0
            mixed = F.scaled_dot_product_attention(query, key, value, bias, dropout)
        else:
            scores = query * self.scale @ key.mT
            mixed = self.attn_drop((scores if bias is None else scores + bias).softmax(-1)) @ value
        mixed = self.norm(mixed.transpose(1, 2).flatten(2))
        mixed = mixed if gate is None else mixed * gate
        return self.proj_drop(self.proj(mixed)), key.mean(1)


class Block(vision_transformer.Block):
    """timm's, with a merge between attention and MLP. FSDP knows what to wrap by its name."""

    attn: Attention
    match: Match
    last: bool

    def forward(self, tokens: Tensor | Tokens, attn_mask: Tensor | None = None) -> Tensor | Tokens:
        if attn_mask is not None:
            raise ValueError("a model that merges tokens takes no attn_mask: merge_tokens(model, 0) turns merging off")
        if not isinstance(tokens, Tensor | Tokens):  # a re-entrant checkpoint loses their names
            raise ValueError("merged tokens need timm.layers.set_reentrant_ckpt(False), timm's default")
        x, place = tokens if isinstance(tokens, Tokens) else (tokens, None)
        count, left = x.shape[1], self.match.remaining(x.shape[1])
        size = None if place is None else sizes(place, count)
        # Proportional attention: softmax(QKᵀ/√d + log s)
        mixed, key = self.attn(self.norm1(x), None if size is None else size[:, None, None].to(x.dtype).log())
        x = x + self.drop_path1(self.ls1(mixed))
        if left < count:
            target = self.match(key)
            x = merge(x, torch.ones_like(target) if size is None else size, target, left)
            place = target if place is None else target.gather(1, place)
        x = x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))
        if place is None:
            return x
        return unmerge(x, place) if self.last else Tokens(x, place)


KNOWN = (vision_transformer.Block, lvvit.Block, Block, layers.Attention, Attention)


def schedule(r: int | Sequence[float], depth: int) -> list[int]:
    """How many tokens each block merges: r, or from r·(1 - inflect) in the first to r·(1 + inflect) in the last.

    >>> schedule(13, 3), schedule((13, -1), 5)
    ([13, 13, 13], [26, 19, 13, 6, 0])
    """
    match r:
        case int(mean) if mean >= 0:
            inflect = 0.0
        case [int(mean), int() | float() as inflect] if mean >= 0 and -1 <= inflect <= 1:
            pass
        case _:
            raise ValueError(f"merge_tokens is a number, 13, or (13, inflect) with inflect from -1 to 1, not {r!r}")
    steps = max(depth - 1, 1)
    return [int(mean * (1 - inflect) + 2 * mean * inflect * block / steps) for block in range(depth)]


def merge_tokens(model: nn.Module, r: int | Sequence[float] = 13) -> None:
    """Make one of timm's ViTs (ViT, DeiT, distilled or not, DeiT III, AugReg; LV-ViT) merge r tokens in each block.

    r: a number, or (r, inflect) for a line from r·(1 - inflect) in the first block to r·(1 + inflect) in the last; at
    most half of the patches are merged at once. 0: none again, and the model is as before, bit for bit.

    >>> import timm, labelflow as lf
    >>> model = timm.create_model("deit_tiny_patch16_224")
    >>> lf.merge_tokens(model, r=13)
    >>> aligned = lf.Aligned(model)  # labels are merged, too
    """
    blocks: Any = getattr(model, "blocks", ())
    parts = [part for block in blocks for part in (block, getattr(block, "attn", None))]
    other = [type(part).__name__ for part in parts if type(part) not in KNOWN]
    if other or not isinstance(model, vision_transformer.VisionTransformer):
        raise ValueError(
            f"merge_tokens is for timm's VisionTransformer with plain blocks (ViT, DeiT, LV-ViT), not for "
            f"{type(model).__name__}{f' with {other[0]}' if other else ''}"
        )
    if any(block._forward_hooks for block in blocks if type(block) is not Block):
        raise ValueError("something watches this model's blocks already: call merge_tokens before lf.Aligned")
    for block, merged in zip(blocks, schedule(r, len(blocks)), strict=True):
        if type(block) is not Block:
            block.__class__, block.attn.__class__ = Block, Attention
            block.match, block.last = Match(merged, model.num_prefix_tokens), block is blocks[-1]
        block.match.r = merged


def require_all_tokens(model: nn.Module, who: str) -> None:
    """ValueError if a model merges tokens, for those who need each of them."""
    if any(isinstance(module, Match) and module.r for module in model.modules()):
        raise ValueError(f"{who} a model that merges no tokens: omit merge_tokens, the weights are the same")
