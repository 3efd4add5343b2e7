"""Windows of a map, from which labels are averaged: convolutions and pools.

Shapes: B batch, C channels, K sources, h×w a map, r×s a window, i×j the result.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from labelflow.kernels.launch import on


@triton.jit
def _window_weights_kernel(  # type: ignore[no-untyped-def]
    kernel, present, weights,
    channels, patterns, columns, map_rows, map_columns,
    stride_r, stride_c, pad_r, pad_c, spread_r, spread_c, centre,
    SIZE_C: tl.constexpr, TAPS: tl.constexpr, PADDED: tl.constexpr, TAP: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """At one place of the result: a kernel's absolute weights, each channel's normalised over what lies in the map."""
    place = tl.program_id(0)
    tap = tl.arange(0, TAP)
    row = place // columns * stride_r - pad_r + tap // SIZE_C * spread_r
    column = place % columns * stride_c - pad_c + tap % SIZE_C * spread_c
    inside = (tap < TAPS) & (row >= 0) & (row < map_rows) & (column >= 0) & (column < map_columns)
    held = inside.to(tl.float32)
    if PADDED:
        held = tl.load(present + row * map_columns + column, mask=inside, other=0.0)
    total = tl.zeros((TAP,), tl.float32)
    for start in range(0, channels, CHANNELS):
        channel = start + tl.arange(0, CHANNELS)
        here = (channel[:, None] < channels) & (tap[None, :] < TAPS)
        size = tl.abs(tl.load(kernel + channel[:, None] * TAPS + tap[None, :], mask=here, other=0.0).to(tl.float32))
        held_size = tl.sum(size * held[None, :], 1)
        total += tl.sum(tl.where(held_size[:, None] > 0, size / tl.maximum(held_size, 1e-30)[:, None], 0.0), 0)
    total += tl.where((tap == centre) | (centre < 0), 1e-30, 0.0)  # where all are zero, labels stay as they are
    tl.store(weights + tap * patterns + place, total, mask=tap < TAPS)


@triton.jit
def _average_kernel(  # type: ignore[no-untyped-def]
    labels, weights, mixed,
    places, columns, pattern_rows, pattern_columns, map_rows, map_columns, sources,
    stride_r, stride_c, pad_r, pad_c, spread_r, spread_c,
    labels_b, labels_r, labels_c, labels_k,
    SIZE_C: tl.constexpr, TAPS: tl.constexpr, WEIGHTED: tl.constexpr, PLACES: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """PLACES places of the result, from one sample's map: Norm of the weighted sum over their windows."""
    sample = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * PLACES + tl.arange(0, PLACES)
    source = tl.arange(0, SOURCES)
    row, column = place // columns, place % columns
    rows = places // columns
    # Weights only differ near the border: a place's pattern is as far from the two ends of its line, or beyond reach.
    middle_r, middle_c = pattern_rows // 2, pattern_columns // 2
    end_r, end_c = pattern_rows - rows + row, pattern_columns - columns + column
    pattern_r = tl.where(row < middle_r, row, tl.maximum(end_r, middle_r))
    pattern_c = tl.where(column < middle_c, column, tl.maximum(end_c, middle_c))
    pattern = pattern_r * pattern_columns + pattern_c
    total = tl.zeros((PLACES, SOURCES), tl.float32)
    for tap in range(TAPS):
        from_row = row * stride_r - pad_r + tap // SIZE_C * spread_r
        from_column = column * stride_c - pad_c + tap % SIZE_C * spread_c
        inside = (place < places) & (from_row >= 0) & (from_row < map_rows)
        inside = inside & (from_column >= 0) & (from_column < map_columns)
        at = labels + sample * labels_b + from_row * labels_r + from_column * labels_c
        mask = inside[:, None] & (source[None, :] < sources)
        value = tl.load(at[:, None] + source[None, :] * labels_k, mask=mask, other=0.0)
        if WEIGHTED:
            weight = tl.load(weights + tap * pattern_rows * pattern_columns + pattern, mask=place < places, other=0.0)
            value = value * weight[:, None]
        total += value
    total = total / tl.maximum(tl.sum(total, 1), 1e-37)[:, None]
    to = mixed + (sample * places + place) * sources
    tl.store(to[:, None] + source[None, :], total, mask=(place < places)[:, None] & (source[None, :] < sources))


