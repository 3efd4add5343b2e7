"""TL-Align in a LightningModule.

    python examples/lightning_module.py
    python examples/lightning_module.py --epochs 20 --bf16 --out model.pt

It trains on drawn scenes: nothing is downloaded, and it takes seconds on one core.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms.functional import to_tensor

import labelflow as lf
from labelflow.data import World

try:
    import lightning
except ImportError:
    raise ImportError("Lightning is missing: pip install 'lightning>=2.6.6'") from None


class TLAlignModule(lightning.LightningModule):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.aligned = lf.Aligned(model)  # its weights are the model's

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        images, classes = batch
        mix = lf.CutMix(alpha=1.0)(images)
        logits, share = self.aligned(mix.apply(images), mix.share)
        y = lf.soft_labels(classes, logits.shape[1], smoothing=0.1)
        loss = F.cross_entropy(logits, mix.blend(y, share))
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        images, classes = batch
        logits = self.aligned.model(images)  # the model itself
        self.log("accuracy", (logits.argmax(1) == classes).float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def on_train_epoch_end(self) -> None:
        self.print(f"epoch {self.current_epoch + 1}  loss {self.trainer.callback_metrics['loss']:.3f}")


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

    lightning.seed_everything(0)
    model = VisionTransformer(
        48, 8, num_classes=10, embed_dim=64, depth=2, num_heads=4, class_token=False, global_pool="avg"
    )
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        precision="bf16-mixed" if args.bf16 else "32-true",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = TLAlignModule(model)
    train = DataLoader(scenes("train", 1001), batch_size=16, shuffle=True)
    trainer.fit(module, train, DataLoader(scenes("val", 500), batch_size=250))
    module.print(f"accuracy {trainer.callback_metrics['accuracy']:.3f}")
    if args.out and trainer.is_global_zero:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
