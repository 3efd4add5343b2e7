"""TL-Align as one of timm's training tasks: EMA, DDP, compiling and checkpoints work as with timm's own.

    python examples/timm_task.py
    python examples/timm_task.py --epochs 20 --bf16 --out checkpoint.pt

It trains on drawn scenes: nothing is downloaded, and it takes seconds on one core.
"""

import argparse
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from timm.optim import create_optimizer_v2
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms.functional import to_tensor

import labelflow as lf
from labelflow.data import World

try:
    from timm.task import TrainingTask
except ImportError:
    raise ImportError("timm's training tasks are missing: pip install 'timm>=1.0.31'") from None


class TLAlignTask(TrainingTask):
    """It mixes by itself, so that timm's Mixup stays off: `task(images, class_ids)["loss"]`.

    What timm optimizes, averages, evaluates and saves is the plain model; `aligned` has the same weights.
    """

    def __init__(self, model: nn.Module, mixer: lf.mixers.Mixer, smoothing: float = 0.1, **options: Any) -> None:
        super().__init__(**options)
        self.trainable_module = model
        self.aligned: Any = lf.Aligned(model)
        self.mixer, self.smoothing = mixer, smoothing

    def forward(self, input: Tensor, target: Tensor) -> dict[str, Tensor]:
        mix = self.mixer(input)
        logits, share = self.aligned(mix.apply(input), mix.share)
        y = lf.soft_labels(target, logits.shape[1], self.smoothing)
        return {"loss": F.cross_entropy(logits, mix.blend(y, share)), "output": logits}

    def prepare_distributed(self, device_ids: list[Any] | None = None, **options: Any) -> "TLAlignTask":
        self.aligned = DistributedDataParallel(self.aligned, device_ids=device_ids, **options)
        return self

    def no_sync(self) -> AbstractContextManager[None]:  # while gradients accumulate
        return self.aligned.no_sync() if hasattr(self.aligned, "no_sync") else super().no_sync()

    def compile(self, backend: str = "inductor", mode: str | None = None, **options: Any) -> Any:
        self.aligned = torch.compile(self.aligned, backend=backend, mode=mode, **options)
        self.eval_model = torch.compile(self.trainable_module, backend=backend, mode=mode, **options)
        return self.eval_model


def scenes(split: str, count: int) -> TensorDataset:
    """Images (3, 48, 48) and their classes, one of ten. Yours take their place."""
    drawn = map(World(split, count, size=48).load, range(count))
    return TensorDataset(*default_collate([(to_tensor(image) * 2 - 1, label) for image, label in drawn]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    parser.add_argument("--out", type=Path, help="where the trained weights go")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(scenes("train", 1001), batch_size=16, shuffle=True)
    model = VisionTransformer(
        48, 8, num_classes=10, embed_dim=64, depth=2, num_heads=4, class_token=False, global_pool="avg"
    ).to(device)
    task = TLAlignTask(model, lf.CutMix(alpha=1.0), device=device)
    task.setup_ema(decay=0.98)
    optimizer = create_optimizer_v2(task.get_trainable_module(), "adamw", lr=1e-3, weight_decay=0.01)

    step = 0
    for epoch in range(args.epochs):
        task.train()
        losses = []
        for images, classes in loader:
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = task(images.to(device), classes.to(device))["loss"]
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            task.update_ema(step := step + 1)
            losses.append(loss.detach())
        print(f"epoch {epoch + 1}  loss {torch.stack(losses).mean():.3f}")

    images, classes = scenes("val", 500).tensors
    for name, ema in (("accuracy", False), ("EMA's accuracy", True)):
        with torch.no_grad():
            right = task.get_eval_model(ema=ema).eval()(images.to(device)).argmax(1).cpu() == classes
        print(f"{name} {right.float().mean():.3f}")
    if args.out:
        torch.save(task.get_checkpoint_state() | task.get_checkpoint_state(ema=True), args.out)


if __name__ == "__main__":
    main()
