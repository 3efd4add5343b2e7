"""Operations of `flow` as Triton kernels, a single launch each, for GPUs. What they compute is said there.

Why attention has one of our own: fused kernels for bf16 round the weights to bf16 before they meet the values, so that
with few heads a share that goes through one may be wrong by 1e-3; and in float32 they would have to copy queries and
keys, and multiply them three times as slowly. Here queries and keys are read once, as the model has them; scores,
weights and sums are float32. Blocks are fixed: an autotuner would choose, and so round, differently from run to run.

Shapes: B batch, A heads, N queries, M keys, D head width, K sources, G groups of a bias, h×w a map, i×j its result.
"""

import math
import os
from shutil import which
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

LOG2_E = tl.constexpr(math.log2(math.e))
DEVICES = ("cuda",) if os.environ.get("CC") or which("gcc") or which("clang") else ()  # Triton's launchers are in C
INTERPRETED = triton.knobs.runtime.interpret
PRECISION = "ieee" if torch.version.hip else "tf32x3"  # of products of float32; those of bf16 and fp16 are exact


@triton.jit
def _attend(  # type: ignore[no-untyped-def]
    query, key, labels, bias, mixed,
    heads, queries, keys, groups, sources, scale,
    query_b, query_a, query_n, query_d,
    key_b, key_a, key_m, key_d,
    labels_b, labels_m, labels_k,
    bias_g, bias_a, bias_n, bias_m,
    WIDTH: tl.constexpr, PAIR: tl.constexpr, BIASED: tl.constexpr, WIDEN: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one sample: over its heads, over its keys in steps of COLUMNS, softmax as it goes (Milakov and
    Gimelshein, 2018). A pair's two columns are summed; more are a matrix product, SOURCES of them in each program."""
    sample = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    source = tl.program_id(2) * SOURCES + tl.arange(0, SOURCES)
    depth = tl.arange(0, DEPTH)
    inside = row < queries
    first = tl.zeros((ROWS,), tl.float32)
    second = tl.zeros((ROWS,), tl.float32)
    several = tl.zeros((ROWS, SOURCES), tl.float32)
    for head in range(heads):
        q = tl.load(
            query + sample * query_b + head * query_a + row[:, None] * query_n + depth[None, :] * query_d,
            mask=inside[:, None] & (depth[None, :] < WIDTH), other=0.0,
        )  # fmt: skip
        if WIDEN:  # Triton's interpreter multiplies bf16 wrongly; a GPU's products are exact in float32
            q = q.to(tl.float32)
        highest = tl.full((ROWS,), -1e30, tl.float32)  # not -inf, which a masked score may be
        mass = tl.zeros((ROWS,), tl.float32)
        first_mass = tl.zeros((ROWS,), tl.float32)
        second_mass = tl.zeros((ROWS,), tl.float32)
        several_mass = tl.zeros((ROWS, SOURCES), tl.float32)
        for start in range(0, keys, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            present = column < keys
            k = tl.load(
                key + sample * key_b + head * key_a + column[None, :] * key_m + depth[:, None] * key_d,
                mask=present[None, :] & (depth[:, None] < WIDTH), other=0.0,
            )  # fmt: skip
            if WIDEN:
                k = k.to(tl.float32)
            score = tl.dot(q, k, input_precision=PRECISION) * (scale * LOG2_E)
            if BIASED:
                here = bias + (sample % groups) * bias_g + head * bias_a
                added = tl.load(
                    here + row[:, None] * bias_n + column[None, :] * bias_m,
                    mask=inside[:, None] & present[None, :], other=0.0,
                )  # fmt: skip
                score += added.to(tl.float32) * LOG2_E
            score = tl.where(present[None, :], score, float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
            shrink = tl.exp2(highest - higher)
            highest = higher
            mass = mass * shrink + tl.sum(weight, 1)
            label = labels + sample * labels_b + column * labels_m
            if PAIR:
                own = tl.load(label, mask=present, other=0.0)
                partner = tl.load(label + labels_k, mask=present, other=0.0)
                first_mass = first_mass * shrink + tl.sum(weight * own[None, :], 1)
                second_mass = second_mass * shrink + tl.sum(weight * partner[None, :], 1)
            else:
                values = tl.load(
                    label[:, None] + source[None, :] * labels_k,
                    mask=present[:, None] & (source[None, :] < sources), other=0.0,
                )  # fmt: skip
                product = tl.dot(weight, values, input_precision=PRECISION)
                several_mass = several_mass * shrink[:, None] + product
        mass = tl.maximum(mass, 1e-30)
        if PAIR:
            first += first_mass / mass
            second += second_mass / mass
        else:
            several += several_mass / mass[:, None]
    to = mixed + (sample * queries + row) * sources
    if PAIR:  # Norm, which also takes out the number of heads
        total = tl.maximum(first + second, 1e-30)
        tl.store(to, first / total, mask=inside)
        tl.store(to + 1, second / total, mask=inside)
    else:
        tl.store(to[:, None] + source[None, :], several, mask=inside[:, None] & (source[None, :] < sources))


@triton.jit
def _attention(  # type: ignore[no-untyped-def]
    weights, labels, mixed,
    heads, queries, keys,
    weights_b, weights_a, weights_n, weights_m,
    labels_b, labels_m, labels_k,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """The same for a pair, from weights that are there."""
    sample = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    first = tl.zeros((ROWS,), tl.float32)
    second = tl.zeros((ROWS,), tl.float32)
    for start in range(0, keys, COLUMNS):
        column = start + tl.arange(0, COLUMNS)
        own = tl.load(labels + sample * labels_b + column * labels_m, mask=column < keys, other=0.0)
        partner = tl.load(labels + sample * labels_b + column * labels_m + labels_k, mask=column < keys, other=0.0)
        here = weights + sample * weights_b + row[:, None] * weights_n + column[None, :] * weights_m
        inside = (row[:, None] < queries) & (column[None, :] < keys)
        for head in range(heads):
            weight = tl.load(here + head * weights_a, mask=inside, other=0.0).to(tl.float32)
            first += tl.sum(weight * own[None, :], 1)
            second += tl.sum(weight * partner[None, :], 1)
    total = tl.maximum(first + second, 1e-30)
    to = mixed + (sample * queries + row) * 2
    tl.store(to, first / total, mask=row < queries)
    tl.store(to + 1, second / total, mask=row < queries)


@triton_op("labelflow::attention", mutates_args={})
def attention(weights: Tensor, labels: Tensor) -> Tensor:
    """weights (B, A, N, M), labels (B, M, 2) -> (B, N, 2)"""
    batch, heads, queries, keys = weights.shape
    mixed = labels.new_empty(batch, queries, 2)
    rows = min(32, triton.next_power_of_2(queries))
    wrap_triton(_attention)[(batch, triton.cdiv(queries, rows))](
        weights, labels, mixed, heads, queries, keys, *weights.stride(), *labels.stride(),
        ROWS=rows, COLUMNS=min(64, triton.next_power_of_2(keys)),
    )  # fmt: skip
    return mixed


class Blocks(NamedTuple):
    """What one program of `_attend` holds at once, so that no registers are spilled on any GPU since Ampere (see
    benchmarks/kernels.py)."""

    rows: int  # queries
    columns: int  # keys
    depth: int  # of the head width
    sources: int
    warps: int


def blocks(dtype: torch.dtype, width: int, sources: int) -> Blocks:
    depth, several = max(16, triton.next_power_of_2(width)), 16 if sources <= 16 else 32
    if dtype == torch.float32:  # multiplied as three products of TF32
        return Blocks(32, 16, depth, several, warps=8)
    return Blocks(64 if width <= 128 else 32, 32, depth, several, warps=4 if sources == 2 and width <= 64 else 8)


def can_attend(query: Tensor) -> bool:
    width = {torch.bfloat16: 256, torch.float16: 256, torch.float32: 128}.get(query.dtype, 0)
    return query.shape[3] <= width


@triton_op("labelflow::attend", mutates_args={})
def attend(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """query (B, A, N, D), key (B, A, M, D), labels (B, M, K), bias (G, A, N, M) -> (B, N, K), up to Norm if K > 2

    Sample b has the bias of group b modulo G.
    """
    batch, heads, queries, width = query.shape
    keys, sources = labels.shape[1:]
    mixed = labels.new_empty(batch, queries, sources)
    bias = None if bias is None else bias.expand(-1, heads, queries, keys)
    block = blocks(query.dtype, width, sources)
    rows = min(block.rows, max(16, triton.next_power_of_2(queries)))
    grid = (batch, triton.cdiv(queries, rows), 1 if sources == 2 else triton.cdiv(sources, block.sources))
    wrap_triton(_attend)[grid](
        query, key, labels, labels if bias is None else bias, mixed,
        heads, queries, keys, 1 if bias is None else len(bias), sources, scale,
        *query.stride(), *key.stride(), *labels.stride(), *((0, 0, 0, 0) if bias is None else bias.stride()),
        WIDTH=width, PAIR=sources == 2, BIASED=bias is not None, PRECISION=PRECISION,
        WIDEN=INTERPRETED and query.dtype == torch.bfloat16,
        ROWS=rows, COLUMNS=block.columns, DEPTH=block.depth, SOURCES=block.sources, num_warps=block.warps, num_stages=2,
    )  # fmt: skip
    return mixed


@triton.jit
def _window_weights(  # type: ignore[no-untyped-def]
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
def _average(  # type: ignore[no-untyped-def]
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
    weights = window_weights(kernel, present, small or labels.shape[1:3], small or grid, stride, padding, dilation)
    return average(labels, weights, grid, size, stride, padding, dilation)


def aggregate(
    labels: Tensor, size: tuple[int, int], stride: tuple[int, int], padding: tuple[int, int], ceil: bool
) -> Tensor:
    """`flow.aggregate`."""
    grid = [_windows(side, *how, ceil) for side, *how in zip(labels.shape[1:3], size, stride, padding, strict=True)]
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
    wrap_triton(_window_weights)[(grid[0] * grid[1],)](
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
    wrap_triton(_average)[(batch, triton.cdiv(places, block))](
        labels, labels if weights is None else weights, mixed,
        places, grid[1], *(grid if weights is None else weights.shape[1:]), *side, sources,
        *stride, *padding, *dilation, *labels.stride(),
        SIZE_C=size[1], TAPS=size[0] * size[1], WEIGHTED=weights is not None, PLACES=block, SOURCES=source,
    )  # fmt: skip
    return mixed
