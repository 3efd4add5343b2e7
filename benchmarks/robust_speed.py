"""What does `labelflow robust` cost on a natural shift? A set of ImageNet-A's layout beside a bare forward loop over
the same files, taking turns in one run.

    python benchmarks/robust_speed.py --model tf_efficientnet_lite0 --weights packaged --images 128 --rounds 5

The bare loop is torchvision's ImageFolder with timm's own evaluation transform in a DataLoader, and the model on each
batch. Ours opens the data set, hashes model and images, predicts, restricts the predictions to 200 classes, caches them
and counts. Both load images with as many workers, in batches as large. The files are scenes of the sample world as
JPEGs of 320×256 pixels. Time is from start to end; the ratio is bare to ours, the median of pairs.
"""

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from timm.data import create_transform, resolve_model_data_config
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

from labelflow.classifier import Classifier
from labelflow.data import World
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.models import load_models
from labelflow.robustness.natural import NaturalSuite
from labelflow.robustness.settings import NaturalSettings

CPU = torch.device("cpu")


def make_images(folder: Path, count: int) -> None:
    """In class folders called as ImageNet-A's."""
    world = World("val", count, (256, 320))
    classes = (files("timm.data") / "_info" / "imagenet_a_synsets.txt").read_text().split()
    for index in range(count):
        path = folder / classes[index % len(classes)] / f"{index}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.load(index)[0].save(path, quality=90)


@torch.inference_mode()
def bare(classifier: Classifier, folder: Path, batch: int, workers: int) -> float:
    network: Any = classifier.model.model  # which takes normalised images
    transform = create_transform(**resolve_model_data_config(network, use_test_size=True))
    start = time.perf_counter()
    loader = DataLoader(ImageFolder(str(folder), transform), batch, num_workers=workers)
    right = torch.zeros(())
    for images, labels in loader:
        right += (network(images).argmax(1) == labels).sum()
    return time.perf_counter() - start


def ours(classifier: Classifier, folder: Path, batch: int, workers: int) -> float:
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as cache:
        fresh = replace(classifier)  # its key is not computed yet
        evaluator = Evaluator([fresh], Path(cache), CPU, batch=batch, workers=workers, quiet=True)
        NaturalSuite(evaluator, NaturalSettings(imagenet_a=str(folder))).measure()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tf_efficientnet_lite0")
    parser.add_argument("--weights", default="packaged")
    parser.add_argument("--images", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    (classifier,) = load_models([options.model], CPU, weights=options.weights)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "imagenet-a"
        make_images(folder, options.images)
        pairs = [
            [side(classifier, folder, options.batch, options.workers) for side in (bare, ours)]
            for _ in range(options.rounds + 1)  # the first is a warm-up
        ]
    ratios = [loop / own for loop, own in pairs[1:]]
    rates = [options.images / statistics.median(pair[side] for pair in pairs[1:]) for side in (0, 1)]
    low, _, high = statistics.quantiles(ratios, n=4)
    print(f"{options.model}, {options.images} images, batch {options.batch}, {options.workers} workers, 1 thread")
    print(f"  bare loop       {rates[0]:6.1f} images/s")
    print(f"  labelflow robust{rates[1]:6.1f} images/s, {statistics.median(ratios):.2f} of it ({low:.2f}-{high:.2f})")


if __name__ == "__main__":
    main()
