"""FastViT and MobileCLIP's image encoders: convolutions in parallel branches, which are summed, and attention in the
last stages. Stems and down-sampling layers aggregate, each branch over its own windows."""

from timm.models.fastvit import (
    Attention,
    AttentionBlock,
    FastVit,
    MobileOneBlock,
    PatchEmbed,
    RepConditionalPosEnc,
    RepMixer,
    RepMixerBlock,
)
from torch import nn

from labelflow import flow
from labelflow.adapters import convolutions, graph
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels

graph.follow(AttentionBlock, RepConditionalPosEnc, RepMixerBlock)
register(MobileOneBlock, PatchEmbed, plan=graph.trace, layer=False)(graph.embed)


@register(RepMixer)
def mixer(module: RepMixer, observed: Observed, labels: Labels) -> Labels:
    """x + convolution + scale + norm - norm: one sum, although a LayerScale stands inside of it."""
    if module.reparam_conv is not None:
        return labels.with_map(convolutions.convolve(module.reparam_conv, labels.map, still=False))
    (branch,) = module.mixer.conv_kxk
    moved = convolutions.convolve(branch.conv, labels.map, still=False)
    still = sum(part is not None for part in (module.mixer.conv_scale, module.mixer.identity, module.norm.identity))
    still += observed.keep_residual
    return labels.with_map((moved + still * labels.map) / (1 + still))


@register(Attention, taps=lambda module: {"qkv": Tap(module.qkv)})
def attention(module: Attention, observed: Observed, labels: Labels) -> Labels:
    query, key, _ = observed["qkv"].unflatten(-1, (3, module.num_heads, -1)).transpose(1, 3).unbind(2)  # (B, A, N, D)
    return Labels(flow.attend(query, key, labels.values), labels.grid)


def _path(model: FastVit) -> list[nn.Module]:
    stages = [present(stage.downsample, stage.pos_emb, *stage.blocks) for stage in model.stages]
    return [*model.stem, *(module for stage in stages for module in stage), model.final_conv]


def _pool(model: FastVit) -> str:
    if model.fork_feat:
        raise ValueError("labelflow follows labels to a classifier, and FastVit has none with fork_feat=True")
    return str(model.head.global_pool.pool_type)


register_average(FastVit, path=_path, pool=_pool)
