"""Damage of each kind to each file of a run, a store of labels and a comparison, and what opens them."""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from PIL import Image
from survive import SWIN, ended
from trials import FEW, Act, Command, Damage, Outcome, Said, cli, copy, damages, digest, judge, run, succeed, tree

import labelflow.api
import labelflow.comparison.run
import labelflow.figures.rmse
import labelflow.formats.exported
import labelflow.report.classifier
import labelflow.report.dense
import labelflow.robustness.run
import labelflow.tasks.annotation
import labelflow.tasks.segment.task
from labelflow.classifier import load
from labelflow.comparison.cells import run_cell
from labelflow.comparison.speed import Speed
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.labels import Draft

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
WORLD = "world(train=80, val=16)"
OFTEN = ["--ema", 0.9, "--save-updates", 2, "--log-updates", 1, "--keep", 2, "--workers", 0]
TINY = ["--model", VIT, "--data", WORLD, "--image-size", 32, "--test-crop", 1, "--batch", 16, "--micro-batch", 8]
DENSE = ["--mixer", "mixtoken(alpha=1.0, patch=8)", "--target", "token_label(beta=0.5)"]
SEGMENT = ["--backbone", SWIN, "--width", 8, "--data", "world(train=24, val=4, size=64)", "--short", 64, "--crop", 48]
JOURNAL = ("recipe.json", "config.json", "environment.json", "metrics.jsonl", "checksums.json")
WEIGHTS = ("model.safetensors", "last.safetensors")
HEADS = ("heads.safetensors", "last_heads.safetensors")
LISTS = ("manifest.json", "draft.json", "checksums.json")  # of other files
CHECKPOINT = ("model.safetensors", "ema.safetensors", "optimizer.pt", "state.json", "checksums.json")


@dataclass(frozen=True)
class Scene:
    """A folder, its files that are damaged, and what opens it."""

    name: str
    folder: Path  # undamaged
    other: Path | None  # of the same kind
    files: Sequence[str]
    commands: Sequence[Command]
    older: dict[str, str] = field(default_factory=dict)  # a file, and an older version of it
    shown: set[tuple[str, str, str]] = field(default_factory=set)  # faults that have to show: (file, damage, command)


