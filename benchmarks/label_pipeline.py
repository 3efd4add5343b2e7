"""What do dense labels cost? labelflow's sparse labels beside the dense way, taking turns in one run.

    python benchmarks/label_pipeline.py --images FOLDER

FOLDER holds photographs, in any folders. The packaged EfficientNet-Lite0 annotates them at 576 pixels (18×18 cells, top
5 of 1000 classes), so that labels are as varied as real ones. Then, medians of pairs, on one thread, in CPU time:

- preparing the labels of 128 views (14×14 tokens): a map of 1000 channels, RoIAlign, softmax; or `label_view`;
- the loss of their tokens and its gradient: a (128, 196, 1000) target; or `sparse_cross_entropy`; and their memory;
- reading maps at random: a `.pt` file each, as released; or a store (time on the clock, files in the system's cache);
  and the bytes of an image;
- checking the store's files once, before training: opening it and reading all maps, with and without (on the clock);
- an update of LV-ViT-T at 224 pixels, data and all, with token labels and MixToken, and without labels, with CutMix;
- the annotator: `labelflow annotate`, beside the network alone on images in memory.

Prints a table, and writes out/label_pipeline.json.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from PIL import Image
from torch import Tensor
from torchvision.ops import roi_align

from labelflow.chance import drawn_from
from labelflow.classifier import load
from labelflow.data import Data, Source, on_device, train_batches, train_transform
from labelflow.data.folder import Listed
from labelflow.data.geometry import Geometry
from labelflow.data.images import EXTENSIONS
from labelflow.engine.progress import Counted
from labelflow.labels import Annotation, Draft, LabelMap, Manifest, Store, StoreLabels, annotate, label_view
from labelflow.labels.annotation import best_scores, place_logits
from labelflow.labels.sampling import ViewedMap, viewed_map
from labelflow.loss import total
from labelflow.mixers import CutMix, MixToken
from labelflow.models.create import create
from labelflow.sparse import Sparse, TokenLabels, sparse_cross_entropy
from labelflow.targets import Plain, TokenLabel, Truth

CLASSES, GRID = 1000, (14, 14)
CPU = torch.device("cpu")
Table = dict[str, float]


class Photos(Listed):
    """All images below a folder, with ImageNet's classes."""

    def __init__(self, root: Path, classes: list[str], count: int) -> None:
        files = sorted(path for path in root.rglob("*") if path.suffix.lower() in EXTENSIONS)
        chosen = [str(path) for path in random.Random(0).sample(files, min(count, len(files)))]
        super().__init__(root, chosen, [0] * len(chosen), classes)

    def key(self, index: int) -> str:
        return f"{index:06d}"


def in_turns(
    first: Callable[[], object],
    second: Callable[[], object],
    rounds: int,
    clock: Callable[[], float] = time.process_time,
) -> tuple[float, float, float]:
    """Median seconds of both, and the median of their paired ratios, first to second."""
    pairs = [(_seconds(first, clock), _seconds(second, clock)) for _ in range(rounds + 1)][1:]
    one, other = (statistics.median(values) for values in zip(*pairs, strict=True))
    return one, other, statistics.median(a / b for a, b in pairs)


def _seconds(work: Callable[[], object], clock: Callable[[], float]) -> float:
    begin = clock()
    work()
    return clock() - begin


def peak_bytes(work: Callable[[], object]) -> int:
    """By how much the memory of this process grows at most; Linux only."""
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    work()
    return 1024 * (_resident("VmHWM") - before)


def _resident(name: str) -> int:
    return int(next(line.split()[1] for line in open("/proc/self/status") if line.startswith(name)))


def dense_labels(maps: list[LabelMap], boxes: Tensor) -> Tensor:
    """(B, C, 1 + N), as a map of all classes gives them: what is not among the best has the score 0."""
    scores = torch.stack([torch.from_numpy(one.scores.astype(np.float32)) for one in maps])
    classes = torch.stack([torch.from_numpy(one.classes.astype(np.int64)) for one in maps])
    h, w = scores.shape[2:]
    full = torch.zeros(len(maps), CLASSES, h, w).scatter_(1, classes, scores)
    places = torch.cat([torch.arange(len(maps))[:, None].float(), boxes * torch.tensor([w, h, w, h])], 1)
    parts = [roi_align(full, places, size, aligned=True).flatten(2) for size in ((1, 1), GRID)]
    return torch.cat(parts, 2).softmax(1)


