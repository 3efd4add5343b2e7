"""Visformer: attention on maps, or 3×3 convolutions in the MLP."""

from timm.models.visformer import Block, Visformer
from torch import nn

from labelflow import flow
from labelflow.adapters import convolutions  # noqa: F401  (registers the stem's)
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: Block) -> dict[str, Tap]:
    if block.attn is None:
        return {}
    return {"qkv": Tap(block.attn.qkv), "weights": Tap(block.attn.attn_drop, "input")}  # weights: if not fused


@register(Block, taps=_taps)
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    if module.attn is not None:
        if "weights" in observed:
            mixed = flow.attention(observed["weights"], labels.values)
        else:
            qkv = observed["qkv"].flatten(2).unflatten(1, (3, module.attn.num_heads, -1))  # (B, 3, A, D, N)
            query, key, _ = qkv.transpose(-2, -1).unbind(1)
            mixed = flow.attend(query, key, labels.values)
        labels = Labels(observed.residual(labels.values, mixed), labels.grid)
    if module.mlp.conv2 is not None:
        labels = labels.with_map(observed.residual(labels.map, flow.convolve(module.mlp.conv2.weight, labels.map)))
    return labels


def _path(model: Visformer) -> list[nn.Module]:
    stem = [] if model.stem is None else [model.stem[0]]  # its convolution; norm and activation move nothing
    return present(
        *stem,
        *(model.patch_embed1, *model.stage1),
        *(model.patch_embed2, *model.stage2),
        *(model.patch_embed3, *model.stage3),
    )


register_average(Visformer, path=_path, pool=lambda model: model.global_pool.pool_type)
