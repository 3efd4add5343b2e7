"""Asking models: what they say is what a bare loop hears, and is asked once."""

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
from labelflow.data.sources import Indexed
from labelflow.robust import kept
from labelflow.robust.attacked import Attacked, Attacking
from labelflow.robust.attacks import Ball, Batch, run_attacks
from labelflow.robust.attacks.gradient import PGD
from labelflow.robust.corrupted import Corruption
from labelflow.robust.corruptions.ice import FILES
from labelflow.robust.hidden import PatchDrop
from labelflow.robust.models import FromPixels
from labelflow.robust.pictures import CLEAN, Pictures
from labelflow.robust.results import Section
from labelflow.robust.sets import Set, chosen, image_number, open_own
from robust.asking import opened, session


class Twice:
    """Level l is l + 1 times as bright."""

    levels, key = 3, "brighter"

    def __call__(self, picture: ndarray, level: int, random: Generator) -> ndarray:
        return np.minimum(255, picture.astype(int) * (level + 1)).astype(np.uint8)


@pytest.mark.parametrize("batch", [1, 4, 100])
def test_answers_are_those_of_a_bare_loop(folder: Path, tmp_path: Path, batch: int) -> None:
    asking, found = session(folder, tmp_path, batch=batch), opened(folder)
    clean, changed = asking.ask(found, [CLEAN, Twice()])
    for at, model in enumerate(asking.models):
        for index in range(9):
            seen = Pictures(found, model.preprocessing, (CLEAN,), 0)[0, index].levels[0].float() / 255
            for level, answers in ((0, clean[at]), *((level, changed[at]) for level in range(3))):
                bright = (seen * 255 * (level + 1)).clamp(max=255) / 255 if answers is changed[at] else seen
                with torch.no_grad():
                    logits = model.model.model(((bright - 0.5) / 0.5)[None])[0]
                order = logits.argsort(descending=True)
                assert answers.places[level, index].tolist() == order.tolist()
                np.testing.assert_allclose(answers.logits[level, index], logits[order], rtol=1e-4, atol=1e-5)
                np.testing.assert_allclose(answers.normaliser[level, index], logits.logsumexp(0), rtol=1e-4)
    assert clean[0].labels.tolist() == found.labels
    assert changed[0].correct.shape == (3, 9)
    assert clean[0].top5 == [100.0]


def test_nothing_is_asked_twice(folder: Path, tmp_path: Path) -> None:
    first, found = session(folder, tmp_path, (0,)), opened(folder)
    before = first.ask(found, [CLEAN, PatchDrop(4)])
    assert first.asked == 9 * 10
    both = session(folder, tmp_path)
    again = both.ask(found, [CLEAN, PatchDrop(4)])
    assert both.asked == 9 * 10  # of the second model
    for old, new in zip(before, again, strict=True):
        np.testing.assert_array_equal(old[0].logits, new[0].logits)
    both.ask(opened(folder), [CLEAN])
    assert both.asked == 9 * 10

    moved = tmp_path / "moved"
    shutil.copytree(folder, moved)
    for path in moved.rglob("*.png"):
        os.utime(path, (0, 0))
    both.ask(opened(moved), [CLEAN])
    assert both.asked == 9 * 10  # the same images elsewhere
    changed = next(moved.rglob("*.png"))
    Image.new("RGB", (40, 40), "red").save(changed)
    both.ask(opened(moved), [CLEAN])
    assert both.asked == 9 * 12
    other_seed = session(folder, tmp_path, seed=1)
    other_seed.ask(found, [CLEAN])
    assert other_seed.asked == 0
    other_seed.ask(found, [PatchDrop(4)])
    assert other_seed.asked == 2 * 9 * 9


def test_labels_are_the_sets_own(folder: Path, tmp_path: Path) -> None:
    """The same images under other labels are not asked again."""
    asking, found = session(folder, tmp_path, (0,)), opened(folder)
    table = tmp_path / "table"
    shutil.copytree(folder / "images", table)
    names = sorted(path.relative_to(table) for path in table.rglob("*.png"))
    lines = [f"{name},{'cab'[at % 3] if at else 2}" for at, name in enumerate(names)]  # by name or by number
    (table / "labels.csv").write_text("file,class\n" + "\n".join(reversed(lines)))
    other = open_own(Data(source=str(table)), own=False, classes=("a", "b", "c"))
    asking.ask(found)
    ((answers,),) = asking.ask(other)
    assert asking.asked == 9
    assert answers.labels.tolist() == ["abc".index("cab"[at % 3]) for at in range(9)]


