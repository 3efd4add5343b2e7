"""What labels would cost on a GPU, by arithmetic: a case computed by hand, and what is counted of real models."""

import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def roofline() -> dict[str, Any]:
    return runpy.run_path(str(BENCHMARKS / "roofline.py"))


def test_a_kernel_by_hand(roofline: dict[str, Any]) -> None:
    """65 queries × 33 keys are 2 × 2 tiles of 64×32, 8192 scores, on a GPU that does one of everything per second."""
    per_score = roofline["Instructions"](fp32=3, powers=1, all=5, around=64)
    gpu = roofline["GPU"]("one of everything", 1, 1, 1, 1, 1, 1, 1, 1, per_score, per_score)
    call = roofline["Attend"](batch=1, heads=1, queries=65, keys=33, width=16, bias_bytes=0)
    work = roofline["label_kernel"](call, gpu, (64, 32))
    assert work.bf16_flops == 2 * (16 + 2 * 8) * 8192  # scores, and labels as two halves of 8 columns
    assert (work.fp32, work.powers) == (3 * 8192, 8192)
    assert work.all == 5 * 8192 + 128 * 64  # 2 × 64 rows
    assert work.bytes == (65 + 33) * 16 * 2 + (65 + 33) * 2 * 4  # bf16 queries and keys, float32 labels and results
    tensor, cores, memory = work.bf16_flops / 0.45, work.all / 0.6, work.bytes / 0.8
    assert roofline["kernel_seconds"](work, gpu) == (tensor, pytest.approx(tensor + cores + memory))
    assert roofline["label_kernel"](call._replace(bias_bytes=1000), gpu, (64, 32)).bytes == work.bytes + 1000


def test_operations_are_counted_once(roofline: dict[str, Any]) -> None:
    with roofline["Ledger"]() as ledger:
        values = torch.ones(4, 3).t()[:2]  # views
        values + values.new_empty(1).expand(2, 4)  # 4 bytes, expanded
    (ones, _), (add, _) = sorted(ledger.ops.items(), reverse=True)
    assert (ones.name, ones.bytes) == ("aten::ones", 4 * 12)
    assert (add.name, add.bytes) == ("aten::add.Tensor", 4 * (8 + 1 + 8))


@pytest.mark.parametrize(
    ("model", "billions", "limit"),
    [("DeiT-S", 4.6, 1.03), ("Swin-T, fused", 4.5, 1.04), ("Swin-T", 4.5, 1.04), ("PVT-S", 3.8, 1.03)],
)
def test_ratios(model: str, billions: float, limit: float, roofline: dict[str, Any]) -> None:
    """limit: of a step with labels on an A100, as docs/costs.md has it."""
    seen = roofline["observe"](*roofline["MODELS"][model], 256)
    assert seen.flops / 3 / 2 / 256 == pytest.approx(billions * 1e9, rel=0.01)  # multiply-adds, as published
    a100, h100 = (roofline["estimate"](seen, roofline[name]) for name in ("A100", "H100"))
    assert a100.step == pytest.approx(seen.flops / 312e12 / 0.45)
    assert a100.ratios(a100.kernels, a100.step).together < limit
    for found in (a100, h100):
        best, worst = found.ratios(found.kernels, found.step)
        assert 1 < best <= worst <= found.ratios(found.without_kernel, found.step).together


def test_what_is_observed(roofline: dict[str, Any]) -> None:
    """DeiT-S needs only the class token's label after its last layer; Swin's windows have a bias."""
    seen = roofline["observe"]("deit_small_patch16_224", True, 2)
    assert [call[:5] for call in seen.attends] == [(2, 6, 197, 197, 64)] * 11 + [(2, 6, 1, 197, 64)]
    fused = roofline["observe"]("swin_tiny_patch4_window7_224", True, 2)
    assert fused.attends[0] == (2 * 64, 3, 49, 49, 32, 3 * 49 * 49 * 4)
    plain = roofline["observe"]("swin_tiny_patch4_window7_224", False, 2)
    assert not plain.attends  # labels are moved by the weights, which it shows
    assert plain.flops == fused.flops


def test_the_tables(roofline: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    roofline["main"](["--models", "PVT-S", "--batch", "2"])
    printed = capsys.readouterr().out
    assert [line.split(" | ")[:2] for line in printed.splitlines()[2:4]] == [
        ["| PVT-S", "A100 SXM 80 GB"],
        ["| PVT-S", "H100 SXM"],
    ]
    for assumed in (
        "45%",
        "60%",
        "80%",
        "4 µs",
        "312 TFLOPS",
        "989 TFLOPS",
        "2.04 TB/s",
        "3.35 TB/s",
        "64 queries × 32",
    ):
        assert assumed in printed