def prepare(maps: list[LabelMap], batch: int, rounds: int) -> tuple[Table, Tensor, TokenLabels]:
    """Labels of random crops; the first ones of both ways."""
    transform = train_transform(Data(auto_augment="", color_jitter=0.0, erasing=0.0))
    with drawn_from(0):
        views = [transform(Image.new("RGB", (500, 375))).geometry for _ in range(batch)]
    boxes = torch.tensor(
        [[left, top, left + width, top + height] for top, left, height, width in (v.box for v in views)]
    )
    straight = [Geometry(view.size, view.box) for view in views]
    used = [maps[number % len(maps)] for number in range(batch)]

    def sparse() -> TokenLabels:
        return ViewedMap.stack([viewed_map(*pair, GRID, CLASSES) for pair in zip(used, straight, strict=True)]).to(CPU)

    dense, labels = dense_labels(used, boxes), sparse()
    difference = (labels.tokens.dense(CLASSES).transpose(1, 2) - dense[:, :, 1:]).abs().max()
    assert difference < 2e-4, f"the two ways differ by {difference}"  # RoIAlign computes places in float32
    slow, fast, ratio = in_turns(lambda: dense_labels(used, boxes), sparse, rounds)
    size = sum(part.nbytes for part in (*labels.image, *labels[1:]))
    mixed = labels.tokens.mixed(torch.arange(batch).flip(0), torch.full((batch, GRID[0] * GRID[1]), 0.5))
    table = {
        "prepare, dense, s": slow,
        "prepare, sparse, s": fast,
        "prepare, times faster": ratio,
        "target memory, dense, MB": dense.nbytes / 1e6,
        "target memory, sparse, MB": size / 1e6,
        "target memory, ratio": size / dense.nbytes,
        "target memory when mixed, ratio": sum(part.nbytes for part in mixed) / dense.nbytes,
    }
    return table, dense, labels


def losses(dense: Tensor, labels: TokenLabels, rounds: int) -> Table:
    logits = torch.randn(*labels.rest.shape, CLASSES, requires_grad=True)
    full, sparse = dense[:, :, 1:].transpose(1, 2).contiguous(), Sparse(*labels.tokens)

    def dense_way() -> Tensor:
        (slope,) = torch.autograd.grad(-(full * logits.log_softmax(-1)).sum(-1).mean(), logits)
        return slope

    def sparse_way() -> Tensor:
        (slope,) = torch.autograd.grad(sparse_cross_entropy(logits, sparse).mean(), logits)
        return slope

    assert torch.allclose(dense_way(), sparse_way(), atol=1e-7)
    slow, fast, ratio = in_turns(dense_way, sparse_way, rounds)
    return {
        "loss, dense, s": slow,
        "loss, sparse, s": fast,
        "loss, times faster": ratio,
        "loss memory, dense, MB": peak_bytes(dense_way) / 1e6,
        "loss memory, sparse, MB": peak_bytes(sparse_way) / 1e6,
    }


