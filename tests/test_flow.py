"""The five operations, against the paper's Table 10 written out."""

import itertools

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from labelflow import flow
from oracles import convolution_matrix


def random_labels(*shape: int) -> Tensor:
    return flow.normalise(torch.rand(shape) + 1e-3)


def random_attention(*shape: int) -> Tensor:
    return (3 * torch.randn(shape)).softmax(-1)


@given(st.integers(1, 4), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_spatial_mixing_normalises_rows_of_absolute_weights(batch: int, n: int, m: int, k: int) -> None:
    weights, labels = torch.randn(batch, n, m), random_labels(batch, m, k)
    absolute = weights.abs()
    expected = (absolute / absolute.sum(2, keepdim=True)) @ labels
    assert_close(flow.spatial(weights, labels), expected)


@given(st.integers(1, 4), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 5))
def test_attention_is_the_mean_over_heads(batch: int, heads: int, n: int, m: int, k: int) -> None:
    weights, labels = random_attention(batch, heads, n, m), random_labels(batch, m, k)
    expected = sum(weights[:, head] @ labels for head in range(heads)) / heads  # Eq. 9
    assert_close(flow.attention(weights, labels), expected)


def attended(b: int, a: int, n: int, m: int, k: int, biased: bool) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    query, key, labels = 2 * torch.randn(b, a, n, 8), 2 * torch.randn(b, a, m, 8), random_labels(b, m, k)
    return query, key, labels, torch.randn(b if n % 2 else 1, a, n, m) if biased else None


def naive_attend(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None) -> Tensor:
    scores = query @ key.mT / 8**0.5 + (0 if bias is None else bias)
    return flow.attention(scores.softmax(-1), labels)


sizes = (st.integers(1, 5), st.integers(1, 3), st.integers(1, 6), st.integers(1, 6), st.integers(1, 12), st.booleans())


@given(*sizes)
def test_attend_is_attention_from_queries_and_keys(b: int, a: int, n: int, m: int, k: int, biased: bool) -> None:
    inputs = attended(b, a, n, m, k, biased)
    assert_close(flow.attend(*inputs), naive_attend(*inputs))


@settings(max_examples=4)  # each may be compiled anew
@given(*sizes)
@example(1, 1, 1, 1, 1, True)
@example(5, 3, 6, 5, 12, False)
@example(5, 3, 6, 5, 12, True)  # one bias for all samples
@example(4, 2, 3, 6, 2, True)  # and one for each
def test_attend_compiled(b: int, a: int, n: int, m: int, k: int, biased: bool) -> None:
    inputs = attended(b, a, n, m, k, biased)
    assert_close(torch.compile(flow.attend, backend="eager", dynamic=True)(*inputs), naive_attend(*inputs))


@pytest.mark.parametrize("scale", [1.0, 30.0, 1000.0])
def test_attend_takes_scores_of_any_size(scale: float) -> None:
    """Powers that would overflow or vanish are no different from others. Whole numbers: float32 holds the scores."""
    query, key = scale * torch.randint(-3, 4, (3, 2, 9, 8)), torch.randint(-3, 4, (3, 2, 7, 8)).float()
    labels = random_labels(3, 7, 2)
    expected = flow.attention((query.double() @ key.double().mT / 4).softmax(-1), labels)
    assert_close(flow.attend(query, key, labels, scale=1 / 4), expected, atol=1e-5, rtol=0)


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, labels = torch.randn(5, 2, 9, 8), torch.randn(5, 2, 7, 8), random_labels(5, 7, 2)
    bias = torch.randn(5, 2, 9, 7)
    whole = flow.attend(query, key, labels, bias)
    for scores in (1, 2 * 3 * 7, 2 * 2 * 9 * 7, 10**9):
        monkeypatch.setattr(flow, "CHUNK_SCORES", scores)
        assert_close(flow.attend(query, key, labels, bias), whole)