def convolve(
    kernel: Tensor,
    labels: Tensor,
    grid: tuple[int, ...],
    small: tuple[int, ...] | None,
    stride: tuple[int, int],
    padding: tuple[int, int],
    dilation: tuple[int, int],
) -> Tensor:
    """`flow.convolve`, for a result i×j = `grid`. small: a map so large shows all that weights can be, or None."""
    size = (kernel.shape[2], kernel.shape[3])
    kernel = kernel.detach()
    kernel = kernel.squeeze(1) if kernel.shape[1] == 1 else kernel.abs().sum(1, dtype=torch.float32)
    present = None if small else labels[0].sum(-1)  # (h, w): 1, or 0 where padding holds no label
    with on(labels.device):
        weights = window_weights(kernel, present, small or labels.shape[1:3], small or grid, stride, padding, dilation)
        return average(labels, weights, grid, size, stride, padding, dilation)


def aggregate(
    labels: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], ceil: bool
) -> Tensor:
    """`flow.aggregate`."""
    sides = zip(labels.shape[1:3], size, stride, padding, strict=True)
    grid = [_windows(side, reach, step, pad, ceil) for side, reach, step, pad in sides]
    with on(labels.device):
        return average(labels, None, grid, size, stride, padding, (1, 1))


def _windows(side: int, size: int, stride: int, padding: int, ceil: bool) -> int:
    """How many windows a pool takes along a side; with `ceil` the last may end beyond it, but begins inside."""
    count = (side + 2 * padding - size + (stride - 1 if ceil else 0)) // stride + 1
    return count - 1 if ceil and (count - 1) * stride >= side + padding else count


@triton_op("labelflow::window_weights", mutates_args={})
def window_weights(
    kernel: Tensor,
    present: Tensor | None,
    side: list[int],
    grid: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """kernel (C, r, s), present: which places of the map, h×w = `side`, hold a label -> (r·s, i, j) for a `grid` i×j"""
    channels, *size = kernel.shape
    taps = size[0] * size[1]
    weights = torch.empty(taps, *grid, device=kernel.device)
    tap = max(16, triton.next_power_of_2(taps))
    same = all(
        step == 1 and 2 * pad == spread * (reach - 1)
        for step, pad, spread, reach in zip(stride, padding, dilation, size, strict=True)
    )
    wrap_triton(_window_weights_kernel)[(grid[0] * grid[1],)](
        kernel.contiguous(), kernel if present is None else present, weights,
        channels, grid[0] * grid[1], grid[1], *side, *stride, *padding, *dilation, taps // 2 if same else -1,
        SIZE_C=size[1], TAPS=taps, PADDED=present is not None, TAP=tap, CHANNELS=max(1, 4096 // tap),
    )  # fmt: skip
    return weights


@triton_op("labelflow::average", mutates_args={})
def average(
    labels: Tensor,
    weights: Tensor | None,
    grid: list[int],
    size: list[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
) -> Tensor:
    """labels (B, h, w, K), weights (r·s, i', j') of windows r×s, or all alike -> (B, i, j, K) for a `grid` i×j"""
    batch, *side, sources = labels.shape
    places, source = grid[0] * grid[1], triton.next_power_of_2(sources)
    mixed = labels.new_empty(batch, *grid, sources)
    block = max(1, min(512 // source, triton.next_power_of_2(places)))
    wrap_triton(_average_kernel)[(batch, triton.cdiv(places, block))](
        labels, labels if weights is None else weights, mixed,
        places, grid[1], *(grid if weights is None else weights.shape[1:]), *side, sources,
        *stride, *padding, *dilation, *labels.stride(),
        SIZE_C=size[1], TAPS=size[0] * size[1], WEIGHTED=weights is not None, PLACES=block, SOURCES=source,
    )  # fmt: skip
    return mixed
