"""LV-ViT: a ViT behind a convolutional stem."""

from timm.models.vision_transformer import VisionTransformer

from labelflow import flow
from labelflow.adapters import vit  # noqa: F401  (registers VisionTransformer and its blocks)
from labelflow.adapters.registry import MODELS, Observed, register
from labelflow.flow import Labels
from labelflow.models import lvvit


@register(lvvit.ConvStem, layer=False)
def embed(module: lvvit.ConvStem, observed: Observed, labels: Labels) -> Labels:
    """The stem is taken as the patch embedding that it replaces: a token's label is that of its own patch. The few
    pixels that its first convolutions see beyond the patch are left out."""
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return labels.with_map(flow.aggregate(labels.map, module.patch_size))


# Blocks are ViT's, registered there: a divided residual branch does not weigh in Y ← Norm(Y + A·Y).
MODELS[lvvit.LVViT] = MODELS[VisionTransformer]
