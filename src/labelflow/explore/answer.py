"""What the page shows for two images, a box and a model: plain numbers, for all layers at once.

Shapes: H×W pixels, h×w a grid of tokens. Of two images the first is the own one, A on the page.
"""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor

from labelflow.analysis.presence import presence
from labelflow.analysis.ratio import layer_ratios, method_ratios
from labelflow.analysis.samples import likeliest
from labelflow.classifier import Classifier
from labelflow.mix import Mix

DIGITS = 4


class Box(NamedTuple):
    """Where the partner is seen, in parts of the image."""

    left: float
    top: float
    right: float
    bottom: float


@torch.no_grad()
def answer(classifier: Classifier, own: Image.Image, partner: Image.Image, box: Box) -> dict[str, Any]:
    """Every layer's labels and presence, the ratio curve, the targets of methods, and the model's likeliest classes.

    >>> from labelflow.classifier import load
    >>> classifier = load("vit_tiny_patch16_224(img_size=32, depth=2)", "random")
    >>> red, blue = Image.new("RGB", (32, 32), "red"), Image.new("RGB", (32, 32), "blue")
    >>> told = answer(classifier, red, blue, Box(0, 0, 0.5, 0.5))
    >>> told["area"], told["start"]["values"], len(told["layers"])
    (0.75, [0.0, 1.0, 1.0, 1.0], 2)
    """
    transform = replace(classifier.preprocessing, crop_pct=1.0).transform()  # uploads are square already
    images = torch.stack([transform(own), transform(partner)])
    mix = boxed(box, classifier.preprocessing.size)
    mixed = mix.apply(images)[:1]
    present = {layer.name: layer.map[0] for layer in presence(classifier.model, mixed)}
    layers: list[dict[str, Any]] = [
        {
            "name": layer.name,
            "similarity": round(float(layer.similarity[0]), DIGITS),
            "aligned": round(float(layer.aligned[0]), DIGITS),
            "labels": _map(layer.aligned_tokens[0], mix),
            "presence": _map(present[layer.name], mix),
        }
        for layer in layer_ratios(classifier.model, images, mix)
    ]
    first = layers[0]["presence"]["grid"]
    targets = method_ratios(classifier.model, images, mix)
    return {
        "area": round(float(mix.lam[0]), DIGITS),
        "start": _map(mix.tokens((first[0], first[1]))[0], mix),
        "layers": layers,
        "targets": {name: round(float(share[0]), DIGITS) for name, share in targets.items()},
        "classes": [
            {"name": name, "chance": round(chance, DIGITS)}
            for name, chance in likeliest(classifier, classifier.model(mixed)[0])
        ],
    }


def try_out(classifier: Classifier) -> None:
    """One answer about plain images: a model that cannot be shown is a ValueError; the next answer comes quicker."""
    try:
        told = answer(
            classifier, Image.new("RGB", (64, 64), "red"), Image.new("RGB", (64, 64), "blue"), Box(0, 0, 0.5, 0.5)
        )
        if not math.isfinite(told["classes"][0]["chance"]):
            raise ValueError("its outputs are NaN; did its training diverge?")
    except Exception as error:
        raise ValueError(
            f"{classifier.name} cannot be shown; that takes a classifier of square colour images whose tokens can be "
            f"followed: {error}"
        ) from None


def boxed(box: Box, side: int) -> Mix:
    """Two images, each with a box of the other in it, which begins and ends between pixels."""
    left, top, right, bottom = (round(edge * side) for edge in box)
    share = torch.ones(2, 1, side, side)
    share[:, :, top:bottom, left:right] = 0
    return Mix(torch.tensor([1, 0]), share)


def _map(values: Tensor, mix: Mix) -> dict[str, Any]:
    """Values of tokens (h, w), row by row, and their means inside of the box and outside; None where nothing is."""
    grid = (values.shape[0], values.shape[1])
    outside = mix.tokens(grid)[0]
    means = [float((values * part).sum() / part.sum()) if part.any() else None for part in (1 - outside, outside)]
    return {
        "grid": list(grid),
        "values": [round(value, DIGITS) for value in values.flatten().tolist()],
        "inside": means[0],
        "outside": means[1],
    }
