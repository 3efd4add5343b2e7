"""Recipes for images with several labels: a table of them, as docs/howto/multi-label.md shows."""

from labelflow.recipes.base import TABLE, Entry
from labelflow.recipes.finetuning import finetune
from labelflow.recipes.small import small_vit
from labelflow.tasks import Recipe


def small_vit_multilabel() -> Recipe:
    """A small ViT at 64 pixels, from scratch. Labels are not smoothed: 0.5 is where a label begins."""
    return small_vit().change(source=TABLE, loss="bce", smoothing=0.0)


def finetune_multilabel() -> Recipe:
    """A pretrained DeiT-S with the asymmetric loss: where most classes are missing from most images."""
    return finetune().change(source=TABLE, loss="asl", smoothing=0.0)


ENTRIES: list[Entry[Recipe]] = [
    Entry(
        "small_vit_multilabel",
        small_vit_multilabel(),
        "a small ViT for several labels an image",
        "small_vit_tl_align",
        gpus=1,
    ),
    Entry(
        "finetune_multilabel",
        finetune_multilabel(),
        "a pretrained DeiT-S for several labels an image",
        "finetune_tl_align",
        gpus=1,
    ),
]
