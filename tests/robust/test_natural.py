"""The published sets: class lists, restricted answers, several right answers; against brute force."""

import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import ImageNetInfo, create_transform

from labelflow.classifier import imagenet_classes, wordnet_names
from labelflow.robust.answers import Answers
from labelflow.robust.models import load_models
from labelflow.robust.natural import Natural, NaturalSets, open_a, open_r, open_real, open_sketch, open_v2, real_labels
from labelflow.robust.session import Session

NAMES = imagenet_classes()
CPU = torch.device("cpu")


def listed(name: str) -> list[str]:
    return (files("timm.data") / "_info" / name).read_text().split()


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A tiny model of 1000 classes whose answers differ from image to image."""
    folder = tmp_path_factory.mktemp("natural")
    torch.manual_seed(1)
    model = timm.create_model("test_vit", img_size=32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_file(model.state_dict(), folder / "weights.safetensors")
    models = load_models([f"test_vit={folder / 'weights.safetensors'}"], CPU, image_size=32)
    return Session(models, folder / "answers", CPU, workers=0, quiet=True)


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), np.uint8)
    Image.fromarray(pixels).resize((48, 40), Image.Resampling.BICUBIC).save(path)


def brute_force(session: Session, paths: list[Path]) -> torch.Tensor:
    """Logits, one image after the other, with timm's own transform."""
    network = session.models[0].model.model
    config = {**timm.data.resolve_data_config(pretrained_cfg=network.pretrained_cfg), "input_size": (3, 32, 32)}
    transform = create_transform(**config)
    with torch.no_grad():
        return torch.cat([network(transform(Image.open(path).convert("RGB"))[None]) for path in paths])


@pytest.mark.parametrize(("opened", "name"), [(open_a, "imagenet_a"), (open_r, "imagenet_r")])
def test_200_classes_are_what_answers_are_restricted_to(
    opened: Callable, name: str, session: Session, tmp_path: Path
) -> None:
    classes, places = listed(f"{name}_synsets.txt"), [int(place) for place in listed(f"{name}_indices.txt")]
    assert [NAMES[place] for place in places] == classes
    assert len(classes) == 200
    paths = [tmp_path / classes[label] / f"{label}.png" for label in (0, 5, 77, 199)]
    for seed, path in enumerate(paths):
        photo(path, seed)
    (found,) = opened(tmp_path)
    ((answers,),) = session.ask(found)
    expected = brute_force(session, paths)[:, places]
    assert answers.places[0, :, 0].tolist() == expected.argmax(1).tolist()
    assert answers.labels.tolist() == [0, 5, 77, 199]
    np.testing.assert_allclose(answers.confidence[0], expected.softmax(1).max(1).values, rtol=1e-4)
    right = (expected.argmax(1) == torch.tensor([0, 5, 77, 199])).float().mean()
    assert answers.top1 == [pytest.approx(100 * float(right))]
    assert found.notes == ("4 of 200 classes are there",)


def test_the_folders_of_v2_sort_as_numbers(session: Session, tmp_path: Path) -> None:
    root = tmp_path / "imagenetv2-matched-frequency-format-val"
    for label in (2, 10, 999):
        photo(root / str(label) / "a.png", label)
    (found,) = open_v2(tmp_path)
    assert found.name == "ImageNet-V2 (matched-frequency)"
    assert found.labels == [10, 2, 999]  # in the order of the folders' names
    assert [Path(found.source.name(at)).parent.name for at in range(3)] == ["10", "2", "999"]
    ((answers,),) = session.ask(found)
    best = brute_force(session, [root / name / "a.png" for name in ("10", "2", "999")]).argmax(1)
    assert answers.places[0, :, 0].tolist() == best.tolist()


