"""What does labelflow cost on this GPU, and does it keep its promises there? Ends with a table to paste into an issue.

    python benchmarks/gpu.py                               # some minutes on a data-centre GPU
    python benchmarks/gpu.py --quick                       # smaller batches, fewer rounds
    python benchmarks/gpu.py --sections waits errors       # only these

eager     a training step with `Aligned` beside one without: CutMix, forward, loss, backward, AdamW, in bf16, taking
          turns; the median and the quartiles of the ratios. Data loading is not included.
compiled  the same, with torch.compile.
memory    the most that such a step holds at once, as a ratio.
methods   the speed column of TL-Align's Table 2: images/s of ways to train the first model, relative to CutMix.
waits     aligned training steps during which the host must never wait for the GPU; an error says where it does.
mixers    where each mixer makes the host wait.
errors    the largest error of a share in any layer, against float64.

Whatever fails is a line of the table, and the rest goes on. Without a GPU it runs with small models on the CPU, in
float32, and says so. Writes out/gpu.md.
"""

import argparse
import gc
import platform
import statistics
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import rivals
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import labelflow as lf
from labelflow import flow
from labelflow.align import Student
from labelflow.guides import UnmixedBatch
from labelflow.mixers import make_mixer, mix_batch
from labelflow.models.create import create
from labelflow.spec import parse

MODELS = ("deit_small_patch16_224", "swin_tiny_patch4_window7_224", "pvt_small")
CPU_MODELS = ("deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_tiny")
MIXERS = (
    *("cutmix", "cutmix(per='sample')", "cutmix(pairing='permute')", "mixup", "0.5*mixup + 0.5*cutmix"),
    *("mixtoken(patch=16)", "random_patches(patch=16)", "block_patches(patch=16)", "tokenmix(patch=16)"),
    *("saliencymix", "attentive_cutmix(model='resnet18', init='')", "puzzlemix", "smmix"),
)
CLASSES, PIXELS, SHARP = 1000, 224, "sharp attention"
ON_CPU = "not measured: this is a CPU"


@dataclass(frozen=True)
class Settings:
    device: torch.device
    models: Sequence[str]
    batch: int
    rounds: int
    steps: int  # of a round
    methods: Sequence[str]
    mixers: Sequence[str]

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def precision(self) -> str:
        return "bf16" if self.on_gpu else "float32"

    def autocast(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu)


class Row(NamedTuple):
    what: str
    result: str
    note: str = ""


