"""TL-Align in a plain PyTorch loop.

    python examples/bare_loop.py
    python examples/bare_loop.py --epochs 20 --bf16 --out model.pt

It trains on drawn scenes: nothing is downloaded, and it takes seconds on one core.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from timm.models import VisionTransformer
from torch.utils.data import DataLoader, TensorDataset, default_collate
from torchvision.transforms.functional import to_tensor

import labelflow as lf
from labelflow.data import World


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
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = DataLoader(scenes("train", 1001), batch_size=16, shuffle=True)  # the last batch may be odd
    model = VisionTransformer(
        48, 8, num_classes=10, embed_dim=64, depth=2, num_heads=4, class_token=False, global_pool="avg"
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    aligned = lf.Aligned(model)  # what DDP and torch.compile wrap, instead of the model
    cutmix = lf.CutMix(alpha=1.0)
    for epoch in range(args.epochs):
        model.train()
        losses = []
        for images, classes in loader:
            images, classes = images.to(device), classes.to(device)
            y = lf.soft_labels(classes, num_classes=10, smoothing=0.1)
            mix = cutmix(images)
            with torch.autocast(device, torch.bfloat16, enabled=args.bf16):
                logits, share = aligned(mix.apply(images), mix.share)
                loss = F.cross_entropy(logits, mix.blend(y, share))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        print(f"epoch {epoch + 1}  loss {torch.stack(losses).mean():.3f}")

    model.eval()  # the model itself, not the wrapper
    images, classes = scenes("val", 500).tensors
    with torch.no_grad():
        right = model(images.to(device)).argmax(1).cpu() == classes
    print(f"accuracy {right.float().mean():.3f}")
    if args.out:
        torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()
