"""Kill a training run and resume it, again and again: does it end with the same weights as one that was left alone?

    python tests/engine/survive.py FOLDER classify 12 segment 2 detect 2

The parent only imports and forks (torch's threads do not survive a fork), so that a trial costs no start-up.
"""

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import labelflow.tasks.detect.task
import labelflow.tasks.segment.task  # noqa: F401  (before the forks)
from labelflow import files
from labelflow.data import Data
from labelflow.engine import Training, checkpoint
from labelflow.tasks import AnyRecipe, DetectRecipe, Recipe, SegmentRecipe, train_run
from labelflow.tasks.detect.settings import DetectData, Sizes
from labelflow.tasks.segment.settings import SegmentData

TRAINING = Training(epochs=4, batch=16, micro_batch=8, warmup_epochs=1, ema=0.9, save_updates=2, log_updates=1, keep=2)
SHORT = replace(TRAINING, epochs=2, batch=8, micro_batch=4, save_updates=1)
SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), window_size=4)"
RECIPES: dict[str, AnyRecipe] = {
    "classify": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        drop_path=0.2,
        mixer="0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)",
        data=Data(source="world(train=80, val=16)", image_size=32, repeats=2, erasing=0.5, test_crop=1.0),
        training=TRAINING,
    ),
    "segment": SegmentRecipe(
        backbone=SWIN,
        width=8,
        data=SegmentData(source="world(train=24, val=4, size=64)", short=64, crop=48),
        training=SHORT,
    ),
    "detect": DetectRecipe(
        backbone=SWIN,
        short_side=64,
        sizes=Sizes(channels=8, hidden=16, samples=8, proposals=20),
        data=DetectData(
            source="world(train=24, val=4, size=64)", sides=(64, 80), crop_sides=(80,), crop_range=(48, 64)
        ),
        training=SHORT,
    ),
}


def ended(folder: Path) -> dict[str, str]:
    """Everything that should be the same: weights, their average, the optimiser's state, the losses."""
    newest = sorted((folder / "checkpoints").iterdir())[-1]
    files = [newest / name for name in ("model.safetensors", "ema.safetensors", "state.json")]
    files += [folder / "model.safetensors", folder / "last.safetensors"]
    told = {str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        line.pop("images_per_second", None)
    told["optimizer"] = digest(torch.load(newest / "optimizer.pt", weights_only=True))
    return {**told, "newest": newest.name, "metrics": hashlib.sha256(json.dumps(lines).encode()).hexdigest()}


def digest(value: Any) -> str:
    """Of tensors, numbers, names and what holds them; a list is as good as a tuple."""
    if isinstance(value, dict):
        value = [(key, digest(value[key])) for key in sorted(value)]
    elif isinstance(value, list | tuple):
        value = [digest(item) for item in value]
    elif isinstance(value, torch.Tensor):
        value = value.numpy().tobytes().hex()
    return hashlib.sha256(repr(value).encode()).hexdigest()


def start(folder: Path, recipe: AnyRecipe, workers: int = 0, before: Callable[[], None] = lambda: None) -> int:
    """A child that trains, or resumes."""
    child = os.fork()
    if child:
        return child
    os.dup2(os.open(folder.with_suffix(".log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
    code = 1
    try:
        torch.set_num_threads(1)
        before()
        train_run(recipe.change(workers=workers), folder, resume=True, name="survive")
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def finish(child: int) -> None:
    _, status = os.waitpid(child, 0)
    assert status == 0, f"the run failed with status {status}"


def kill_at(call: int) -> Callable[[], None]:
    """Dies at the n-th step of saving: before or after a file is written, renamed, linked or removed."""
    left = [call]

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for act in (lambda: None, lambda: function(*args, **kwargs)):
                result = act()
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return result

        return step

    def before() -> None:
        checkpoint.save_file = mortal(checkpoint.save_file)
        checkpoint.torch.save = mortal(torch.save)
        checkpoint.shutil.rmtree = files.shutil.rmtree = mortal(shutil.rmtree)
        checkpoint.os.link = mortal(os.link)
        files.os.replace = mortal(os.replace)

    return before


def survived(folder: Path, kills: int, recipe: AnyRecipe) -> int:
    """How many runs of so many ended as one that was left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    finish(start(folder / "alone", recipe))
    seconds = time.perf_counter() - begin
    expected = ended(folder / "alone")
    chance, saves = random.Random(0), 150 if isinstance(recipe, Recipe) else 50  # steps of saving, in a run
    same = 0
    for number in range(kills):
        trial = folder / f"trial{number}"
        in_save = number % 2 == 0
        before = kill_at(1 + chance.randrange(saves)) if in_save else lambda: None
        child = start(trial, recipe, before=before)
        if not in_save:
            time.sleep(chance.uniform(0.05, 0.95) * seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        finish(start(trial, recipe, workers=int(number % 3 == 2)))
        same += ended(trial) == expected
        if ended(trial) != expected:
            print(f"trial {number} differs:", {k for k in expected if ended(trial)[k] != expected[k]}, flush=True)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(f"trial {number}: {'killed' if killed else 'was done before'}, {'in a save' * in_save}", flush=True)
        shutil.rmtree(trial)
    return same


if __name__ == "__main__":
    for task, kills in zip(sys.argv[2::2], map(int, sys.argv[3::2]), strict=True):
        print(task, survived(Path(sys.argv[1]) / task, kills, RECIPES[task]), "of", kills, "ends identical")