def test_a_part_is_drawn_alike_and_keeps_its_changes(folder: Path, tmp_path: Path) -> None:
    found = opened(folder)
    part = chosen(found, 4, seed=3)
    keys = [found.source.key(at) for at in range(9)]
    places = [keys.index(part.source.key(at)) for at in range(4)]
    assert places == sorted(set(places))
    assert part.labels == [found.labels[at] for at in places]  # type: ignore[index]
    assert chosen(found, 4, seed=3).key == part.key != chosen(found, 4, seed=4).key
    asking = session(folder, tmp_path, (0,))
    whole, some = asking.ask(found, [PatchDrop(4)])[0][0], asking.ask(part, [PatchDrop(4)])[0][0]
    np.testing.assert_allclose(some.logits, whole.logits[:, places], rtol=1e-4, atol=1e-5)
    assert chosen(found, 0, seed=3) is found


def test_unreadable_images_do_not_count(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder / "images", broken)
    (broken / "b" / "4.png").write_bytes(b"no image")
    found = open_own(Data(source=str(broken)), own=False, classes=())
    with pytest.raises(ValueError, match=r"cannot read .*4.png.*none was allowed"):
        session(folder, tmp_path, (0,)).ask(found)
    ((answers,),) = session(folder, tmp_path, (0,), skip_unreadable=1).ask(found)
    assert answers.counts.sum() == 8
    assert answers.correct.shape == (1, 8)
    with pytest.raises(ValueError, match=r"1 images of .* could not be read .* --skip-unreadable 1"):
        session(folder, tmp_path, (0,)).ask(found)  # from what is kept
    settings = Attacking(("fgsm",), radii=(4,))
    section = Attacked(session(folder, tmp_path, (0,), skip_unreadable=1), found, settings).measure()
    assert section.findings[0].values == answers.top1
    assert section.notes[0].startswith("8 images")
    with pytest.raises(ValueError, match=r"1 images of .* could not be read .* --skip-unreadable 1"):
        Attacked(session(folder, tmp_path, (0,)), found, settings).measure()  # from what is kept
    os.remove(broken / "b" / "4.png")
    os.symlink("nowhere", broken / "b" / "4.png")
    found = open_own(Data(source=str(broken)), own=False, classes=())
    ((answers,),) = session(folder, tmp_path, (0,), skip_unreadable=1).ask(found)
    assert answers.counts.sum() == 8


def test_a_damaged_file_is_asked_again(folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path, (0,)), opened(folder)
    asking.ask(found)
    next(tmp_path.glob("*.safetensors")).write_bytes(b"torn")
    asking.ask(found)
    assert asking.asked == 18
    settings = Attacking(("fgsm",), radii=(4,), attack_samples=4)
    before = Attacked(asking, found, settings).measure()
    next(tmp_path.glob("attack-*.safetensors")).write_bytes(b"torn")
    assert Attacked(asking, found, settings).measure() == before


class Stopping(torch.nn.Module):
    """A model that is interrupted when it has seen so many batches."""

    def __init__(self, model: torch.nn.Module, batches: int) -> None:
        super().__init__()
        self.model, self.batches = model, batches

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        self.batches -= 1
        if self.batches < 0:
            raise KeyboardInterrupt
        return self.model(pictures)


@pytest.mark.parametrize("killed", [False, True])
def test_answers_go_on_where_they_were(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    """Of two models, of which the second is interrupted in the third of five batches of a change."""
    found, change = opened(folder), Twice()
    whole = session(folder, tmp_path / "whole").ask(found, [change])
    torn = session(folder, tmp_path / "torn", batch=6)  # two images at once
    second = torn.models[1]
    assert second.key  # which is the weights', and stays
    second.model.model = Stopping(second.model.model, 2)
    with monkeypatch.context() as dying:
        if killed:  # without a last word
            dying.setattr(kept.Incoming, "__exit__", lambda *error: None)
            dying.setattr(kept, "SECONDS", -1)
        with pytest.raises(KeyboardInterrupt):
            torn.ask(found, [change])
    again = session(folder, tmp_path / "torn", batch=6)
    answers = again.ask(found, [change])
    assert again.asked == 2 * 3 * (9 - 4)
    assert again.recalled == 2 * 3 * 4
    assert not list((tmp_path / "torn").glob("*.begun"))
    for one, other in zip(whole[0], answers[0], strict=True):
        assert (one.places == other.places).all()
        assert (one.labels == other.labels).all()
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-4, atol=1e-5)


def test_logits_that_are_not_finite_are_refused(folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path, (0,)), opened(folder)
    asking.models[0].model.model.head.bias.data[1] = torch.nan
    with pytest.raises(ValueError, match="logits are not finite"):
        asking.ask(found)
    assert not list(tmp_path.iterdir())  # nothing is kept of them


