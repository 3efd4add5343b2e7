"""EVA, EVA-02, DINOv3, Perception Encoders, ViTs with rotary embeddings: queries and keys are turned by their place."""

from timm.models.eva import Eva, EvaBlock, EvaBlockPostNorm

from labelflow.adapters import vit
from labelflow.adapters.registry import register, register_model

register(EvaBlock, EvaBlockPostNorm, taps=vit.taps)(vit.block)
register_model(Eva, path=vit.path, heads=vit.heads, head_tokens=vit.head_tokens)
