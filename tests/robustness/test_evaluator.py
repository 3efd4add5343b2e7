"""Running models: predictions are those of a bare loop, and are computed once."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy import ndarray
from numpy.random import Generator
from PIL import Image

from labelflow.data import Data
from labelflow.robustness import cache
from labelflow.robustness.attack_suite import AttackSuite
from labelflow.robustness.datasets import open_dataset
from labelflow.robustness.images import CLEAN, PerturbedImages
from labelflow.robustness.occlusion import PatchDrop
from labelflow.robustness.settings import AttackSettings
from robustness.small import open_images, vits


class Brighter:
    """Level l is l + 1 times as bright."""

    levels, key = 3, "brighter"

    def __call__(self, image: ndarray, level: int, random: Generator) -> ndarray:
        return np.minimum(255, image.astype(int) * (level + 1)).astype(np.uint8)


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_predictions_are_those_of_a_bare_loop(folder: Path, tmp_path: Path, batch: int) -> None:
    evaluator, images = vits(folder, tmp_path, batch=batch), open_images(folder)
    clean, brighter = evaluator.predict(images, [CLEAN, Brighter()])
    for at, model in enumerate(evaluator.models):
        for index in range(9):
            seen = PerturbedImages(images, model.preprocessing, (CLEAN,), 0)[0, index].levels[0].float() / 255
            for level, predictions in ((0, clean[at]), *((level, brighter[at]) for level in range(3))):
                bright = (seen * 255 * (level + 1)).clamp(max=255) / 255 if predictions is brighter[at] else seen
                with torch.no_grad():
                    logits = model.model.model(((bright - 0.5) / 0.5)[None])[0]
                order = logits.argsort(descending=True)
                assert predictions.classes[level, index].tolist() == order.tolist()
                np.testing.assert_allclose(predictions.logits[level, index], logits[order], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(predictions.logsumexp[level, index], logits.logsumexp(0), rtol=1e-4)
    assert clean[0].labels.tolist() == images.labels
    assert brighter[0].correct.shape == (3, 9)
    assert clean[0].top5 == [100.0]


def test_a_first_run_was_not_done_before(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several suites ask for the clean images, which are computed once; only later runs find them done before."""
    images, first = open_images(folder), vits(folder, tmp_path, quiet=False)
    for perturbations in ([CLEAN], [CLEAN, PatchDrop(4)], [CLEAN]):
        first.predict(images, perturbations)
    assert "done before" not in capsys.readouterr().out
    assert (first.evaluated, first.cached) == (2 * 9 * 10, 0)
    later = vits(folder, tmp_path, quiet=False)
    later.predict(images, [CLEAN, Brighter()])
    assert "18 of 72 images were done before" in capsys.readouterr().out
    assert later.cached == 18


def test_nothing_is_computed_twice(folder: Path, tmp_path: Path) -> None:
    first, images = vits(folder, tmp_path, (0,)), open_images(folder)
    before = first.predict(images, [CLEAN, PatchDrop(4)])
    assert first.evaluated == 9 * 10
    both = vits(folder, tmp_path)
    again = both.predict(images, [CLEAN, PatchDrop(4)])
    assert both.evaluated == 9 * 10  # of the second model
    for old, new in zip(before, again, strict=True):
        np.testing.assert_array_equal(old[0].logits, new[0].logits)
    both.predict(open_images(folder), [CLEAN])
    assert both.evaluated == 9 * 10

    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    for path in moved.rglob("*.png"):
        os.utime(path, (0, 0))
    both.predict(open_images(moved), [CLEAN])
    assert both.evaluated == 9 * 10  # the same images elsewhere
    changed = next(moved.rglob("*.png"))
    Image.new("RGB", (40, 40), "red").save(changed)
    both.predict(open_images(moved), [CLEAN])
    assert both.evaluated == 9 * 12
    other_seed = vits(folder, tmp_path, seed=1)
    other_seed.predict(images, [CLEAN])
    assert other_seed.evaluated == 0
    other_seed.predict(images, [PatchDrop(4)])
    assert other_seed.evaluated == 2 * 9 * 9


def test_labels_are_those_of_the_data_set(folder: Path, tmp_path: Path) -> None:
    """The same images under other labels are not computed again."""
    evaluator, images = vits(folder, tmp_path, (0,)), open_images(folder)
    table = tmp_path / "table"
    shutil.copytree(folder / "images", table)
    names = sorted(path.relative_to(table) for path in table.rglob("*.png"))
    lines = [f"{name},{'cab'[at % 3] if at else 2}" for at, name in enumerate(names)]  # by name or by number
    (table / "labels.csv").write_text("file,class\n" + "\n".join(reversed(lines)))
    other = open_dataset(Data(source=str(table)), from_run=False, classes=("a", "b", "c"))
    evaluator.predict(images)
    ((predictions,),) = evaluator.predict(other)
    assert evaluator.evaluated == 9
    assert predictions.labels.tolist() == ["abc".index("cab"[at % 3]) for at in range(9)]


