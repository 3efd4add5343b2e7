"""ConViT: attention that is gated between content and position, then plain attention."""

from timm.models.convit import Block, ConVit

from labelflow import flow
from labelflow.adapters import cait
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


@register(Block, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    """Weights are those of content and position together."""
    mixed = flow.attention(observed["weights"][:, :, observed.rows], labels.values)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


register_model(
    ConVit, path=lambda model: [model.patch_embed, *model.blocks], heads=cait.heads, head_tokens=cait.head_tokens
)
