"""What would moving labels cost on a GPU? By arithmetic: nothing here is a measurement, and no GPU is needed.

    python benchmarks/roofline.py --batch 256

A training step of the model takes as long as its FLOPs at 45 % of the bf16 peak. Labels take as long as the kernel of
`flow.attend` in every layer, and what `Aligned` reads and writes besides. Counted is what the code does: models run on
the meta device, once plain and once aligned, and each operation is recorded.

A kernel's tensor cores, CUDA cores and memory are taken to work at the same time, so that the slowest decides
("together"), and one after another ("in turn"), the worst case. Prints tables, then all that was assumed.
"""

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

import labelflow as lf
import labelflow.models
from labelflow import flow

UTILISATION = 0.45  # of the bf16 peak: of a whole training step, and of tensor cores in a label kernel
CORES = 0.60  # of the peak of CUDA cores: of the busiest of FP32 units, special function units and schedulers
MEMORY = 0.80  # of the peak bandwidth
LAUNCH_SECONDS = 4e-6  # of the host, for each kernel
TILE = (64, 32)  # queries, keys
BF16, FLOAT32 = 2, 4  # bytes
MODELS = {  # a name of timm's or ours, and whether its attention is fused
    "DeiT-S": ("deit_small_patch16_224", True),
    "Swin-T, fused": ("swin_tiny_patch4_window7_224", True),
    "Swin-T": ("swin_tiny_patch4_window7_224", False),  # as timm has it: attention is not fused
    "PVT-S": ("pvt_small", True),
    "PVT v2-B0": ("pvt_v2_b0", True),
}


class Instructions(NamedTuple):
    """Of a thread of the label kernel, as benchmarks/kernels.py counts them."""

    fp32: float  # for each score
    powers: float  # for each score: 2^x, in special function units
    all: float  # for each score
    around: float  # for each query and head


@dataclass(frozen=True)
class GPU:
    name: str
    multiprocessors: int
    clock: float  # per second
    fp32_lanes: int  # of a multiprocessor: results per clock
    special_lanes: int
    issued_lanes: int  # four instructions of 32 threads
    bf16_flops: float  # per second, dense
    tf32_flops: float
    bandwidth: float  # bytes per second
    plain: Instructions
    biased: Instructions


A100 = GPU(
    "A100 SXM 80 GB", 108, 1.41e9, 64, 16, 128, 312e12, 156e12, 2.04e12,
    Instructions(1.6, 1.1, 10.6, 166), Instructions(3.5, 1.1, 14.8, 156),
)  # fmt: skip
H100 = GPU(
    "H100 SXM", 132, 1.83e9, 128, 16, 128, 989e12, 494e12, 3.35e12,
    Instructions(1.6, 1.1, 10.6, 180), Instructions(3.5, 1.1, 15.4, 238),
)  # fmt: skip


class Attend(NamedTuple):
    """One call of `flow.attend`."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    bias_bytes: int  # float32; 0: none

    def padded(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Queries and keys fill whole tiles: 197 keys cost as much as 224."""
        return math.ceil(self.queries / tile[0]) * tile[0], math.ceil(self.keys / tile[1]) * tile[1]


class Work(NamedTuple):
    """What a kernel does."""

    bf16_flops: float
    tf32_flops: float
    fp32: float  # instructions
    powers: float
    all: float
    bytes: float


class Seconds(NamedTuple):
    together: float
    in_turn: float


def label_kernel(call: Attend, gpu: GPU, tile: tuple[int, int] = TILE) -> Work:
    """One kernel, which reads bf16 queries and keys once and holds no N×N matrix."""
    rows, columns = call.padded(tile)
    scores = call.batch * call.heads * rows * columns
    per = gpu.biased if call.bias_bytes else gpu.plain
    tokens = call.batch * (call.queries + call.keys)
    moved = tokens * (BF16 * call.heads * call.width + FLOAT32 * 2) + call.bias_bytes
    issued = scores * per.all + call.batch * call.heads * rows * per.around
    columns_of_labels = 2 * 8  # a pair and a column of ones, as two halves
    return Work(2 * (call.width + columns_of_labels) * scores, 0, per.fp32 * scores, per.powers * scores, issued, moved)


def float32_sdpa(call: Attend) -> Work:
    """Without a kernel of our own: queries and keys are copied to float32, and scaled_dot_product_attention computes
    each product as three in TF32, with labels as 64 columns of values."""
    rows, columns = call.padded((64, 64))
    scores = call.batch * call.heads * rows * columns
    queries, keys = call.batch * call.heads * call.queries, call.batch * call.heads * call.keys
    copies = call.width * (queries + keys) * (BF16 + FLOAT32 + FLOAT32)  # read, write, read again
    values = FLOAT32 * 8 * (keys + 2 * queries)  # padded to 8 columns; written for each head, then averaged
    return Work(0, 3 * 2 * (call.width + 64) * scores, 4 * scores, scores, 5 * scores, copies + values)