class Folders:
    """What is damaged, made once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.trial, self.out = root / "trial", root / "trial" / "out"  # where copies are damaged
        self.photos = root / "photos"
        self.photos.mkdir(parents=True)
        self.trial.mkdir()
        for number in range(2):
            Image.radial_gradient("L").rotate(90 * number).convert("RGB").save(self.photos / f"{number}.png")

    def make(self, act: Act) -> None:
        succeed(act, self.root)

    def scenes(self) -> Iterator[Scene]:
        yield self.store()
        yield self.draft()
        yield self.run()
        yield self.segmenter()
        yield self.comparison()
        yield self.robustness()

    def store(self) -> Scene:
        annotate = ["annotate", WORLD, "--workers", 0, "--top", 3, "--shard", 16, "--model", self.root / "annotator"]
        self.make(self.training(self.root / "annotator", "--epochs", 1))
        for name, scores in (("store", "rest"), ("other_store", "logits")):
            self.make(cli(*annotate, "--scores", scores, "--out", self.root / name))
        labels = self.trial / "store"
        commands = [
            self._trains("train --labels", "--labels", labels, *DENSE, "--epochs", 1),
            Command("labels verify", cli("labels", "verify", labels), lambda said: said.out),
            Command("labels inspect", cli("labels", "inspect", labels, "--as-json"), lambda said: said.out),
            self._writes("labels draw", "labels", "draw", labels, WORLD, "--out", self.out / "drawn.png"),
            self._writes("labels export", "labels", "export", labels, self.out),
            Command("annotate --resume", cli(*annotate, "--resume", "--out", labels), lambda said: tree(labels)),
        ]
        files = ("manifest.json", "samples.txt", "index.npy", "shards/00001.npy", "shards/00004.npy", "shards")
        return Scene(
            "store", self.root / "store", self.root / "other_store", files, commands, {files[3]: "shards/00002.npy"}
        )

    def draft(self) -> Scene:
        """A store that is not finished."""
        annotate = ["annotate", WORLD, "--workers", 0, "--top", 3, "--shard", 16, "--model", self.root / "annotator"]
        for name, scores in (("draft", "rest"), ("other_draft", "logits")):
            act = cli(*annotate, "--scores", scores, "--out", self.root / name)
            self.make(_stopping(Draft, "write", lambda draft, shard, *values: shard == 2, act))
            (self.root / name / ".lock").unlink(missing_ok=True)
        labels = self.trial / "draft"

        def told(said: Said) -> Any:
            return {name: content for name, content in tree(labels).items() if not name.startswith(".")}

        commands = [
            Command("annotate --resume", cli(*annotate, "--resume", "--out", labels), told),
        ]
        files = ["draft.json", "samples.txt", "shards/00001.npy", "shards"]
        return Scene(
            "draft", self.root / "draft", self.root / "other_draft", files, commands, {files[2]: "shards/00000.npy"}
        )

    def run(self) -> Scene:
        """A classifier with a token head, which stopped after its first evaluation."""
        asked = ["--epochs", 2, "--labels", self.root / "store", *DENSE]
        for name, seed in (("run", 0), ("other_run", 1)):
            self.make(interrupted(self.training(self.root / name, *asked, "--seed", seed), 6))
            (self.root / name / ".lock").unlink(missing_ok=True)
        folder, newest, older = self.trial / "run", "checkpoints/00000006", "checkpoints/00000005"
        images = [self.photos / "0.png", self.photos / "1.png"]
        predict = ["predict", folder, *images, "--workers", 0, "--format", "jsonl", "--weights"]
        rmse = ["figure", "rmse", folder, "--count", 4, "--out", self.out / "rmse"]
        robust = ["robust", folder, "--suite", "clean", "--samples", 8, "--workers", 0, "--as-json", "--out", self.out]
        annotate = ["annotate", WORLD, "--workers", 0, "--model", folder, "--out", self.out]
        commands = [
            self._resumes(folder, self.training(folder, *asked, "--resume")),
            Command("figure", cli(*rmse), lambda said: said.out),
            self._reports(folder),
            Command("export", cli("export", folder, "--out", self.out), lambda said: digest(self.out / WEIGHTS[0])),
            self._trains("train --init", "--init", folder, "--epochs", 1),
            self._trains("train --teacher", "--target", "stl", "--teacher", folder, "--epochs", 1),
            Command("eval", cli("eval", folder, "--as-json"), lambda said: said.out),
            Command("predict", cli(*predict, "best"), lambda said: said.out),
            Command("predict --weights last", cli(*predict, "last"), lambda said: said.out),
            Command("load", _plainly(lambda: print(load(folder).probabilities(images))), lambda said: said.out),
            Command("robust", cli(*robust), lambda said: said.out),
            Command("annotate", cli(*annotate), lambda said: digest(self.out / "shards" / "00000.npy")),
        ]
        commands[2:] = [replace(command, not_of="checkpoints") for command in commands[2:]]
        inside = [f"{newest}/{name}" for name in (*CHECKPOINT, "heads.safetensors", "ema_heads.safetensors")]
        swapped = {file: file.replace(newest, older) for file in inside}
        files = (*JOURNAL, *WEIGHTS, *HEADS, *inside, f"{older}/model.safetensors", newest, older, "checkpoints")
        return Scene("run", self.root / "run", self.root / "other_run", files, commands, swapped)

    def segmenter(self) -> Scene:
        common = ["segment", "segment_small", *SEGMENT, *OFTEN, "--epochs", 2, "--batch", 8, "--micro-batch", 4]
        for name, seed in (("segmenter", 0), ("other_segmenter", 1)):
            self.make(interrupted(cli(*common, "--seed", seed, "--out", self.root / name), 4))
            (self.root / name / ".lock").unlink(missing_ok=True)
        folder = self.trial / "segmenter"
        pictures = ["predict", folder, self.photos, "--workers", 0, "--out", self.out]
        commands = [
            self._resumes(folder, cli(*common, "--resume", "--out", folder)),
            Command("eval", cli("eval", folder, "--as-json"), lambda said: said.out),
            self._writes("predict", *pictures),
            self._reports(folder),
        ]
        newest = "checkpoints/00000004"
        inside = [f"{newest}/{name}" for name in CHECKPOINT if name != "ema.safetensors"]
        files = (*JOURNAL, "classes.json", *WEIGHTS, *inside)
        return Scene("segmenter", self.root / "segmenter", self.root / "other_segmenter", files, commands)

    def comparison(self) -> Scene:
        what = ["compare", "small_vit_cutmix", "cutmix", "tl_align", *TINY, *OFTEN, "--epochs", 1, "--speed-rounds", 1]
        folder = self.trial / "comparison"

        def compare(*args: object) -> Act:
            return _here(cli(*what, *args))

        def told(said: Said) -> Any:
            return [line.split("|")[:6] for line in (folder / "compare.md").read_text().splitlines()]

        made = self.root / "comparison"
        self.make(compare("--seeds", 0, 1, "--out", made))
        self.make(compare("--seeds", 2, 3, "--out", self.root / "other_comparison"))
        (speeds,) = (str(path.relative_to(made)) for path in made.glob("speeds/*.json"))
        cells = [str(path.relative_to(made)) for path in sorted(made.glob("cells/*.json"))]
        files = [cells[0], cells[-1], speeds]
        table = compare("--seeds", 0, 1, "--table-only", "--out", folder)
        commands = [
            Command("compare", compare("--seeds", 0, 1, "--out", folder), told),
            Command("compare --table-only", table, told, admits="cells are not finished"),
        ]
        shown = {(speeds, "missing", "compare --table-only")}  # the table has no speeds then
        older = {files[0]: files[1]}
        return Scene("comparison", made, self.root / "other_comparison", (*files, "cells"), commands, older, shown)

    def robustness(self) -> Scene:
        """Predictions that were kept; those that are damaged are made again."""
        robust = [
            "robust",
            self.root / "run",
            "--suite",
            "clean,corruptions",
            "--corruptions",
            "contrast",
            "--samples",
            8,
        ]
        robust += ["--workers", 0, "--as-json", "--out"]
        made, folder = self.root / "robustness", self.trial / "robustness"
        self.make(cli(*robust, made))
        self.make(cli(*robust, self.root / "other_robustness", "--weights", "last"))
        files = [str(path.relative_to(made)) for path in sorted(made.glob("predictions/*.safetensors"))]
        commands = [Command("robust", cli(*robust, folder), lambda said: said.out)]
        older = {files[0]: files[1]}
        return Scene("robustness", made, self.root / "other_robustness", (*files, "predictions"), commands, older)

    def training(self, out: Path, *args: object) -> Act:
        return unreported(cli("train", "small_vit_cutmix", *TINY, *OFTEN, *args, "--out", out))

    def _trains(self, name: str, *args: object) -> Command:
        return Command(name, self.training(self.out, *args), lambda said: digest(self.out / "last.safetensors"))

    def _resumes(self, folder: Path, act: Act) -> Command:
        return Command("train --resume", unreported(act), lambda said: ended(folder))

    def _reports(self, folder: Path) -> Command:
        def act() -> int | None:
            labelflow.report.classifier.FIGURES_SHOWN = {}  # each takes seconds, and reads nothing else
            return cli("report", folder)()

        return Command("report", act, lambda said: digest(folder / "report.html"))

    def _writes(self, name: str, *args: object) -> Command:
        return Command(name, cli(*args), lambda said: (tree(self.out), said.out))

    def outcomes(self, scene: Scene, chosen: Callable[[str, str, str], bool]) -> Iterator[Outcome]:
        """Of every damage to every file, with every command."""
        place = self.trial / scene.name
        for command in scene.commands:
            expected: Any = None
            for file in scene.files:
                if not (scene.folder / file).exists():
                    continue
                for what, damage in damages(
                    file, _there(scene.other, file), _there(scene.folder, scene.older.get(file))
                ):
                    if not chosen(file, what, command.name) or (file, what, command.name) in scene.shown:
                        continue
                    if command.not_of in file and what not in FEW:
                        continue
                    if expected is None:
                        said, _, _ = self._try(scene, command)
                        assert said.code == 0, (command.name, said)
                        expected = command.told(said)
                    said, before, after = self._try(scene, command, place / file, damage)
                    same = said.code == 0 and _tell(command, said) == expected
                    fault, named = f"{scene.name}/{file}: {what}", self._names(scene, file, what)
                    yield judge(fault, command.name, said, named, same, before, after, command.admits)

    def _names(self, scene: Scene, file: str, what: str) -> list[Path | str]:
        """What a refusal may name: the file, one that is linked to it, and of a list that was swapped what it lists."""
        place, damaged = self.trial / scene.name, scene.folder / file
        linked = [path for path in scene.folder.rglob(f"*{damaged.suffix}") if path.samefile(damaged)]
        lists = [str(place)] if what.startswith("swapped") and damaged.name in LISTS else []
        return [place / file, *(place / path.relative_to(scene.folder) for path in linked), *lists]

    def _try(self, scene: Scene, command: Command, file: Path | None = None, damage: Damage | None = None) -> Any:
        shutil.rmtree(self.trial)
        self.trial.mkdir()
        copy(scene.folder, self.trial / scene.name)
        if file and damage:
            damage(file)
        before = tree(self.trial)
        said = run(command.act, self.root)
        after = tree(self.trial)
        return said, before, after


def _tell(command: Command, said: Said) -> Any:
    try:
        return command.told(said)
    except (ValueError, OSError) as error:  # of what was left damaged
        return error


def _there(folder: Path | None, name: str | None) -> Path | None:
    """What can be swapped with: folders, and files."""
    return folder / name if folder and name and (folder / name).exists() else None


def unreported(act: Act) -> Act:
    """Without the page at the end."""

    def acting() -> int | None:
        labelflow.api.write_report = lambda folder: None
        return act()

    return acting


def _stopping(owner: Any, method: str, when: Callable[..., bool], act: Act) -> Act:
    """Ends without a word after a call of a method."""

    def acting() -> int | None:
        original = getattr(owner, method)

        def then_stop(*args: Any) -> None:
            original(*args)
            if when(*args):
                os._exit(0)

        setattr(owner, method, then_stop)
        return act()

    return acting


def interrupted(act: Act, update: int) -> Act:
    def reached(checkpoints: Checkpoints, state: State) -> bool:
        return state.update == update

    return _stopping(Checkpoints, "save", reached, unreported(act))


def run_here(cells: Any, out: Path, jobs: int, done: Any, quiet: bool = False) -> None:
    """Cells are trained in this process, without a start-up."""
    for cell in cells:
        try:
            result = cell.finished(out) or run_cell(cell, out, quiet)
        except (ValueError, OSError) as error:
            result = error
        done(cell, result)


def _here(act: Act) -> Act:
    """In this process, and always at the same speed."""

    def acting() -> int | None:
        labelflow.comparison.run.run_cells = run_here
        labelflow.comparison.run.measure_speeds = lambda recipes, *args: dict.fromkeys(
            recipes, Speed(0.5, 0.4, 0.6, 1.0)
        )
        return act()

    return acting


def _plainly(function: Callable[[], None]) -> Act:
    """In Python: what is wrong is a ValueError or OSError."""

    def act() -> int:
        import sys

        try:
            function()
        except (ValueError, OSError) as error:
            print(error, file=sys.stderr)
            return 2
        return 0

    return act
