"""NaFlexViT with plain images (B, C, H, W): blocks are a ViT's or, with rotary embeddings, EVA's."""

from functools import partial

from timm.models.naflexvit import NaFlexEmbeds, NaFlexVit

from labelflow import flow
from labelflow.adapters import eva, vit  # noqa: F401  (registers blocks)
from labelflow.adapters.registry import Observed, register, register_model
from labelflow.flow import Labels


@register(NaFlexEmbeds, layer=False)
def embed(module: NaFlexEmbeds, observed: Observed, labels: Labels) -> Labels:
    if module.dynamic_img_pad:
        labels = labels.with_map(flow.pad(labels.map, module.patch_size))
    return labels.with_map(flow.aggregate(labels.map, module.patch_size))


register_model(NaFlexVit, path=partial(vit.path, embedding="embeds"), heads=vit.heads, head_tokens=vit.head_tokens)
