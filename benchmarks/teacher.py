"""What does a teacher cost? Training steps that learn from labels alone, from stored dense labels, from an annotator
that runs beside, and from a teacher that is distilled, taking turns in one run.

    python benchmarks/teacher.py --data data/imagenette --model deit_small_patch16_224 --batch 8

The data are photographs in folders of ImageNet's classes (WordNet ids). A step is all of it: reading and augmenting the
images, the teacher, forward, loss and backward pass. Time is the process's CPU time on one thread, medians over rounds,
and of the ratios to the plain step beside it. Making the stored labels is timed, too: what it took an image, and after
how many epochs it has paid for itself. And how far both kinds of labels are apart: the largest difference of a
probability where the view is the annotator's own (the whole image, stretched), and for random crops and flips half the
sum of differences, mean over tokens (0: the same, 1: nothing in common). Prints a table, writes out/teacher.json.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from labelflow.chance import generator
from labelflow.data import Data, PixelBatch, Preprocessing, Stream
from labelflow.data.geometry import Geometry
from labelflow.data.normalise import Normalise
from labelflow.engine import Training
from labelflow.labels import label_view
from labelflow.labels.settings import Annotate
from labelflow.loss import total
from labelflow.sparse import TokenLabels
from labelflow.tasks import Classification, Recipe
from labelflow.tasks.annotation import annotate_data

CPU = torch.device("cpu")


def recipes(args: argparse.Namespace, labels: str) -> dict[str, Recipe]:
    """Ways to train the same model on the same images."""
    plain = Recipe(
        model=args.model,
        target="plain",
        data=Data(source=args.data, image_size=args.image_size, workers=0, auto_augment="", erasing=0.0),
        training=Training(epochs=1, batch=args.batch, micro_batch=args.batch, warmup_epochs=0),
    )
    taught = plain.change(teacher=args.teacher, teacher_size=args.teacher_size)
    return {
        "plain": plain,
        "token labels, stored": plain.change(target="token_label", labels=labels),
        "token labels, online": taught.change(target="token_label"),
        "distilled, soft": taught.change(target="distill"),
        "distilled, features": taught.change(target="distill(kind='features')"),
        "both, one teacher": taught.change(target="distill(target='token_label')"),
    }


def steps(task: Classification) -> Iterator[float]:
    """CPU seconds of one training step after another, over and over."""
    task.student.train()
    while True:
        batches: Iterator[PixelBatch] = iter(task.train_batches(updates=10**6, first_update=0, rank=0, processes=1))
        while True:
            start = time.process_time()
            read = next(batches, None)
            if read is None:
                break
            total(task.terms(task.student, read.to(CPU), generator(0))).backward()
            task.student.zero_grad()
            yield time.process_time() - start


@torch.no_grad()
def apart(task: Classification, stored: Classification, images: int = 64) -> tuple[float, float]:
    """Online labels and stored ones: the largest difference for whole images, and the mean distance for crops."""
    assert task.teacher is not None
    source, classes = stored.train_source, len(task.classes)
    assert not isinstance(source, Stream)
    size, colours = task.recipe.data.image_size, Normalise(task.recipe.data.mean, task.recipe.data.std)
    labeller = stored.labellers[size]
    if size != task.teacher.size:
        raise SystemExit(f"to compare labels, student and teacher must see images of one size: --teacher-size {size}")
    squash = Preprocessing(size, 1.0, "squash").transform(normalize=False)
    largest = 0.0
    for index in range(min(images, len(source))):
        seen = colours(torch.as_tensor(squash(source.load(index)[0])))[None]
        kept = label_view(labeller.store[source.key(index)], Geometry((size, size)), labeller.grid, classes)
        difference = tokens(task.teacher.labels(seen, task.student), classes) - tokens(kept, classes)
        largest = max(largest, float(difference.abs().max()))
    distances = []
    for read in stored.train_batches(updates=images // task.recipe.training.batch, first_update=0, rank=0, processes=1):
        batch = read.to(CPU)
        found = tokens(task.teacher.labels(batch.images, task.student), classes)
        distances.append(float((found - tokens(batch.dense, classes)).abs().sum(-1).mean() / 2))
    return largest, statistics.mean(distances)


def tokens(labels: TokenLabels | None, classes: int) -> Tensor:
    """(B, N, C)"""
    assert labels is not None
    return labels.tokens.dense(classes)


def seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--model", default="deit_small_patch16_224")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--teacher", default="tf_efficientnet_lite0=packaged")
    parser.add_argument("--teacher-size", type=int, default=0)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        labels = str(Path(folder) / "labels")
        options = Annotate(args.teacher, Path(labels), image_size=args.teacher_size, workers=0)
        took = seconds(lambda: annotate_data(args.data, options, quiet=True))
        tasks = {name: Classification(recipe) for name, recipe in recipes(args, labels).items()}
        clocks = {name: steps(task) for name, task in tasks.items()}
        largest, crops = apart(tasks["token labels, online"], tasks["token labels, stored"])
        rounds = [{name: next(clock) for name, clock in clocks.items()} for _ in range(args.rounds + 1)][1:]
    samples = tasks["plain"].samples
    print(f"{args.model} at {args.image_size} pixels, batch {args.batch}, taught by {args.teacher}")
    print("| step | CPU s | to plain |\n|---|---|---|")
    found = {}
    for name in tasks:
        median, ratio = (
            statistics.median(values)
            for values in zip(*((one[name], one[name] / one["plain"]) for one in rounds), strict=True)
        )
        found[name] = {"seconds": median, "ratio": ratio}
        print(f"| {name} | {median:.2f} | {ratio:.2f} |")
    more = (found["token labels, online"]["seconds"] - found["token labels, stored"]["seconds"]) / args.batch
    epochs = took / samples / more
    print(
        f"annotating once: {took / samples:.3f} CPU s an image; online, {more:.3f} in each epoch ({epochs:.1f} epochs)"
    )
    found["annotating"] = {"seconds": took / samples, "epochs": epochs}
    print(f"online and stored labels: {largest:.1e} apart at most for whole images; crops {crops:.2f} on average")
    found["apart"] = {"whole": largest, "crops": crops}
    out = Path("out")
    out.mkdir(exist_ok=True)
    (out / "teacher.json").write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
