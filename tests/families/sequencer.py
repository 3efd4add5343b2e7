"""Sequencer."""

import torch
from torch import Tensor, nn

from labelflow import Mix
from oracles import patch_labels, window_labels

SEQUENCER = {
    "layers": (2, 1),
    "patch_sizes": (8, 2),
    "embed_dims": (8, 16),
    "hidden_sizes": (4, 6),
    "mlp_ratios": (2.0, 2.0),
    "num_classes": 5,
}

# name: (timm model, its arguments, an image size it takes)
FAMILIES = {
    "sequencer": ("sequencer2d_s", SEQUENCER, (48, 48)),
    "sequencer, one direction": ("sequencer2d_s", {**SEQUENCER, "bidirectional": False}, (32, 48)),
}
SOME: list[str] = []  # torch.compile breaks the graph at each LSTM


def lstm_matrix(rnn: nn.LSTM, x: Tensor, suffix: str) -> Tensor:
    """The mean over channels of Norm(W), where W_ts is what is left at t of what was written at s: (T, C) -> (T, T)"""
    weights = [getattr(rnn, f"{kind}_l0{suffix}") for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    hidden, cell, left = torch.zeros(rnn.hidden_size), torch.zeros(rnn.hidden_size), torch.zeros(0, rnn.hidden_size)
    rows = torch.zeros(rnn.hidden_size, len(x), len(x))
    for t, token in enumerate(x):
        gates = weights[0] @ token + weights[1] @ hidden + weights[2] + weights[3]
        write, keep, candidate, show = gates.chunk(4)
        cell = keep.sigmoid() * cell + write.sigmoid() * candidate.tanh()
        hidden = show.sigmoid() * cell.tanh()
        left = torch.cat([left * keep.sigmoid(), write.sigmoid().unsqueeze(0)])  # (t + 1, D)
        rows[:, t, : t + 1] = (left / left.sum(0)).T
    return rows.mean(0)


def line(rnn: nn.LSTM, x: Tensor, labels: Tensor) -> Tensor:
    """One row or column: x (T, C), labels (T, C)"""
    forward = lstm_matrix(rnn, x, "") @ labels
    if not rnn.bidirectional:
        return forward
    return (forward + (lstm_matrix(rnn, x.flip(0), "_reverse") @ labels.flip(0)).flip(0)) / 2


def sequencer(model: nn.Module, images: Tensor, mix: Mix, onehot: Tensor) -> Tensor:
    labels, x = patch_labels(mix, onehot, 8, 8), model.stem(images)
    for stage in model.stages:
        if not isinstance(stage.downsample, nn.Identity):
            labels, x = window_labels(labels, 2, 2, 0), stage.downsample(x)
        for block in stage.blocks:
            normed, rnn = block.norm1(x), block.rnn_tokens
            mixed = torch.zeros_like(labels)
            for b in range(len(x)):
                for i in range(x.shape[1]):
                    mixed[b, i] += line(rnn.rnn_h, normed[b, i], labels[b, i]) / 2
                for j in range(x.shape[2]):
                    mixed[b, :, j] += line(rnn.rnn_v, normed[b, :, j], labels[b, :, j]) / 2
            labels = (labels + mixed) / 2
            x = block(x)
    return labels.mean((1, 2)).unsqueeze(1)


ORACLES = {"Sequencer2d": sequencer}
