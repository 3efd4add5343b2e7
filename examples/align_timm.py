"""Watch labels follow tokens: mix two photographs, and see how much of each every layer of a model carries.

    python examples/align_timm.py
    python examples/align_timm.py --pretrained
    python examples/align_timm.py --model swin_tiny_patch4_window7_224 --images cat.jpg dog.jpg

Without --pretrained nothing is downloaded: the model has random weights, sharpened to pay attention to something.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import skimage.data
import timm
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from PIL import Image
from torch import Tensor, nn
from torchvision.transforms.v2 import functional as transforms

import labelflow as lf

RED_TO_BLUE = "RdBu_r"  # red: one's own image, blue: the partner's; as in the paper's Figure 5


def load(paths: list[Path] | None, size: tuple[int, int]) -> Tensor:
    """Two photographs, (2, 3, H, W) in [0, 1]; two that scikit-image ships if no paths are given."""
    if paths:
        pictures = [Image.open(path).convert("RGB") for path in paths]
    else:
        pictures = [Image.fromarray(skimage.data.chelsea()), Image.fromarray(skimage.data.coffee())]
    tensors = [
        transforms.to_dtype(transforms.pil_to_tensor(picture), torch.float32, scale=True) for picture in pictures
    ]
    squares = [transforms.center_crop(tensor, [min(tensor.shape[1:])] * 2) for tensor in tensors]
    return torch.stack([transforms.resize(square, list(size), antialias=True) for square in squares])


def sharpen(model: nn.Module) -> None:
    """Scale queries and keys, so that random weights pay about as peaked attention as trained ones do."""
    for name, module in model.named_modules():
        if name.endswith((".qkv", ".q", ".kv")) and isinstance(module, nn.Linear):
            module.weight.data *= 7


def draw(images: Tensor, mix: lf.Mix, layers: list[lf.Layer], arrived: float, title: str, path: Path) -> None:
    """Both images, the mix, the ratio that each layer carries, and the labels after each layer over the mix."""
    mixed = mix.apply(images)[0].permute(1, 2, 0).clamp(0, 1)
    shown = layers if len(layers) <= 12 else [layers[i * (len(layers) - 1) // 11] for i in range(12)]
    figure = plt.figure(figsize=(13, 7.4), layout="constrained")
    figure.suptitle(title)
    top, bottom = figure.subfigures(2, 1, height_ratios=[1, 1.75], squeeze=False)[:, 0]

    axes = top.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.6])
    start = mix.tokens(layers[0].grid)[0]
    pictures = {"own image": images[0].permute(1, 2, 0), "partner": images[1].permute(1, 2, 0), "mixed": mixed}
    for panel, (name, picture) in zip(axes, pictures.items(), strict=False):
        panel.imshow(picture.clamp(0, 1).numpy())
        panel.set_title(name, fontsize=10)
    overlay(axes[3], mixed, start, "labels at the start")
    curve(axes[4], mix, layers, arrived)

    axes = bottom.subplots(2, 6).flat
    for panel, layer in zip(axes, shown, strict=False):
        colours = overlay(panel, mixed, layer.map[0], f"after {layer.name}")
    for panel in [*top.axes[:4], *bottom.axes]:
        panel.axis("off")
    bottom.colorbar(colours, ax=bottom.axes, shrink=0.6, label="share of the own image")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def overlay(axes: Axes, image: Tensor, share: Tensor, title: str) -> AxesImage:
    axes.imshow(image.mean(2).numpy(), cmap="gray")
    axes.set_title(f"{title}: {float(share.mean()):.2f}", fontsize=9)
    enlarged = F.interpolate(share[None, None], (image.shape[0], image.shape[1]))[0, 0]
    return axes.imshow(enlarged.numpy(), cmap=RED_TO_BLUE, vmin=0, vmax=1, alpha=0.65)


def curve(axes: Axes, mix: lf.Mix, layers: list[lf.Layer], arrived: float) -> None:
    """How much of each token is one's own, layer by layer (as in the paper's Figure 4)."""
    places = range(len(layers))
    axes.plot(places, [layer.map[0].mean() for layer in layers], color="gray", label="mean of patch tokens")
    with_class_token = [
        (i, layer) for i, layer in zip(places, layers, strict=True) if layer.share[0].numel() > layer.map[0].numel()
    ]
    if with_class_token:
        rows = [(i, layer.share[0, 0]) for i, layer in with_class_token]
        axes.plot(*zip(*rows, strict=True), color="#2a7f62", marker="o", markersize=3, label="class token")
    area = float(mix.lam[0])
    axes.axhline(area, color="black", linestyle=":", label="CutMix's λ")
    axes.set(
        xlabel="block", title=f"λ = {area:.3f}, {arrived:.3f} reaches the classifier", ylim=(area - 0.15, area + 0.15)
    )
    axes.title.set_fontsize(10)
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="deit_tiny_patch16_224", help="a timm model that labels can follow")
    parser.add_argument("--pretrained", action="store_true", help="download trained weights")
    parser.add_argument("--images", nargs=2, type=Path, help="two photographs")
    parser.add_argument("--seed", type=int, default=4, help="another box")
    parser.add_argument("--out", type=Path, default=Path("out/align_timm.png"))
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    model = timm.create_model(args.model, pretrained=args.pretrained).eval()
    if not args.pretrained:
        sharpen(model)
    config = timm.data.resolve_model_data_config(model)
    images = load(args.images, config["input_size"][1:])
    mix = lf.CutMix(alpha=1.0)(images, torch.Generator().manual_seed(args.seed))
    normalised = transforms.normalize(mix.apply(images), config["mean"], config["std"])

    try:
        aligned = lf.Aligned(model)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    with torch.no_grad():
        _, share = aligned(normalised, mix.share)
    layers = aligned.trace(normalised, mix.share)

    print(f"{args.model} ({'trained' if args.pretrained else 'random weights'}): how much is one's own image?")
    print(f"  {'the area (CutMix):':40} {float(mix.lam[0]):.3f}")
    for layer in layers:
        print(f"  {f'patch tokens after {layer.name}:':40} {float(layer.map[0].mean()):.3f}")
    print(f"  {'what reaches the classifier:':40} {float(share[0]):.3f}")
    draw(images, mix, layers, float(share[0]), f"Labels that follow tokens: {args.model}", args.out)
    print(f"The picture is in {args.out}.")


if __name__ == "__main__":
    main()
