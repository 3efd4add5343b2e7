"""Attention that moves labels: from queries and keys, or from weights that the model shows.

Why it has a kernel of our own: fused kernels for bf16 round weights and values to bf16, so that with few heads a share
that goes through one may be wrong by 1e-3; and in float32 they would have to copy queries and keys, and multiply them
three times as slowly. Here queries and keys are read once, as the model has them. Weights are rounded to fp16, which
has three more bits, and a label is the sum of two such numbers: shares are right to 1e-4 after all layers.

Shapes: B batch, A heads, N queries, M keys, D head width, K sources, G groups of a bias.
"""

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.library import triton_op, wrap_triton

from labelflow.kernels.launch import INTERPRETED, on

LOG2_E = tl.constexpr(math.log2(math.e))
SHIFT = tl.constexpr(14.0)  # weights of up to 2^14, which fp16 still holds, so that small ones keep their digits
PRECISION = "ieee" if torch.version.hip else "tf32x3"  # of products of float32; those of bf16 and fp16 are exact


@triton.jit
def _attend_kernel(  # type: ignore[no-untyped-def]
    query, key, labels, bias, mixed,
    heads, queries, keys, groups, sources, scale,
    query_b, query_a, query_n, query_d,
    key_b, key_a, key_m, key_d,
    labels_b, labels_m, labels_k,
    bias_g, bias_a, bias_n, bias_m,
    WIDTH: tl.constexpr, BIASED: tl.constexpr, FULL: tl.constexpr, NORM: tl.constexpr, WIDEN: tl.constexpr,
    PRECISION: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """ROWS queries of one sample: over its heads, over its keys in steps of COLUMNS, softmax as it goes (Milakov and
    Gimelshein, 2018). The last of SOURCES columns of labels is 1, so that it sums up what softmax divides by.

    Beyond the last query or key, the last one is taken again; its labels, and that 1, are zero there."""
    sample = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    at = tl.minimum(row, queries - 1)
    slot = tl.arange(0, SOURCES)
    source = tl.program_id(2) * (SOURCES - 1) + slot
    is_label = (slot < SOURCES - 1) & (source < sources)
    depth = tl.arange(0, DEPTH)
    factor = scale * LOG2_E
    total = tl.zeros((ROWS, SOURCES), tl.float32)
    for head in range(heads):
        queries_of = query + sample * query_b + head * query_a
        keys_of = key + sample * key_b + head * key_a
        bias_of = bias + (sample % groups) * bias_g + head * bias_a
        q = tl.load(
            queries_of + at[:, None] * query_n + depth[None, :] * query_d, mask=depth[None, :] < WIDTH, other=0.0
        )
        if WIDEN:  # Triton's interpreter multiplies bf16 wrongly; a GPU's products are exact in float32
            q = q.to(tl.float32)
        highest = tl.full((ROWS,), -1e30, tl.float32)  # not -inf, which a masked score may be
        sums = tl.zeros((ROWS, SOURCES), tl.float32)
        for start in range(0, keys, COLUMNS):
            column = start + tl.arange(0, COLUMNS)
            place = tl.minimum(column, keys - 1)
            k = tl.load(
                keys_of + place[None, :] * key_m + depth[:, None] * key_d, mask=depth[:, None] < WIDTH, other=0.0
            )
            if WIDEN:
                k = k.to(tl.float32)
            score = tl.dot(q, k, input_precision=PRECISION)
            if BIASED:
                added = tl.load(bias_of + at[:, None] * bias_n + place[None, :] * bias_m)
                score = score * factor + added.to(tl.float32) * LOG2_E
                higher = tl.maximum(highest, tl.max(score, 1))
                weight = tl.exp2(score - (higher - SHIFT)[:, None])
            else:
                higher = tl.maximum(highest, tl.max(score, 1) * factor)
                weight = tl.exp2(score * factor - (higher - SHIFT)[:, None])
            label = tl.load(
                labels + sample * labels_b + column[:, None] * labels_m + source[None, :] * labels_k,
                mask=(column < keys)[:, None] & is_label[None, :], other=0.0,
            )  # fmt: skip
            label = tl.where((column < keys)[:, None] & (slot == SOURCES - 1)[None, :], 1.0, label)
            coarse_label, coarse = label.to(tl.float16), weight.to(tl.float16)
            sums = tl.dot(coarse, coarse_label, sums * tl.exp2(highest - higher)[:, None])
            sums = tl.dot(coarse, (label - coarse_label.to(tl.float32)).to(tl.float16), sums)
            if FULL:
                sums = tl.dot((weight - coarse.to(tl.float32)).to(tl.float16), coarse_label, sums)
            highest = higher
        mass = tl.sum(tl.where((slot == SOURCES - 1)[None, :], sums, 0.0), 1)
        total += sums / tl.maximum(mass, 1e-30)[:, None]
    if NORM:  # which also takes out the number of heads
        total = total / tl.maximum(tl.sum(tl.where(is_label[None, :], total, 0.0), 1), 1e-30)[:, None]
    to = mixed + (sample * queries + row) * sources
    tl.store(to[:, None] + source[None, :], total, mask=(row < queries)[:, None] & is_label[None, :])


@triton.jit
def _attention_kernel(  # type: ignore[no-untyped-def]
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


def attention(weights: Tensor, labels: Tensor) -> Tensor:
    """`flow.attention`, for a pair."""
    with on(labels.device):
        return _attention_op(weights, labels)


@triton_op("labelflow::attention", mutates_args={})
def _attention_op(weights: Tensor, labels: Tensor) -> Tensor:
    """weights (B, A, N, M), labels (B, M, 2) -> (B, N, 2)"""
    batch, heads, queries, keys = weights.shape
    mixed = labels.new_empty(batch, queries, 2)
    rows = min(32, triton.next_power_of_2(queries))
    wrap_triton(_attention_kernel)[(batch, triton.cdiv(queries, rows))](
        weights, labels, mixed, heads, queries, keys, *weights.stride(), *labels.stride(),
        ROWS=rows, COLUMNS=min(64, triton.next_power_of_2(keys)),
    )  # fmt: skip
    return mixed


class Blocks(NamedTuple):
    """What one program of `_attend_kernel` holds at once, so that no registers are spilled (on sm_80, 90, 100 and 120:
    benchmarks/kernels.py)."""

    rows: int  # queries
    columns: int  # keys
    depth: int  # of the head width
    sources: int  # of labels, and a column of ones
    warps: int


def blocks(dtype: torch.dtype, width: int, sources: int) -> Blocks:
    depth, columns = max(16, triton.next_power_of_2(width)), min(32, max(8, triton.next_power_of_2(sources + 1)))
    if dtype == torch.float32:  # multiplied as three products of TF32
        return Blocks(32, 16, depth, columns, warps=8)
    return Blocks(64 if width <= 128 else 32, 32, depth, columns, warps=4 if width <= 64 else 8)


def can_attend(query: Tensor, key: Tensor, scale: float) -> bool:
    widest = {torch.bfloat16: 256, torch.float16: 256, torch.float32: 128}.get(query.dtype, 0)
    return query.dtype == key.dtype and query.shape[3] <= widest and scale > 0


def attend(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """`flow.attend`."""
    with on(labels.device):
        mixed = _attend_op(query, key, labels, bias, scale)
    several = labels.shape[2] >= blocks(query.dtype, query.shape[3], labels.shape[2]).sources
    return mixed / mixed.sum(-1, keepdim=True).clamp_min(1e-30) if several else mixed


@triton_op("labelflow::attend", mutates_args={})
def _attend_op(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """query (B, A, N, D), key (B, A, M, D), labels (B, M, K), bias (G, A, N, M) -> (B, N, K), up to Norm if K > 31"""
    batch, heads, queries, width = query.shape
    keys, sources = labels.shape[1:]
    mixed = labels.new_empty(batch, queries, sources)
    bias = None if bias is None else bias.expand(-1, heads, queries, keys)
    block = blocks(query.dtype, width, sources)
    rows = min(block.rows, max(16, triton.next_power_of_2(queries)))
    programs = triton.cdiv(sources, block.sources - 1)
    wrap_triton(_attend_kernel)[(batch, triton.cdiv(queries, rows), programs)](
        query, key, labels, labels if bias is None else bias, mixed,
        heads, queries, keys, 1 if bias is None else len(bias), sources, scale,
        *query.stride(), *key.stride(), *labels.stride(), *((0, 0, 0, 0) if bias is None else bias.stride()),
        WIDTH=width, BIASED=bias is not None, FULL=query.dtype == torch.float32, NORM=programs == 1,
        WIDEN=INTERPRETED and query.dtype == torch.bfloat16, PRECISION=PRECISION,
        ROWS=rows, COLUMNS=block.columns, DEPTH=block.depth, SOURCES=block.sources, num_warps=block.warps, num_stages=1,
    )  # fmt: skip
    return mixed
