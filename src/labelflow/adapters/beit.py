"""BEiT and BEiT v2: ViTs with relative position biases, one for each block or one for all."""

import torch
import torch.nn.functional as F
from timm.models.beit import Attention, Beit, Block
from torch import Tensor

from labelflow import flow
from labelflow.adapters import vit
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: Block) -> dict[str, Tap]:
    return {
        "tokens": Tap(block.attn, "input"),
        "shared": Tap(block.attn, "shared_rel_pos_bias"),  # (A, N, N), if there is one for all blocks
        "weights": Tap(block.attn.attn_drop, "input"),  # only where attention is not fused
    }


def _project(module: Attention, tokens: Tensor, part: int) -> Tensor:
    """Queries (part 0) or keys (1), once more: the module computes them in one go, where no hook sees them."""
    weight = module.qkv.weight.chunk(3)[part]
    bias = (module.q_bias, module.k_bias)[part]
    return F.linear(tokens.to(weight.dtype), weight, bias).unflatten(-1, (module.num_heads, -1)).transpose(1, 2)


@register(Block, taps=_taps)
def block(module: Block, observed: Observed, labels: Labels) -> Labels:
    attention, values = module.attn, labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"][:, :, observed.rows], values)
    else:
        biases = [] if attention.relative_position_bias_table is None else [attention._get_rel_pos_bias()]
        biases += [observed["shared"].unsqueeze(0)] if "shared" in observed else []
        bias = torch.stack(biases).sum(0)[:, :, observed.rows] if biases else None  # (1, A, N, N)
        query = _project(attention, observed["tokens"][:, observed.rows], 0)
        mixed = flow.attend(query, _project(attention, observed["tokens"], 1), values, bias)
    return Labels(observed.residual(values[:, observed.rows], mixed), labels.grid)


register_model(Beit, path=vit.path, heads=vit.heads, head_tokens=vit.head_tokens)
