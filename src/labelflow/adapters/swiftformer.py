"""SwiftFormer: one global query, a weighted sum of all, multiplies every key."""

import torch.nn.functional as F
from timm.models.swiftformer import Block, ConvEncoder, EfficientAdditiveAttention, SwiftFormer

from labelflow import flow
from labelflow.adapters import graph
from labelflow.adapters.averages import register_average, staged
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(Block, ConvEncoder)


@register(EfficientAdditiveAttention, taps=lambda module: {"query": Tap(module.to_query)})
def attention(module: EfficientAdditiveAttention, observed: Observed, labels: Labels) -> Labels:
    """(Σᵢ aᵢqᵢ)·k + q: a product, whose factors count alike, and a sum."""
    query = F.normalize(observed["query"].float(), dim=-1)  # (B, N, D)
    weights = (query @ module.w_g.float()).mT  # (B, 1, N), up to what Norm takes out
    everywhere = flow.spatial(weights, labels.values)  # (B, 1, K): the global query's label
    product = (everywhere + labels.values) / 2
    return Labels((product + labels.values) / 2, labels.grid)


register_average(SwiftFormer, path=staged, pool=lambda model: model.global_pool)
