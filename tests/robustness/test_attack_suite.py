"""Accuracy under attack: by hand for a model whose boundary is known, cached outcomes, resuming."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from numpy import ndarray
from torch import Tensor, nn

from labelflow.data import Data
from labelflow.robustness.attack_suite import AttackSuite
from labelflow.robustness.attacks import Ball, Batch, run_attacks
from labelflow.robustness.attacks.gradient import PGD
from labelflow.robustness.datasets import image_seed, open_dataset
from labelflow.robustness.images import CLEAN, PerturbedImages
from labelflow.robustness.models import FromPixels
from labelflow.robustness.results import Section
from labelflow.robustness.settings import AttackSettings
from robustness.small import known, open_images, percent, save_colour, values, vits


class Brightness(nn.Module):
    """Class 1 is brighter than a threshold, in 255ths, and class 0 darker: only brightness matters."""

    def __init__(self, threshold: float) -> None:
        super().__init__()
        self.register_buffer("threshold", torch.tensor(threshold))

    def forward(self, images: Tensor) -> Tensor:
        above = 255 * images.mean((1, 2, 3)) - self.threshold
        return torch.stack([-above, above], 1)


@pytest.mark.parametrize("attack", ["fgsm", "pgd(steps=10)"])
def test_an_image_falls_if_the_boundary_is_within_the_radius(tmp_path: Path, attack: str) -> None:
    images = [("dark", 90), ("dark", 120), ("dark", 99), ("dark", 103), ("light", 200), ("light", 115), ("light", 101)]
    images.append(("light", 250))
    for number, (name, brightness) in enumerate(images):
        save_colour(tmp_path / "images" / name / f"{number}.png", brightness, brightness, brightness)
    thresholds = {"low": 100.5, "high": 112.5, "highest": 233.5}
    modules = {name: Brightness(threshold) for name, threshold in thresholds.items()}
    evaluator = known(modules, ("dark", "light"), tmp_path / "out")
    settings = AttackSettings((attack,), radii=(16, 1, 4), attack_batch=3)
    section = AttackSuite(evaluator, open_images(tmp_path), settings).measure()

    def robust(threshold: float, radius: float) -> float:
        return percent([(b - threshold if name == "light" else threshold - b) > radius for name, b in images])

    def row(radius: float) -> list[float]:
        return [pytest.approx(robust(threshold, radius)) for threshold in thresholds.values()]

    radii = {f"{attack}, L∞ {radius}/255": row(radius) for radius in (1, 4, 16)}
    assert values(section) == {"clean accuracy on these images": row(0), **radii}
    assert len({str(own) for own in radii.values()}) == 3
    for at, name in enumerate(thresholds):
        line = [(0, row(0)[at]), *((radius, row(radius)[at]) for radius in (1, 4, 16))]
        assert section.charts[0].lines[name] == [(pytest.approx(x), y) for x, y in line]
    assert section.notes[0].startswith("8 images")


def test_outcomes_are_cached_by_image_and_radius(folder: Path, tmp_path: Path) -> None:
    images, attacks = open_images(folder), ("pgd(steps=2)",)

    def attacked(folder_of: str, **how: object) -> tuple[Section, int]:
        evaluator = vits(folder, tmp_path / folder_of, (0,))
        section = AttackSuite(evaluator, images, AttackSettings(attacks, **how)).measure()  # type: ignore[arg-type]
        return section, evaluator.attack_passes

    for how in ({"radii": (2, 8), "attack_samples": 5}, {"radii": (2, 8)}, {"radii": (1, 2, 8)}):
        fresh, cost = attacked(f"fresh {how}", **how)
        grown, more = attacked("grown", **how)
        assert grown == fresh
        assert more < cost or "attack_samples" in how
        assert attacked("grown", **how) == (fresh, 0)


def test_attacks_resume(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AttackSettings(("fgsm", "pgd(steps=2)"), radii=(2, 16), attack_samples=0, attack_batch=4)
    whole = AttackSuite(vits(folder, tmp_path / "whole"), open_images(folder), settings).measure()
    sizes: list[int] = []
    attack_batch = AttackSuite._attack_batch

    def stopping(self: AttackSuite, *how: object) -> ndarray:
        sizes.append(len(how[2].labels))  # type: ignore[attr-defined]
        if len(sizes) == 3:
            raise KeyboardInterrupt
        return attack_batch(self, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(AttackSuite, "_attack_batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        AttackSuite(vits(folder, tmp_path / "torn"), open_images(folder), settings).measure()
    assert sizes == [4, 4, 1]
    torn = AttackSuite(vits(folder, tmp_path / "torn"), open_images(folder), settings).measure()
    assert sizes == [4, 4, 1, 1, *[4, 4, 1] * 3]  # not the first two again
    assert torn == whole
    names = [metric.name for metric in torn.metrics[1:]]
    assert names == ["fgsm, L∞ 2/255", "fgsm, L∞ 16/255", "pgd(steps=2), L∞ 2/255", "pgd(steps=2), L∞ 16/255"]
    for near, far in ((0, 1), (2, 3)):
        for nearer, farther in zip(torn.metrics[near + 1].values, torn.metrics[far + 1].values, strict=True):
            assert nearer >= farther
    AttackSuite(vits(folder, tmp_path / "torn"), open_images(folder), settings).measure()
    assert len(sizes) == 13  # nothing


def test_attacks_are_restricted_to_the_classes_of_the_data(folder: Path, tmp_path: Path) -> None:
    """A set of two classes, in another order: what a model of their two logits makes of it."""
    images = tmp_path / "images"
    for name in "ab":
        shutil.copytree(folder / "images" / name, images / name)
    dataset = open_dataset(Data(source=str(images)), from_run=False, classes=())
    turned = replace(dataset, classes=("b", "a"))  # label 0 is now b
    evaluator = vits(folder, tmp_path, (0,))
    model = evaluator.models[0]
    assert model.columns(turned.classes) == [1, 0]
    settings = AttackSettings(("pgd(steps=3)",), radii=(8,))
    section = AttackSuite(evaluator, turned, settings).measure()
    ((predictions,),) = evaluator.predict(turned)
    assert section.metrics[0].values == predictions.top1

    perturbed = PerturbedImages(turned, model.preprocessing, (CLEAN,), 0)
    clean = torch.stack([perturbed[0, index].levels[0] for index in range(6)]) / 255
    numbers = [image_seed(turned.source, index) for index in range(6)]
    batch = Batch(clean, torch.tensor(turned.labels), numbers)
    bare = run_attacks(lambda seen: model.model(seen)[:, [1, 0]], [("", PGD(steps=3))], batch, Ball("linf", 8 / 255))
    assert section.metrics[1].values == [100 * float((bare.fallen == -1).float().mean())]
    with pytest.raises(ValueError, match=r"1 of the data's 2 classes are unknown to .*: d; it knows 3, such as a"):
        model.columns(("a", "d"))


class Caching(torch.nn.Module):
    """Caches a tensor in its first forward pass, as ConViT does."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(3 * 32 * 32, 3))
        self.cached: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.cached is None:
            self.cached = self.weights.detach() * 2
        return images.flatten(1) @ (self.cached * self.weights)


def test_models_that_cache_tensors_can_be_attacked_after_an_evaluation(folder: Path, tmp_path: Path) -> None:
    evaluator, images = vits(folder, tmp_path, (0,)), open_images(folder)
    (model,) = evaluator.models
    evaluator.models = [replace(model, model=FromPixels(Caching(), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).eval())]
    ((predictions,),) = evaluator.predict(images)
    section = AttackSuite(evaluator, images, AttackSettings(("fgsm",), radii=(4,))).measure()
    assert section.metrics[0].values == predictions.top1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attacks": ()}, "needs at least one name"),
        ({"attack_batch": 0}, "--attack-batch must be at least 1, not 0"),
        ({"radii": (0.0,)}, "must be above 0"),
    ],
)
def test_settings_that_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttackSettings(**settings)
