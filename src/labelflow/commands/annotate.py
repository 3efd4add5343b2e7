"""`labelflow annotate`: dense labels from a trained classifier."""

import sys
from shlex import quote
from typing import Annotated

from tyro.conf import OmitArgPrefixes, Positional

from labelflow.data.settings import Columns
from labelflow.labels.settings import Annotate
from labelflow.process import is_main_process


def annotate(data: Positional[str], options: Annotated[Annotate, OmitArgPrefixes]) -> None:
    """Dense labels from a trained classifier.

    Args:
        data: A folder or a table of images; or world, torch/NAME, hfds/NAME, wds.
        options: The annotator, and how it annotates.
    """
    from labelflow.tasks.annotation import annotate_data

    try:
        store = annotate_data(data, options)
    except KeyboardInterrupt:
        print("labelflow: interrupted; complete shards are kept, continue with --resume", file=sys.stderr)
        raise SystemExit(130) from None
    if is_main_process():
        print(f"\n{len(store)} label maps of {store.manifest.grid[0]}×{store.manifest.grid[1]} cells in {options.out}")
        labels, images = quote(str(options.out)), quote(data) + _where(options)
        split = " --split val" if options.split == "val" else ""
        print(f"  look at them   labelflow labels draw {labels} {images}{split}")
        if options.split == "val":  # training takes labels of what it trains on
            return
        recipe = "small_lvvit"
        if store.manifest.several:  # of which each covers a part of the image only
            recipe = """small_vit_multilabel --target "token_label(image_label='given')\""""
        print(f"  train on them  labelflow train {recipe} --data {images} --labels {labels}")


def _where(options: Annotate) -> str:
    """Which images of the data these are, for other commands."""
    names = ("root", "train_split", "val_split", "val_fraction", "split_seed")
    given = {name: getattr(options, name) for name in names if getattr(options, name) != getattr(Annotate, name)}
    given |= {name: value for name, value in vars(options.columns).items() if value != getattr(Columns, name)}
    texts = {name: value if isinstance(value, tuple) else (str(value),) for name, value in given.items()}
    return "".join(f" --{name.replace('_', '-')} {' '.join(map(quote, value))}" for name, value in texts.items())
