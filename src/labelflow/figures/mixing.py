"""Two images, mixed by every strategy (TL-Align, Figure 7)."""

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from PIL import Image

from labelflow.analysis.images import pairs_of
from labelflow.analysis.samples import draw_mix, photo
from labelflow.figures.base import PAGE, FigureRequest, new, picture, shorten
from labelflow.mixers import make_mixer
from labelflow.models.packaged import PACKAGES
from labelflow.tokens import embedding_of

COLUMNS = 4


@dataclass(frozen=True)
class Data:
    names: tuple[str, str]
    mixers: dict[str, str]  # name and specification
    area: dict[str, float]  # λ of each that could mix the pair
    skipped: dict[str, str]  # the others, and why
    pictures: list[Image.Image]  # own, partner's, then one for each of `area`


def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    pair = pairs_of(classifier, 1, request.files, request.evaluation_data(classifier))[0]
    images = torch.stack([labelled.image for labelled in pair])
    mixers = strategies(patch_of(classifier.model, classifier.preprocessing.size))
    area, skipped, pictures = {}, {}, []
    for name, text in mixers.items():
        try:
            mix = draw_mix(classifier, pair, make_mixer(text), number=1)
        except ValueError as error:  # its CNN's package is missing, or the model has no attention to guide it
            skipped[name] = str(error)
            continue
        area[name] = float(mix.lam[0])
        pictures.append(photo(mix.apply(images)[0], classifier.preprocessing))
    both = [photo(image, classifier.preprocessing) for image in images]
    return Data((pair[0].name, pair[1].name), mixers, area, skipped, both + pictures)


def strategies(patch: int) -> dict[str, str]:
    """The mixers, for patches of that size in pixels. Attentive-CutMix is guided by a CNN that pip installs."""
    cnn = next(iter(PACKAGES))
    return {
        "CutMix": "cutmix(alpha=1.0)",
        "MixUp": "mixup(alpha=1.0)",
        "MixToken": f"mixtoken(alpha=1.0, patch={patch})",
        "random patches": f"random_patches(patch={patch})",
        "blocks of patches": f"block_patches(patch={patch})",
        "SaliencyMix": "saliencymix(alpha=1.0)",
        "Attentive-CutMix": f"attentive_cutmix(model={cnn!r}, init='packaged')",
        "Puzzle-Mix": "puzzlemix(alpha=1.0, blocks=(8,), pairing='flip')",
        "TokenMix": f"tokenmix(patch={patch})",
        "SMMix": "smmix",
        "MaskMix": f"maskmix(patch={patch}, pairing='flip')",
        "GuidedMixup": "guided_mixup",
        "ResizeMix": "resizemix",
        "RecursiveMix": "recursivemix",
    }


def patch_of(model: torch.nn.Module, size: int) -> int:
    """A model's patch size, in pixels; about a fourteenth of the image where it has none."""
    patch = getattr(embedding_of(model), "patch_size", None)
    if patch is None:
        return min((side for side in range(1, size + 1) if size % side == 0), key=lambda side: abs(side - size / 14))
    return int(patch if isinstance(patch, int) else patch[0])


def draw(data: Data) -> Figure:
    titles = [f"{whose}:\n{shorten(name, 22)}" for whose, name in zip(("own", "partner’s"), data.names, strict=True)]
    titles += [f"{name},\nλ = {area:.2f}" for name, area in data.area.items()]
    figure, axes = new(-(-len(titles) // COLUMNS), COLUMNS, PAGE / COLUMNS, 2.5)
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, image, title in zip(axes.flat, data.pictures, titles, strict=False):
        picture(panel, image, title)
    return figure


def summary(data: Data) -> str:
    drawn = (f"{name:20} own share {area:.3f}" for name, area in data.area.items())
    return "\n".join([*drawn, *(f"skipped {name}: {reason}" for name, reason in data.skipped.items())])