def kernel_seconds(work: Work, gpu: GPU) -> Seconds:
    tensor = (work.bf16_flops / gpu.bf16_flops + work.tf32_flops / gpu.tf32_flops) / UTILISATION
    busiest = max(work.fp32 / gpu.fp32_lanes, work.powers / gpu.special_lanes, work.all / gpu.issued_lanes)
    cores = busiest / (gpu.multiprocessors * gpu.clock) / CORES
    memory = work.bytes / gpu.bandwidth / MEMORY
    return Seconds(max(tensor, cores, memory), tensor + cores + memory)


class Op(NamedTuple):
    """A kernel that is launched."""

    name: str
    bytes: int  # read and written


class Ledger(TorchDispatchMode):
    """Records the operations that read or write memory: not views, nor what only allocates."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: Counter[Op] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        read, written = _tensors((args, kwargs)), _tensors(output)
        known = {one.untyped_storage()._cdata for one in read}
        is_view = all(one.untyped_storage()._cdata in known for one in written) and not func._schema.is_mutable
        if not is_view and "empty" not in func.name():
            self.ops[Op(func.name(), sum(map(_bytes, [*read, *written])))] += 1
        return output


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Those of an expanded tensor count once."""
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


@dataclass(frozen=True)
class Observed:
    """What one training step on a batch consists of."""

    flops: float  # of the model
    step: Counter[Op]  # of the model, forward and backward
    attends: list[Attend]
    labels: Counter[Op]  # what `Aligned` adds to the forward pass, beside `attends`


def observe(name: str, fused: bool, batch: int) -> Observed:
    with torch.device("meta"):
        model = timm.create_model(name)
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        images = torch.empty(batch, *model.default_cfg["input_size"])
        with patch.object(F, "scaled_dot_product_attention", _fused_attention):
            with FlopCounterMode(display=False) as counter, Ledger() as plain:
                model(images)
            attends, labels = _observe_labels(model, images)
            step = _observe_step(model, images)
    # Three times the forward pass: the counter is wrong about the backward pass of depth-wise convolutions.
    return Observed(3 * counter.get_total_flops(), step, attends, labels - plain.ops)


def _fused_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Tensor:
    """One kernel, which the meta device would take apart."""
    if attn_mask is not None:
        attn_mask = attn_mask.to(query.dtype).expand(*query.shape[:3], -1)
    attention = torch.ops.aten._scaled_dot_product_efficient_attention
    output: Tensor = attention(query, key, value, attn_mask, True, scale=options.get("scale"))[0]
    return output


