"""CutMix against MixToken: patches that hold both images, and tokens that hold one (Token Labeling, Figure 3)."""

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image
from torch import Tensor

from labelflow.analysis.images import pairs_of
from labelflow.analysis.samples import draw_mix, photo
from labelflow.figures.base import PAGE, FigureRequest, new, picture, shorten
from labelflow.figures.mixing import patch_of
from labelflow.mixers import make_mixer


@dataclass(frozen=True)
class Data:
    names: tuple[str, str]
    grid: tuple[int, int]
    share: dict[str, Tensor]  # (h, w): the own share of each patch, for CutMix and for MixToken
    pictures: list[Image.Image]  # own, partner's, then one for each of both


def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    pair = pairs_of(classifier, 1, request.files, request.evaluation_data(classifier))[0]
    images = torch.stack([one.image for one in pair])
    patch = patch_of(classifier.model, classifier.preprocessing.size)
    grid = (images.shape[2] // patch, images.shape[3] // patch)
    share, pictures = {}, []
    for name, mixer in {"CutMix": "cutmix(alpha=1.0)", "MixToken": f"mixtoken(alpha=1.0, patch={patch})"}.items():
        mix = draw_mix(classifier, pair, make_mixer(mixer), number=0)
        share[name] = mix.tokens(grid)[0]
        pictures.append(photo(mix.apply(images)[0], classifier.preprocessing))
    both = [photo(image, classifier.preprocessing) for image in images]
    return Data((pair[0].name, pair[1].name), grid, share, both + pictures)


def torn(share: Tensor) -> Tensor:
    """Which patches hold both images: (h, w) -> (h, w) bool"""
    return (share > 1e-4) & (share < 1 - 1e-4)


def draw(data: Data) -> Figure:
    figure, axes = new(1, 4, PAGE / 4, 2.5)
    for panel, image, title in zip(axes[0], data.pictures, data.names, strict=False):
        picture(panel, image, shorten(title, 22))
    for panel, image, (name, share) in zip(axes[0, 2:], data.pictures[2:], data.share.items(), strict=True):
        both = torn(share)
        picture(panel, image, f"{name}: {int(both.sum())} of {both.numel()}\npatches hold both")
        height, width = image.height / data.grid[0], image.width / data.grid[1]
        for row in range(data.grid[0]):
            for column in range(data.grid[1]):
                red = bool(both[row, column])
                corner, edge = (column * width - 0.5, row * height - 0.5), "red" if red else "white"
                frame = Rectangle(corner, width, height, fill=False, ec=edge, lw=1.6 if red else 0.3, zorder=2 + red)
                panel.add_patch(frame)
    return figure


def summary(data: Data) -> str:
    return "\n".join(
        f"{name:9} {int(torn(share).sum())} of {share.numel()} patches hold both images"
        for name, share in data.share.items()
    )
