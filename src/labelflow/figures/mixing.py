"""Two images, mixed by every strategy (TL-Align, Figure 7)."""

from dataclasses import dataclass

import torch
from matplotlib.figure import Figure
from PIL import Image

from labelflow.analysis.images import pairs_of
from labelflow.analysis.samples import draw_mix, photo
from labelflow.figures.base import Asked, new, picture
from labelflow.mixers import make_mixer
from labelflow.models.packaged import PACKAGES
from labelflow.tokens import embedding_of

COLUMNS = 6


@dataclass(frozen=True)
class Data:
    names: tuple[str, str]
    mixers: dict[str, str]  # what each is called, and its settings
    area: dict[str, float]  # λ
    pictures: list[Image.Image]  # own, partner's, then one for each mixer


def compute(asked: Asked) -> Data:
    (classifier,) = asked.load(most=1)
    pair = pairs_of(classifier, 1, asked.files, asked.evaluation_data(classifier))[0]
    images = torch.stack([one.image for one in pair])
    mixers, area, pictures = strategies(patch_of(classifier.model, classifier.preprocessing.size)), {}, []
    for name, text in mixers.items():
        try:
            mix = draw_mix(classifier, pair, make_mixer(text), number=1)
        except ValueError:  # its CNN's package is missing, or the model cannot tell it what matters
            continue
        area[name] = float(mix.lam[0])
        pictures.append(photo(mix.apply(images)[0], classifier.preprocessing))
    both = [photo(image, classifier.preprocessing) for image in images]
    return Data((pair[0].name, pair[1].name), mixers, area, both + pictures)


def strategies(patch: int) -> dict[str, str]:
    """The mixers, for patches of so many pixels. Attentive-CutMix asks a CNN that comes as a package."""
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
    }


def patch_of(model: torch.nn.Module, size: int) -> int:
    """The side of a model's patches, in pixels; about a fourteenth of the image where it has none."""
    found = getattr(embedding_of(model), "patch_size", None)
    if found is None:
        return min((side for side in range(1, size + 1) if size % side == 0), key=lambda side: abs(side - size / 14))
    return int(found if isinstance(found, int) else found[0])


def draw(data: Data) -> Figure:
    titles = [f"own: {data.names[0]}", f"partner: {data.names[1]}"]
    titles += [f"{name}, λ = {area:.2f}" for name, area in data.area.items()]
    figure, axes = new(-(-len(titles) // COLUMNS), COLUMNS, 1.75, 1.95)
    for panel in axes.flat:
        panel.set_axis_off()
    for panel, image, title in zip(axes.flat, data.pictures, titles, strict=False):
        picture(panel, image, title)
    return figure


def told(data: Data) -> str:
    missing = [name for name in data.mixers if name not in data.area]
    left_out = [f"left out, for want of what tells it where to look: {', '.join(missing)}"] if missing else []
    return "\n".join([*(f"{name:20} own share {area:.3f}" for name, area in data.area.items()), *left_out])