class Trainer:
    """Training steps of one model on one batch, with labels that follow its tokens or without."""

    def __init__(self, name: str, aligned: bool, settings: Settings, compiled: bool = False) -> None:
        torch.manual_seed(0)
        self.settings, self.aligned = settings, aligned
        model = make_model(name, settings)
        self.model = lf.Aligned(model) if aligned else model
        if compiled:
            self.model.compile()
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=settings.on_gpu)
        self.images, self.classes = make_batch(settings)
        self.cutmix = lf.CutMix(alpha=1.0)

    def step(self) -> None:
        mix = self.cutmix(self.images)
        mixed, share = mix.apply(self.images), None
        with self.settings.autocast():
            if self.aligned:
                logits, share = self.model(mixed, mix.share)
            else:
                logits = self.model(mixed)
        F.cross_entropy(logits.float(), mix.blend(self.classes, share)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def seconds(self) -> float:
        """Of a step, the mean of some: the GPU's time, or the CPU's."""
        if not self.settings.on_gpu:
            begun = time.process_time()
            self._steps()
            return (time.process_time() - begun) / self.settings.steps
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        self._steps()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1000 / self.settings.steps

    def _steps(self) -> None:
        for _ in range(self.settings.steps):
            self.step()


def make_model(name: str, settings: Settings) -> nn.Module:
    kind, arguments = parse(name)
    return create(kind, **arguments).to(settings.device).train()


def make_batch(settings: Settings) -> tuple[Tensor, Tensor]:
    """Images (B, 3, H, W) and soft labels (B, C)."""
    images = torch.randn(settings.batch, 3, PIXELS, PIXELS, device=settings.device)
    numbers = torch.randint(CLASSES, (settings.batch,), device=settings.device)
    return images, lf.soft_labels(numbers, CLASSES, smoothing=0.1)


def eager(name: str, settings: Settings, compiled: bool = False) -> list[Row]:
    trainers = [Trainer(name, aligned, settings, compiled) for aligned in (False, True)]
    for trainer in trainers * 2:  # compiles, and chooses algorithms
        trainer.step()
    times: list[list[float]] = [[], []]
    for number in range(settings.rounds):
        for way in (0, 1) if number % 2 else (1, 0):  # turn about, so that a drift hits both
            times[way].append(trainers[way].seconds())
    ratios = [aligned / plain for plain, aligned in zip(*times, strict=True)]
    plain, aligned = (statistics.median(one) for one in times)
    speeds = f"plain {1000 * plain:.1f} ms, aligned {1000 * aligned:.1f} ms, {settings.batch / aligned:.0f} images/s"
    how = "compiled" if compiled else "eager"
    return [Row(f"step, {how}, {name}", f"{statistics.median(ratios):.3f} ({_quartiles(ratios)})", speeds)]


def compiled(name: str, settings: Settings) -> list[Row]:
    torch.compiler.reset()
    return eager(name, settings, compiled=True)


def _quartiles(values: list[float]) -> str:
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return f"{low:.3f} to {high:.3f}"


def memory(name: str, settings: Settings) -> list[Row]:
    if not settings.on_gpu:
        return [Row(f"peak memory, {name}", ON_CPU)]
    peaks = []
    for aligned in (False, True):
        trainer = Trainer(name, aligned, settings)
        trainer.step()
        torch.cuda.reset_peak_memory_stats()
        trainer.step()
        peaks.append(torch.cuda.max_memory_allocated())
        del trainer
        release(settings)
    plain, followed = peaks
    sizes = f"plain {plain / 2**30:.2f} GiB, aligned {followed / 2**30:.2f} GiB"
    return [Row(f"peak memory, {name}", f"{followed / plain:.3f}", sizes)]


def methods(name: str, settings: Settings) -> list[Row]:
    precision = "bf16" if settings.on_gpu else "no"
    speeds = rivals.measure(settings.methods, name, settings.batch, settings.rounds, precision=precision)
    return [
        Row(
            f"images/s to {next(iter(speeds))}, {method}, {name}",
            f"{speed.ratio:.3f} ({speed.low:.3f} to {speed.high:.3f})",
            f"{settings.batch / speed.seconds:.0f} images/s"
            + (f"; the paper {rivals.PAPER[method]:.2f}" if method in rivals.PAPER else ""),
        )
        for method, speed in speeds.items()
    ]


@contextmanager
def sync_debug(mode: str, settings: Settings) -> Iterator[None]:
    """On a GPU, an operation for which the host has to wait is an "error", or something to "warn" about."""
    if settings.on_gpu:
        torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        if settings.on_gpu:
            torch.cuda.set_sync_debug_mode("default")


def waits(name: str, settings: Settings) -> list[Row]:
    trainer = Trainer(name, aligned=True, settings=settings)
    trainer.step()
    with sync_debug("error", settings):
        for _ in range(3):
            trainer.step()
    return [Row(f"the host waits in 3 aligned steps, {name}", "never" if settings.on_gpu else ON_CPU)]


def mixers(text: str, settings: Settings) -> list[Row]:
    mixer = make_mixer(text)
    student = Student(make_model(settings.models[0], settings))
    images, classes = make_batch(settings)
    batch = UnmixedBatch(images, classes, student, mean=(0.5,) * 3, std=(0.5,) * 3)
    generator = torch.Generator().manual_seed(0)
    mix_batch(mixer, batch, generator)
    with warnings.catch_warnings(record=True) as caught, sync_debug("warn", settings):
        warnings.simplefilter("always")
        mix, _ = mix_batch(mixer, batch, generator)
        mix.apply(images)
    found = [one for one in caught if "synchroniz" in str(one.message)]
    places = dict.fromkeys(f"{Path(one.filename).parent.name}/{Path(one.filename).name}:{one.lineno}" for one in found)
    times = f"{len(found)} times" if found else "never"
    return [Row(f"the host waits, {text}", times if settings.on_gpu else ON_CPU, ", ".join(places))]


def errors(name: str, settings: Settings) -> list[Row]:
    """Each layer's, with the queries and keys (or weights) that the model has there, and labels as they arrive."""
    found: list[float] = []
    attend, attention = flow.attend, flow.attention

    def checked_attend(
        query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None = None, scale: float | None = None
    ) -> Tensor:
        mixed = attend(query, key, labels, bias, scale)
        found.append(_difference(mixed, _exact_weights(query, key, bias, scale), labels))
        return mixed

    def checked_attention(weights: Tensor, labels: Tensor) -> Tensor:
        mixed = attention(weights, labels)
        found.append(_difference(mixed, weights.double().mean(1), labels))
        return mixed

    with patch.multiple(flow, attend=checked_attend, attention=checked_attention):
        if name == SHARP:
            _attend_sharply(settings)
        else:
            images = torch.randn(min(8, settings.batch), 3, PIXELS, PIXELS, device=settings.device)
            mix = lf.CutMix(per="sample")(images)
            with torch.no_grad(), settings.autocast():
                lf.Aligned(make_model(name, settings))(mix.apply(images), mix.share)
    return [Row(f"largest error of a share, {name}", f"{max(found):.1e}", f"{len(found)} layers")]


def _attend_sharply(settings: Settings) -> None:
    """Scores as far apart as trained models have them; DeiT's shapes, then Swin's, with a bias."""
    chance = torch.Generator().manual_seed(0)
    for batch, heads, tokens, width, biased in ((8, 6, 197, 64, False), (64, 3, 49, 32, True)):
        query, key = (3 * torch.randn(batch, heads, tokens, width, generator=chance) for _ in range(2))
        query, key = (part.to(settings.device, torch.bfloat16 if settings.on_gpu else None) for part in (query, key))
        own = torch.rand(batch, tokens, generator=chance).to(settings.device)
        bias = torch.randn(1, heads, tokens, tokens, generator=chance).to(settings.device) if biased else None
        flow.attend(query, key, torch.stack([own, 1 - own], -1), bias)


def _exact_weights(query: Tensor, key: Tensor, bias: Tensor | None, scale: float | None) -> Tensor:
    """Eqs. 6 and 9 in float64: (B, N, M)"""
    scores = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias.double().repeat(len(scores) // len(bias), 1, 1, 1)
    return scores.softmax(-1).mean(1)


def _difference(mixed: Tensor, weights: Tensor, labels: Tensor) -> float:
    exact = weights @ labels.double()  # (B, N, K)
    exact = exact / exact.sum(-1, keepdim=True)
    return (mixed - exact).abs().max().item()


class Section(NamedTuple):
    items: Callable[[Settings], Sequence[str]]
    measure: Callable[[str, Settings], list[Row]]


def _models(settings: Settings) -> Sequence[str]:
    return settings.models


SECTIONS = {
    "eager": Section(_models, eager),
    "compiled": Section(_models, compiled),
    "memory": Section(_models, memory),
    "methods": Section(lambda settings: settings.models[:1], methods),
    "waits": Section(_models, waits),
    "mixers": Section(lambda settings: settings.mixers, mixers),
    "errors": Section(lambda settings: [*settings.models, SHARP], errors),
}


def measure(section: str, settings: Settings) -> Iterator[Row]:
    """Its rows; what fails is one of them."""
    for item in SECTIONS[section].items(settings):
        try:
            yield from SECTIONS[section].measure(item, settings)
        except Exception as error:
            first_line = (str(error).strip() or "no message").splitlines()[0]
            yield Row(f"{section}, {item}", "failed", f"{type(error).__name__}: {first_line}")
        release(settings)


def release(settings: Settings) -> None:
    gc.collect()
    if settings.on_gpu:
        torch.cuda.empty_cache()


def environment(settings: Settings) -> list[Row]:
    device = torch.cuda.get_device_name(settings.device) if settings.on_gpu else f"none: a CPU, {platform.machine()}"
    versions = [Row(name, _version(name)) for name in ("labelflow", "triton", "timm")]
    size = (
        f"batch {settings.batch}, {PIXELS} pixels, {settings.precision}; {settings.rounds} rounds of {settings.steps}"
    )
    return [
        Row("GPU", device),
        Row("driver", _driver() if settings.on_gpu else "none"),
        Row("torch", torch.__version__),
        *versions,
        Row("settings", size),
    ]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _driver() -> str:
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"


def table(rows: Sequence[Row]) -> str:
    lines = [" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row).strip() for row in rows]
    return "\n".join(["| what | result | |", "|---|---|---|", *(f"| {line} |" for line in lines)])


def main(arguments: Sequence[str] | None = None) -> None:
    on_gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sections = [name for name in SECTIONS if on_gpu or name != "compiled"]
    parser.add_argument("--sections", nargs="+", default=sections, choices=list(SECTIONS))
    parser.add_argument("--models", nargs="+", default=MODELS if on_gpu else CPU_MODELS, help="names of timm's or ours")
    parser.add_argument("--batch", type=int, help="images of a step; 256, with --quick 64, on a CPU 2")
    parser.add_argument("--rounds", type=int, help="15; with --quick or on a CPU 3")
    parser.add_argument("--steps", type=int, help="of each kind in a round; 5, with --quick 2, on a CPU 1")
    parser.add_argument("--methods", nargs="+", default=rivals.ROWS, help="NAME, or NAME=MIXER/TARGET")
    parser.add_argument("--mixers", nargs="+", default=MIXERS)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args(arguments)
    batch, rounds, steps = ((64, 3, 2) if options.quick else (256, 15, 5)) if on_gpu else (2, 3, 1)
    settings = Settings(
        torch.device("cuda" if on_gpu else "cpu"),
        options.models,
        options.batch or batch,
        options.rounds or rounds,
        options.steps or steps,
        options.methods,
        options.mixers,
    )
    if not on_gpu:
        torch.set_num_threads(1)
        print("There is no GPU here: what follows was measured on a CPU.\n")

    rows = environment(settings)
    for section in options.sections:
        for row in measure(section, settings):
            print(f"{row.what}: {row.result}  {row.note}", flush=True)
            rows.append(row)
    text = table(rows)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "gpu.md").write_text(f"{text}\n")
    print(f"\n{text}\n\nPlease paste this table into an issue. It is in {options.out / 'gpu.md'}, too.")


if __name__ == "__main__":
    main()
