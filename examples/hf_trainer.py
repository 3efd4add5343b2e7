"""TL-Align in Hugging Face's Trainer, with a compute_loss of its own.

    python examples/hf_trainer.py
    torchrun --nproc-per-node 2 examples/hf_trainer.py --epochs 20 --bf16 --out runs/hf

It trains on drawn scenes: nothing is downloaded, and it takes seconds on one core.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch import Tensor, nn
from torch.utils.data import TensorDataset, default_collate
from torchvision.transforms.functional import to_tensor

import labelflow as lf
from labelflow.data import World

try:
    from transformers import Trainer, TrainingArguments
except ImportError:
    raise ImportError("Hugging Face's Trainer is missing: pip install 'transformers>=5.18'") from None


class TLAlignTrainer(Trainer):
    """Its model is an `lf.Aligned`, so that DDP wraps that. The plain model is what it evaluates."""

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Tensor], return_outputs: bool = False, **_: Any
    ) -> Tensor | tuple[Tensor, dict[str, Tensor]]:
        if isinstance(model, nn.DataParallel):
            raise RuntimeError("labels cannot follow tokens in nn.DataParallel: start with torchrun, or with one GPU")
        images, classes = inputs["images"], inputs["labels"]
        if model.training:
            mix = lf.CutMix(alpha=1.0)(images)
            logits, share = model(mix.apply(images), mix.share)
            y = lf.soft_labels(classes, logits.shape[1], smoothing=0.1)
            loss = F.cross_entropy(logits, mix.blend(y, share))
        else:
            logits = self.model.model(images)
            loss = F.cross_entropy(logits, classes)
        return (loss, {"logits": logits}) if return_outputs else loss


def scenes(split: str, count: int) -> TensorDataset:
    """Images (3, 48, 48) and their classes, one of ten. Yours take their place."""
    drawn = map(World(split, count, size=48).load, range(count))
    return TensorDataset(*default_collate([(to_tensor(image) * 2 - 1, label) for image, label in drawn]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--bf16", action="store_true", help="mixed precision")
    parser.add_argument("--out", type=Path, default=Path("out/hf_trainer"), help="a folder")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = VisionTransformer(
        48, 8, num_classes=10, embed_dim=64, depth=2, num_heads=4, class_token=False, global_pool="avg"
    )
    settings = TrainingArguments(
        args.out,
        num_train_epochs=args.epochs,
        per_device_train_batch_size=16,
        learning_rate=2e-3,
        bf16=args.bf16,
        use_cpu=not torch.accelerator.is_available(),  # or bf16 insists on a GPU
        remove_unused_columns=False,  # or columns go that Aligned.forward does not name
        label_names=["labels"],  # or it evaluates without compute_loss
        logging_strategy="epoch",
        save_strategy="no",
        report_to="none",
        ddp_find_unused_parameters=False,  # each is used
        disable_tqdm=True,
    )
    trainer = TLAlignTrainer(
        lf.Aligned(model),
        settings,
        data_collator=lambda batch: dict(zip(("images", "labels"), default_collate(batch), strict=True)),
        train_dataset=scenes("train", 1001),
        eval_dataset=scenes("val", 500),
        compute_metrics=lambda seen: {"accuracy": (seen.predictions.argmax(1) == seen.label_ids).mean()},
    )
    trainer.train()
    result = trainer.evaluate()
    if trainer.is_world_process_zero():
        print(f"accuracy {result['eval_accuracy']:.3f}")
        torch.save(model.state_dict(), args.out / "model.pt")  # the trainer's own checkpoints are of the wrapper


if __name__ == "__main__":
    main()
