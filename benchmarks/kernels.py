"""What a compiler makes of our kernels, for GPUs that need not be here: registers, spilled bytes, the instructions that
multiply matrices, and how many instructions a score of attention costs.

    python benchmarks/kernels.py                                   # the shapes of a few models: 30 seconds
    python benchmarks/kernels.py --all                             # every head width, type and number of sources
    python benchmarks/kernels.py --capabilities 80 90 --json       # for programs

Compute capability 80 is an A100, 90 an H100, 100 and 120 are Blackwell. `roofline.py` has the numbers of instructions:
those of the innermost loop for each score, and of the loop over heads around it for each query.
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labelflow import kernels
from labelflow.kernels import self_attention, windows
from labelflow.kernels.launch import INTERPRETED

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
CAPABILITIES = (80, 90, 100, 120)
WIDTHS = (6, 16, 24, 32, 48, 64, 72, 80, 88, 96, 104, 112, 128, 256)  # of the heads of timm's models, and beyond
MATRIX = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync\.aligned\.\w+\.row\.col\.([\w.]+)")
FP32 = {"FADD", "FMUL", "FFMA"}
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}


class Case(NamedTuple):
    name: str
    run: Callable[[], Tensor]  # which launches the kernel


class Launch(NamedTuple):
    kernel: Any
    arguments: dict[str, Any]
    options: dict[str, int]


class Row(NamedTuple):
    """What was compiled, and what became of it."""

    case: str
    capability: int
    registers: int
    spilled_bytes: int
    matrix_instructions: str
    fp32: float | None = None  # instructions for each score
    powers: float | None = None  # 2^x, in special function units
    all: float | None = None
    around: float | None = None  # for each query and head


def attend(
    heads: int, queries: int, keys: int, width: int, biased: bool, dtype: torch.dtype = torch.bfloat16, sources: int = 2
) -> Tensor:
    query, key = (
        torch.zeros(2, count, 3, heads, width, dtype=dtype).permute(2, 0, 3, 1, 4) for count in (queries, keys)
    )
    bias = torch.zeros(1, heads, queries, keys) if biased else None
    return kernels.attend(query[0], key[1], torch.zeros(2, keys, sources), bias, 0.1)


def cases(everything: bool) -> Iterator[Case]:
    yield Case("attend: DeiT-S", lambda: attend(6, 197, 197, 64, biased=False))
    yield Case("attend: Swin-T", lambda: attend(3, 49, 49, 32, biased=True))
    yield Case("attend: DeiT-S, 196 sources", lambda: attend(6, 197, 197, 64, biased=False, sources=196))
    yield Case("attention: Swin-T", lambda: kernels.attention(torch.zeros(2, 3, 49, 49), torch.zeros(2, 49, 2)))
    maps, same = torch.zeros(2, 14, 14, 2), ((1, 1), (1, 1), (1, 1))
    kernel = torch.zeros(256, 3, 3)
    yield Case("weights of a convolution", lambda: windows.window_weights(kernel, None, (3, 3), (3, 3), *same))
    yield Case("average over windows", lambda: windows.average(maps, torch.zeros(9, 3, 3), (14, 14), (3, 3), *same))
    for dtype in TYPES if everything else ():
        for width in WIDTHS:
            for sources in (2, 196):
                for biased in (False, True):
                    name = f"{TYPES[dtype]}, head width {width}, {sources} sources{', bias' if biased else ''}"
                    query = torch.empty(0, 0, 0, width, dtype=dtype)
                    if kernels.can_attend(query, query, 1.0):
                        how = (4, 197, 197, width, biased, dtype, sources)
                        yield Case(f"attend: {name}", lambda how=how: attend(*how))  # type: ignore[misc]


def launch_of(case: Case) -> Launch:
    """How the kernel of a case would be launched."""
    launches = []

    class Recorder:
        def __init__(self, kernel: Any) -> None:
            self.kernel = kernel

        def __getitem__(self, grid: Any) -> "Recorder":
            return self

        def __call__(self, *arguments: Any, **named: Any) -> None:
            bound = dict(zip(self.kernel.arg_names, arguments, strict=False))
            options: dict[str, int] = {name: named.pop(name) for name in ("num_warps", "num_stages") if name in named}
            launches.append(Launch(self.kernel, bound | named, {"num_warps": 4} | options))

    with patch.object(self_attention, "wrap_triton", Recorder), patch.object(windows, "wrap_triton", Recorder):
        case.run()
    return launches[0]


def compile_for(launch: Launch, capability: int) -> Any:
    """For GPUs of a compute capability. Arguments are specialised as Triton does it at a launch."""
    constants, signature, hints = {}, {}, {}
    for place, parameter in enumerate(launch.kernel.params):
        value = launch.arguments[parameter.name]
        if parameter.is_constexpr or (isinstance(value, int) and value == 1):
            constants[parameter.name], signature[parameter.name] = value, "constexpr"
            continue
        is_tensor = isinstance(value, Tensor)
        kind = f"*{TYPES[value.dtype]}" if is_tensor else "fp32" if isinstance(value, float) else "i32"
        signature[parameter.name] = kind
        if is_tensor or (isinstance(value, int) and value % 16 == 0):
            hints[place,] = [["tt.divisibility", 16]]
    source = ASTSource(fn=launch.kernel, signature=signature, constexprs=constants, attrs=hints)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=launch.options)


def measure(case: Case, capability: int) -> Row:
    launch = launch_of(case)
    compiled = compile_for(launch, capability)
    code, usage = disassemble(compiled.asm["cubin"])
    resources = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", usage)}
    found = sorted({match[1] or match[0] for match in MATRIX.finditer(compiled.asm["ptx"])})
    row = Row(case.name, capability, resources["REG"], resources["STACK"], ", ".join(found))
    if launch.kernel is not self_attention._attend_kernel:
        return row
    inner, outer, *_ = loops(code)
    rows, threads = launch.arguments["ROWS"], 32 * launch.options["num_warps"]
    scores = rows * launch.arguments["COLUMNS"]
    return row._replace(
        fp32=round(threads * sum(inner[name] for name in FP32) / scores, 1),
        powers=round(threads * inner["MUFU"] / scores, 1),
        all=round(threads * inner.total() / scores, 1),
        around=round(threads * (outer.total() - inner.total()) / rows),
    )


def disassemble(binary: bytes) -> tuple[str, str]:
    """Its instructions, and the resources that it needs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(binary)
        code, usage = (
            subprocess.run([TOOLS / tool, option, path], capture_output=True, text=True, check=True).stdout
            for tool, option in (("nvdisasm", "-c"), ("cuobjdump", "-res-usage"))
        )
    return code, usage


def loops(code: str) -> list[Counter[str]]:
    """The instructions of each loop that computes powers, the innermost first."""
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
    return sorted((loop for loop in found if loop["MUFU"]), key=Counter.total)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every head width, type and number of sources")
    parser.add_argument("--capabilities", nargs="+", type=int, default=CAPABILITIES)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if INTERPRETED:
        parser.error("TRITON_INTERPRET is set, so that nothing would be compiled")
    rows = [measure(case, capability) for case in cases(options.all) for capability in options.capabilities]
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(f"Triton {triton.__version__}\n\n| {' | '.join(Row._fields)} |\n|{'---|' * len(Row._fields)}")
    for row in rows:
        print(f"| {' | '.join('' if value is None else str(value) for value in row)} |")


if __name__ == "__main__":
    main()
