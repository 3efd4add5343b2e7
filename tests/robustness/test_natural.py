"""Published test sets: class lists, restricted predictions, several correct labels; by hand and by brute force."""

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

from labelflow.data.imagenet import imagenet_classes, wordnet_names
from labelflow.robustness.cache import Predictions
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.models import load_models
from labelflow.robustness.natural import NaturalSuite, open_a, open_r, open_real, open_sketch, open_v2, real_labels
from labelflow.robustness.settings import NaturalSettings
from robustness.small import ColourReader, known, percent, save_colour, values

NAMES = imagenet_classes()
CPU = torch.device("cpu")


def listed(name: str) -> list[str]:
    return (files("timm.data") / "_info" / name).read_text().split()


@pytest.fixture(scope="module")
def evaluator(tmp_path_factory: pytest.TempPathFactory) -> Evaluator:
    """A tiny model of 1000 classes whose predictions differ from image to image."""
    folder = tmp_path_factory.mktemp("natural")
    torch.manual_seed(1)
    model = timm.create_model("test_vit", img_size=32)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_file(model.state_dict(), folder / "weights.safetensors")
    models = load_models([f"test_vit={folder / 'weights.safetensors'}"], CPU, image_size=32)
    return Evaluator(models, folder / "predictions", CPU, workers=0, quiet=True)


def photo(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 7, 3), np.uint8)
    Image.fromarray(pixels).resize((48, 40), Image.Resampling.BICUBIC).save(path)


def brute_force(evaluator: Evaluator, paths: list[Path]) -> torch.Tensor:
    """Logits, one image after the other, with timm's own transform."""
    network = evaluator.models[0].model.model
    config = {**timm.data.resolve_data_config(pretrained_cfg=network.pretrained_cfg), "input_size": (3, 32, 32)}
    transform = create_transform(**config)
    with torch.no_grad():
        return torch.cat([network(transform(Image.open(path).convert("RGB"))[None]) for path in paths])


@pytest.mark.parametrize(("opened", "name"), [(open_a, "imagenet_a"), (open_r, "imagenet_r")])
def test_predictions_are_restricted_to_200_classes(
    opened: Callable, name: str, evaluator: Evaluator, tmp_path: Path
) -> None:
    classes, places = listed(f"{name}_synsets.txt"), [int(place) for place in listed(f"{name}_indices.txt")]
    assert [NAMES[place] for place in places] == classes
    assert len(classes) == 200
    paths = [tmp_path / classes[label] / f"{label}.png" for label in (0, 5, 77, 199)]
    for seed, path in enumerate(paths):
        photo(path, seed)
    (dataset,) = opened(tmp_path)
    ((predictions,),) = evaluator.predict(dataset)
    expected = brute_force(evaluator, paths)[:, places]
    assert predictions.classes[0, :, 0].tolist() == expected.argmax(1).tolist()
    assert predictions.labels.tolist() == [0, 5, 77, 199]
    np.testing.assert_allclose(predictions.confidence[0], expected.softmax(1).max(1).values, rtol=1e-4)
    right = (expected.argmax(1) == torch.tensor([0, 5, 77, 199])).float().mean()
    assert predictions.top1 == [pytest.approx(100 * float(right))]
    assert dataset.notes == ("4 of 200 classes",)


def test_the_folders_of_v2_sort_as_numbers(evaluator: Evaluator, tmp_path: Path) -> None:
    root = tmp_path / "imagenetv2-matched-frequency-format-val"
    for label in (2, 10, 999):
        photo(root / str(label) / "a.png", label)
    (dataset,) = open_v2(tmp_path)
    assert dataset.name == "ImageNet-V2 (matched-frequency)"
    assert dataset.labels == [10, 2, 999]  # in the order of the folders' names
    assert [Path(dataset.source.name(at)).parent.name for at in range(3)] == ["10", "2", "999"]
    ((predictions,),) = evaluator.predict(dataset)
    best = brute_force(evaluator, [root / name / "a.png" for name in ("10", "2", "999")]).argmax(1)
    assert predictions.classes[0, :, 0].tolist() == best.tolist()


def test_real_labels_by_the_number_of_the_file(evaluator: Evaluator, tmp_path: Path) -> None:
    text = (files("timm.data") / "_info" / "imagenet_real_labels.json").read_text()
    truths = json.loads(text)
    assert len(truths) == 50000
    assert sum(map(bool, truths)) == 46837
    without = [at + 1 for at, truth in enumerate(truths) if not truth][:2]
    numbers = [2, 3, 5, 50000, *without]
    paths = [tmp_path / f"ILSVRC2012_val_{number:08d}.png" for number in numbers]
    for number, path in zip(numbers, paths, strict=True):
        photo(path, number)
    (dataset,) = open_real(tmp_path)
    ((predictions,),) = evaluator.predict(dataset)
    ordered = sorted(paths)
    best = brute_force(evaluator, ordered).argmax(1).tolist()
    own = [truths[int(path.stem[-8:]) - 1] for path in ordered]
    expected = [place in truth for place, truth in zip(best, own, strict=True) if truth]
    assert predictions.correct_among(dataset.label_sets)[0].tolist() == expected
    section = NaturalSuite(evaluator, NaturalSettings(imagenet_real=str(tmp_path))).measure()
    assert section.metrics[0].values == [pytest.approx(100 * sum(expected) / len(expected))]
    assert section.notes == [f"ImageNet-ReaL: {len(expected)} of 6 images have labels and count."]
    assert real_labels()[0] == frozenset(truths[0])


