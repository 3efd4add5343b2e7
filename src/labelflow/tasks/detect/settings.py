"""The settings of a detection recipe: its data, and how large a detector is."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

SURE = 0.3  # how sure a detector must be of an object that is shown


@dataclass(frozen=True)
class DetectData:
    """Where images and objects come from, and how they are seen."""

    source: Annotated[str, arg(name="data")] = "world"
    """A folder in COCO's format: annotations/instances_train2017.json, train2017/, and so for val2017; names that are
    like these are found. Or world(train=…, val=…, objects=2), which needs no files."""
    train_json: str = ""
    """The objects to train on, where the folder does not tell."""
    val_json: str = ""
    """The objects to evaluate on, where the folder does not tell."""
    train_images: str = ""
    """The folder of images to train on, where names do not tell."""
    val_images: str = ""
    """The folder of images to evaluate on, where names do not tell."""
    keep_empty: bool = False
    """Whether to train on images without objects, too."""
    bad_objects: Literal["refuse", "drop"] = "refuse"
    """What to do with boxes that have no area or leave their image by more than a pixel, and masks that are missing or
    no masks. What is dropped counts neither in training nor in evaluation."""

    sides: tuple[int, ...] = tuple(range(480, 801, 32))
    """The shorter side of a training image is one of these, …"""
    longest: int = 1333
    """… unless its longer side would become longer than this."""
    crop_chance: float = 0.5
    """Probability of a crop before that."""
    crop_sides: tuple[int, ...] = (400, 500, 600)
    """The shorter side of an image that is then cropped."""
    crop_range: tuple[int, int] = (384, 600)
    """Height and width of a crop lie between these."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    workers: int = -1
    """Processes that read images; -1: as many as there are cores for them, at most 8."""
    skip_unreadable: int = 0
    """Skip and report up to this many unreadable images; one more stops the run."""
    hash_data: bool = False
    """Record the contents of all files, and compare them on --resume; otherwise only sizes and times."""

    def __post_init__(self) -> None:
        if not self.sides or min(self.sides) < 1 or self.longest < 1:
            raise ValueError(f"sides must be at least 1, not {self.sides}, {self.longest}")
        if self.crop_chance and (not self.crop_sides or not 1 <= self.crop_range[0] <= self.crop_range[1]):
            raise ValueError(
                f"a crop needs sides and a range, the smaller first, not {self.crop_sides}, {self.crop_range}"
            )
        for name in ("flip", "crop_chance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}, a probability, must lie in [0, 1], not {getattr(self, name)}")


@dataclass(frozen=True)
class Sizes:
    """The papers' by default. Smaller ones make a detector that learns on a laptop."""

    channels: int = 256
    """Of the feature pyramid, and of the heads' convolutions."""
    hidden: int = 1024
    """Of the box heads' fully connected layer."""
    samples: int = 512
    """Boxes of an image that each stage is trained on."""
    proposals: int = 1000
    """Boxes of an image that are looked at in evaluation; twice as many are chosen from in training."""
    anchor: int = 8
    """The side of an anchor, in strides: of 4 pixels on the finest level, of 64 on the coarsest. Less for images so
    small that most objects in them are smaller than 32 pixels."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, not {value}")