def test_real_labels_by_the_number_of_the_file(session: Session, tmp_path: Path) -> None:
    text = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_text()
    truths = json.loads(text)
    assert len(truths) == 50000
    assert sum(map(bool, truths)) == 46837
    without = [at + 1 for at, truth in enumerate(truths) if not truth][:2]
    numbers = [2, 3, 5, 50000, *without]
    paths = [tmp_path / f"ILSVRC2012_val_{number:08d}.png" for number in numbers]
    for number, path in zip(numbers, paths, strict=True):
        photo(path, number)
    (found,) = open_real(tmp_path)
    ((answers,),) = session.ask(found)
    ordered = sorted(paths)
    best = brute_force(session, ordered).argmax(1).tolist()
    own = [truths[int(path.stem[-8:]) - 1] for path in ordered]
    expected = [place in truth for place, truth in zip(best, own, strict=True) if truth]
    assert answers.among(found.truths)[0].tolist() == expected
    section = Natural(session, NaturalSets(imagenet_real=str(tmp_path))).measure()
    assert section.findings[0].values == [pytest.approx(100 * sum(expected) / len(expected))]
    assert section.notes == [f"ImageNet-ReaL: {len(expected)} of 6 images have an answer, and count."]
    assert real_labels()[0] == frozenset(truths[0])


def test_imagenet_under_other_names() -> None:
    described = ImageNetInfo().label_descriptions()
    assert described[0] == "tench, Tinca tinca"
    assert wordnet_names(described) == NAMES
    assert wordnet_names([*described[:500], "another name", *described[501:]]) == NAMES
    assert wordnet_names([str(place) for place in range(1000)]) == NAMES
    assert wordnet_names(described[::-1]) == tuple(described[::-1])
    assert wordnet_names(["cat", "dog"]) == ("cat", "dog")


def test_one_of_several_right_answers_is_enough() -> None:
    places = np.array([[[3], [4], [9], [1]]], np.int32)
    none = np.zeros((1, 4), np.float32)
    answers = Answers(places, none[..., None], none, np.zeros(4, np.int32), np.array([True, True, True, False]))
    truths = [frozenset({2, 3}), frozenset({5}), frozenset[int](), frozenset({1})]
    assert answers.among(truths).tolist() == [[True, False]]  # without an answer, and unreadable: left out


def test_other_folders_are_refused(session: Session, tmp_path: Path) -> None:
    only_r = next(name for name in listed("imagenet_r_synsets.txt") if name not in listed("imagenet_a_synsets.txt"))
    photo(tmp_path / "r" / only_r / "a.png", 0)
    with pytest.raises(ValueError, match=f"not ImageNet-A, which has 200 classes called like n01498041: {only_r} is"):
        open_a(tmp_path / "r")
    with pytest.raises(ValueError, match=f"called 0 to 999, but .* has {only_r}"):
        open_v2(tmp_path / "r")
    with pytest.raises(ValueError, match=r"files like ILSVRC2012_val_00000001.JPEG; .* such as .*a.png"):
        open_real(tmp_path / "r")
    photo(tmp_path / "real" / "ILSVRC2012_val_00050001.png", 0)
    with pytest.raises(ValueError, match="50000 validation images"):
        open_real(tmp_path / "real")
    photo(tmp_path / "unanswered" / "ILSVRC2012_val_00000001.png", 0)
    with pytest.raises(ValueError, match=r"no image .* has a ReaL label"):
        open_real(tmp_path / "unanswered")
    (tmp_path / "empty" / NAMES[0]).mkdir(parents=True)
    with pytest.raises(ValueError, match="has no images in class folders"):
        open_sketch(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"there is no folder .*lost, which --imagenet-a names"):
        Natural(session, NaturalSets(imagenet_a=str(tmp_path / "lost")))
    with pytest.raises(ValueError, match="needs a folder at least of: --imagenet-v2, "):
        Natural(session, NaturalSets())


def test_the_suite_has_a_number_for_each_set(session: Session, tmp_path: Path) -> None:
    photo(tmp_path / "sketch" / NAMES[3] / "a.png", 3)
    photo(tmp_path / "real" / "ILSVRC2012_val_00000002.png", 1)
    settings = NaturalSets(imagenet_sketch=str(tmp_path / "sketch"), imagenet_real=str(tmp_path / "real"))
    section = Natural(session, settings).measure()
    assert [finding.name for finding in section.findings] == ["ImageNet-Sketch", "ImageNet-ReaL"]
    assert all(value in (0.0, 100.0) for finding in section.findings for value in finding.values)
