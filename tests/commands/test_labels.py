"""A damaged store is one line that names the file, whichever command opens it, and one command mends it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from labelflow.cli import main
from labelflow.labels import Store
from labels.small_store import contents, flip

DATA = "world(train=8, val=4)"
VIT = "vit_tiny_patch16_224(patch_size=16, embed_dim=24, depth=1, num_heads=3)"
QUICK = ["--data", DATA, "--model", VIT, "--batch", "8", "--micro-batch", "4", "--epochs", "1", "--warmup-epochs", "0"]
TRAIN = ["train", "small_lvvit", *QUICK, "--mixer", "mixtoken(patch=16)"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "resnet.pth"
    torch.save(timm.create_model("resnet10t", num_classes=10).state_dict(), path)
    return path


def annotate(weights: Path, out: Path) -> list[object]:
    how = ["--image-size", 64, "--workers", 0, "--shard", 3]
    return ["annotate", DATA, "--model", "resnet10t", "--weights", weights, *how, "--out", out]


@pytest.fixture(scope="module")
def whole(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole") / "labels"
    assert run(*annotate(weights, out)) == 0
    return out


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def swap(folder: Path) -> None:
    one, other = (folder / f"shards/0000{n}.npy" for n in (0, 1))
    kept = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def strange_class(folder: Path) -> None:
    records = np.load(folder / "shards/00000.npy")
    records["classes"][0] = 255
    np.save(folder / "shards/00000.npy", records)


def without_bytes(folder: Path) -> None:
    said = json.loads((folder / "manifest.json").read_text())
    del said["sha256"], said["files"]["index.npy"]["bytes"]
    (folder / "manifest.json").write_text(json.dumps(said))


READERS = ("verify", "export", "draw", "train")
EVERY = ("inspect", "compare", *READERS)  # compare would train its other cells first
DAMAGE: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {  # file, damage, who notices
    "swapped": ("shards/00000.npy", swap, READERS),
    "flipped": ("shards/00000.npy", lambda folder: flip(folder / "shards/00000.npy"), READERS),
    "class 255": ("shards/00000.npy", strange_class, READERS),
    "other shape": ("shards/00001.npy", lambda folder: np.save(folder / "shards/00001.npy", np.zeros(3)), EVERY),
    "truncated": ("shards/00001.npy", lambda folder: os.truncate(folder / "shards/00001.npy", 150), EVERY),
    "empty": ("shards/00001.npy", lambda folder: os.truncate(folder / "shards/00001.npy", 0), EVERY),
    "missing": ("shards/00002.npy", lambda folder: (folder / "shards/00002.npy").unlink(), EVERY),
    "no shards": ("shards/00000.npy", lambda folder: shutil.rmtree(folder / "shards"), EVERY),
    "index, flipped": ("index.npy", lambda folder: flip(folder / "index.npy"), READERS),
    "index, missing": ("index.npy", lambda folder: (folder / "index.npy").unlink(), EVERY),
    "keys, flipped": (
        "samples.txt",
        lambda folder: flip(folder / "samples.txt", 0),
        ("inspect", "verify", "train"),
    ),
    "keys, no text": ("samples.txt", lambda folder: (folder / "samples.txt").write_bytes(b"\xff\n"), EVERY),
    "manifest, a list": ("manifest.json", lambda folder: (folder / "manifest.json").write_text("[]"), EVERY),
    "manifest, no text": ("manifest.json", lambda folder: (folder / "manifest.json").write_bytes(b"\xff"), EVERY),
    "manifest, truncated": ("manifest.json", lambda folder: os.truncate(folder / "manifest.json", 300), EVERY),
    "manifest, flipped": ("manifest.json", lambda folder: flip(folder / "manifest.json", 130), EVERY),
    "manifest, without bytes": ("manifest.json", without_bytes, EVERY),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage(name: str, whole: Path, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, damage, notice = DAMAGE[name]
    labels = tmp_path / "labels"
    shutil.copytree(whole, labels)
    damage(labels)

    def told() -> str:
        """The one line that an exit with code 2 leaves."""
        said = capsys.readouterr().err
        assert said.count("\n") == 1
        assert said.startswith("labelflow: ")
        assert str(labels) in said
        assert Path(file).name in said
        return said

    commands: dict[str, list[object]] = {
        "inspect": ["labels", "inspect", labels],
        "verify": ["labels", "verify", labels],
        "export": ["labels", "export", labels, tmp_path / "tree"],
        "draw": ["labels", "draw", labels, DATA, "--out", tmp_path / "drawn.png"],
        "train": [*TRAIN, "--workers", 0, "--labels", labels, "--out", tmp_path / "run"],
        "compare": ["compare", "small_lvvit_cutmix", "cutmix", "token_label", *QUICK, "--labels", labels],
    }
    commands["compare"] += ["--seeds", 0, "--out", tmp_path / "compare", "--workers", 0]
    capsys.readouterr()
    for command in notice:
        assert run(*commands[command]) == 2, command
        assert ("--resume" in told()) == (file != "manifest.json"), command
    assert [path.name for path in tmp_path.iterdir() if path.name != "compare"] == ["labels"]

    if file == "manifest.json":
        assert run(*annotate(weights, labels), "--resume") == 2
        assert "make the store again" in told() or name == "manifest, a list"
    else:
        assert run(*annotate(weights, labels), "--resume") == 0
        assert "made again" in capsys.readouterr().out
        assert contents(labels) == contents(whole)


def test_a_worker_that_meets_damage(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As where processes are not forked, and know nothing of what was checked before."""
    labels = tmp_path / "labels"
    shutil.copytree(whole, labels)
    flip(labels / "shards/00002.npy")
    monkeypatch.setattr(Store, "check", lambda store: None)
    capsys.readouterr()
    command = [*TRAIN, "--workers", 1, "--labels", labels, "--out", tmp_path / "run"]
    assert run(*command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"labelflow: {labels / 'shards/00002.npy'} is damaged: checksum mismatch; to make it again")
    assert said.count("\n") == 1
