"""ViT, DeiT, DINOv2 and Swin of Hugging Face's transformers, whatever their attention's implementation.

Not imported with labelflow: `registry.OPTIONAL` says when.
"""

from typing import Any

from torch import Tensor, nn
from transformers.models.deit.modeling_deit import (
    DeiTForImageClassification,
    DeiTForImageClassificationWithTeacher,
    DeiTLayer,
    DeiTPatchEmbeddings,
)
from transformers.models.dinov2.modeling_dinov2 import (
    Dinov2ForImageClassification,
    Dinov2Layer,
    Dinov2PatchEmbeddings,
)
from transformers.models.dinov2_with_registers.modeling_dinov2_with_registers import (
    Dinov2WithRegistersForImageClassification,
    Dinov2WithRegistersLayer,
    Dinov2WithRegistersPatchEmbeddings,
)
from transformers.models.swin.modeling_swin import (
    SwinForImageClassification,
    SwinLayer,
    SwinPatchEmbeddings,
    SwinPatchMerging,
)
from transformers.models.vit.modeling_vit import ViTForImageClassification, ViTLayer, ViTPatchEmbeddings
from transformers.utils.versions import require_version

from labelflow import flow
from labelflow.adapters import patches, swin, windows
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels

require_version("transformers>=5.18")  # since when DINOv2's attention, too, has q_proj and k_proj


@register(
    ViTPatchEmbeddings,
    DeiTPatchEmbeddings,
    Dinov2PatchEmbeddings,
    Dinov2WithRegistersPatchEmbeddings,
    SwinPatchEmbeddings,
    layer=False,
)
def embed(module: Any, observed: Observed, labels: Labels) -> Labels:
    if isinstance(module, SwinPatchEmbeddings):
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return patches.merge(module.projection, labels)


def _taps(layer: Any) -> dict[str, Tap]:
    return {"query": Tap(layer.attention.q_proj), "key": Tap(layer.attention.k_proj)}


def _heads(layer: Any, tokens: Tensor) -> Tensor:
    """(B, N, C) -> (B, A, N, D)"""
    return tokens.unflatten(-1, (-1, layer.attention.head_dim)).transpose(1, 2)


@register(ViTLayer, DeiTLayer, Dinov2Layer, Dinov2WithRegistersLayer, taps=_taps)
def layer(module: Any, observed: Observed, labels: Labels) -> Labels:
    query, key = _heads(module, observed["query"][:, observed.rows]), _heads(module, observed["key"])
    mixed = flow.attend(query, key, labels.values, scale=module.attention.scaling)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


@register(SwinLayer, taps=_taps)
def swin_layer(module: SwinLayer, observed: Observed, labels: Labels) -> Labels:
    window, shift = (module.window_size, module.window_size), (module.shift_size, module.shift_size)
    padded = flow.pad(labels.map, window)  # here, padding rolls, too
    bias = module.attention.relative_position_bias.forward()  # (1, heads, places, places)
    mask = module.get_attn_mask(padded.shape[1], padded.shape[2], bias.dtype, bias.device)
    if mask is not None:  # (windows of an image, places, places)
        bias = bias + mask.unsqueeze(1)
    query, key = _heads(module, observed["query"]), _heads(module, observed["key"])  # (B·windows, A, places, D)
    mixed = windows.mix(padded, window, shift, lambda parts: flow.attend(query, key, parts, bias))
    height, width = labels.grid
    return labels.with_map(observed.residual(labels.map, mixed[:, :height, :width]))


register(SwinPatchMerging, layer=False)(swin.merge)


def _path(model: Any) -> list[nn.Module]:
    base = model.base_model
    layers = base.encoder.layer if hasattr(base, "encoder") else base.layers
    return [base.embeddings.patch_embeddings, *layers]


def _swin_path(model: SwinForImageClassification) -> list[nn.Module]:
    stages = [[*stage.blocks, stage.downsample] for stage in model.swin.encoder.layers]
    modules = [module for stage in stages for module in stage if module is not None]
    return [model.swin.embeddings.patch_embeddings, *modules]


def _class_and_average(model: Any, labels: Tensor) -> Tensor:
    """DINOv2's classifier reads the class token beside the mean of the patches': half of its label is of each."""
    prefix = 1 + getattr(model.config, "num_register_tokens", 0)
    return (labels[:, :1] + labels[:, prefix:].mean(1, keepdim=True)) / 2


register_model(
    ViTForImageClassification,
    DeiTForImageClassification,
    path=_path,
    heads=lambda model, labels: labels[:, :1],
    head_tokens=lambda model: 1,
)
register_model(
    DeiTForImageClassificationWithTeacher,
    path=_path,
    heads=lambda model, labels: labels[:, :2],
    head_tokens=lambda model: 2,
)
register_model(
    Dinov2ForImageClassification,
    Dinov2WithRegistersForImageClassification,
    path=_path,
    heads=_class_and_average,
)
register_model(
    SwinForImageClassification,
    path=_swin_path,
    heads=lambda model, labels: labels.mean(1, keepdim=True),
)
