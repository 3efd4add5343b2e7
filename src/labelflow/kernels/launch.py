"""Where kernels can be launched."""

import os
import sysconfig
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from shutil import which

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def _can_build() -> bool:
    """Triton's launchers are compiled from C when they are first used."""
    compiler = os.environ.get("CC") or which("gcc") or which("clang")
    return bool(compiler) and (Path(sysconfig.get_paths()["include"]) / "Python.h").exists()


DEVICES = ("cuda",) if os.environ.get("LABELFLOW_KERNELS") != "0" and _can_build() else ()  # 0: PyTorch's own


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the current device, which may be another GPU; compilers see to it themselves."""
    if device.type != "cuda" or torch.compiler.is_compiling():
        return nullcontext()
    return torch.cuda.device(device)