def test_attacks_are_kept_by_image_and_radius(folder: Path, tmp_path: Path) -> None:
    found, attacks = opened(folder), ("pgd(steps=2)",)

    def attacked(folder_of: str, **how: object) -> tuple[Section, int]:
        asking = session(folder, tmp_path / folder_of, (0,))
        section = Attacked(asking, found, Attacking(attacks, **how)).measure()  # type: ignore[arg-type]
        return section, asking.attacked

    for how in ({"radii": (2, 8), "attack_samples": 5}, {"radii": (2, 8)}, {"radii": (1, 2, 8)}):
        fresh, cost = attacked(f"fresh {how}", **how)
        grown, more = attacked("grown", **how)
        assert grown == fresh
        assert more < cost or "attack_samples" in how
        assert attacked("grown", **how) == (fresh, 0)


def test_data_sets_of_one_name_are_told_apart() -> None:
    """Of torchvision or Hugging Face: other images, or other labels, under the same name."""

    def named(colour: str, label: int = 0) -> Set:
        samples = [(Image.new("RGB", (8, 8), colour), label)] * 200
        return Set("mine", Indexed(samples, ["a", "b"], "mine/val", lambda sample: sample), ("a", "b"))

    keys = [named("red").key, named("blue").key, named("red", 1).key]
    assert len(set(keys)) == 3
    assert named("red").key == keys[0]
    assert len(set(named("red").contents)) == 200


def test_models_see_as_timm_says(folder: Path, tmp_path: Path) -> None:
    """Some want the whole image, squashed."""
    (model,) = session(folder, tmp_path, (0,)).models
    squashing = replace(model, preprocessing=replace(model.preprocessing, crop_mode="squash"))
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 80, 3), np.uint8))
    (tmp_path / "images" / "a").mkdir(parents=True)
    image.save(tmp_path / "images" / "a" / "1.png")
    found = open_own(Data(source=str(tmp_path / "images")), own=False, classes=())
    one, other = (Pictures(found, one.preprocessing, (CLEAN,), 0)[0, 0].levels[0] for one in (model, squashing))
    size = int(squashing.preprocessing.size / squashing.preprocessing.crop_pct)
    whole = np.array(image.resize((size, size), Image.Resampling.BICUBIC))
    edge = round((size - 32) / 2)
    assert abs(other.permute(1, 2, 0).numpy() - whole[edge : edge + 32, edge : edge + 32].astype(int)).max() <= 1
    assert (one != other).any()


