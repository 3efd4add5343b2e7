"""Kill a training run and resume it, again and again: does its folder end as that of one that was left alone?

    python tests/engine/survive.py FOLDER classify 12 growing 8 teacher 6 segment 2 detect 2
    python tests/engine/survive.py FOLDER --in-saves classify 100

The parent only imports and forks (torch's threads do not survive a fork), so that a trial costs no start-up.
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
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
from labelflow.data import Data, World
from labelflow.engine import Training, checkpoint
from labelflow.tasks import AnyRecipe, DetectRecipe, Recipe, SegmentRecipe, train_run
from labelflow.tasks.detect.settings import DetectData, Sizes
from labelflow.tasks.segment.settings import SegmentData

TRAINING = Training(epochs=4, batch=16, micro_batch=8, warmup_epochs=1, ema=0.9, save_updates=2, log_updates=1, keep=2)
SHORT = replace(TRAINING, epochs=2, batch=8, micro_batch=4, save_updates=1)
SIZES = {"train": {"cat": 48, "dog": 24, "fox": 8}, "val": {"cat": 4, "dog": 4, "fox": 4}}
SWIN = "swin_tiny_patch4_window7_224(embed_dim=16, depths=(1, 1, 1, 1), num_heads=(1, 2, 4, 8), window_size=4)"
RECIPES: dict[str, AnyRecipe] = {
    "classify": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        drop_path=0.2,
        mixer="0.5*mixup(alpha=0.8) + 0.5*cutmix(alpha=1.0)",
        data=Data(source="world(train=80, val=16)", image_size=32, repeats=2, erasing=0.5, test_crop=1.0),
        training=TRAINING,
    ),
    "device": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        data=Data(source="world(train=80, val=16)", image_size=32, augment="device", erasing=0.5, test_crop=1.0),
        training=TRAINING,
    ),
    "balanced": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        best="balanced",
        data=Data(source="UNBALANCED", image_size=32, sampling="balanced", repeats=2, erasing=0.5, test_crop=1.0),
        training=TRAINING,
    ),
    "finetune": Recipe(  # resumed before, at and after the thaw
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=3, num_heads=3)",
        drop_path=0.2,
        data=Data(source="world(train=80, val=16)", image_size=32, erasing=0.5, test_crop=1.0),
        training=replace(
            TRAINING, layer_decay=0.8, head_lr=2.0, betas=(0.9, 0.95), freeze=("stem", "blocks.0@2", "blocks.1@1")
        ),
    ),
    "growing": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        drop_path=0.2,
        drop_path_schedule="constant",
        mix_off_epoch=3,
        data=Data(source="world(train=80, val=16)", image_size=32, sizes=(16, 24, 32), repeats=2, test_crop=1.0),
        training=TRAINING,
    ),
    "teacher": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        drop_path=0.2,
        target="distill(kind='features', target='token_label')",
        teacher="RUN",  # that of `classify`, which is trained first; it annotates, and is compared with
        data=Data(source="world(train=80, val=16)", image_size=32, erasing=0.5, test_crop=1.0),
        training=TRAINING,
    ),
    "recursive": Recipe(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        drop_path=0.2,
        mixer="0.3*mixup + 0.7*recursivemix",
        target="recursive_mix",
        data=Data(source="world(train=80, val=16)", image_size=32, erasing=0.5, test_crop=1.0),
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
    """Every file of the folder, and what should be the same of it: all of it, but for the speed in metrics.jsonl, the
    number of workers in recipe.json, how an optimiser's state was pickled, and the checksums of these."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        match path.name:
            case "metrics.jsonl":
                lines = [json.loads(line) for line in path.read_text().splitlines()]
                found_here = digest([{**line, "images_per_second": 0} for line in lines])
            case "recipe.json":
                recipe = json.loads(path.read_text())
                found_here = digest({**recipe, "data": {**recipe["data"], "workers": 0}})
            case "optimizer.pt":
                found_here = digest(torch.load(path, weights_only=True))
            case "checksums.json":
                assert not files.folder_problem(path.parent)
                found_here = digest(sorted(files.read_checksums(path.parent)))
            case _:
                found_here = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path.relative_to(folder))] = found_here
    return found


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


def kill_at(call: int, count: Path | None = None) -> Callable[[], None]:
    """Dies at the n-th step of saving: before or after a file is written, renamed, linked or removed; or writes down
    how many there were."""
    left = [call]

    def mortal(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            for act in (lambda: None, lambda: function(*args, **kwargs)):
                result = act()
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if count:
                    count.write_text(str(-left[0]))
            return result

        return step

    def before() -> None:
        checkpoint.save_file = mortal(checkpoint.save_file)
        checkpoint.torch.save = mortal(torch.save)
        checkpoint.shutil.rmtree = files.shutil.rmtree = mortal(shutil.rmtree)
        checkpoint.os.link = mortal(os.link)
        files.os.replace = mortal(os.replace)

    return before


def unbalanced(folder: Path) -> Path:
    """Scenes in three folders: 48, 24 and 8 to train on, 4 of each to evaluate on."""
    world = World("train", 92, 32)
    places = [(split, name) for split, sizes in SIZES.items() for name, size in sizes.items() for _ in range(size)]
    for index, (split, name) in enumerate(places):
        path = folder / split / name / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.load(index)[0].save(path)
    return folder


def survived(folder: Path, kills: int, recipe: AnyRecipe, in_saves: bool = False) -> int:
    """How many runs of so many ended as one that was left alone."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(recipe, Recipe) and recipe.teacher:
        recipe = recipe.change(teacher=str(folder / "taught"))
        finish(start(folder / "taught", RECIPES["classify"]))
    if recipe.data.source == "UNBALANCED":
        recipe = recipe.change(source=str(unbalanced(folder / "images")))
    begin = time.perf_counter()
    finish(start(folder / "alone", recipe, before=kill_at(0, folder / "steps")))
    seconds = time.perf_counter() - begin
    expected = ended(folder / "alone")
    chance, steps = random.Random(0), int((folder / "steps").read_text())
    same = 0
    for number in range(kills):
        trial = folder / f"trial{number}"
        in_save = in_saves or number % 2 == 0
        before = kill_at(1 + chance.randrange(steps)) if in_save else lambda: None
        child = start(trial, recipe, before=before)
        if not in_save:
            time.sleep(chance.uniform(0.05, 0.95) * seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        finish(start(trial, recipe, workers=int(number % 3 == 2)))
        found = ended(trial)
        same += found == expected
        if found != expected:
            differing = [name for name in {*expected, *found} if found.get(name) != expected.get(name)]
            print(f"trial {number} differs:", *sorted(differing), flush=True)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        print(f"trial {number}: {'killed' if killed else 'was done before'}, {'in a save' * in_save}", flush=True)
        shutil.rmtree(trial)
    return same


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("tasks", nargs="+", metavar="TASK KILLS", help=f"of {', '.join(RECIPES)}, and how often")
    parser.add_argument(
        "--in-saves",
        action="store_true",
        help="kill while files are written, renamed, linked or removed; otherwise half of the kills come at any time",
    )
    arguments = parser.parse_args()
    for task, kills in zip(arguments.tasks[::2], map(int, arguments.tasks[1::2]), strict=True):
        same = survived(arguments.folder / task, kills, RECIPES[task], arguments.in_saves)
        print(task, same, "of", kills, "ends identical")
