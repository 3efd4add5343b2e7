"""Look at every mixer: two photographs, mixed by each of them (as in Figure 7 of TL-Align).

    python examples/mixers.py
    python examples/mixers.py --images cat.jpg dog.jpg --seed 3 --out mixers.png

What matters in an image is told by the image itself (SaliencyMix), by a trained EfficientNet-Lite0 that comes as a
package (Attentive-CutMix), by its gradient (Puzzle-Mix), and by how its last block mixes places (SMMix).
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import skimage.data
import torch
from PIL import Image
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from torch import Tensor
from torchvision.transforms.v2 import functional as transforms

import labelflow as lf
from labelflow.guides import Look, Mixing, Scene
from labelflow.models.create import create

CNN = "model='tf_efficientnet_lite0', start='packaged'"
MIXERS = {
    "CutMix": "cutmix(alpha=1.0)",
    "MixUp": "mixup(alpha=1.0)",
    "MixToken": "mixtoken(alpha=1.0, patch=16)",
    "random patches": "random_patches(patch=16)",
    "blocks of patches": "block_patches(patch=16)",
    "SaliencyMix": "saliencymix(alpha=1.0)",
    "Attentive-CutMix": f"attentive_cutmix({CNN})",
    "Puzzle-Mix": "puzzlemix(alpha=1.0, blocks=(8,), pairing='flip')",
    "TokenMix": "tokenmix(patch=16)",
    "SMMix": "smmix",
}


def load(paths: list[Path] | None) -> Tensor:
    """Two photographs, (2, 3, 224, 224) in [0, 1]; two that scikit-image ships if no paths are given."""
    if paths:
        pictures = [Image.open(path).convert("RGB") for path in paths]
    else:
        pictures = [Image.fromarray(skimage.data.chelsea()), Image.fromarray(skimage.data.coffee())]
    tensors = [transforms.to_dtype(transforms.to_image(picture), torch.float32, scale=True) for picture in pictures]
    squares = [transforms.center_crop(tensor, [min(tensor.shape[1:])] * 2) for tensor in tensors]
    return torch.stack([transforms.resize(square, [224, 224], antialias=True) for square in squares])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", nargs=2, type=Path, help="two photographs")
    parser.add_argument("--seed", type=int, default=1, help="other draws")
    parser.add_argument("--out", type=Path, default=Path("out/mixers.png"))
    args = parser.parse_args()

    images = load(args.images)
    mean, std = IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
    normalised = transforms.normalize(images, list(mean), list(std))
    student = lf.Student(create("tf_efficientnet_lite0", start="packaged").eval())
    with torch.no_grad():
        classes = lf.soft_labels(student(normalised).logits.argmax(1), 1000)  # what it sees in them itself
    scene = Scene(normalised, classes, student, mean, std)

    figure, axes = plt.subplots(2, 6, figsize=(14, 5.2), layout="constrained")
    pictures = {"own image": images[0], "partner": images[1]}
    for name, text in MIXERS.items():
        mix, _ = drawn(Mixing(text), scene, args.seed)
        shown = torch.lerp(mix.pasted(images), mix.own(images), mix.share)[0]  # of tokens, what they show
        pictures[f"{name}, λ = {mix.lam[0]:.2f}"] = shown
        print(f"{name:20} own share {mix.lam[0]:.3f}")
    for panel, (title, picture) in zip(axes.flat, pictures.items(), strict=True):
        panel.imshow(picture.permute(1, 2, 0).clamp(0, 1))
        panel.set_title(title, fontsize=10)
        panel.axis("off")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=100)
    print(f"The picture is in {args.out}.")


def drawn(mixing: Mixing, scene: Scene, seed: int) -> tuple[lf.Mix, Look | None]:
    """The first draw in which both images have more than a tenth."""
    draws = (mixing(scene, torch.Generator().manual_seed(seed + number)) for number in range(100))
    return next(one for one in draws if 0.1 < float(one[0].lam[0]) < 0.9)


if __name__ == "__main__":
    main()
