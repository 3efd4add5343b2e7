"""3-Augment by its definition (DeiT III, Section 3.2), with timm's name for it."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image, ImageFilter, ImageOps
from torchvision.transforms import ColorJitter

from labelflow.chance import drawn_from
from labelflow.data import Data, train_transform
from labelflow.data.deferred import Plan

THREE = Data(image_size=24, scale=(1, 1), ratio=(1, 1), flip=0.0, auto_augment="3a", color_jitter=0.0, erasing=0.0)


def picture() -> Image.Image:
    """Colours that are no greys, bright and dark ones."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (24, 24, 3), np.uint8))


def grey(image: Image.Image) -> Image.Image:
    return image.convert("L").convert("RGB")


@pytest.mark.parametrize("augment", ["workers", "device"])
def test_exactly_one_of_three_with_equal_chances(augment: str) -> None:
    """Greyscale, solarisation at 128, or a blur with a radius from 0.1 to 2."""
    image, slack = picture(), 0 if augment == "workers" else 1
    transform = train_transform(replace(THREE, augment=augment))
    radii = np.linspace(0.1, 2, 500).tolist()
    blurs = np.stack([np.asarray(image.filter(ImageFilter.GaussianBlur(radius)), int) for radius in radii])
    counts: Counter[str] = Counter()
    for seed in range(150):
        with drawn_from(seed):
            view = transform(transform.decode(image)).image
        if augment == "device":
            view = Plan.stack([view]).apply(view.pixels[None].clone(), (0, 0, 0))[0].permute(1, 2, 0).numpy()
        options = {"grey": grey(image), "solarised": ImageOps.solarize(image, 128)}
        found = [name for name, option in options.items() if np.abs(view - np.asarray(option, int)).max() <= slack]
        if not found:
            assert np.abs(blurs - view).max((1, 2, 3)).min() <= 3 + slack
        counts[found[0] if found else "blurred"] += 1
    assert sum(counts.values()) == 150
    assert all(28 < counts[name] < 72 for name in ("grey", "solarised", "blurred"))  # 50 ± 3.8 σ


def test_colour_jitter_comes_after_it() -> None:
    steps = train_transform(replace(THREE, color_jitter=0.3)).steps
    jitter = steps[-2].step  # the last one makes bytes
    assert isinstance(jitter, ColorJitter)
    assert jitter.brightness == jitter.contrast == jitter.saturation == (0.7, 1.3)
    assert jitter.hue is None
    assert not any(isinstance(getattr(step, "step", None), ColorJitter) for step in train_transform(THREE).steps)