def test_attacks_go_on_where_they_were(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Attacking(("fgsm", "pgd(steps=2)"), radii=(2, 16), attack_samples=0, attack_batch=4)
    whole = Attacked(session(folder, tmp_path / "whole"), opened(folder), settings).measure()
    asked: list[int] = []
    attack = Attacked._batch

    def stopping(self: Attacked, *how: object) -> ndarray:
        asked.append(len(how[2].labels))  # type: ignore[attr-defined]
        if len(asked) == 3:
            raise KeyboardInterrupt
        return attack(self, *how)  # type: ignore[arg-type]

    monkeypatch.setattr(Attacked, "_batch", stopping)
    with pytest.raises(KeyboardInterrupt):
        Attacked(session(folder, tmp_path / "torn"), opened(folder), settings).measure()
    assert asked == [4, 4, 1]
    torn = Attacked(session(folder, tmp_path / "torn"), opened(folder), settings).measure()
    assert asked == [4, 4, 1, 1, *[4, 4, 1] * 3]  # not the first two again
    assert torn == whole
    names = [finding.name for finding in torn.findings[1:]]
    assert names == ["fgsm, L∞ 2/255", "fgsm, L∞ 16/255", "pgd(steps=2), L∞ 2/255", "pgd(steps=2), L∞ 16/255"]
    for near, far in ((0, 1), (2, 3)):
        for nearer, farther in zip(torn.findings[near + 1].values, torn.findings[far + 1].values, strict=True):
            assert nearer >= farther
    Attacked(session(folder, tmp_path / "torn"), opened(folder), settings).measure()
    assert len(asked) == 13  # nothing


def test_attacks_see_the_classes_of_the_data_alone(folder: Path, tmp_path: Path) -> None:
    """A set of two classes, in another order: what a model of their two logits makes of it."""
    images = tmp_path / "images"
    for name in "ab":
        shutil.copytree(folder / "images" / name, images / name)
    found = open_own(Data(source=str(images)), own=False, classes=())
    turned = replace(found, classes=("b", "a"))  # label 0 is now b
    asking = session(folder, tmp_path, (0,))
    model = asking.models[0]
    assert model.columns(turned.classes) == [1, 0]
    settings = Attacking(("pgd(steps=3)",), radii=(8,))
    section = Attacked(asking, turned, settings).measure()
    ((answers,),) = asking.ask(turned)
    assert section.findings[0].values == answers.top1

    pictures = Pictures(turned, model.preprocessing, (CLEAN,), 0)
    clean = torch.stack([pictures[0, index].levels[0] for index in range(6)]) / 255
    numbers = [image_number(turned.source, index) for index in range(6)]
    batch = Batch(clean, torch.tensor(turned.labels), numbers)
    bare = run_attacks(lambda seen: model.model(seen)[:, [1, 0]], [("", PGD(steps=3))], batch, Ball("linf", 8 / 255))
    assert section.findings[1].values == [100 * float((bare.fallen == -1).float().mean())]
    with pytest.raises(ValueError, match=r"1 of the data's 2 classes are unknown to .*: d; it knows 3, such as a"):
        model.columns(("a", "d"))


class Keeping(torch.nn.Module):
    """Keeps what it made of its weights at first, as ConViT keeps its positions."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.randn(3 * 32 * 32, 3))
        self.kept: torch.Tensor | None = None

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        if self.kept is None:
            self.kept = self.weights.detach() * 2
        return images.flatten(1) @ (self.kept * self.weights)


def test_models_that_keep_tensors_can_be_attacked_after_they_were_asked(folder: Path, tmp_path: Path) -> None:
    asking, found = session(folder, tmp_path, (0,)), opened(folder)
    (model,) = asking.models
    asking.models = [replace(model, model=FromPixels(Keeping(), (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)).eval())]
    ((answers,),) = asking.ask(found)
    section = Attacked(asking, found, Attacking(("fgsm",), radii=(4,))).measure()
    assert section.findings[0].values == answers.top1


def test_tables_of_labels(tmp_path: Path) -> None:
    for name in ("a/x.png", "b/x.png", "b/y.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (32, 32)).save(tmp_path / name)

    def read(text: str, *classes: str) -> list[tuple[str, int]]:
        (tmp_path / "labels.csv").write_text(text, encoding="utf-8-sig")  # as Excel writes it
        source = open_own(Data(source=str(tmp_path)), own=False, classes=classes).source
        return [(source.key(at), label) for at, (_, label) in enumerate(source.samples)]  # type: ignore[attr-defined]

    two = [("a/x.png", 0), ("b/y.png", 1)]
    assert read("file,class\ny.png,dog\na/x.png,cat", "cat", "dog") == two  # by the last part, where that will do
    assert read("file,class\nb/y.png,1\na/x.png,0", "cat", "dog") == two
    assert read("file,class\na/x.png,2\nb/y.png,1", "1", "10", "2") == [("a/x.png", 2), ("b/y.png", 0)]  # names
    for text, told in {
        "file,class\nx.png,cat": "files that are not there, or several: x.png",
        "file,class\nz.png,cat": "files that are not there, or several: z.png",
        "file,class\ny.png,cow": "classes that no model has: cow",
        "file,class\ny.png": "classes that no model has: None",
        "name,kind\ny.png,cat": "should have a line 'file,class'",
        "file,class\ny.png,cat\nb/y.png,cat": "names a file twice",
    }.items():
        with pytest.raises(ValueError, match=told):
            read(text, "cat", "dog")


def test_other_names_draw_anew(folder: Path, tmp_path: Path) -> None:
    """What is drawn comes from the names of files: the same images under others are asked again, clean ones are not."""
    shutil.copytree(folder / "images", tmp_path / "images")
    asking = session(folder, tmp_path / "kept", (0,))
    asking.ask(opened(tmp_path), [CLEAN, PatchDrop(4)])
    (tmp_path / "images" / "a" / "0.png").rename(tmp_path / "images" / "a" / "00.png")
    asking.ask(opened(tmp_path), [CLEAN])
    assert asking.asked == 9 * 10
    asking.ask(opened(tmp_path), [PatchDrop(4)])
    assert asking.asked == 9 * 19


def test_other_textures_are_other_frost(tmp_path: Path) -> None:
    for name in FILES:
        Image.new("RGB", (64, 64), "white").save(tmp_path / name)
    before = Corruption("frost", "imagecorruptions", str(tmp_path)).key
    Image.new("RGB", (64, 64), "black").save(tmp_path / FILES[2])
    assert Corruption("frost", "imagecorruptions", str(tmp_path)).key != before


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"attacks": ()}, "needs a name"),
        ({"attack_batch": 0}, "--attack-batch must be at least 1, not 0"),
        ({"radii": (0.0,)}, "must be above 0"),
    ],
)
def test_settings_that_are_refused(settings: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        Attacking(**settings)
