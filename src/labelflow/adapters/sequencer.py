"""Sequencer: LSTMs along columns and rows.

An LSTM's cell is a weighted sum of candidates, one for each token so far, c_t = f_t·c_{t-1} + i_t·g_t: the gates are
the weights, made of the tokens as those of attention are, and each candidate stands for its own token. With W_ts =
i_s·f_{s+1}⋯f_t for each channel, that is spatial mixing; the matrix is never made.

Shapes: S sequences, T tokens in each, D channels, K sources.
"""

import torch
import torch.nn.functional as F
from timm.models.sequencer import Downsample2d, LSTM2d, Sequencer2d, Sequencer2dBlock
from torch import Tensor, nn

from labelflow import flow
from labelflow.adapters import patches
from labelflow.adapters.averages import present, register_average
from labelflow.adapters.registry import Observed, Tap, register
from labelflow.flow import Labels


def _taps(block: Sequencer2dBlock) -> dict[str, Tap]:
    rnn = block.rnn_tokens
    if type(rnn) is not LSTM2d or rnn.union != "cat" or rnn.fc is None or rnn.rnn_v.num_layers != 1:
        raise ValueError("labelflow follows labels through Sequencer's LSTM2d(num_layers=1, union='cat', with_fc=True)")
    return {"tokens": Tap(rnn, "input"), "hidden": Tap(rnn.fc, "input")}


def _remember(rnn: nn.LSTM, suffix: str, tokens: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
    """One direction: tokens (S, T, C), what the LSTM made of them (S, T, D), labels (S, T, K) -> (S, T, K)"""
    weight, recurrent = getattr(rnn, f"weight_ih_l0{suffix}"), getattr(rnn, f"weight_hh_l0{suffix}")
    gates = F.linear(tokens, weight.float()) + F.linear(F.pad(hidden, (0, 0, 1, -1)), recurrent.float())
    if rnn.bias:
        gates = gates + getattr(rnn, f"bias_ih_l0{suffix}") + getattr(rnn, f"bias_hh_l0{suffix}")
    write, keep, _, _ = gates.sigmoid().clamp_min(1e-30).unsqueeze(-1).chunk(4, 2)  # (S, T, D, 1)
    cell, moved = torch.zeros_like(write[:, 0]), []
    for t in range(labels.shape[1]):
        cell = keep[:, t] * cell + write[:, t] * labels[:, t].unsqueeze(1)  # (S, D, K)
        moved.append(flow.normalise(cell).mean(1))
    return torch.stack(moved, 1)


def _along_rows(rnn: nn.LSTM, tokens: Tensor, hidden: Tensor, labels: Tensor) -> Tensor:
    """All directions of one LSTM, over the rows of a map: (B, h, w, …) -> (B, h, w, K)"""
    sequences = [part.float().flatten(0, 1) for part in (tokens, hidden, labels)]  # (B·h, w, …)
    tokens, hidden, labels = sequences
    forward, *backward = hidden.split(rnn.hidden_size, -1)
    mixed = _remember(rnn, "", tokens, forward, labels)
    if backward:
        turned = (part.flip(1) for part in (tokens, backward[0], labels))
        mixed = (mixed + _remember(rnn, "_reverse", *turned).flip(1)) / 2
    return mixed


@register(Sequencer2dBlock, taps=_taps)
def block(module: Sequencer2dBlock, observed: Observed, labels: Labels) -> Labels:
    rnn, tokens = module.rnn_tokens, observed["tokens"]
    down, across = observed["hidden"].chunk(2, -1)
    columns = _along_rows(rnn.rnn_v, *(part.transpose(1, 2) for part in (tokens, down, labels.map)))
    rows = _along_rows(rnn.rnn_h, tokens, across, labels.map)
    height, width = labels.grid
    mixed = (columns.unflatten(0, (-1, width)).transpose(1, 2) + rows.unflatten(0, (-1, height))) / 2
    return labels.with_map(observed.residual(labels.map, mixed))


@register(Downsample2d, layer=False)
def merge(module: Downsample2d, observed: Observed, labels: Labels) -> Labels:
    return patches.merge(module.down, labels)


def _path(model: Sequencer2d) -> list[nn.Module]:
    return present(model.stem, *(module for stage in model.stages for module in (stage.downsample, *stage.blocks)))


register_average(Sequencer2d, path=_path)
