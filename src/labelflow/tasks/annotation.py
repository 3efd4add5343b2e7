"""Annotating a data set from the command line: which classifier, which data, progress."""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from accelerate import Accelerator

from labelflow.classifier import load
from labelflow.data import Data, Stream, open_source
from labelflow.engine.progress import Counted
from labelflow.labels import Annotation, Store, annotate


@dataclass(frozen=True)
class Annotate:
    """An annotator, what it annotates, and how."""

    model: str
    """A timm classifier, such as dm_nfnet_f6 or tf_efficientnet_lite0, or the folder of a run."""
    out: Path
    """The folder of the labels."""
    weights: str = ""
    """Of a timm model: pretrained (the default), packaged (from a package), or a checkpoint file; of a run: best (the
    default), last, or a file."""
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
        annotator = load(options.model, options.weights, options.image_size, source.classes)
    with Counted("annotating", "images", len(source), quiet=not accelerator.is_main_process) as progress:
        progress.say(
            f"{annotator.architecture} annotates {len(source)} images of {len(source.classes)} classes at "
            f"{annotator.preprocessing.size} pixels, in {options.out}"
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