def test_unreadable_images_do_not_count(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder / "images", broken)
    (broken / "b" / "4.png").write_bytes(b"no image")
    images = open_dataset(Data(source=str(broken)), from_run=False, classes=())
    with pytest.raises(ValueError, match=r"cannot read .*4.png.*none was allowed"):
        vits(folder, tmp_path, (0,)).predict(images)
    ((predictions,),) = vits(folder, tmp_path, (0,), skip_unreadable=1).predict(images)
    assert predictions.readable.sum() == 8
    assert predictions.correct.shape == (1, 8)
    with pytest.raises(ValueError, match=r"could not read 1 images of .* --skip-unreadable 1"):
        vits(folder, tmp_path, (0,)).predict(images)  # from the cache
    settings = AttackSettings(("fgsm",), radii=(4,))
    section = AttackSuite(vits(folder, tmp_path, (0,), skip_unreadable=1), images, settings).measure()
    assert section.metrics[0].values == predictions.top1
    assert section.notes[0].startswith("8 images")
    with pytest.raises(ValueError, match=r"could not read 1 images of .* --skip-unreadable 1"):
        AttackSuite(vits(folder, tmp_path, (0,)), images, settings).measure()  # from the cache
    os.remove(broken / "b" / "4.png")
    os.symlink("nowhere", broken / "b" / "4.png")
    images = open_dataset(Data(source=str(broken)), from_run=False, classes=())
    ((predictions,),) = vits(folder, tmp_path, (0,), skip_unreadable=1).predict(images)
    assert predictions.readable.sum() == 8


def test_a_damaged_file_is_computed_again(folder: Path, tmp_path: Path) -> None:
    evaluator, images = vits(folder, tmp_path, (0,)), open_images(folder)
    evaluator.predict(images)
    (kept,) = tmp_path.glob("*.safetensors")
    whole = kept.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])  # whether the last image can be read
    for number, damaged in enumerate((b"torn", flipped), start=2):
        kept.write_bytes(damaged)
        evaluator.predict(images)
        assert (evaluator.evaluated, kept.read_bytes()) == (9 * number, whole)
    cache.write_arrays(other := tmp_path / "other", cache.read_arrays(kept) or {})
    kept.write_bytes(other.read_bytes())  # of other images, perhaps
    assert cache.read_arrays(kept) is None
    settings = AttackSettings(("fgsm",), radii=(4,), attack_samples=4)
    before = AttackSuite(evaluator, images, settings).measure()
    next(tmp_path.glob("attack-*.safetensors")).write_bytes(b"torn")
    assert AttackSuite(evaluator, images, settings).measure() == before


class Stopping(torch.nn.Module):
    """A model that is interrupted when it has seen so many batches."""

    def __init__(self, model: torch.nn.Module, batches: int) -> None:
        super().__init__()
        self.model, self.batches = model, batches

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.batches -= 1
        if self.batches < 0:
            raise KeyboardInterrupt
        return self.model(images)


@pytest.mark.parametrize("killed", [False, True])
def test_predictions_resume(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    """Of two models, of which the second is interrupted in the third of five batches."""
    images, brighter = open_images(folder), Brighter()
    whole = vits(folder, tmp_path / "whole").predict(images, [brighter])
    torn = vits(folder, tmp_path / "torn", batch=6)  # two images in a batch
    second = torn.models[1]
    assert second.key  # cached, as the weights are wrapped below
    second.model.model = Stopping(second.model.model, 2)
    with monkeypatch.context() as dying:
        if killed:  # without the save on exit
            dying.setattr(cache.PredictionWriter, "__exit__", lambda *error: None)
            dying.setattr(cache, "SAVE_EVERY", -1)
        with pytest.raises(KeyboardInterrupt):
            torn.predict(images, [brighter])
    again = vits(folder, tmp_path / "torn", batch=6)
    resumed = again.predict(images, [brighter])
    assert again.evaluated == 2 * 3 * (9 - 4)
    assert again.cached == 2 * 3 * 4
    assert not list((tmp_path / "torn").glob("*.partial"))
    for one, other in zip(whole[0], resumed[0], strict=True):
        assert (one.classes == other.classes).all()
        assert (one.labels == other.labels).all()
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-5)


def test_logits_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    evaluator, images = vits(folder, tmp_path, (0,)), open_images(folder)
    evaluator.models[0].model.model.head.bias.data[1] = torch.nan
    with pytest.raises(ValueError, match=r"logits of .* are NaN or infinite"):
        evaluator.predict(images)
    assert not list(tmp_path.iterdir())  # nothing is cached


def test_models_see_as_timm_says(folder: Path, tmp_path: Path) -> None:
    """Some want the whole image, squashed."""
    (model,) = vits(folder, tmp_path, (0,)).models
    squashing = replace(model, preprocessing=replace(model.preprocessing, crop_mode="squash"))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8))
    (tmp_path / "images" / "a").mkdir(parents=True)
    image.save(tmp_path / "images" / "a" / "1.png")
    images = open_dataset(Data(source=str(tmp_path / "images")), from_run=False, classes=())
    one, other = (PerturbedImages(images, one.preprocessing, (CLEAN,), 0)[0, 0].levels[0] for one in (model, squashing))
    size = int(squashing.preprocessing.size / squashing.preprocessing.crop_pct)
    whole = np.array(image.resize((size, size), Image.Resampling.BICUBIC))
    edge = round((size - 32) / 2)
    assert abs(other.permute(1, 2, 0).numpy() - whole[edge : edge + 32, edge : edge + 32].astype(int)).max() <= 1
    assert (one != other).any()


def test_other_names_have_other_seeds(folder: Path, tmp_path: Path) -> None:
    """Seeds come from file names: renamed images are perturbed anew, and clean predictions are reused."""
    shutil.copytree(folder / "images", tmp_path / "images")
    evaluator = vits(folder, tmp_path / "cache", (0,))
    evaluator.predict(open_images(tmp_path), [CLEAN, PatchDrop(4)])
    (tmp_path / "images" / "a" / "0.png").rename(tmp_path / "images" / "a" / "00.png")
    evaluator.predict(open_images(tmp_path), [CLEAN])
    assert evaluator.evaluated == 9 * 10
    evaluator.predict(open_images(tmp_path), [PatchDrop(4)])
    assert evaluator.evaluated == 9 * 19
