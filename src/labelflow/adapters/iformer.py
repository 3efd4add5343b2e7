"""iFormer: convolutions, and attention with a single head whose output is gated."""

from timm.models.iformer import FFN, SHMA, ConvBlock, IFormer, RepCPE, SHMABlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import graph, windows
from labelflow.adapters.averages import register_average, staged
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(ConvBlock, RepCPE, SHMABlock)


@register(SHMA, taps=lambda module: {"query": Tap(module.q), "key": Tap(module.k)})
def attention(module: SHMA, observed: Observed, labels: Labels) -> Labels:
    """(A·v) ⊙ gate, a product with something of each place: both count alike."""
    window = (module.window_size, module.window_size) if module.window_size else labels.grid
    query, key = (observed[name].flatten(2).mT.unsqueeze(1) for name in ("query", "key"))  # (B·windows, 1, r·s, D)

    def attend(parts: Tensor) -> Tensor:
        return flow.attend(query, key, parts)

    mixed = windows.mix(labels.map, window, (0, 0), attend)
    return labels.with_map((mixed + labels.map) / 2)


def _path(model: IFormer) -> list[nn.Module]:
    return [module for module in staged(model) if not isinstance(module, FFN)]


register_average(IFormer, path=_path, pool=lambda model: model.global_pool)
