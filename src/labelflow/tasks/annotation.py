"""Annotating a data set: which classifier, which data, progress."""

import torch
from accelerate import Accelerator

from labelflow.classifier import load
from labelflow.data import Data, open_map_style
from labelflow.data.outputs import check_output
from labelflow.engine.progress import Counted, Shown
from labelflow.labels import Store, annotate
from labelflow.labels.settings import Annotate


def annotate_data(data: str, options: Annotate, quiet: bool = False) -> Store:
    """Annotate a part of a data set, on all processes."""
    check_output(data, options.out)
    accelerator = Accelerator(cpu=not torch.accelerator.is_available(), mixed_precision=options.how.precision)
    loading = Data(
        source=data,
        columns=options.columns,
        root=options.root,
        train_split=options.train_split,
        val_split=options.val_split,
        val_fraction=options.val_fraction,
        split_seed=options.split_seed,
        workers=options.workers,
        skip_unreadable=options.skip_unreadable,
    )
    quiet = quiet or not accelerator.is_main_process
    if options.split not in ("train", "val"):
        raise ValueError(f"split must be train or val, not {options.split!r}")
    with accelerator.local_main_process_first():  # it downloads what is missing
        source = open_map_style(loading, options.split, Shown(quiet).say)
        annotator = load(options.model, options.weights, options.image_size, source.classes)
    with Counted("annotating", "images", len(source), quiet=quiet) as progress:
        progress.say(
            f"{annotator.architecture} annotates {len(source)} images of {len(source.classes)} classes at "
            f"{annotator.preprocessing.size} pixels, in {options.out}"
        )
        if annotator.data_notice:
            progress.say(annotator.data_notice)
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
