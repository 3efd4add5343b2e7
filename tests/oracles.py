"""What the naive versions of TL-Align in `families/` share: labels of C classes, full N×N matrices, loops.

Nothing here uses labelflow, but for `Mix` as a record of who was mixed with whom.
"""

import torch
from torch import Tensor

from labelflow import Mix


def patch_labels(mix: Mix, onehot: Tensor, size: int, stride: int, padding: int = 0) -> Tensor:
    """Each token's label is the mean of its pixels' (Eq. 5, and the rule for patches that hold both): (B, h, w, C)"""
    batch, _, height, width = mix.share.shape
    h, w = (-(-(side + 2 * padding - size) // stride) + 1 for side in (height, width))
    if padding:  # a convolution leaves out what it cannot cover
        h, w = ((side + 2 * padding - size) // stride + 1 for side in (height, width))
    labels = torch.zeros(batch, h, w, onehot.shape[1])
    for b in range(batch):
        own, other = onehot[b], onehot[mix.partner[b]]
        for i in range(h):
            for j in range(w):
                top, left = i * stride - padding, j * stride - padding
                pixels = mix.share[b, 0, max(top, 0) : top + size, max(left, 0) : left + size]
                labels[b, i, j] = pixels.mean() * own + (1 - pixels.mean()) * other
    return labels


def image_label(mix: Mix, onehot: Tensor) -> Tensor:
    lam = mix.share.mean((1, 2, 3)).unsqueeze(1)
    return (lam * onehot + (1 - lam) * onehot[mix.partner]).unsqueeze(1)  # (B, 1, C)


def softmax_attention(query: Tensor, key: Tensor, bias: Tensor | float = 0.0) -> Tensor:
    """Eq. 6 and the mean over heads of Eq. 9: (B, A, N, D), (B, A, M, D) -> (B, N, M)"""
    scores = torch.einsum("band,bamd->banm", query, key) / query.shape[-1] ** 0.5 + bias
    return (scores.exp() / scores.exp().sum(-1, keepdim=True)).mean(1)


def convolution_matrix(kernel: Tensor, grid: tuple[int, int]) -> Tensor:
    """T(K) of one channel as a matrix, absolute and normalised per row: (r, r) -> (h·w, h·w)"""
    h, w = grid
    reach = kernel.shape[0] // 2
    matrix = torch.zeros(h * w, h * w)
    for i in range(h):
        for j in range(w):
            for a in range(-reach, reach + 1):
                for b in range(-reach, reach + 1):
                    if 0 <= i + a < h and 0 <= j + b < w:
                        matrix[i * w + j, (i + a) * w + j + b] = kernel[a + reach, b + reach].abs()
    return matrix / matrix.sum(1, keepdim=True)


def window_labels(labels: Tensor, size: int, stride: int, padding: int) -> Tensor:
    """The mean label of each window of a map (B, h, w, C); what lies outside the map does not count."""
    rows, columns = ((side + 2 * padding - size) // stride + 1 for side in labels.shape[1:3])
    pooled = torch.zeros(len(labels), rows, columns, labels.shape[-1])
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride - padding, j * stride - padding
            window = labels[:, max(top, 0) : top + size, max(left, 0) : left + size]
            pooled[:, i, j] = window.mean((1, 2))
    return pooled
