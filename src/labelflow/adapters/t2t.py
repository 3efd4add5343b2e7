"""T2T-ViT: soft splits pool labels over their windows; token modules move them as attention does."""

from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels
from labelflow.models import t2t
from labelflow.models.t2t_tokens import SoftSplit, TokenPerformer, TokenTransformer


@register(SoftSplit, layer=False)
def split(module: SoftSplit, observed: Observed, labels: Labels) -> Labels:
    kernel, stride, padding = ((size, size) for size in (module.kernel, module.stride, module.padding))
    return labels.with_map(flow.aggregate(labels.map, kernel, stride, padding))


@register(TokenTransformer, taps=lambda module: {"qkv": Tap(module.attn.qkv)})
def transformer(module: TokenTransformer, observed: Observed, labels: Labels) -> Labels:
    """Values are the skip connection; each is made of its own token, and has its label."""
    query, key, _ = observed["qkv"].unsqueeze(1).chunk(3, -1)  # (B, 1, N, D)
    mixed = flow.attend(query, key, labels.values, scale=module.attn.scale)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


@register(TokenPerformer, taps=lambda module: {"kqv": Tap(module.kqv)})
def performer(module: TokenPerformer, observed: Observed, labels: Labels) -> Labels:
    key, query, _ = observed["kqv"].float().chunk(3, -1)  # (B, N, D)
    mixed = attend_linearly(query, key, module.w.detach().float(), labels.values)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def attend_linearly(query: Tensor, key: Tensor, w: Tensor, labels: Tensor) -> Tensor:
    """Y ← Norm(φ(Q)·φ(K)ᵀ)·Y, multiplied from the right: query and key (B, N, D), w (M, D), labels (B, N, K).

    Norm takes out what a row of φ(Q) has in common, so the largest exponents are taken out before exp, not to under-
    or overflow: of each feature over all keys, and of each query over its features.
    """
    key = flow.product(key, w.T) - key.square().sum(-1, keepdim=True) / 2  # (B, N, M): exponents of φ(K)
    largest = key.amax(1, keepdim=True)  # (B, 1, M)
    query = flow.product(query, w.T) + largest
    query = (query - query.amax(-1, keepdim=True)).exp()
    return flow.normalise(flow.product(query, flow.product((key - largest).exp().mT, labels)))


def _path(model: t2t.T2TViT) -> list[nn.Module]:
    tokens = model.tokens_to_token
    splits = [tokens.soft_split0, tokens.attention1, tokens.soft_split1, tokens.attention2, tokens.soft_split2]
    return [*splits, *model.blocks]


register_model(t2t.T2TViT, path=_path, heads=lambda model, labels: labels[:, :1], head_tokens=lambda model: 1)
