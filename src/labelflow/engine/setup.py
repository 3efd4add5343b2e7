"""The accelerator: device, processes, precision, and what of it holds for the whole process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedType,
    GradientAccumulationPlugin,
    ProjectConfiguration,
    convert_outputs_to_fp32,
    parse_flag_from_env,
)
from torch import nn

from labelflow.engine.settings import CUDA_GRAPHS, Training
from labelflow.process import process_count


def best_device() -> torch.device:
    """For one process: the accelerator, if there is one, and unless Accelerate was told to leave it alone."""
    ignored = parse_flag_from_env("ACCELERATE_USE_CPU") or not torch.accelerator.is_available()
    return (None if ignored else torch.accelerator.current_accelerator()) or torch.device("cpu")


def resolve_precision(precision: str) -> str:
    """What auto stands for: what `accelerate launch` was told, bf16 where the device has it natively, or float32."""
    if precision != "auto":
        return precision
    launched, device = os.environ.get("ACCELERATE_MIXED_PRECISION", "no"), best_device()
    if launched in ("bf16", "fp16"):
        return launched
    asked = torch.get_device_module(device) if device.type in ("cuda", "xpu") else None
    return "bf16" if asked and asked.is_bf16_supported(including_emulation=False) else "no"


def make_accelerator(training: Training, folder: Path | None = None) -> Accelerator:
    """As `accelerate launch` or `torchrun` configure it, or one process. Gradients are accumulated up to the batch.

    Sets flags of the whole process, too: TF32 and deterministic algorithms. folder: of the run that is trained.
    """
    processes, precision = process_count(), resolve_precision(training.precision)
    accumulated = max(1, training.batch // training.micro_batch // processes)
    _set_flags(precision, training.deterministic)
    AcceleratorState._reset_state()  # an earlier run of this process may have had another precision
    try:
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision="no" if precision == "tf32" else precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=accumulated, sync_with_dataloader=False),
            log_with=(training.tracker or None) if folder else None,
            project_config=ProjectConfiguration(str(folder)) if folder else None,
            step_scheduler_with_optimizer=False,
        )
    except (ValueError, ImportError, NotImplementedError) as error:
        raise ValueError(f"Accelerate: {error}") from None
    if os.environ.get("ACCELERATE_USE_FSDP") == "true" and accelerator.distributed_type != DistributedType.FSDP:
        raise ValueError(
            f"FSDP was requested but is not active: Accelerate runs {accelerator.distributed_type.value} on "
            f"{accelerator.device.type}. FSDP needs GPUs; omit --use_fsdp"
        )
    if folder and training.tracker and not accelerator.log_with:
        raise ValueError(f"the tracker {training.tracker} is not installed: pip install {training.tracker}")
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", precision)
    if launched not in (precision, "no"):
        raise ValueError(f"accelerate was launched with {launched}, the recipe has --precision {precision}")
    sharded = accelerator.distributed_type == DistributedType.FSDP
    if sharded and not accelerator.is_fsdp2:
        raise ValueError("labelflow supports FSDP 2 only: accelerate launch --use_fsdp --fsdp_version 2 …")
    if sharded:
        # All processes have all weights; handing them out, Accelerate 1.15 fails on batch norms' buffers.
        accelerator.state.fsdp_plugin.cpu_ram_efficient_loading = False
        accelerator.state.fsdp_plugin.mixed_precision_policy = None  # see `autocast_forward`
    if accelerator.num_processes != processes:
        raise ValueError(f"{processes} processes were launched, but Accelerate sees {accelerator.num_processes}")
    if folder and training.compile in CUDA_GRAPHS and (sharded or accumulated > 1):
        why = "sharded weights" if sharded else f"gradients that are accumulated over {accumulated} micro-batches"
        raise ValueError(
            f"--compile {training.compile} uses CUDA graphs, which do not go with {why}: choose --compile default or "
            "--compile max-autotune-no-cudagraphs" + ("" if sharded else ", or a larger --micro-batch")
        )
    return accelerator


def autocast_forward(student: nn.Module, accelerator: Accelerator) -> None:
    """Mixed precision as DDP has it, for FSDP, where Accelerate leaves it to FSDP: that rounds all weights and inputs,
    which batch norms (whose statistics are in float32) and Swin's masks do not support."""
    student.forward = convert_outputs_to_fp32(accelerator.autocast()(student.forward))


def _set_flags(precision: str, deterministic: bool) -> None:
    # In torch's older way, since its compiler reads them so, which fails after they were set in the newer way.
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "no"
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)


@contextmanager
def flags_restored() -> Iterator[None]:
    """What a run sets for the whole process is afterwards as it was before."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    tf32, benchmark = _tf32(), cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        yield
    finally:
        (matmul.allow_tf32, cudnn.allow_tf32), cudnn.benchmark = tf32, benchmark
        torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)


def _tf32() -> tuple[bool, bool]:
    """Whether products and convolutions use it."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    if hasattr(torch.backends, "fp32_precision"):  # torch 2.9: the older flags can't be read after these were set
        return matmul.fp32_precision == "tf32", cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined]
    return matmul.allow_tf32, cudnn.allow_tf32