def _observe_labels(model: nn.Module, images: Tensor) -> tuple[list[Attend], Counter[Op]]:
    """Of an aligned forward pass: the calls of `flow.attend`, and all other operations."""
    attends: list[Attend] = []
    ledger = Ledger()
    share = images.new_empty(len(images), 1, *images.shape[2:])

    def attend(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None = None, scale: float = 1.0) -> Tensor:
        batch, heads, queries, width = query.shape
        attends.append(Attend(batch, heads, queries, key.shape[2], width, 0 if bias is None else _bytes(bias)))
        return labels.new_empty(batch, queries, labels.shape[2])

    def one_kernel(operation: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def run(*arguments: Any, **named: Any) -> Tensor:
            with _disable_current_modes():
                output = operation(*arguments, **named)
            moved = sum(map(_bytes, [*_tensors((arguments, named)), output]))
            ledger.ops[Op(operation.__name__, moved)] += 1
            return output

        return run

    single: dict[str, Any] = {name: one_kernel(getattr(flow, name)) for name in ("attention", "convolve", "aggregate")}
    with (
        patch.multiple(flow, attend=attend, **single),
        patch.object(torch, "autocast", lambda *arguments, **named: nullcontext()),  # the meta device knows none
        ledger,
    ):
        lf.Aligned(model)(images, share)
    return attends, ledger.ops


def _observe_step(model: nn.Module, images: Tensor) -> Counter[Op]:
    model.to(torch.bfloat16)
    with Ledger() as ledger:
        model(images.to(torch.bfloat16)).sum().backward()
    return ledger.ops


@dataclass(frozen=True)
class Estimate:
    """Of one model on one GPU, in seconds."""

    step: float  # of the model, at 45 % of the peak
    step_bytes: float  # what its operations read and write one by one: no eager step is faster
    kernels: Seconds  # of `flow.attend`
    others: float  # label operations beside them
    without_kernel: Seconds  # `flow.attend` by scaled_dot_product_attention in float32
    launches: int  # that labels add

    @property
    def eager_step(self) -> float:
        return max(self.step, self.step_bytes)

    def ratios(self, kernels: Seconds, step: float) -> Seconds:
        return Seconds(*(1 + (seconds + self.others) / step for seconds in kernels))


def estimate(seen: Observed, gpu: GPU, tile: tuple[int, int] = TILE) -> Estimate:
    return Estimate(
        step=seen.flops / (UTILISATION * gpu.bf16_flops),
        step_bytes=_memory_seconds(seen.step, gpu),
        kernels=_sum(kernel_seconds(label_kernel(call, gpu, tile), gpu) for call in seen.attends),
        others=_memory_seconds(seen.labels, gpu),
        without_kernel=_sum(kernel_seconds(float32_sdpa(call), gpu) for call in seen.attends),
        launches=seen.labels.total() + len(seen.attends),
    )


def _memory_seconds(ops: Counter[Op], gpu: GPU) -> float:
    return sum(count * op.bytes for op, count in ops.items()) / gpu.bandwidth / MEMORY


def _sum(parts: Iterable[Seconds]) -> Seconds:
    together, in_turn = 0.0, 0.0
    for part in parts:
        together, in_turn = together + part.together, in_turn + part.in_turn
    return Seconds(together, in_turn)


COLUMNS = (
    *("model", "GPU", "step, ms", "label kernels, ms", "other label operations, ms", "ratio"),
    *("eager step, at least, ms", "ratio", "ratio without the kernel", "launches", "host, ms"),
)


def row(name: str, gpu: GPU, found: Estimate) -> tuple[str, ...]:
    return (
        *(name, gpu.name, f"{1000 * found.step:.1f}", _span(found.kernels, 2, 1000), f"{1000 * found.others:.2f}"),
        _span(found.ratios(found.kernels, found.step), 3),
        f"{1000 * found.eager_step:.1f}",
        _span(found.ratios(found.kernels, found.eager_step), 3),
        _span(found.ratios(found.without_kernel, found.step), 2),
        *(str(found.launches), f"{1000 * LAUNCH_SECONDS * found.launches:.2f}"),
    )


def _span(seconds: Seconds, digits: int, unit: float = 1) -> str:
    low, high = (f"{unit * value:.{digits}f}" for value in seconds)
    return low if low == high else f"{low} to {high}"


def assumptions(batch: int, tile: tuple[int, int]) -> list[str]:
    return [
        f"{batch} images of 224 pixels in bf16. FLOPs of a step: three times those of the forward pass.",
        f"Step: its FLOPs at {UTILISATION:.0%} of the bf16 peak. Most training is slower, and labels weigh less then.",
        f"Eager step, at least: what its operations read and write one by one, all in bf16, at {MEMORY:.0%} of the "
        "bandwidth, where that takes longer. The optimiser is left out.",
        f"Label kernel: tiles of {tile[0]} queries × {tile[1]} keys, only whole ones; a loop over heads; queries, keys "
        "and bias are read from memory once (more often from the cache, which is not counted); labels and results are "
        "float32.",
        f"Its parts: tensor cores at {UTILISATION:.0%} of their peak; CUDA cores at {CORES:.0%} of the peak of what is "
        f"busiest, FP32 units, special function units or schedulers; memory at {MEMORY:.0%}. The first number: all at "
        "the same time, so that the slowest decides. The second: one after another.",
        "Other label operations: what each of them reads and writes; none are fused. Attention whose weights the model "
        "shows, a convolution and a pooling of labels are one kernel each.",
        "Without the kernel: queries and keys are copied to float32; scaled_dot_product_attention computes three "
        "products in TF32 for each one, and 64 columns of values.",
        f"Host: {1e6 * LAUNCH_SECONDS:.0f} µs for each kernel that labels add. Not part of the ratios: the GPU does "
        "not notice while it has work queued, and torch.compile fuses most of them.",
        *map(_describe, (A100, H100)),
    ]


def _describe(gpu: GPU) -> str:
    plain, biased = gpu.plain, gpu.biased
    return (
        f"{gpu.name}: {gpu.bf16_flops / 1e12:.0f} TFLOPS in bf16, {gpu.tf32_flops / 1e12:.0f} in TF32, dense; "
        f"{gpu.bandwidth / 1e12:.2f} TB/s; {gpu.multiprocessors} multiprocessors at {gpu.clock / 1e9:.2f} GHz, each "
        f"with {gpu.fp32_lanes} FP32 units, {gpu.special_lanes} special function units and {gpu.issued_lanes // 32} "
        f"schedulers. Instructions (benchmarks/kernels.py): {plain.all:g} for a score, of which {plain.fp32:g} "
        f"FP32 and {plain.powers:g} powers of two, and {plain.around:g} for a query and head; with a bias "
        f"{biased.all:g}, {biased.fp32:g}, {biased.powers:g} and {biased.around:g}."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--batch", type=int, default=256, help="images in a step")
    parser.add_argument("--tile", nargs=2, type=int, default=TILE, metavar=("QUERIES", "KEYS"))
    options = parser.parse_args(arguments)
    tile = (options.tile[0], options.tile[1])

    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for name in options.models:
        seen = observe(*MODELS[name], options.batch)
        for gpu in (A100, H100):
            print(f"| {' | '.join(row(name, gpu, estimate(seen, gpu, tile)))} |")
    print("\nAssumed:")
    print("\n".join(f"- {line}" for line in assumptions(options.batch, tile)))


if __name__ == "__main__":
    main()
