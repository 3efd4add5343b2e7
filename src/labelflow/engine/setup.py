"""The accelerator: device, processes, precision."""

import os
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedType, GradientAccumulationPlugin, ProjectConfiguration

from labelflow.engine.settings import Training
from labelflow.process import process_count


def best_device() -> torch.device:
    """For one process: the accelerator, if there is one."""
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def make_accelerator(training: Training, folder: Path | None = None) -> Accelerator:
    """As `accelerate launch` or `torchrun` configure it, or one process. Gradients are accumulated up to the batch."""
    processes = process_count()
    if training.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    AcceleratorState._reset_state()  # an earlier run of this process may have had another precision
    try:
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            mixed_precision=training.precision,
            gradient_accumulation_plugin=GradientAccumulationPlugin(
                num_steps=max(1, training.batch // training.micro_batch // processes), sync_with_dataloader=False
            ),
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
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", training.precision)
    if launched not in (training.precision, "no"):
        raise ValueError(f"accelerate was launched with {launched}, the recipe has --precision {training.precision}")
    if accelerator.distributed_type == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ValueError("labelflow supports FSDP 2 only: accelerate launch --use_fsdp --fsdp_version 2 …")
    if accelerator.num_processes != processes:
        raise ValueError(f"{processes} processes were launched, but Accelerate sees {accelerator.num_processes}")
    return accelerator
