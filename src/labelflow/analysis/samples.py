"""Mixed samples, with the labels of their tokens before and after alignment.

Shapes: H×W pixels, h×w tokens. Of two images the first is the own one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from labelflow.align import Aligned, Student
from labelflow.analysis.images import LabelledImage, pairs_of
from labelflow.chance import generator
from labelflow.classifier import Classifier
from labelflow.data import Data, Preprocessing
from labelflow.guides import UnmixedBatch
from labelflow.loss import soft_labels
from labelflow.mix import Mix
from labelflow.mixers import AnyMixer, make_mixer, mix_batch

DRAWS = 20  # how many mixes are looked at to find one in which both images have a fifth
SIDE = 224  # of the pictures, in pixels
RED, BLUE, WHITE = torch.tensor([(202.0, 0, 32), (5, 113, 176), (247, 247, 247)]).reshape(3, 3, 1, 1)  # (3, 1, 1) each


@dataclass(frozen=True, eq=False)
class Sample:
    """Two images, how they are mixed, and what a model makes of that."""

    images: Tensor  # (2, 3, H, W)
    names: tuple[str, str]  # of their classes, or of their files
    mix: Mix
    layers: dict[str, Tensor]  # (h, w): the own share of each token after a block, under its name
    arrived: float  # the own share of what reached the classifier
    answers: list[tuple[str, float]]  # the model's likeliest classes for the mixed image, and their probabilities: two,
    # or more where an image may show several

    @property
    def mixed(self) -> Tensor:
        """(3, H, W)"""
        return self.mix.apply(self.images)[0]

    @property
    def after(self) -> Tensor:
        """(h, w): the own share of each token after the last block."""
        return list(self.layers.values())[-1]

    @property
    def before(self) -> Tensor:
        """(h, w): the own share of each token, by area."""
        return self.mix.tokens((self.after.shape[0], self.after.shape[1]))[0]

    @property
    def area(self) -> float:
        """The own share of the image, λ."""
        return float(self.mix.lam[0])


@torch.no_grad()
def mixed_samples(
    classifier: Classifier, spec: str, count: int = 4, files: Sequence[Path] = (), data: Data | None = None
) -> list[Sample]:
    """Pairs of evaluation images, or of files, mixed and seen by a model; the same each time."""
    aligned, mixer = Aligned(classifier.model), make_mixer(spec)
    samples = []
    for number, pair in enumerate(pairs_of(classifier, count, files, data)):
        mix = draw_mix(classifier, pair, mixer, number)
        images = torch.stack([one.image for one in pair])
        mixed, share = mix.apply(images)[:1], mix.share[:1]
        logits, arrived = aligned(mixed, share)
        samples.append(
            Sample(
                images,
                (pair[0].name, pair[1].name),
                mix,
                layers={layer.name: layer.map[0] for layer in aligned.trace(mixed, share)},
                arrived=float(arrived[0]),
                answers=likeliest(classifier, logits[0], 5 if classifier.multi_label else 2),
            )
        )
    return samples


def likeliest(classifier: Classifier, logits: Tensor, count: int = 2) -> list[tuple[str, float]]:
    """The likeliest classes, and their probabilities: (C,) -> …"""
    chances, places = classifier.as_probabilities(logits).topk(min(count, len(logits)))
    return [
        (classifier.class_name(place), chance) for place, chance in zip(places.tolist(), chances.tolist(), strict=True)
    ]


def draw_mix(
    classifier: Classifier,
    pair: tuple[LabelledImage, LabelledImage],
    mixer: AnyMixer,
    number: int,
    draws: int = DRAWS,
) -> Mix:
    """The mixer's first draw in which both images have a fifth, if there is one in so many; each is the other's
    partner."""
    batch = batch_of(classifier, pair)
    shown, _ = mix_batch(mixer, batch, generator(number, 0))
    for attempt in range(1, draws):
        if shown.partner.tolist() in ([1, 0], [2, 3]) and 0.2 <= shown.lam[0] <= 0.8:
            break
        shown, _ = mix_batch(mixer, batch, generator(number, attempt))
    # Tokens that are mixed cannot be looked at; and an earlier batch, [2, 3], has the same two images.
    return replace(shown, partner=torch.tensor([1, 0]), pool=0, at="image")


@torch.no_grad()
def batch_of(classifier: Classifier, labelled: Sequence[LabelledImage]) -> UnmixedBatch:
    """A batch for a mixer. Images whose classes the model does not know are what it takes them for; the earlier batch
    has the same images, in the opposite order."""
    images, student = torch.stack([one.image for one in labelled]), Student(classifier.model)
    logits = student(images).logits
    labels = torch.tensor([one.label for one in labelled])
    colours = classifier.preprocessing
    labels = torch.where(labels < 0, logits.argmax(1), labels)
    targets, earlier = soft_labels(labels, logits.shape[1]), images.flip(0)
    return UnmixedBatch(images, targets, student, colours.mean, colours.std, earlier=earlier)


def photo(image: Tensor, colours: Preprocessing) -> Image.Image:
    """A normalised image (3, H, W) to look at; small ones keep their pixels crisp."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (colours.mean, colours.std))
    picture = _picture(255 * (image * std + mean))
    return picture.resize((SIDE, SIDE), Image.Resampling.NEAREST if picture.width < SIDE else Image.Resampling.LANCZOS)


def overlay(share: Tensor, under: Image.Image) -> Image.Image:
    """Shares (h, w) over a picture: red where a token is one's own, blue where it is the partner's, white between."""
    lean = 2 * share - 1
    cells = torch.lerp(WHITE, torch.where(lean > 0, RED, BLUE), lean.abs())  # (3, h, w)
    colours = _picture(cells).resize(under.size, Image.Resampling.NEAREST)
    return Image.blend(under.convert("L").convert("RGB"), colours, 0.65)


def _picture(values: Tensor) -> Image.Image:
    """(3, H, W) from 0 to 255"""
    return Image.fromarray(values.round().clamp(0, 255).byte().permute(1, 2, 0).contiguous().numpy())
