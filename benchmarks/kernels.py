"""What a compiler makes of our kernels, for GPUs that need not be there: registers, spilled bytes, shared memory, and
the instructions that multiply matrices.

    python benchmarks/kernels.py            # about two minutes
    python benchmarks/kernels.py --quick    # what the tests check

Ampere is 80, Hopper 90, Blackwell 100 (data centers) and 120 (desktops).
"""

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labelflow import kernels

CAPABILITIES = (80, 90, 100, 120)
TYPES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
MATRIX = re.compile(r"wgmma\.mma_async|tcgen05\.mma|mma\.sync\.aligned\.\w+\.row\.col\.([\w.]+)")


class Case(NamedTuple):
    """One way in which a kernel is compiled."""

    kernel: str
    dtype: torch.dtype = torch.bfloat16
    width: int = 64  # of a head
    sources: int = 2
    biased: bool = False


def cases(quick: bool) -> Iterator[Case]:
    yield Case("attend")  # a ViT
    yield Case("attend", width=32, biased=True)  # Swin
    yield Case("attend", sources=197)  # dense labels
    yield Case("attention")
    yield Case("window_weights")
    yield Case("average")
    if quick:
        return
    for dtype in TYPES:
        for width in (16, 24, 32, 48, 64, 72, 80, 96, 104, 112, 128, 256):  # those of timm's models, and beyond
            for sources in (2, 197):
                for biased in (False, True):
                    if kernels.can_attend(torch.empty(0, 0, 0, width, dtype=dtype)):
                        yield Case("attend", dtype, width, sources, biased)


def source(case: Case) -> tuple[ASTSource, int]:
    """What is compiled, and for how many warps: arguments as the wrappers pass them."""
    block = kernels.blocks(case.dtype, case.width, case.sources)
    constants: dict[str, dict[str, Any]] = {
        "attend": {
            "WIDTH": case.width,
            "PAIR": case.sources == 2,
            "BIASED": case.biased,
            "WIDEN": False,
            "PRECISION": kernels.PRECISION,
            "ROWS": block.rows,
            "COLUMNS": block.columns,
            "DEPTH": block.depth,
            "SOURCES": block.sources,
        },
        "attention": {"ROWS": 32, "COLUMNS": 64},
        "window_weights": {"SIZE_C": 3, "TAPS": 9, "PADDED": False, "TAP": 16, "CHANNELS": 256},
        "average": {"SIZE_C": 3, "TAPS": 9, "WEIGHTED": True, "PLACES": 256, "SOURCES": 2},
    }
    function: Any = getattr(kernels, f"_{case.kernel}")
    strides = {"query_d": 1, "key_d": 1, "labels_k": 1, "bias_m": 1, "weights_m": 1}
    fixed = constants[case.kernel] | {name: value for name, value in strides.items() if name in function.arg_names}
    pointers = dict.fromkeys(("labels", "mixed", "kernel", "present", "weights"), "fp32")
    pointers |= dict.fromkeys(("query", "key", "bias"), TYPES[case.dtype])
    signature = {
        name: "constexpr" if name in fixed else f"*{pointers[name]}" if name in pointers else "i32"
        for name in function.arg_names
    }
    if "scale" in signature:
        signature["scale"] = "fp32"
    aligned = (
        {"query", "key", "query_b", "query_a", "query_n", "key_b", "key_a", "key_m"} if case.width % 16 == 0 else ()
    )
    attributes = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(function.arg_names) if name in aligned}
    made = ASTSource(fn=function, signature=signature, constexprs=fixed, attrs=attributes)
    return made, block.warps if case.kernel == "attend" else 4


class Row(NamedTuple):
    capability: int
    kernel: str
    type: str
    width: int
    sources: int
    bias: bool
    registers: int
    spilled_bytes: int
    shared_bytes: int
    instructions: str


def compile_for(capability: int, case: Case) -> Row:
    made, warps = source(case)
    compiled = triton.compile(
        made, target=GPUTarget("cuda", capability, 32), options={"num_warps": warps, "num_stages": 2}
    )
    found = sorted({match[1] or match[0] for match in MATRIX.finditer(compiled.asm["ptx"])})
    registers, stack = _resources(compiled.asm["cubin"])
    return Row(
        capability,
        case.kernel,
        TYPES[case.dtype],
        case.width,
        case.sources,
        case.biased,
        registers,
        stack,
        compiled.metadata.shared,
        ", ".join(found),
    )


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes of its stack, where what does not fit is spilled."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run([tool, "-res-usage", file.name], capture_output=True, text=True, check=True).stdout
    numbers = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", text)}
    return numbers["REG"], numbers["STACK"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the cases that the tests check")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args()
    if kernels.INTERPRETED:
        parser.error("TRITON_INTERPRET is set: nothing would be compiled")
    rows = [compile_for(capability, case) for case in cases(options.quick) for capability in CAPABILITIES]
    if options.json:
        print(json.dumps([row._asdict() for row in rows]))
        return
    print(" | ".join(Row._fields))
    for row in rows:
        print(" | ".join(map(str, row)))


if __name__ == "__main__":
    main()
