"""PiT: a ViT whose patches are pooled between stages."""

from timm.models.pit import ConvEmbedding, Pooling, PoolingVisionTransformer
from torch import nn

from labelflow.adapters import patches, vit  # noqa: F401  (its blocks are ViT's)
from labelflow.adapters.registry import Observed, register, register_model
from labelflow.flow import Labels


@register(ConvEmbedding, Pooling, layer=False)
def merge(module: ConvEmbedding | Pooling, observed: Observed, labels: Labels) -> Labels:
    """The class token goes past the pooling."""
    return patches.merge(module.conv, labels)


def _path(model: PoolingVisionTransformer) -> list[nn.Module]:
    stages = [[stage.pool, *stage.blocks] for stage in model.transformers]
    return [model.patch_embed, *(module for stage in stages for module in stage if module is not None)]


register_model(
    PoolingVisionTransformer,
    path=_path,
    heads=lambda model, labels: labels[:, : model.num_tokens],  # the class token's head, and the distillation token's
    head_tokens=lambda model: model.num_tokens,
)
