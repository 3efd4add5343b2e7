"""Precision, and what holds for the whole process: what a run sets, and that it is set back."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState

from labelflow.engine import Training, make_accelerator, setup
from labelflow.engine.setup import best_device, flags_restored, resolve_precision
from pretend import DEVICE, pretending

ONE_STEP = Training(batch=8, micro_batch=8)


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    AcceleratorState._reset_state(reset_partial_state=True)
    with flags_restored():
        yield


def tf32() -> tuple[bool, bool]:
    """Of products and convolutions, as torch's compiler reads them."""
    return torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32


class TestAutomaticPrecision:
    @pytest.mark.parametrize(("kind", "native"), [("cuda", True), ("cuda", False), ("xpu", True), ("mps", True)])
    def test_bf16_where_the_device_has_it(self, monkeypatch: pytest.MonkeyPatch, kind: str, native: bool) -> None:
        def is_supported(including_emulation: bool = True) -> bool:
            return native or including_emulation  # as torch answers for GPUs before Ampere

        monkeypatch.setattr(setup, "best_device", lambda: torch.device(kind))
        for module in (torch.cuda, torch.xpu):
            monkeypatch.setattr(module, "is_bf16_supported", is_supported)
        assert resolve_precision("auto") == ("bf16" if native and kind != "mps" else "no")
        for precision in ("no", "tf32", "bf16", "fp16"):
            assert resolve_precision(precision) == precision

    def test_float32_on_a_cpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(setup, "best_device", lambda: torch.device("cpu"))
        assert resolve_precision("auto") == "no"

    def test_what_accelerate_was_launched_with(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
        assert resolve_precision("auto") == "bf16"
        assert make_accelerator(ONE_STEP).mixed_precision == "bf16"
        with pytest.raises(ValueError, match="launched with bf16, the recipe has --precision tf32"):
            make_accelerator(Training(batch=8, micro_batch=8, precision="tf32"))


@pytest.mark.parametrize(("asked", "device"), [("", DEVICE), ("0", DEVICE), ("1", "cpu"), ("true", "cpu")])
def test_accelerate_s_switch_for_the_cpu(monkeypatch: pytest.MonkeyPatch, asked: str, device: str) -> None:
    monkeypatch.setenv("ACCELERATE_USE_CPU", asked) if asked else monkeypatch.delenv("ACCELERATE_USE_CPU", False)
    with pretending():
        assert best_device().type == device


@pytest.mark.parametrize(
    ("precision", "mixed", "fast"),
    [("auto", "no", False), ("no", "no", False), ("tf32", "no", True), ("bf16", "bf16", True)],
)
def test_each_run_has_its_own_precision(precision: Any, mixed: str, fast: bool) -> None:
    for before in (False, True):
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = before
        accelerator = make_accelerator(Training(batch=8, micro_batch=8, precision=precision))
        assert accelerator.mixed_precision == mixed
        assert tf32() == (fast, fast)


@pytest.mark.parametrize("newer", [False, *([True] if hasattr(torch.backends, "fp32_precision") else [])])
@pytest.mark.parametrize("fast", [False, True])
def test_flags_are_set_back(newer: bool, fast: bool) -> None:
    """Those that were set in torch's newer way, too, after which the older flags cannot be read."""
    if newer:
        torch.backends.cuda.matmul.fp32_precision = "tf32" if fast else "ieee"
    else:
        torch.backends.cuda.matmul.allow_tf32 = fast
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = not fast, fast
    with flags_restored():
        make_accelerator(Training(batch=8, micro_batch=8, precision="no" if fast else "tf32", deterministic=True))
        torch.backends.cudnn.benchmark = not fast
        assert torch.are_deterministic_algorithms_enabled()
        assert tf32() == (not fast, not fast)
    assert tf32() == (fast, not fast)
    assert torch.backends.cudnn.benchmark == fast
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_cuda_graphs_do_not_accumulate_gradients(mode: str, tmp_path: Path) -> None:
    """An evaluation has no gradients, whatever its run had."""
    accumulating = Training(batch=16, micro_batch=8, compile=mode)
    graphs = mode in ("reduce-overhead", "max-autotune")
    with pytest.raises(ValueError, match="accumulated over 2 micro-batches: choose") if graphs else nullcontext():
        make_accelerator(accumulating, tmp_path)
    make_accelerator(accumulating)
    make_accelerator(Training(batch=8, micro_batch=8, compile=mode), tmp_path)
