"""Mixed samples of a run, with the labels of their tokens before and after alignment.

Shapes: H×W pixels, h×w tokens. Of two images the first is the own one.
"""

from dataclasses import dataclass, replace
from itertools import islice

import torch
from PIL import Image
from torch import Tensor

from labelflow.align import Aligned, Student
from labelflow.chance import generator
from labelflow.data import Data, Stream, eval_transform, open_source
from labelflow.data.transforms import as_view
from labelflow.data.views import Draw, Views
from labelflow.guides import Mixing, Scene
from labelflow.loss import soft_labels
from labelflow.mix import Mix
from labelflow.tasks.classify import check_classes
from labelflow.tasks.runs import Loaded

PAIRS = 4
CANDIDATES = 32  # how many samples are looked at to find pairs of different classes
DRAWS = 20  # how many mixes are looked at to find one in which both images have a fifth
SIDE = 224  # of the pictures, in pixels
RED, BLUE, WHITE = torch.tensor([(202.0, 0, 32), (5, 113, 176), (247, 247, 247)]).reshape(3, 3, 1, 1)  # (3, 1, 1) each


@dataclass(frozen=True, eq=False)
class Sample:
    """Two images, how they are mixed, and what a model makes of that."""

    images: Tensor  # (2, 3, H, W)
    classes: tuple[str, str]
    mix: Mix
    after: Tensor  # (h, w): the own share of each token after the last block
    arrived: float  # the own share of what reached the classifier
    answers: list[tuple[str, float]]  # the model's two likeliest classes for the mixed image, and their probabilities

    @property
    def mixed(self) -> Tensor:
        """(3, H, W)"""
        return self.mix.apply(self.images)[0]

    @property
    def before(self) -> Tensor:
        """(h, w): the own share of each token, by area."""
        return self.mix.tokens((self.after.shape[0], self.after.shape[1]))[0]

    @property
    def area(self) -> float:
        """The own share of the image, λ."""
        return float(self.mix.lam[0])


@torch.no_grad()
def mixed_samples(loaded: Loaded, mixer: str) -> list[Sample]:
    """Pairs of evaluation images, mixed and seen by a run's model; the same each time."""
    aligned, student, mixing = Aligned(loaded.model), Student(loaded.model), Mixing(mixer)
    samples = []
    for number, (images, labels) in enumerate(_pairs(loaded)):
        data, classes = loaded.recipe.data, soft_labels(torch.tensor(labels), len(loaded.classes))
        mix = _draw(mixing, Scene(images, classes, student, data.mean, data.std), number)
        mixed, share = mix.apply(images)[:1], mix.share[:1]
        logits, arrived = aligned(mixed, share)
        chances, places = logits[0].softmax(0).topk(min(2, len(loaded.classes)))
        samples.append(
            Sample(
                images,
                (loaded.classes[labels[0]], loaded.classes[labels[1]]),
                mix,
                after=aligned.trace(mixed, share)[-1].map[0],
                arrived=float(arrived[0]),
                answers=[(loaded.classes[at], chance) for at, chance in zip(places, chances.tolist(), strict=True)],
            )
        )
    return samples


def _pairs(loaded: Loaded) -> list[tuple[Tensor, tuple[int, int]]]:
    """Images (2, 3, H, W) and their labels, of different classes as far as possible."""
    data = loaded.recipe.data
    source, transform = open_source(data, "val"), eval_transform(data)
    check_classes(loaded.classes, list(source.classes), f"the data {data.data}")
    if isinstance(source, Stream):
        seen = [(transform(image), label) for image, label in islice(source.open(0), CANDIDATES)]
    else:
        views = Views(source, as_view(transform), seed=0, training=False)
        chosen = torch.randperm(len(source), generator=generator(0))[:CANDIDATES].tolist()
        read = [views[Draw(index, 0, index)] for index in chosen]
        seen = [(view.image, view.label) for view in read if not view.problem]
    if len(seen) < 2:
        raise ValueError(f"the evaluation data {data.data} has no two images that can be read")
    pairs: list[tuple[Tensor, tuple[int, int]]] = []
    while len(seen) > 1 and len(pairs) < PAIRS:
        own, label = seen.pop(0)
        other, another = seen.pop(next((at for at, (_, another) in enumerate(seen) if another != label), 0))
        pairs.append((torch.stack([own, other]), (label, another)))
    return pairs


def _draw(mixing: Mixing, scene: Scene, number: int) -> Mix:
    """The mixer's first draw in which both images have a fifth, if there is one; each is the other's partner."""
    shown = mixing(scene, generator(number, 0))[0]
    for attempt in range(DRAWS):
        mix = mixing(scene, generator(number, attempt))[0]
        if mix.partner.tolist() == [1, 0] and 0.2 <= mix.lam[0] <= 0.8:
            shown = mix
            break
    return replace(shown, partner=torch.tensor([1, 0]), at="image")  # tokens that are mixed cannot be looked at


def photo(image: Tensor, data: Data) -> Image.Image:
    """A normalised image (3, H, W) to look at; small ones keep their pixels crisp."""
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (data.mean, data.std))
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
