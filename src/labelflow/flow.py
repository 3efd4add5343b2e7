"""How labels move when tokens move: the five operations of TL-Align's Table 10, for K sources, in float32.

    spatial mixing   Z ← W·Z         Y ← Norm(|W|)·Y     `spatial`, `attention`, `attend`, `convolve`
    channel mixing   Z ← Z·W         Y ← Y
    point-wise       Z ← f(Z)        Y ← Y
    residual         Z ← Z + g(Z)    Y ← Norm(Y + g(Y))  `residual`
    aggregation      Z ← Aggre(Zᵢ)   Y ← Norm(ΣYᵢ)       `aggregate`

A label tells how much of a token comes from each of its K sources; for a mixed pair K = 2, own and partner. Labels
are linear in their sources, so this is the paper's flow of C class scores at K/C of its cost. Since the K weights of
a label sum to 1, Norm(|W|)·Y = Norm(|W|·Y); written the second way, padding needs no special case: it carries no
label, all zeros, and Norm leaves it out.

On GPUs, attention and windows are single kernels of our own (`kernels`); what is written here is what they compute, and
what runs elsewhere.

Shapes: B batch, A attention heads, N tokens, M keys, D head width, K sources, h×w grid, P tokens without a place in it.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.precision import product

try:
    from labelflow import kernels
except ImportError:  # Triton is not available for this platform
    KERNEL_DEVICES: tuple[str, ...] = ()
else:
    KERNEL_DEVICES = kernels.DEVICES

LOG2_E = math.log2(math.e)
CHUNK_SCORES = 2**18  # attention scores held at once on a CPU: 1 MB


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all tokens: P tokens without a place (class token, registers), then the h×w grid, row by row."""

    values: Tensor  # (B, P + h·w, K), non-negative, summing to 1 over K
    grid: tuple[int, int]  # (h, w)

    @classmethod
    def of_pixels(cls, share: Tensor) -> "Labels":
        """Two sources, own and partner, for every pixel of a mixed image: share (B, 1, H, W)."""
        own = share.float().flatten(1)  # (B, H·W)
        return cls(torch.stack([own, 1 - own], -1), (share.shape[2], share.shape[3]))

    @property
    def places(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def prefix(self) -> Tensor:
        """(B, P, K)"""
        return self.values[:, : self.values.shape[1] - self.places]

    @property
    def map(self) -> Tensor:
        """(B, h, w, K)"""
        return self.values[:, self.values.shape[1] - self.places :].unflatten(1, self.grid)

    def with_map(self, labels: Tensor) -> "Labels":
        """The same tokens without a place, and another grid of labels: (B, h, w, K)."""
        values = labels.flatten(1, 2)
        if self.values.shape[1] > self.places:
            values = torch.cat([self.prefix, values], 1)
        return Labels(values, (labels.shape[1], labels.shape[2]))


def normalise(labels: Tensor) -> Tensor:
    """Norm: labels (..., K) that sum to 1; what has no label, padding, has none afterwards."""
    return labels / labels.sum(-1, keepdim=True).clamp_min(torch.finfo(labels.dtype).tiny)


def spatial(weights: Tensor, labels: Tensor) -> Tensor:
    """Y ← Norm(|W|)·Y for any weights (..., N, M), signed ones too: labels (..., M, K) -> (..., N, K)."""
    return normalise(product(weights.float().abs(), labels))


def attention(weights: Tensor, labels: Tensor) -> Tensor:
    """Eq. 9, with attention weights that the model has computed: (B, A, N, M), labels (B, M, K) -> (B, N, K)."""
    if labels.device.type in KERNEL_DEVICES and labels.shape[2] == 2:
        return kernels.attention(weights, labels)
    weights = weights.sum(1, dtype=torch.float32)  # the mean over heads, up to what Norm takes out
    return normalise(product(labels.mT.contiguous(), weights.mT).mT)  # (K, M)·(M, N): few rows are faster than columns


@torch.no_grad()
def attend(
    query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Eqs. 6, 7 and 9, from queries and keys, where the model runs a fused kernel and shows no weights.

    query (B, A, N, D), key (B, A, M, D), labels (B, M, K), bias (G, A, N, M) -> (B, N, K)

    A bias is added to the scores; sample b has that of group b modulo G: windows of an image may differ in it.
    """
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    if labels.device.type in KERNEL_DEVICES and kernels.can_attend(query, key, scale):
        return kernels.attend(query, key, labels, bias, scale)
    nowhere = 1 - labels.sum(-1, keepdim=True)  # padding, which has no label, takes its part of the attention too
    sources = torch.cat([labels, nowhere], -1)  # (B, M, K + 1), summing to 1
    mixed = None
    if query.device.type == "cpu" and not torch.compiler.is_compiling():
        mixed = _attend_in_chunks(query, key, sources, bias, scale)
    if mixed is None:
        mixed = _attend_fused(query, key, sources, bias, scale)
    return normalise(mixed[..., :-1])


def _attend_fused(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """One more call of the fused kernel, with labels as values."""
    # Kernels want values as wide as the keys (CPU), or at least aligned (CUDA, in float32).
    width = max(query.shape[-1], labels.shape[-1]) if query.device.type == "cpu" else 8 * -(-labels.shape[-1] // 8)
    values = F.pad(labels, (0, width - labels.shape[-1])).unsqueeze(1).expand(-1, query.shape[1], -1, -1)
    if bias is not None and 1 < len(bias) < len(query):
        bias = bias.repeat(len(query) // len(bias), 1, 1, 1)
    mixed = F.scaled_dot_product_attention(
        query.float(), key.float(), values, attn_mask=None if bias is None else bias.float(), scale=scale
    )
    return mixed.mean(1)[..., : labels.shape[-1]]  # (B, A, N, width) -> (B, N, K)


def _attend_in_chunks(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None, scale: float) -> Tensor | None:
    """A few samples, or a part of the queries of one, at a time, so that their scores stay in the cache. On a CPU that
    is faster than the fused kernel, which multiplies with D columns of values where labels have K, and takes each row's
    maximum out of its scores. Here 2^score is taken as it is. None if powers overflowed or vanished, as scores beyond
    about ±69 can make them; the fused kernel then takes over."""
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    groups = 1 if bias is None else len(bias)
    samples = _whole_groups(max(1, min(batch, CHUNK_SCORES // (heads * queries * keys))), groups)
    rows = max(1, min(queries, CHUNK_SCORES // (heads * keys)))
    buffer = labels.new_empty(samples * heads * rows * keys)
    sums = labels.new_empty(batch, labels.shape[2], heads, queries)
    columns = labels.mT.contiguous()  # (B, K, M): products with few rows are faster than with few columns
    for i in range(0, batch, samples):
        k = key[i : i + samples].flatten(0, 1).float()
        for j in range(0, queries, rows):
            q = query[i : i + samples, :, j : j + rows].flatten(0, 1).float()
            scores = buffer[: len(q) * q.shape[1] * keys].view(len(q), q.shape[1], keys)
            torch.baddbmm(scores, q, k.mT, beta=0, alpha=scale * LOG2_E, out=scores)
            if bias is not None:
                part = bias[i % groups : i % groups + samples, :, j : j + rows]  # (g, A, rows, M)
                scores.unflatten(0, (-1, len(part), heads)).add_(part, alpha=LOG2_E)
            powers = torch.exp2(scores, out=scores).unflatten(0, (-1, heads)).flatten(1, 2)  # (b, A·rows, M)
            found = columns[i : i + samples] @ powers.mT  # (b, K, A·rows)
            sums[i : i + samples, :, :, j : j + rows] = found.unflatten(2, (heads, -1))
    totals = sums.sum(1, keepdim=True)  # what softmax divides by, since labels sum to 1
    low, high = totals.aminmax()
    if not (low > 2.0**-100 and high < 2.0**100):
        return None
    return (sums / totals).mean(2).mT  # (B, K, A, N) -> (B, N, K)


def _whole_groups(samples: int, groups: int) -> int:
    """The most samples, up to so many, that are whole groups, or that a whole number of times make a group."""
    if samples >= groups:
        return samples - samples % groups
    return next(count for count in range(samples, 0, -1) if groups % count == 0)


def convolve(
    kernel: Tensor,
    labels: Tensor,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] | None = None,
    dilation: tuple[int, int] = (1, 1),
) -> Tensor:
    """Spatial mixing by a convolution: the mean over output channels of Norm(|T(K_c)|)·Y, each row normalised over the
    places inside the map. kernel (C, D, r, s), where D = 1 if it is depth-wise: all that an output channel takes from a
    place counts, whatever the input channel. labels (B, h, w, K) -> (B, i, j, K). padding None: "same". A map that has
    been padded beforehand, with places that hold no label, is to be convolved without padding."""
    sources = labels.shape[3]
    size = (kernel.shape[2], kernel.shape[3])
    padding = (dilation[0] * (size[0] // 2), dilation[1] * (size[1] // 2)) if padding is None else padding
    grid = tuple(
        (side + 2 * pad - spread * (reach - 1) - 1) // step + 1
        for side, reach, step, pad, spread in zip(labels.shape[1:3], size, stride, padding, dilation, strict=True)
    )
    # How far a kernel reaches beyond the map only differs near its border: a map as small as the kernel shows all.
    same = stride == dilation == (1, 1) and size == (2 * padding[0] + 1, 2 * padding[1] + 1)
    small = tuple(min(sides) for sides in zip(labels.shape[1:3], size, strict=True)) if same else None
    if labels.device.type in KERNEL_DEVICES:
        return kernels.convolve(kernel, labels, grid, small, stride, padding, dilation)
    kernel = kernel.float().abs().sum(1, keepdim=True)
    weights = _places_inside(kernel, labels, small, stride, padding, dilation)  # (r·s, i·j)
    patches = F.unfold(labels.permute(0, 3, 1, 2), size, dilation, padding, stride)  # (B, K·r·s, i·j)
    patches = patches.unflatten(1, (sources, -1))
    mixed = (patches * weights).sum(2)  # (B, K, i·j)
    still = labels.flatten(1, 2).mT if grid == labels.shape[1:3] else patches.sum(2)  # where all weights are zero
    mixed = torch.where(mixed.sum(1, keepdim=True) > 0, mixed, still)
    return normalise(mixed.mT.unflatten(1, grid))


def _places_inside(
    kernel: Tensor,
    labels: Tensor,
    small: tuple[int, ...] | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """The mean over channels of a kernel's weights (C, 1, r, s), normalised over the places inside: (r·s, i·j)"""
    present = labels[:1].sum(-1).unsqueeze(1)  # (1, 1, h, w): 1, or 0 where padding holds no label
    if small:
        present = kernel.new_ones(1, 1, *small)
    inside = F.conv2d(present, kernel, None, stride, padding, dilation)  # (1, C, i, j)
    scale = torch.where(inside > 0, 1 / inside, 0)  # a channel of zeros moves nothing
    weights = torch.einsum("ct,cp->tp", kernel.flatten(1), scale[0].flatten(1)) / len(kernel)
    if small and small != labels.shape[1:3]:
        rows, columns = (_border(*sides, kernel.device) for sides in zip(labels.shape[1:3], small, strict=True))
        weights = weights.unflatten(1, small)[:, rows][:, :, columns].flatten(1)
    return weights


def _border(length: int, small: int, device: torch.device) -> Tensor:
    """For each of `length` places, the place in a line of `small` that is as far from its two ends, or beyond reach."""
    place = torch.arange(length, device=device)
    middle = small // 2
    from_end = small - length + place
    return torch.where(place < middle, place, torch.where(from_end > middle, from_end, middle))


def residual(labels: Tensor, mixed: Tensor) -> Tensor:
    """Y ← Norm(Y + g(Y)), a plain average for labels that sum to 1 (Eq. 11)."""
    return torch.lerp(labels, mixed, 0.5)


def aggregate(
    labels: Tensor,
    kernel: tuple[int, int],
    stride: tuple[int, int] | None = None,
    padding: tuple[int, int] = (0, 0),
    ceil: bool = False,
) -> Tensor:
    """Y ← Norm(ΣYᵢ) over windows of the map, as patch embedding and merging take them: (B, h, w, K) -> (B, i, j, K)."""
    stride = stride or kernel
    if labels.device.type in KERNEL_DEVICES:
        return kernels.aggregate(labels, kernel, stride, padding, ceil)
    pooled = labels.permute(0, 3, 1, 2)  # columns, then rows: sums stay short, and exact to the last digits
    pooled = F.avg_pool2d(pooled, (1, kernel[1]), (1, stride[1]), (0, padding[1]), ceil)
    pooled = F.avg_pool2d(pooled, (kernel[0], 1), (stride[0], 1), (padding[0], 0), ceil)
    return normalise(pooled.permute(0, 2, 3, 1))


def pad(labels: Tensor, multiple: tuple[int, int]) -> Tensor:
    """A map (B, h, w, K) made larger at its lower and right edge, without label, to whole windows of that size."""
    below, right = -labels.shape[1] % multiple[0], -labels.shape[2] % multiple[1]
    return F.pad(labels, (0, 0, 0, right, 0, below)) if below or right else labels
