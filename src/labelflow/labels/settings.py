"""The settings of `labelflow annotate`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from labelflow.data.settings import Columns


@dataclass(frozen=True)
class Annotation:
    """How a data set is annotated."""

    top: int = 5
    """How many classes are kept for each place: those with the best scores."""
    seen: str = "whole"
    """What the annotator sees: the whole image, stretched to a square; or center(0.9), a part of its shorter side."""
    scores: Literal["rest", "logits"] = "rest"
    """rest: scores relative to the classes that are not kept, which count 0; logits: as they are, as in the paper.
    Of images with several labels, each class's own probability is kept."""
    batch: int = 0
    """Images that pass through the annotator at once; 0: 64, or 2 on a CPU, which is faster there."""
    shard: int = 0
    """Images per file; complete files survive a kill. 0: 256, or more, so that there are at most 256 files."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision of the annotator."""

    def __post_init__(self) -> None:
        for name, least in (("top", 1), ("batch", 0), ("shard", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")


@dataclass(frozen=True)
class Annotate:
    """An annotator, what it annotates, and how."""

    model: str
    """A timm classifier, such as dm_nfnet_f6.dm_in1k or tf_efficientnet_lite0, or the folder of a run. A name without a
    tag stands for the weights that timm chooses, which are named in the store."""
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
    """What Hugging Face calls the part to train on, or its wds shards; as in training."""
    val_split: str = "val"
    """What Hugging Face calls the part to evaluate on, or its wds shards; as in training."""
    root: str = "data"
    """Where torchvision and Hugging Face keep their files, and where the shards of wds are."""
    val_fraction: float = 0.1
    """How much of a folder without train and val is set aside; as in training."""
    split_seed: int = 0
    """Chooses which files are set aside; as in training."""
    workers: int = -1
    """Processes that read images; -1: as many as there are cores for them, at most 8."""
    skip_unreadable: int = 0
    """How many unreadable images are skipped and reported before it stops. They get empty labels."""
    resume: bool = False
    """Continue with the labels in that folder: what is missing or damaged is annotated, the rest stays."""
    columns: Columns = field(default_factory=Columns)
    how: Annotation = field(default_factory=Annotation)