def test_imagenet_under_other_names() -> None:
    described = ImageNetInfo().label_descriptions()
    assert described[0] == "tench, Tinca tinca"
    assert wordnet_names(described) == NAMES
    assert wordnet_names([*described[:500], "another name", *described[501:]]) == NAMES
    assert wordnet_names([str(place) for place in range(1000)]) == NAMES
    assert wordnet_names(described[::-1]) == tuple(described[::-1])
    assert wordnet_names(["cat", "dog"]) == ("cat", "dog")


def test_one_of_several_labels_is_enough() -> None:
    classes = np.array([[[3], [4], [9], [1]]], np.int32)
    none = np.zeros((1, 4), np.float32)
    predictions = Predictions(
        classes, none[..., None], none, np.zeros(4, np.int32), np.array([True, True, True, False])
    )
    label_sets = [frozenset({2, 3}), frozenset({5}), frozenset[int](), frozenset({1})]
    assert predictions.correct_among(label_sets).tolist() == [
        [True, False]
    ]  # unlabelled and unreadable ones are left out


def test_other_folders_are_refused(evaluator: Evaluator, tmp_path: Path) -> None:
    only_r = next(name for name in listed("imagenet_r_synsets.txt") if name not in listed("imagenet_a_synsets.txt"))
    photo(tmp_path / "r" / only_r / "a.png", 0)
    with pytest.raises(ValueError, match=f"not ImageNet-A: its 200 classes, like n01498041, don't include {only_r}"):
        open_a(tmp_path / "r")
    with pytest.raises(ValueError, match=f"has folders 0 to 999, but .* has {only_r}"):
        open_v2(tmp_path / "r")
    with pytest.raises(ValueError, match=r"files named like ILSVRC2012_val_00000001.JPEG; .* has .*a.png"):
        open_real(tmp_path / "r")
    photo(tmp_path / "real" / "ILSVRC2012_val_00050001.png", 0)
    with pytest.raises(ValueError, match="50000 validation images"):
        open_real(tmp_path / "real")
    photo(tmp_path / "unanswered" / "ILSVRC2012_val_00000001.png", 0)
    with pytest.raises(ValueError, match=r"no image in .* has a ReaL label"):
        open_real(tmp_path / "unanswered")
    (tmp_path / "empty" / NAMES[0]).mkdir(parents=True)
    with pytest.raises(ValueError, match="has no images in class folders"):
        open_sketch(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"--imagenet-a: there is no folder .*lost"):
        NaturalSuite(evaluator, NaturalSettings(imagenet_a=str(tmp_path / "lost")))
    with pytest.raises(ValueError, match="needs at least one of --imagenet-v2, "):
        NaturalSuite(evaluator, NaturalSettings())


def test_accuracies_by_hand(tmp_path: Path) -> None:
    """Models that read a class off the colour; if a set lacks it, the next class that it has."""
    of_a = [int(place) for place in listed("imagenet_a_indices.txt")]
    real = real_labels()
    several = next(at for at, labels in enumerate(real) if len(labels) > 1)
    none = next(at for at, labels in enumerate(real) if not labels)
    one, other = sorted(real[several])[:2]
    images = {  # of each set: labels, and the class that is read
        "v2": [({0}, 0), ({300}, 300), ({300}, 299), ({999}, 8)],
        "a": [({of_a[0]}, of_a[0]), ({of_a[3]}, of_a[2] + 1), ({of_a[9]}, of_a[8]), ({of_a[7]}, 999)],
        "sketch": [({0}, 0), ({1}, 0), ({300}, 300), ({999}, 998), ({998}, 997)],
        "real": [(real[several], one), (real[several], other), (real[several], other - 1), (real[none], 0)],
    }
    for root, own in images.items():
        for number, (labels, read) in enumerate(own):
            folder = {"v2": min(labels, default=0), "real": number}.get(root, NAMES[min(labels, default=0)])
            file = {"real": f"ILSVRC2012_val_{(several if labels else none) + 1:08d}"}.get(root, number)
            save_colour(tmp_path / root / str(folder) / f"{file}.png", read % 256, read // 256)
    evaluator = known({"exact": ColourReader(1000), "one more": ColourReader(1000, 1)}, NAMES, tmp_path / "out")
    section = NaturalSuite(evaluator, NaturalSettings(**{f"imagenet_{name}": str(tmp_path / name) for name in images}))

    def top1(root: str, shift: int) -> float:
        classes = of_a if root == "a" else range(1000)
        predicted = [min(classes, key=lambda place: (place - read - shift) % 1000) for _, read in images[root]]
        return percent([one in labels for one, (labels, _) in zip(predicted, images[root], strict=True) if labels])

    names = {"ImageNet-V2": "v2", "ImageNet-A": "a", "ImageNet-Sketch": "sketch", "ImageNet-ReaL": "real"}
    expected = {name: [top1(root, shift) for shift in (0, 1)] for name, root in names.items()}
    assert values(section.measure()) == {name: pytest.approx(own) for name, own in expected.items()}
    assert expected["ImageNet-V2"] == [50, 25]
    assert expected["ImageNet-A"] == [50, 50]
    assert expected["ImageNet-Sketch"] == [40, 60]
    assert expected["ImageNet-ReaL"][0] == pytest.approx(100 * 2 / 3)
