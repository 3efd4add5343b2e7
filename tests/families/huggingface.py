"""ViT, DeiT, DINOv2 and Swin of Hugging Face's transformers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from families.torchvision import attention as swin_attention
from labelflow import Mix
from labelflow.adapters.registry import MODELS, load_optional
from oracles import image_label, merge_labels, patch_labels, softmax_attention, window_matrix

WIDTHS = {"hidden_size": 24, "num_attention_heads": 3, "num_hidden_layers": 3, "intermediate_size": 48}
VIT = {"image_size": 32, "patch_size": 8, "num_labels": 5, **WIDTHS}
SWIN = {"image_size": 32, "patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": [2, 2], "num_heads": [2, 4]}
SWIN |= {"num_labels": 5}


def logits_of(name: str) -> Callable[..., nn.Module]:
    """What makes such a model, which returns logits, as the models of other families do."""

    def make(attention: str, **arguments: Any) -> nn.Module:
        import transformers

        kind = getattr(transformers, name)
        load_optional(kind)
        if name not in _MADE:
            _MADE[name] = type(f"HuggingFace{name}", (kind,), {"forward": _forward, "__module__": __name__})
            globals()[f"HuggingFace{name}"] = _MADE[name]  # for pickle
            MODELS[_MADE[name]] = MODELS[kind]
        return _MADE[name](kind.config_class(**arguments, attn_implementation=attention))

    return make


_MADE: dict[str, type[nn.Module]] = {}


def _forward(self: Any, images: Tensor) -> Tensor:
    return super(type(self), self).forward(images).logits


DINO = logits_of("Dinov2ForImageClassification")
REGISTERS = logits_of("Dinov2WithRegistersForImageClassification")
FAMILIES = {
    "transformers vit": (logits_of("ViTForImageClassification"), {**VIT, "attention": "sdpa"}, (32, 32)),
    "transformers vit, eager": (logits_of("ViTForImageClassification"), {**VIT, "attention": "eager"}, (32, 32)),
    "transformers deit": (logits_of("DeiTForImageClassification"), {**VIT, "attention": "sdpa"}, (32, 32)),
    "transformers deit, two heads": (
        logits_of("DeiTForImageClassificationWithTeacher"),
        {**VIT, "attention": "sdpa"},
        (32, 32),
    ),
    "transformers dinov2": (DINO, {**VIT, "attention": "sdpa"}, (32, 48)),
    "transformers dinov2, eager, registers": (REGISTERS, {**VIT, "attention": "eager"}, (32, 32)),
    "transformers swin": (logits_of("SwinForImageClassification"), {**SWIN, "attention": "sdpa"}, (32, 32)),
    "transformers swin, eager, padded": (
        logits_of("SwinForImageClassification"),
        {**SWIN, "attention": "eager"},
        (42, 60),
    ),
}
SOME = ["transformers vit", "transformers swin"]  # for what does not depend on the details


def vit(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    base = model.base_model
    labels = patch_labels(mix, onehot, 8, 8).flatten(1, 2)
    x = base.embeddings(images)
    prefix = x.shape[1] - labels.shape[1]
    labels = torch.cat([image_label(mix, onehot).expand(-1, prefix, -1), labels], 1)
    for block in base.encoder.layer if hasattr(base, "encoder") else base.layers:
        attn = block.attention
        normed = (block.norm1 if hasattr(block, "norm1") else block.layernorm_before)(x)
        q, k = (part(normed).unflatten(-1, (3, -1)).transpose(1, 2) for part in (attn.q_proj, attn.k_proj))
        labels = (labels + softmax_attention(q, k) @ labels) / 2  # Eq. 11
        x = block(x)
    if "Dinov2" in type(model).__name__:
        return (labels[:, :1] + labels[:, prefix:].mean(1, keepdim=True)) / 2
    return labels[:, : 2 if "Teacher" in type(model).__name__ else 1]


class _AsOne:
    """Hugging Face's window attention, with the names of torchvision's."""

    def __init__(self, attn: nn.Module, window: int) -> None:
        self.num_heads, self.window_size = attn.num_attention_heads, (window, window)
        self.relative_position_bias_table = attn.relative_position_bias.relative_position_bias_table
        self.parts = attn.q_proj, attn.k_proj, attn.v_proj

    def qkv(self, tokens: Tensor) -> Tensor:
        return torch.cat([part(tokens) for part in self.parts], -1)


def swin(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels = patch_labels(mix, onehot, 4, 4)
    x, grid = model.swin.embeddings(images)
    for stage in model.swin.encoder.layers:
        for index, block in enumerate(stage.blocks):
            attn, shift = _AsOne(block.attention, 4), (2, 2) if index % 2 and min(grid) > 4 else (0, 0)
            matrix = window_matrix(
                block.layernorm_before(x).unflatten(1, grid),
                (4, 4),
                shift,
                lambda *tokens, attn=attn: swin_attention(attn, *tokens),
                pad_first=True,
            )
            flat = labels.flatten(1, 2)
            labels = ((flat + matrix @ flat) / 2).unflatten(1, grid)
            x, _ = block(x, grid)
        if stage.downsample is not None:
            x, labels = stage.downsample(x, grid), merge_labels(labels)
            grid = tuple(labels.shape[1:3])
    return labels.mean((1, 2)).unsqueeze(1)


_NAMES = ["ViTForImageClassification", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher"]
_NAMES += ["Dinov2ForImageClassification", "Dinov2WithRegistersForImageClassification"]
ORACLES = {f"HuggingFace{name}": vit for name in _NAMES} | {"HuggingFaceSwinForImageClassification": swin}
