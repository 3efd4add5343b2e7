"""CoaT-Lite: factorised attention, and depth-wise convolutions for positions."""

from timm.models.coat import CoaT, ConvRelPosEnc, SerialBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import cait
from labelflow.adapters.registry import Observed, Tap, register, register_model
from labelflow.flow import Labels


def _attend(heads: int, qkv: Tensor, labels: Tensor) -> Tensor:
    """Two mixings in a row: each channel of a head's keys gathers from all tokens, with a softmax over them; each token
    then takes from these channels as its query says, which is signed. labels (B, N, K) -> (B, N, K)"""
    query, key, _ = qkv.float().unflatten(-1, (3, heads, -1)).permute(2, 0, 3, 1, 4)  # (B, A, N, D)
    gathered = key.softmax(2).mT @ labels.unsqueeze(1)  # (B, A, D, K)
    return flow.spatial(query, gathered).mean(1)


def _convolve(module: ConvRelPosEnc, labels: Tensor) -> Tensor:
    """The mean over channels, of which some have larger kernels than others. The query that scales them is the token's
    own, a weight as in attention."""
    mixed = [len(conv.weight) * flow.convolve(conv.weight, labels) for conv in module.conv_list]
    return flow.normalise(sum(mixed[1:], mixed[0]))


@register(SerialBlock, taps=lambda block: {"qkv": Tap(block.factoratt_crpe.qkv)})
def block(module: SerialBlock, observed: Observed, labels: Labels) -> Labels:
    labels = labels.with_map(observed.residual(labels.map, flow.convolve(module.cpe.proj.weight, labels.map)))
    attention = module.factoratt_crpe
    mixed = Labels(_attend(attention.num_heads, observed["qkv"], labels.values), labels.grid)
    # Attention plus convolution, but for the class token, which has no place to convolve.
    mixed = mixed.with_map(flow.residual(mixed.map, _convolve(attention.crpe, labels.map)))
    return Labels(observed.residual(labels.values, mixed.values), labels.grid)


def _path(model: CoaT) -> list[nn.Module]:
    if model.parallel_blocks is not None:
        raise ValueError("labels cannot follow CoaT, but CoaT-Lite: its parallel blocks hold three grids at once")
    embeds = (model.patch_embed1, model.patch_embed2, model.patch_embed3, model.patch_embed4)
    blocks = (model.serial_blocks1, model.serial_blocks2, model.serial_blocks3, model.serial_blocks4)
    return [module for embed, stage in zip(embeds, blocks, strict=True) for module in (embed, *stage)]


register_model(CoaT, path=_path, heads=cait.heads, head_tokens=cait.head_tokens)