def test_samples_share_the_biases_of_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sample b has that of group b modulo G, whatever a chunk holds: less than a group, one, or several."""
    query, key, labels = torch.randn(12, 2, 5, 8), torch.randn(12, 2, 5, 8), random_labels(12, 5, 2)
    bias = 3 * torch.randn(4, 2, 5, 5)
    expected = flow.attend(query, key, labels, bias.repeat(3, 1, 1, 1))
    for samples in (1, 2, 3, 4, 7, 9, 12):
        monkeypatch.setattr(flow, "CHUNK_SCORES", samples * 2 * 5 * 5)
        assert_close(flow.attend(query, key, labels, bias), expected)
    assert_close(torch.compile(flow.attend, backend="eager")(query, key, labels, bias), expected)


def test_padding_holds_no_label() -> None:
    """What attends to padding carries the labels of the rest; so says the mean over heads of all weights."""
    query, key, labels = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 6, 8), random_labels(2, 6, 2)
    labels[:, 4:] = 0
    weights = (query @ key.mT / 8**0.5).softmax(-1)
    mean = weights.mean(1)[:, :, :4]
    expected = (mean / mean.sum(2, keepdim=True)) @ labels[:, :4]
    assert_close(flow.attention(weights, labels), expected)
    assert_close(flow.attend(query, key, labels), expected)
    assert_close(flow.attend(1000 * query, key, labels).sum(-1), torch.ones(2, 5))
    assert_close(torch.compile(flow.attend, backend="eager")(query, key, labels), expected)


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3, 5, 7]), st.integers(1, 3))
def test_convolution_is_a_matrix(height: int, width: int, size: int, sources: int) -> None:
    kernel, labels = torch.randn(4, 1, size, size), random_labels(2, height, width, sources)
    kernel[0] *= 0  # a dead channel says nothing
    assert_close(flow.convolve(0 * kernel, labels), labels)
    matrix = torch.stack([convolution_matrix(k[0], (height, width)) for k in kernel[1:]]).mean(0)
    expected = (matrix @ labels.flatten(1, 2)).unflatten(1, (height, width))
    assert_close(flow.convolve(kernel, labels), expected)


def naive_convolution(kernel: Tensor, labels: Tensor, stride: int, padding: int, dilation: int) -> Tensor:
    """The mean over output channels of Norm(|T(K)|)·Y, place by place. kernel (C, D, r, r), labels (B, h, w, K)"""
    height, width = labels.shape[1:3]
    reach = dilation * (kernel.shape[2] - 1) + 1
    rows, columns = ((side + 2 * padding - reach) // stride + 1 for side in (height, width))
    mixed = torch.zeros(len(labels), rows, columns, labels.shape[3])
    for i, j, channel in itertools.product(range(rows), range(columns), range(len(kernel))):
        total, weight = torch.zeros(len(labels), labels.shape[3]), 0.0
        for a, b in itertools.product(range(kernel.shape[2]), repeat=2):
            row, column = i * stride - padding + a * dilation, j * stride - padding + b * dilation
            if 0 <= row < height and 0 <= column < width and labels[0, row, column].sum() > 0:
                total = total + kernel[channel, :, a, b].abs().sum() * labels[:, row, column]
                weight += float(kernel[channel, :, a, b].abs().sum())
        mixed[:, i, j] += total / len(kernel) / (weight or 1.0)
    return mixed


@given(
    st.integers(3, 7),
    st.integers(3, 7),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([0, 1]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3]),
)
def test_any_convolution_is_a_matrix(
    height: int, width: int, size: int, stride: int, padding: int, dilation: int, inputs: int
) -> None:
    if min(height, width) + 2 * padding < dilation * (size - 1) + 1 or padding > size // 2:
        return
    kernel, labels = torch.randn(3, inputs, size, size), random_labels(2, height, width, 2)
    mixed = flow.convolve(kernel, labels, (stride, stride), (padding, padding), (dilation, dilation))
    assert_close(mixed, naive_convolution(kernel, labels, stride, padding, dilation))


@given(st.integers(2, 6), st.integers(2, 6), st.sampled_from([2, 3]), st.sampled_from([1, 2]))
def test_a_convolution_leaves_out_padding_that_holds_no_label(height: int, width: int, size: int, stride: int) -> None:
    """As TensorFlow pads: around the map, beforehand."""
    kernel, labels = torch.randn(3, 2, size, size), random_labels(2, height, width, 2)
    padded = F.pad(labels, (0, 0, 0, 1, 0, 2))
    mixed = flow.convolve(kernel, padded, (stride, stride), (0, 0))
    assert_close(mixed, naive_convolution(kernel, padded, stride, 0, 1))
    constant = F.pad(torch.tensor([0.3, 0.7]).expand(2, height, width, 2), (0, 0, 0, 1, 0, 2))
    moved = flow.convolve(kernel, constant, (stride, stride), (0, 0))
    assert_close(moved, torch.tensor([0.3, 0.7]) * (moved.sum(-1, keepdim=True) > 0))  # nothing but padding: no label


def test_residual_is_the_normalised_sum() -> None:
    labels, mixed = random_labels(2, 5, 3), random_labels(2, 5, 3)
    assert_close(flow.residual(labels, mixed), flow.normalise(labels + mixed))


@given(st.integers(1, 11), st.integers(1, 11), st.sampled_from([(2, 2, 0), (4, 4, 0), (3, 2, 1), (7, 4, 3)]))
def test_aggregation_is_the_normalised_sum_of_what_a_window_holds(
    height: int, width: int, window: tuple[int, int, int]
) -> None:
    size, stride, padding = window
    labels = random_labels(2, height, width, 2)
    padded = labels if padding else flow.pad(labels, (stride, stride))
    merged = flow.aggregate(padded, (size, size), (stride, stride), (padding, padding))
    for i in range(merged.shape[1]):
        for j in range(merged.shape[2]):
            top, left = i * stride - padding, j * stride - padding
            held = labels[:, max(top, 0) : top + size, max(left, 0) : left + size]
            assert_close(merged[:, i, j], flow.normalise(held.sum((1, 2))))


@given(st.integers(2, 9), st.integers(2, 9), st.sampled_from([(2, 2, 0), (3, 2, 1), (3, 2, 0), (2, 1, 1)]))
def test_aggregation_may_end_beyond_the_edge(height: int, width: int, window: tuple[int, int, int]) -> None:
    """ceil_mode: a last window that begins inside the map, or its padding in front, counts with what it holds."""
    size, stride, padding = window
    if min(height, width) < size:
        return
    labels = random_labels(2, height, width, 2)
    merged = flow.aggregate(labels, (size, size), (stride, stride), (padding, padding), ceil=True)
    tokens = F.max_pool2d(torch.randn(1, 1, height, width), size, stride, padding, ceil_mode=True)
    assert merged.shape[1:3] == tokens.shape[2:]
    for i, j in itertools.product(range(merged.shape[1]), range(merged.shape[2])):
        top, left = i * stride - padding, j * stride - padding
        held = labels[:, max(top, 0) : top + size, max(left, 0) : left + size]
        assert_close(merged[:, i, j], flow.normalise(held.sum((1, 2))))


def test_labels_keep_tokens_without_a_place_apart() -> None:
    labels = flow.Labels(random_labels(2, 3 + 8, 2), grid=(2, 4))
    assert labels.prefix.shape == (2, 3, 2)
    assert_close(torch.cat([labels.prefix, labels.map.flatten(1, 2)], 1), labels.values)
    assert_close(labels.with_map(labels.map).values, labels.values)
    smaller = labels.with_map(flow.aggregate(labels.map, (2, 2)))
    assert smaller.grid == (1, 2)
    assert_close(smaller.prefix, labels.prefix)


def test_rollout_of_attention_is_the_flow() -> None:
    """R = ½(A_L+I)···½(A_1+I); its class row times the initial labels is what TL-Align gives the class token."""
    attentions = [random_attention(2, 3, 6, 6) for _ in range(4)]
    start = labels = random_labels(2, 6, 2)
    rollout = torch.eye(6).expand(2, 6, 6)
    for attention in attentions:
        labels = flow.residual(labels, flow.attention(attention, labels))
        rollout = (attention.mean(1) + torch.eye(6)) / 2 @ rollout
    assert_close(labels[:, 0], (rollout @ start)[:, 0])


def test_labels_are_float32_whatever_comes_in() -> None:
    labels = random_labels(2, 6, 2)
    constant = torch.tensor([0.3, 0.7]).expand(2, 6, 2)
    for dtype in (torch.bfloat16, torch.float16):
        weights = random_attention(2, 3, 6, 6).to(dtype)  # rows that no longer sum to 1
        query = torch.randn(2, 3, 6, 8, dtype=dtype)
        for mixed in (flow.attention(weights, labels), flow.attend(query, query, labels)):
            assert mixed.dtype == torch.float32
        assert_close(flow.attention(weights, constant), constant)
        assert_close(flow.attend(query, query, constant), constant)
