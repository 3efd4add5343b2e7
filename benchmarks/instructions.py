"""How many instructions does a score of the label kernel cost? Compiled for GPUs that need not be here.

    python benchmarks/instructions.py

`flow.attend` on a GPU is one Triton kernel. For the shapes of some models it is compiled for an A100 (sm_80) and an
H100 (sm_90), and read with the disassembler that comes with Triton: instructions of its innermost loop for each score,
and of the loop over heads around it for each query. `roofline.py` has these numbers. STACK: bytes of spilled registers.
"""

import argparse
import re
import subprocess
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labelflow import kernels

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
SHAPES = {  # heads, queries, keys, width, whether there is a bias
    "DeiT-S": (6, 197, 197, 64, False),
    "Swin-T": (3, 49, 49, 32, True),
    "PVT-S": (2, 784, 49, 64, False),  # its second stage
}
FP32 = {"FADD", "FMUL", "FFMA"}
TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


class Launch(NamedTuple):
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


class Loop(NamedTuple):
    """Instructions of a thread."""

    fp32: int
    special: int
    all: int


def launch_of(heads: int, queries: int, keys: int, width: int, biased: bool) -> Launch:
    """How `kernels.attend` would launch its kernel on tensors of these shapes."""
    launches = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> "Recorder":
            return self

        def __call__(self, *arguments: Any, **named: Any) -> None:
            bound = dict(zip(self.kernel.arg_names, arguments, strict=False))
            options: dict[str, int] = {name: named.pop(name) for name in ("num_warps", "num_stages")}
            launches.append(Launch(self.kernel, bound | named, options))

    qkv = torch.zeros(2, queries, 3, heads, width, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    kv = torch.zeros(2, keys, 2, heads, width, dtype=torch.bfloat16).permute(2, 0, 3, 1, 4)
    bias = torch.zeros(1, heads, queries, keys) if biased else None
    with patch.object(kernels, "wrap_triton", Recorder):
        kernels.attend(qkv[0], kv[0], torch.zeros(2, keys, 2), bias, width**-0.5)
    return launches[0]


def compile_for(launch: Launch, capability: int) -> bytes:
    """The binary for GPUs of a capability, 80 or 90. Arguments are specialised as Triton does it at a launch."""
    constants, signature, hints = {}, {}, {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            constants[parameter.name], signature[parameter.name] = value, "constexpr"
            continue
        is_tensor = isinstance(value, Tensor)
        signature[parameter.name] = TYPES[value.dtype] if is_tensor else "fp32" if isinstance(value, float) else "i32"
        if is_tensor or (isinstance(value, int) and value % 16 == 0):
            hints[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=hints)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)
    binary: bytes = compiled.asm["cubin"]
    return binary


def disassemble(binary: bytes) -> tuple[str, str]:
    """Its instructions, and the resources it needs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        code, usage = (
            subprocess.run([TOOLS / tool, option, path], capture_output=True, text=True, check=True).stdout
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-res-usage"))
        )
    return code, " ".join(re.findall(r"REG:\d+|STACK:\d+", usage))


def loops(code: str) -> list[Loop]:
    """Those that compute powers, the innermost first."""
    names: list[str] = []
    targets: dict[str, int] = {}
    found = []
    for line in code.splitlines():
        if label := re.match(r"\s*(\.L_x_\d+):", line):
            targets[label[1]] = len(names)
        elif instruction := re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z]\w*)(.*?);", line):
            names.append(instruction[1])
            target = re.search(r"\.L_x_\d+", instruction[2])
            if instruction[1] == "BRA" and target and target[0] in targets:  # backwards
                found.append(Counter(names[targets[target[0]] :]))
    counted = [Loop(sum(loop[name] for name in FP32), loop["MUFU"], loop.total()) for loop in found if loop["MUFU"]]
    return sorted(counted, key=lambda loop: loop.all)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    print(f"Triton {triton.__version__}; for each score: FP32, powers of two, all instructions")
    print(f"{'':10}{'GPU':8}{'tile':>10}{'FP32':>8}{'powers':>8}{'all':>8}{'all, by query and head':>26}  resources")
    for name, shape in SHAPES.items():
        launch = launch_of(*shape)
        rows, columns = launch.arguments["ROWS"], launch.arguments["COLUMNS"]
        threads = 32 * launch.options["num_warps"]
        for capability in (80, 90):
            code, resources = disassemble(compile_for(launch, capability))
            inner, outer, *_ = loops(code)
            fp32, special, everything = (threads * count / (rows * columns) for count in inner)
            around = threads * (outer.all - inner.all) / rows
            print(
                f"{name:10}sm_{capability:<5}{f'{rows}×{columns}':>10}{fp32:8.2f}{special:8.2f}{everything:8.2f}"
                f"{around:26.1f}  {resources}"
            )


if __name__ == "__main__":
    main()
