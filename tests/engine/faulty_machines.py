"""Disks that are full, processes that die, images that one process alone cannot read, names that lead elsewhere."""

import ctypes
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import reduction, resource_sharer
from pathlib import Path
from threading import Timer
from typing import Any

import numpy as np
from faulty_folders import OFTEN, SEGMENT, WORLD, Folders, interrupted, unreported
from PIL import Image
from survive import ended
from torch.utils.data import get_worker_info
from trials import Act, Outcome, Said, cli, copy, digest, finish, judge, run, start, succeed, tree

import labelflow.tasks.detect.task
import labelflow.tasks.segment.task  # noqa: F401  (before the forks)
from labelflow.classifier import load
from labelflow.data.world import World
from labelflow.engine.loop import Ledger
from labelflow.labels.keys import make_index, to_lines

ROOM = (0, 4, 24, 64, 160)  # KiB that a disk has left
SOON = 60  # seconds within which a process ends after another has died


class Machines:
    def __init__(self, folders: Folders) -> None:
        self.folders, self.root = folders, folders.root
        self.work = self.root / "machines"
        self.work.mkdir()

    def outcomes(self, quick: bool) -> Iterator[Outcome]:
        yield from self.names()
        yield from self.full_disks(ROOM[1:2] if quick else ROOM)
        yield from self.dead_workers(("train",) if quick else ("train", "segment", "annotate"))
        yield from self.dead_ranks((1,) if quick else (0, 1))
        yield from self.unreadable_on_one_rank((1,) if quick else (0, 1))

    def full_disks(self, rooms: tuple[int, ...]) -> Iterator[Outcome]:
        """What was there before stays, and is enough to go on once there is room."""
        disk, own = self.work / "disk", self.work / "run"
        disk.mkdir()
        training = ["--epochs", 2, "--seed", 0]
        self.folders.make(interrupted(self.folders.training(own, *training), 6))
        (own / ".lock").unlink(missing_ok=True)
        copy(own, self.work / "alone")
        self.folders.make(self.folders.training(self.work / "alone", *training, "--resume"))
        annotating = ["annotate", WORLD, "--workers", 0, "--shard", 16, "--model", self.root / "annotator", "--top", 3]
        robust = ["robust", own, "--suite", "clean", "--samples", 8, "--workers", 0, "--out", disk / "robust"]
        labels, table, picture, page = disk / "labels", disk / "made.csv", disk / "made.png", disk / "run/report.html"
        cases: dict[str, tuple[Act, Callable[[], Any]]] = {
            "train --resume": (
                self.folders.training(disk / "run", *training, "--resume"),
                lambda: ended(disk / "run") == ended(self.work / "alone"),
            ),
            "annotate --resume": (
                cli(*annotating, "--resume", "--out", labels),
                lambda: tree(labels) == tree(self.root / "store"),
            ),
            "labels export": (
                cli("labels", "export", self.root / "store", disk / "maps", "--resume"),
                lambda: len(list(disk.glob("maps/*/*.pt"))) == 80,
            ),
            "labels draw": (
                cli("labels", "draw", self.root / "store", WORLD, "--out", picture),
                lambda: Image.open(picture).load(),
            ),
            "export": (cli("export", own, "--out", disk / "timm"), lambda: load(disk / "timm")),
            "predict --out": (
                cli("predict", own, self.folders.photos, "--workers", 0, "--out", table),
                lambda: len(table.read_text().splitlines()) == 3,
            ),
            "report": (cli("report", disk / "run"), lambda: page.read_text().rstrip().endswith("</html>")),
            "robust": (cli(*robust), lambda: list(disk.glob("robust/**/*.safetensors"))),
        }
        for name, (act, sound) in cases.items():
            for room in rooms:
                fault = f"disk with {room} KiB left"
                try:
                    with small_disk(disk):
                        copy(own, disk / "run")
                        before = tree(disk / "run")
                        fill(disk, room)
                        said = run(act, self.work)
                        after = tree(disk / "run")
                        kept = {**before, **{name: value for name, value in after.items() if name in WRITTEN}}
                        found = judge(fault, name, said, [f"{disk}/"], said.code == 0 and bool(sound()), kept, after)
                        (disk / "filler").unlink()
                        if found.kind == "refused" and (run(act, self.work).code or not sound()):
                            found = found._replace(kind="SILENT", said=f"and it does not go on with room: {found.said}")
                        yield found
                except PermissionError as error:
                    yield Outcome(fault, name, "skipped", str(error))
                    return

    def dead_workers(self, commands: tuple[str, ...]) -> Iterator[Outcome]:
        """A process that reads data is killed, as a machine does that runs out of memory. Its connections close before
        it has ended, so that the command may stop first, and see its end while it stops."""
        alone, out, fault = self.work / "worker_alone", self.work / "worker", "data worker killed"
        annotate = ["annotate", WORLD, "--shard", 16, "--top", 3, "--model", self.root / "annotator", "--workers", 1]
        segment = ["segment", "segment_small", *SEGMENT, *OFTEN, "--epochs", 2, "--batch", 8, "--micro-batch", 4]
        cases: dict[str, tuple[Callable[..., Act], int, Callable[[Path], Any]]] = {
            "train": (
                lambda where, *args: self.folders.training(where, "--epochs", 2, "--workers", 1, *args),
                60,
                ended,
            ),
            "segment": (
                lambda where, *args: unreported(cli(*segment, "--workers", 1, *args, "--out", where)),
                6,
                ended,
            ),
            "annotate": (lambda where, *args: cli(*annotate, *args, "--out", where), 60, tree),
        }
        for name, (act, sample, told) in ((name, cases[name]) for name in commands):
            succeed(act(alone), self.work)
            resume = act(out, "--resume")
            for what, first in ((fault, _kill_worker_at(sample)), (f"{fault} slowly", _kill_worker_slowly_at(sample))):
                said = run(_patched(World, "__getitem__", first, resume), self.work)
                yield judge(what, name, said, ["data worker was killed"], False, {}, {})
            said = run(resume, self.work)
            same = said.code == 0 and told(out) == told(alone)
            yield Outcome(fault, f"then {name} --resume", "survived" if same else "SILENT", said.err)
            shutil.rmtree(out)
            shutil.rmtree(alone)

    def dead_ranks(self, victims: tuple[int, ...]) -> Iterator[Outcome]:
        """One of two processes is killed."""
        alone, out = self.work / "ranks_alone", self.work / "ranks"

        def both(folder: Path) -> list[Act]:
            return launched(self.folders.training(folder, "--epochs", 2, "--resume"))

        for said in self._together(both(alone)):
            assert said.code == 0, said
        for victim in victims:
            acts = both(out)
            acts[victim] = _patched(Ledger, "add", _kill_at_update(7), acts[victim])
            said = self._together(acts)
            assert said[victim].code == -signal.SIGKILL, said[victim]
            yield judge(
                f"process {victim} of 2 killed",
                "train",
                said[1 - victim],
                ["another of the launched processes has ended"],
                False,
                {},
                {},
            )
            again = self._together(both(out))
            same = all(one.code == 0 for one in again) and ended(out) == ended(alone)
            yield Outcome(
                f"process {victim} of 2 killed",
                "then train --resume",
                "survived" if same else "SILENT",
                "" if same else again[0].err,
            )
            shutil.rmtree(out)

    def unreadable_on_one_rank(self, ranks: tuple[int, ...]) -> Iterator[Outcome]:
        """Both stop with the same line, or both skip the image."""
        for rank in ranks:
            for name, extra in (("train", []), ("train --skip-unreadable", ["--skip-unreadable", 5])):
                out = self.work / "unreadable"
                acts = launched(self.folders.training(out, "--epochs", 1, *extra))
                acts[rank] = _patched(World, "__getitem__", _unreadable(range(40, 42)), acts[rank])
                for number, said in enumerate(self._together(acts)):
                    fault = f"image unreadable by process {rank} of 2"
                    found = judge(fault, f"{name}, process {number}", said, ["world", "train 0/4"], bool(extra), {}, {})
                    yield found if extra or said.code else found._replace(kind="SILENT")
                shutil.rmtree(out, ignore_errors=True)

    def names(self) -> Iterator[Outcome]:
        """Names in files that lead out of their folder, and links that lead back into it."""
        data = self.work / "data"
        outside = self.work / "outside.png"
        shutil.copy(self.folders.photos / "0.png", outside)
        for name in ("../../outside.png", str(outside), "../train/../../outside.png"):
            coco = _coco(data, self.folders.photos, name)
            act = cli("detect", "detect_small", "--data", data, "--epochs", 1, "--out", self.work / "detector")
            yield self._refused(
                f"COCO file_name {name.replace(str(self.work), '…')}", "detect", act, [coco, name], data
            )
        for name in ("../../outside", str(outside.with_suffix(""))):
            listed = _pets(data, self.folders.photos, name)
            act = cli("segment", "segment_small", "--data", data, "--epochs", 1, "--out", self.work / "segmenter")
            yield self._refused(f"mask {name.replace(str(self.work), '…')}", "segment", act, [listed, name], data)
        _masks(data, self.folders.photos, b"caf\xe9\nbar\n")
        act = cli("segment", "segment_small", "--data", data, "--epochs", 1, "--out", self.work / "segmenter")
        yield self._refused("classes.txt not UTF-8", "segment", act, [data / "classes.txt"], data)
        _masks(data, self.folders.photos, b"background\nobject\n")
        (data / "images" / "loop").symlink_to(data / "images")
        yield self._refused("link that leads back", "segment", act, [data / "images" / "loop"], data)
        _classes(data, self.folders.photos)
        (data / "a" / "loop").symlink_to(data / "a")
        act = self.folders.training(self.work / "looping", "--data", data, "--epochs", 1)
        yield self._refused("link that leads back", "train", act, [data / "a" / "loop"], data)
        _classes(data, self.folders.photos)
        (data / "a" / "loop").symlink_to(data / "a")
        act = cli("predict", self.root / "annotator", data, "--workers", 0)
        yield self._refused("link that leads back", "predict", act, [data / "a" / "loop"], data)

        for key in ("../../outside", "/tmp/outside!"):
            _keyed(self.root / "store", data, key)
            act = cli("labels", "export", data, self.work / "a" / "b" / "maps")
            yield self._refused(f"key {key}", "labels export", act, [key], data)

    def _refused(self, fault: str, command: str, act: Act, named: list[Any], data: Path) -> Outcome:
        before = tree(self.work)
        said = run(act, self.root)
        found = judge(fault, command, said, named, False, before, tree(self.work))
        shutil.rmtree(data, ignore_errors=True)
        return found

    def _together(self, acts: list[Act]) -> list[Said]:
        children = [start(act, self.work, f"said{number}") for number, act in enumerate(acts)]
        return [finish(child, self.work, f"said{number}", SOON) for number, child in enumerate(children)]