def reading(maps: list[LabelMap], folder: Path, count: int, rounds: int) -> Table:
    manifest = Manifest("benchmark", "", 576, "whole", "rest", (18, 18), 5, tuple(map(str, range(CLASSES))), count)
    keys = [f"class{number % CLASSES}/image{number:06d}" for number in range(count)]
    draft = Draft(folder / "store", manifest, keys)
    for shard in draft.missing():
        chosen = [maps[place % len(maps)] for place in draft.places(shard)]
        draft.write(shard, *(np.stack(part) for part in zip(*chosen, strict=True)))
    store = draft.finish()
    (folder / "tree").mkdir()
    for number, key in enumerate(keys):
        one = maps[number % len(maps)]
        tensor = torch.from_numpy(np.stack([one.scores.astype(np.float16), one.classes.astype(np.float16)]))
        torch.save(tensor, folder / "tree" / f"{key.replace('/', '_')}.pt")
    order = iter(random.Random(0).sample(keys, count) * 2)
    parts = 20

    def files() -> None:
        for _ in range(count // parts):
            torch.load(folder / "tree" / f"{next(order).replace('/', '_')}.pt", weights_only=True)

    def stored() -> None:
        for _ in range(count // parts):
            store[next(order)]

    slow, fast, ratio = in_turns(files, stored, parts - 1, time.perf_counter)
    size = sum(path.stat().st_size for path in (folder / "store").rglob("*") if path.is_file())
    return {
        "read, .pt files, µs": 1e6 * slow * parts / count,
        "read, store, µs": 1e6 * fast * parts / count,
        "read, times faster": ratio,
        "store, bytes per image": size / count,
        **checking(folder / "store", rounds),
    }


def checking(folder: Path, rounds: int) -> Table:
    """What it costs to compare every file with its checksum: to open a store for training, and beside an epoch."""
    order = random.Random(0).sample(range(len(Store(folder))), len(Store(folder)))

    def opened(checked: bool) -> Store:
        store = Store(folder)
        if checked:
            store.check()
        else:
            store._intact.update(store.manifest.files)  # as if
        return store

    def epoch(checked: bool) -> None:
        store = opened(checked)
        for place in order:
            label_view(store.at(place), Geometry((500, 375)), GRID, CLASSES)

    with_check, bare, _ = in_turns(lambda: opened(True), lambda: opened(False), rounds, time.perf_counter)
    _, labels, ratio = in_turns(lambda: epoch(True), lambda: epoch(False), min(3, rounds), time.perf_counter)
    return {
        "check, open the store, s": bare,
        "check, open and check it, s": with_check,
        "check, MB/s": sum(path.stat().st_size for path in folder.rglob("*.npy")) / 1e6 / (with_check - bare),
        "check, an epoch's labels, s": labels,
        "check, an epoch's labels with it, ratio": ratio,
    }


def training(source: Source, store: Store, batch: int, rounds: int) -> Table:
    """Updates with and without labels, the loader's work included."""

    def steps(labelled: bool) -> Iterator[None]:
        torch.manual_seed(0)
        target = TokenLabel() if labelled else Plain()
        student = target.student(create(f"lvvit_t(aux_head={labelled})")).train()
        optimizer = torch.optim.AdamW(student.parameters())
        mixer = MixToken() if labelled else CutMix()
        labeller = StoreLabels(store, GRID) if labelled else None
        data = Data(workers=0)
        batches = train_batches(
            source, data, batch=batch, micro_batch=batch, updates=2 * rounds + 2, seed=0, labeller=labeller
        )
        for read in on_device(batches, torch.device("cpu")):
            mix = mixer(read.images)
            truth = Truth(torch.full((batch, CLASSES), 1 / CLASSES), read.dense)
            total(target(student(mix.apply(read.images), mix), truth, mix)).backward()
            optimizer.step()
            optimizer.zero_grad()
            yield

    without, labelled = steps(labelled=False), steps(labelled=True)
    slow, fast, ratio = in_turns(lambda: next(without), lambda: next(labelled), rounds)
    return {"update without labels, s": slow, "update with labels, s": fast, "training speed with labels": ratio}


def annotating(source: Source, folder: Path, count: int, size: int, rounds: int) -> Table:
    """Images in memory through the network and no more, and `annotate`, from files to a store, taking turns."""
    annotator = load("tf_efficientnet_lite0", "packaged", size, source.classes)
    model = annotator.model.to(memory_format=torch.channels_last).eval()
    images = torch.randn(2, 3, size, size).to(memory_format=torch.channels_last)
    runs = iter(range(100))

    def network() -> None:
        with torch.inference_mode():
            for _ in range(count // 2):
                model(images)

    def scores() -> None:
        with torch.inference_mode():
            for _ in range(count // 2):
                best_scores(place_logits(model, images)[0], 5, "rest")

    def whole() -> None:
        part = Part(source, count)
        with Counted("", "images", count, quiet=True) as progress:
            annotate(
                part,
                annotator,
                Annotation(),
                folder / f"run{next(runs)}",
                accelerator=Accelerator(cpu=True),
                loading=Data(workers=0),
                progress=progress,
            )

    _, _, head = in_turns(network, scores, rounds)
    bare, all_of_it, ratio = in_turns(network, whole, rounds)
    return {
        "annotator, network alone, images/s": count / bare,
        "annotator, images/s, with reading": count / all_of_it,
        "annotator, speed at every place": head,
        "annotator, speed, with reading": ratio,
    }


class Part:
    """The first samples of a source."""

    def __init__(self, source: Source, count: int) -> None:
        self.load, self.name, self.key, self.classes = source.load, source.name, source.key, source.classes
        self.count = count

    def __len__(self) -> int:
        return self.count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="a folder of photographs")
    parser.add_argument("--count", type=int, default=64, help="how many of them are annotated")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--small", action="store_true", help="fewer reads and smaller updates, to try it out")
    parser.add_argument("--out", type=Path, default=Path("out"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    annotator = load("tf_efficientnet_lite0", "packaged", 576, list(map(str, range(CLASSES))))
    source = Photos(options.images, list(annotator.classes), options.count)
    with tempfile.TemporaryDirectory() as name, Counted("annotating", "images", len(source)) as progress:
        folder = Path(name)
        store = annotate(
            source,
            annotator,
            Annotation(),
            folder / "labels",
            accelerator=Accelerator(cpu=True),
            loading=Data(workers=0),
            progress=progress,
        )
        maps = [store.at(place) for place in range(len(store))]
        table, dense, labels = prepare(maps, options.batch, options.rounds)
        table |= losses(dense, labels, options.rounds)
        table |= reading(maps, folder, 1_000 if options.small else 10_000, options.rounds)
        table |= training(source, store, 2 if options.small else 16, options.rounds)
        table |= annotating(source, folder, 2 if options.small else 8, 576, min(3, options.rounds))
    for key, value in table.items():
        print(f"{key:42}{value:12.4g}")
    options.out.mkdir(exist_ok=True)
    (options.out / "label_pipeline.json").write_text(json.dumps(table, indent=2))


if __name__ == "__main__":
    main()
