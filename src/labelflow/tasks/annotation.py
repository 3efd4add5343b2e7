"""Annotating a data set from the command line: which classifier, which data, progress."""

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import timm
import torch
from accelerate import Accelerator
from timm.data import ImageNetInfo, infer_imagenet_subset

from labelflow.data import Data, Stream, open_source
from labelflow.engine.progress import Counted
from labelflow.labels import Annotation, Annotator, Store, annotate
from labelflow.models.create import create, read_weights
from labelflow.spec import parse
from labelflow.tasks.classify import weights_file
from labelflow.tasks.runs import load_run


@dataclass(frozen=True)
class Annotate:
    """An annotator, what it annotates, and how."""

    model: str
    """A timm classifier, such as dm_nfnet_f6 or tf_efficientnet_lite0, or the folder of a run."""
    out: Path
    """The folder of the labels."""
    start: str = "pretrained"
    """Its weights: pretrained (timm's), packaged (from a package), or a checkpoint file. A run has its own."""
    image_size: int = 0
    """Side of the images that it sees, in pixels; 0: what its weights were tested with."""
    split: str = "train"
    """The part of the data to annotate: train or val."""
    train_split: str = "train"
    """What Hugging Face calls the part to train on; as in training."""
    val_split: str = "val"
    """What Hugging Face calls the part to evaluate on; as in training."""
    root: str = "data"
    """Where torchvision and Hugging Face keep their files."""
    val_fraction: float = 0.1
    """How much of a folder without train and val is set aside; as in training."""
    split_seed: int = 0
    """Chooses which files are set aside; as in training."""
    workers: int = -1
    """Processes that read images; -1: as many as there are cores for them, at most 8."""
    skip_unreadable: int = 0
    """How many images that cannot be read are skipped, and told, before it stops. They get labels that say nothing."""
    resume: bool = False
    """Go on with the labels in that folder, if they are unfinished."""
    how: Annotation = field(default_factory=Annotation)


def annotate_data(data: str, options: Annotate) -> Store:
    """Annotate a part of a data set, on all processes."""
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision=options.how.precision)
    loading = Data(
        data=data,
        root=options.root,
        train_split=options.train_split,
        val_split=options.val_split,
        val_fraction=options.val_fraction,
        split_seed=options.split_seed,
        workers=options.workers,
        skip_unreadable=options.skip_unreadable,
    )
    if options.split not in ("train", "val"):
        raise ValueError(f"split must be train or val, not {options.split!r}")
    if data == "wds" or data.startswith("hfids/"):  # said before they ask for what annotate does not know
        raise ValueError(f"a stream such as {data} does not name its samples, so that labels could not be found again")
    with accelerator.local_main_process_first():  # which downloads what is not there
        source = open_source(loading, options.split)
        assert not isinstance(source, Stream)
        annotator = make_annotator(options.model, options.start, options.image_size, list(source.classes))
    with Counted("annotating", "images", len(source), quiet=not accelerator.is_main_process) as progress:
        progress.say(
            f"{annotator.name} annotates {len(source)} images of {len(source.classes)} classes at "
            f"{annotator.image_size} pixels, in {options.out}"
        )
        return annotate(
            source,
            annotator,
            options.how,
            options.out,
            accelerator=accelerator,
            loading=loading,
            progress=progress,
            resume=options.resume,
        )


def make_annotator(model: str, start: str, image_size: int, classes: list[str]) -> Annotator:
    """A run's model, or one of timm's. classes: those of the data, for a checkpoint that does not say its own."""
    if Path(model).is_dir():
        return _of_run(Path(model), image_size)
    name, arguments = parse(model)
    if "/" in name:
        raise ValueError(f"there is no run {model}")
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if not start:
        raise ValueError("an annotator needs trained weights: --start pretrained, packaged, or a checkpoint file")
    start_is_file = start not in ("pretrained", "packaged")
    if start_is_file:
        arguments = {"num_classes": _count_classes(start, cfg), **arguments}
    size = image_size or (max((cfg.test_input_size or cfg.input_size)[1:]) if cfg else 224)
    if cfg is not None and cfg.fixed_input_size:
        arguments = {"img_size": size, **arguments}
    network = create(name, start=start, **arguments)
    seen: Any = network.pretrained_cfg
    return Annotator(
        network,
        name=model,
        weights=_fingerprint(start) if start_is_file else start,
        classes=_names(network, classes, known=not start_is_file),
        image_size=size,
        mean=tuple(seen["mean"]),
        std=tuple(seen["std"]),
    )


def _of_run(folder: Path, image_size: int) -> Annotator:
    loaded = load_run(folder, image_size=image_size)
    data = loaded.recipe.data
    return Annotator(
        loaded.model,
        name=loaded.recipe.model,
        weights=_fingerprint(weights_file(str(folder))),
        classes=tuple(loaded.classes),
        image_size=image_size or data.image_size,
        mean=data.mean,
        std=data.std,
    )


def _count_classes(file: str, cfg: Any) -> int:
    """How many classes the classifier in a checkpoint has."""
    names = (cfg.classifier if cfg else None) or ("head", "fc", "classifier")
    weights = read_weights(file)
    for name in (names,) if isinstance(names, str) else names:
        if f"{name}.weight" in weights:
            return len(weights[f"{name}.weight"])
    raise ValueError(f"{file} has no classifier to annotate with")


def _names(model: Any, classes: list[str], known: bool) -> tuple[str, ...]:
    """The classes of a classifier: ImageNet's, where it is known to be one or has as many; or the data's own, where a
    checkpoint has as many of them."""
    subset = infer_imagenet_subset(model)
    names = ImageNetInfo(subset).label_names() if subset else []
    if not known and model.num_classes == len(classes) and set(names) != set(classes):
        return tuple(classes)
    if not names:
        raise ValueError(
            f"the annotator has {model.num_classes} classes, the data {len(classes)}, and nothing says which are which"
        )
    return tuple(names)


def _fingerprint(file: str) -> str:
    """A checkpoint's file name and checksum."""
    with open(file, "rb") as opened:
        return f"{os.path.basename(file)} sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"