WRITTEN = {"recipe.json", "config.json", "environment.json", "metrics.jsonl", "checksums.json", "report.html"}
WRITTEN |= {"model.safetensors", "last.safetensors"}


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """PermissionError unless this is allowed to mount one."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(b"tmpfs", bytes(folder), b"tmpfs", 0, b"size=4m"):
        raise PermissionError(f"cannot mount a disk: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        libc.umount2(bytes(folder), 2)  # MNT_DETACH


def fill(disk: Path, room: int) -> None:
    """Until so many KiB are left."""
    left = os.statvfs(disk)
    with open(disk / "filler", "wb") as file:
        file.write(bytes(left.f_bavail * left.f_frsize - 1024 * room))


def launched(act: Act, processes: int = 2) -> list[Act]:
    """As torchrun starts it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    def one_of(rank: int) -> Act:
        said = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        said |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}

        def acting() -> int | None:
            os.environ.update({name: str(value) for name, value in said.items()})
            return act()

        return acting

    return [one_of(rank) for rank in range(processes)]


def _patched(owner: Any, method: str, first: Callable[..., None], act: Act) -> Act:
    """`first` is called before the method is, with the same arguments."""

    def acting() -> int | None:
        original = getattr(owner, method)

        def patched(*args: Any) -> Any:
            first(*args)
            return original(*args)

        setattr(owner, method, patched)
        return act()

    return acting


