"""Named recipes: functions that return a Recipe, derived from one another. One file a family, one line here."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from labelflow.recipes import (
    baselines,
    deit3,
    detection,
    distillation,
    finetuning,
    imagenet,
    merging,
    multilabel,
    rivals,
    segmentation,
    small,
    stl,
    token_labeling,
    token_labeling_others,
    transfer,
)
from labelflow.recipes.base import Entry
from labelflow.spec import known
from labelflow.tasks import DetectRecipe, Recipe, SegmentRecipe
from labelflow.tasks.recipe import KINDS


def _of(paper: str, *families: Iterable[Entry[Recipe]]) -> list[Entry[Recipe]]:
    """Rows of a paper's tables, which say so."""
    entries = [entry for family in families for entry in family]
    return [replace(entry, paper=f"{paper}, {entry.paper}") if entry.paper else entry for entry in entries]


RECIPES: dict[str, Entry[Recipe]] = {
    entry.name: entry
    for entry in (
        *small.ENTRIES,
        *finetuning.ENTRIES,
        *multilabel.ENTRIES,
        *_of("TL-Align", imagenet.ENTRIES, rivals.ENTRIES, transfer.ENTRIES),
        *rivals.LATER,
        *_of("DeiT III", deit3.ENTRIES),
        *distillation.ENTRIES,
        *merging.ENTRIES,
        *stl.ENTRIES,
        *_of("Token Labeling", token_labeling.ENTRIES, token_labeling_others.ENTRIES, baselines.ENTRIES),
    )
}


SEGMENTERS: dict[str, Entry[SegmentRecipe]] = {entry.name: entry for entry in segmentation.ENTRIES}
DETECTORS: dict[str, Entry[DetectRecipe]] = {entry.name: entry for entry in detection.ENTRIES}
ALL: dict[str, Entry[Any]] = {**RECIPES, **SEGMENTERS, **DETECTORS}


def find(name: str) -> Entry[Recipe]:
    """A recipe for a classifier."""
    entry: Entry[Recipe] = find_any(name, "classify")
    return entry


def find_any(name: str, kind: str = "") -> Entry[Any]:
    """A recipe of any task, or of the one that it must be."""
    if kind and name in ALL and ALL[name].kind.name != kind:
        own = ALL[name].kind
        raise ValueError(
            f"{name} is the recipe of a {own.what}, not of a {KINDS[kind].what}: labelflow {own.command} {name}"
        )
    offered = {key: entry for key, entry in ALL.items() if not kind or entry.kind.name == kind}
    return offered[known(name, offered, "recipe", "labelflow list")]


__all__ = ["ALL", "DETECTORS", "RECIPES", "SEGMENTERS", "Entry", "find", "find_any"]
