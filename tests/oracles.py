"""What the naive versions of TL-Align in `families/` share: labels of C classes, full N×N matrices, loops.

Nothing here uses labelflow, but for `Mix` as a record of who was mixed with whom.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

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


def window_matrix(
    x: Tensor,
    window: tuple[int, int],
    shift: tuple[int, int],
    attend: Callable[[Tensor, Tensor], Tensor],
    pad_first: bool = False,
) -> Tensor:
    """What each token's label is made of in shifted windows: x (B, h, w, D) -> (B, h·w, h·w).

    `attend` takes a window's tokens (B, r·s, D) and the mask (r·s, r·s) that is added to its scores, and returns the
    mean of its weights over heads (B, r·s, r·s).
    """
    batch, height, width, dim = x.shape
    full = [-(-side // reach) * reach for side, reach in zip((height, width), window, strict=True)]
    cycle = full if pad_first else (height, width)
    tokens = torch.zeros(batch, *full, dim)  # rolled, with zeros for padding
    source = torch.full(full, -1)
    for i in range(height):
        for j in range(width):
            a, b = (i - shift[0]) % cycle[0], (j - shift[1]) % cycle[1]
            tokens[:, a, b] = x[:, i, j]
            source[a, b] = i * width + j

    def part(a: int, side: int, reach: int, step: int) -> int:
        return 0 if not step or a < side - reach else 1 if a < side - step else 2

    matrix = torch.zeros(batch, height * width, height * width)
    for top in range(0, full[0], window[0]):
        for left in range(0, full[1], window[1]):
            places = [(top + i, left + j) for i in range(window[0]) for j in range(window[1])]
            parts = [(part(a, full[0], window[0], shift[0]), part(b, full[1], window[1], shift[1])) for a, b in places]
            mask = torch.tensor([[0.0 if p == q else -100.0 for q in parts] for p in parts])
            weights = attend(torch.stack([tokens[:, a, b] for a, b in places], 1), mask)
            for m, a in enumerate(places):
                for n, b in enumerate(places):
                    if source[a] >= 0 and source[b] >= 0:  # padding holds no label
                        matrix[:, source[a], source[b]] = weights[:, m, n]
    return matrix / matrix.sum(-1, keepdim=True)


def merge_labels(labels: Tensor) -> Tensor:
    """2×2 windows, of which the last ones may be cut off by the edge."""
    rows, columns = ((side + 1) // 2 for side in labels.shape[1:3])
    merged = torch.zeros(len(labels), rows, columns, labels.shape[3])
    for i in range(rows):
        for j in range(columns):
            merged[:, i, j] = labels[:, 2 * i : 2 * i + 2, 2 * j : 2 * j + 2].mean((1, 2))
    return merged


def kernel_matrix(convolution: torch.nn.Conv2d, grid: tuple[int, int]) -> Tensor:
    """The mean over output channels of Norm(|T(K)|), for any stride, dilation and groups: (h·w, h·w) or (i·j, h·w).

    Column n of T(K) is what the convolution makes of a map that is 1 at place n, and 0 elsewhere."""
    kernel = convolution.weight.abs().sum(1, keepdim=True)  # (C, 1, r, s)
    places = torch.eye(grid[0] * grid[1]).view(-1, 1, *grid)
    columns = torch.nn.functional.conv2d(
        places, kernel, None, convolution.stride, convolution.padding, convolution.dilation
    )  # (h·w, C, i, j)
    matrices = columns.flatten(2).permute(1, 2, 0)  # (C, i·j, h·w)
    return (matrices / matrices.sum(-1, keepdim=True)).mean(0)


def convolved(labels: Tensor, convolution: torch.nn.Conv2d) -> Tensor:
    """A map of labels (B, h, w, C) moved by a convolution: (B, i, j, C)"""
    grid = tuple(labels.shape[1:3])
    size, stride, padding, dilation = (
        getattr(convolution, name) for name in ("kernel_size", "stride", "padding", "dilation")
    )
    if padding == "same":
        padding = tuple(d * (s - 1) // 2 for d, s in zip(dilation, size, strict=True))
    i, j = (
        (side + 2 * p - d * (s - 1) - 1) // step + 1
        for side, s, step, p, d in zip(grid, size, stride, padding, dilation, strict=True)
    )
    return (kernel_matrix(convolution, grid) @ labels.flatten(1, 2)).unflatten(1, (i, j))


def rotated(tokens: Tensor, rope: Tensor, half: bool, prefix: int) -> Tensor:
    """Pairs of channels turned by an angle for each place, as complex numbers: (B, A, N, D), rope (…, n, 2·D)."""
    sine, cosine = rope.chunk(2, -1)
    width = tokens.shape[-1] // 2
    first = list(range(width)) if half else list(range(0, 2 * width, 2))
    second = [i + (width if half else 1) for i in first]
    pairs = torch.complex(tokens[..., first], tokens[..., second])
    angle = torch.complex(cosine[..., first], sine[..., first])
    turned = torch.cat([pairs[:, :, :prefix], pairs[:, :, prefix:] * angle], 2)
    result = torch.zeros_like(tokens)
    result[..., first], result[..., second] = turned.real, turned.imag
    return result


def convolve_labels(module: nn.Conv2d, labels: Tensor) -> Tensor:
    """The mean over output channels of Norm(|T(K)|)·Y, for any stride, also with TensorFlow's "same" padding."""
    height, width = labels.shape[1:3]
    kernel = module.weight.abs().sum(1)  # (out, r, s)
    (r, s), stride, padding = kernel.shape[1:], module.stride, module.padding
    rows, columns = (-(-side // step) for side, step in zip((height, width), stride, strict=True))
    if type(module).__name__ == "Conv2dSame":
        padding = [
            max((count - 1) * step + reach - side, 0) // 2
            for count, step, reach, side in zip((rows, columns), stride, (r, s), (height, width), strict=True)
        ]
    else:
        rows, columns = (
            (side + 2 * pad - reach) // step + 1
            for side, pad, reach, step in zip((height, width), padding, (r, s), stride, strict=True)
        )
    mixed = torch.zeros(len(labels), rows, columns, labels.shape[3])
    for i in range(rows):
        for j in range(columns):
            top, left = i * stride[0] - padding[0], j * stride[1] - padding[1]
            inside = [(a, b) for a in range(r) for b in range(s) if 0 <= top + a < height and 0 <= left + b < width]
            weights = torch.stack([kernel[:, a, b] for a, b in inside], 1)  # (out, places)
            weights = (weights / weights.sum(1, keepdim=True)).mean(0)
            for (a, b), weight in zip(inside, weights, strict=True):
                mixed[:, i, j] += weight * labels[:, top + a, left + b]
    return mixed