def _kill_worker_at(sample: int) -> Callable[..., None]:
    def first(world: World, index: int) -> None:
        if index == sample and world.split == "train" and get_worker_info() is not None:
            os.kill(os.getpid(), signal.SIGKILL)

    return first


def _kill_worker_slowly_at(sample: int) -> Callable[..., None]:
    def first(world: World, index: int) -> None:
        if index == sample and world.split == "train" and get_worker_info() is not None:
            reduction.DupFd = _share_nothing  # type: ignore[assignment]
            Timer(2, os.kill, (os.getpid(), signal.SIGKILL)).start()

    return first


def _share_nothing(descriptor: int) -> resource_sharer.DupFd:
    """As of a process whose connections have closed."""
    shared = resource_sharer.DupFd(descriptor)
    resource_sharer.stop()
    return shared


def _kill_at_update(update: int) -> Callable[..., None]:
    def first(ledger: Ledger, now: int, terms: Any) -> None:
        if now == update:
            os.kill(os.getpid(), signal.SIGKILL)

    return first


def _unreadable(samples: range) -> Callable[..., None]:
    def first(world: World, index: int) -> None:
        if index in samples and world.split == "train":
            raise OSError("the file is truncated")

    return first


def _coco(data: Path, photos: Path, name: str) -> Path:
    """A data set whose second image is called so."""
    for split in ("train", "val"):
        (data / split).mkdir(parents=True)
        shutil.copy(photos / "0.png", data / split / "0.png")
    box = {"bbox": [0, 0, 9, 9], "segmentation": [[0, 0, 9, 0, 9, 9]], "category_id": 1}
    for split, second in (("train", name), ("val", "0.png")):
        files = ["0.png", second] if split == "train" else [second]
        images = [{"id": n, "file_name": file, "height": 256, "width": 256} for n, file in enumerate(files)]
        objects = [{"id": n, "image_id": n, **box} for n in range(len(files))]
        content = {"images": images, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
        (data / f"instances_{split}.json").write_text(json.dumps(content))
    return data / "instances_train.json"


def _pets(data: Path, photos: Path, name: str) -> Path:
    for folder in ("images", "trimaps"):
        (data / folder).mkdir(parents=True)
        Image.new("L", (64, 64), 1).save(data / folder / "0.png")
    (data / "trainval.txt").write_text(f"0 1 1 1\n{name} 1 1 1\n")
    (data / "test.txt").write_text("0 1 1 1\n")
    return data / "trainval.txt"


def _keyed(store: Path, copied: Path, key: str) -> None:
    """A store whose last key is this one, with checksums that agree."""
    copy(store, copied)
    samples, manifest = copied / "samples.txt", copied / "manifest.json"
    keys = [*samples.read_text().splitlines()[:-1], key]
    samples.write_bytes(to_lines(keys))
    np.save(copied / "index.npy", make_index(keys))
    said = json.loads(manifest.read_text())
    said.pop("sha256", None)  # its own
    for name in ("samples.txt", "index.npy"):
        said["files"][name] = {"bytes": (copied / name).stat().st_size, "sha256": digest(copied / name)}
    manifest.write_text(json.dumps(said))


def _masks(data: Path, photos: Path, classes: bytes) -> None:
    for folder in ("images", "masks"):
        (data / folder).mkdir(parents=True)
        for number in range(4):
            Image.new("L", (64, 64), number % 2).save(data / folder / f"{number}.png")
    (data / "classes.txt").write_bytes(classes)


def _classes(data: Path, photos: Path) -> None:
    for name in "ab":
        (data / name).mkdir(parents=True)
        for number in range(20):
            Image.new("RGB", (32, 32), (number, 0, 0)).save(data / name / f"{number}.png")
