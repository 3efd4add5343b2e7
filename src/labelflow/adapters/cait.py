"""CaiT, ConViT, XCiT, CoaT-Lite.

CaiT: talking heads among patches, then class attention, which XCiT has, too.

ConViT: attention that is gated between content and position, then plain attention.

XCiT: its cross-covariance attention mixes channels; labels move in depth-wise convolutions and class attention.

CoaT-Lite: factorised attention, and depth-wise convolutions for positions.
"""

import torch
from timm.models.cait import Cait, ClassAttn, LayerScaleBlock, TalkingHeadAttn
from timm.models.coat import CoaT, ConvRelPosEnc, SerialBlock
from timm.models.convit import Block, ConVit
from timm.models.xcit import ConvPatchEmbed, XCABlock, Xcit
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _taps(block: LayerScaleBlock) -> dict[str, Tap]:
    if type(block.attn) is not TalkingHeadAttn:
        raise ValueError(f"labelflow follows labels through CaiT's talking heads, not {type(block.attn).__name__}")
    return {"weights": Tap(block.attn.attn_drop, "input")}


@register(LayerScaleBlock, taps=_taps)
def block(module: LayerScaleBlock, observed: Observed, labels: Labels) -> Labels:
    """Heads are mixed after the softmax, so that weights are signed: each head's rows are normalised on their own."""
    mixed = flow.spatial(observed["weights"], labels.values.unsqueeze(1)).mean(1)  # (B, A, N, K) -> (B, N, K)
    return Labels(observed.residual(labels.values, mixed), labels.grid)


def with_class(observed: Observed, labels: Labels, mixed: Tensor) -> Labels:
    """A class token that alone has looked at all tokens, and seen (B, 1, K)."""
    token = observed.residual(labels.values[:, :1], mixed)
    return Labels(torch.cat([token, labels.values[:, 1:]], 1), labels.grid)


def _class_taps(module: ClassAttn) -> dict[str, Tap]:
    return {
        "query": Tap(module.q),  # (B, A·D), of the class token
        "key": Tap(module.k),  # (B, N, A·D)
        "weights": Tap(module.attn_drop, "input"),  # only where attention is not fused
    }


@register(ClassAttn, taps=_class_taps)
def class_attention(module: ClassAttn, observed: Observed, labels: Labels) -> Labels:
    """With the residual around it."""
    values = labels.values
    if "weights" in observed:
        mixed = flow.attention(observed["weights"], values)  # (B, 1, K)
    else:
        query = observed["query"].unflatten(-1, (module.num_heads, 1, -1))  # (B, A, 1, D)
        key = observed["key"].unflatten(-1, (module.num_heads, -1)).transpose(1, 2)
        mixed = flow.attend(query, key, values)
    return with_class(observed, labels, mixed)


def _path(model: Cait) -> list[nn.Module]:
    # A class block is given patches and class token apart; its attention sees them together.
    return [model.patch_embed, *model.blocks, *(block.attn for block in model.blocks_token_only)]


def heads(model: nn.Module, labels: Tensor) -> Tensor:
    """Of a model that reads its class token, or the mean of all others."""
    return labels[:, :1] if model.global_pool == "token" else labels[:, 1:].mean(1, keepdim=True)


def head_tokens(model: nn.Module) -> int:
    if model.global_pool not in ("token", "avg"):
        raise ValueError(
            f"labelflow follows labels to a class token or an average, not to global_pool={model.global_pool!r}"
        )
    return 1 if model.global_pool == "token" else 0


register_model(Cait, path=_path, heads=heads, head_tokens=head_tokens)


@register(Block, taps=lambda block: {"weights": Tap(block.attn.attn_drop, "input")})
def convit_block(module: Block, observed: Observed, labels: Labels) -> Labels:
    """Weights are those of content and position together."""
    mixed = flow.attention(observed["weights"][:, :, observed.rows], labels.values)
    return Labels(observed.residual(labels.values[:, observed.rows], mixed), labels.grid)


register_model(ConVit, path=lambda model: [model.patch_embed, *model.blocks], heads=heads, head_tokens=head_tokens)


@register(ConvPatchEmbed, layer=False)
def xcit_embed(module: ConvPatchEmbed, observed: Observed, labels: Labels) -> Labels:
    """Each convolution has stride 2, and aggregates."""
    for layer in module.proj.modules():
        if isinstance(layer, nn.Conv2d):
            labels = patches.merge(layer, labels)
    return labels


@register(XCABlock)
def xcit_block(module: XCABlock, observed: Observed, labels: Labels) -> Labels:
    """Attention and MLP leave labels as they are; the local patch interaction does not."""
    local = module.local_mp
    mixed = flow.convolve(local.conv2.weight, flow.convolve(local.conv1.weight, labels.map))
    return labels.with_map(observed.residual(labels.map, mixed))


def _xcit_path(model: Xcit) -> list[nn.Module]:
    return [model.patch_embed, *model.blocks, *(block.attn for block in model.cls_attn_blocks)]


register_model(Xcit, path=_xcit_path, heads=heads, head_tokens=head_tokens)


def _coat_attend(heads: int, qkv: Tensor, labels: Tensor) -> Tensor:
    """Two mixings in a row: each channel of a head's keys gathers from all tokens, with a softmax over them; each token
    then takes from these channels as its query says, which is signed. labels (B, N, K) -> (B, N, K)"""
    query, key, _ = qkv.float().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, A, N, D)
    gathered = flow.product(key.softmax(2).mT, labels.unsqueeze(1))  # (B, A, D, K)
    return flow.spatial(query, gathered).mean(1)


def _coat_convolve(module: ConvRelPosEnc, labels: Tensor) -> Tensor:
    """The mean over channels, of which some have larger kernels than others. The query that scales them is the token's
    own, a weight as in attention."""
    mixed = [len(conv.weight) * flow.convolve(conv.weight, labels) for conv in module.conv_list]
    return flow.normalise(sum(mixed[1:], mixed[0]))


@register(SerialBlock, taps=lambda block: {"qkv": Tap(block.factoratt_crpe.qkv)})
def coat_block(module: SerialBlock, observed: Observed, labels: Labels) -> Labels:
    labels = labels.with_map(observed.residual(labels.map, flow.convolve(module.cpe.proj.weight, labels.map)))
    attention = module.factoratt_crpe
    mixed = Labels(_coat_attend(attention.num_heads, observed["qkv"], labels.values), labels.grid)
    # Attention plus convolution, but for the class token, which has no place to convolve.
    mixed = mixed.with_map(flow.residual(mixed.map, _coat_convolve(attention.crpe, labels.map)))
    return Labels(observed.residual(labels.values, mixed.values), labels.grid)


def _coat_path(model: CoaT) -> list[nn.Module]:
    if model.parallel_blocks is not None:
        raise ValueError("labels can follow CoaT-Lite, but not CoaT, whose parallel blocks hold three grids at once")
    embeds = (model.patch_embed1, model.patch_embed2, model.patch_embed3, model.patch_embed4)
    blocks = (model.serial_blocks1, model.serial_blocks2, model.serial_blocks3, model.serial_blocks4)
    return [module for embed, stage in zip(embeds, blocks, strict=True) for module in (embed, *stage)]


register_model(CoaT, path=_coat_path, heads=heads, head_tokens=head_tokens)
