"""What is seen, and how a model is asked: the settings of a segmentation recipe."""

from dataclasses import dataclass
from typing import Annotated, Literal

from tyro.conf import arg

from labelflow.data.settings import IMAGENET_MEAN, IMAGENET_STD


@dataclass(frozen=True)
class SegmentData:
    """Where images and masks come from, and how they are seen."""

    source: Annotated[str, arg(name="data")] = "world"
    """A folder: ADE20K, CamVid or Pets as they are published, or images/ and masks/ of the same names, in train/ and
    val/ or not; or world(train=…, val=…, objects=2), which needs no files."""
    layout: Literal["auto", "ade20k", "camvid", "pets", "folder"] = "auto"
    """How the folder is laid out; auto: as it looks."""
    classes: str = ""
    """Of images/ and masks/: a file with the name of one class on each line, or how many there are. '': the file
    classes.txt in the folder."""
    void: tuple[int, ...] = (255,)
    """Of images/ and masks/: the values of pixels that do not count. With 0 among them, classes start at 1."""
    val_fraction: float = 0.1
    """How much of a folder without train and val is set aside, the same files for the same split_seed."""
    split_seed: int = 0
    """Chooses which files are set aside."""

    crop: int = 512
    """Side of a training crop, in pixels."""
    short: int = 512
    """Images are resized until their shorter side is this long, …"""
    long: int = 2048
    """… or their longer side that long, whichever is less, …"""
    ratio: tuple[float, float] = (0.5, 2.0)
    """… times a number between these."""
    most: float = 0.75
    """A crop is drawn again, up to ten times, while one class covers more of it than this."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    photometric: bool = True
    """Whether brightness, contrast, saturation and hue change at random."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Per-channel mean, which is subtracted."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Per-channel standard deviation, which is divided by."""
    workers: int = -1
    """Processes that read images; -1: as many as there are cores for them, at most 8."""
    skip_unreadable: int = 0
    """Skip and report up to this many unreadable samples; one more stops the run."""
    hash_data: bool = False
    """Record the contents of all files, and compare them on --resume; otherwise only sizes and times."""

    def __post_init__(self) -> None:
        if self.crop < 1 or not 1 <= self.short <= self.long:
            raise ValueError(f"crop, short ≤ long, must be at least 1, not {self.crop}, {self.short}, {self.long}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio must be two numbers above 0, the smaller first, not {self.ratio}")
        for name in ("flip", "most"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} must lie in [0, 1], not {getattr(self, name)}")


@dataclass(frozen=True)
class Inference:
    """How a model is evaluated."""

    short: int = 512
    """Images are resized until their shorter side is this long, …"""
    long: int = 2048
    """… or their longer side that long, whichever is less."""
    window: int = 0
    """Side of a sliding window; 0: the whole image at once."""
    stride: int = 0
    """How far windows are apart; 0: two thirds of one."""
    scales: tuple[float, ...] = (1.0,)
    """Test-time scales, relative to the above; scores are averaged."""
    flips: bool = False
    """Average with the scores of the flipped image."""

    def __post_init__(self) -> None:
        if self.short < 1 or self.long < self.short:
            raise ValueError(f"short and long sides must be 1 ≤ short ≤ long, not {self.short} and {self.long}")
        if self.window < 0 or not 0 <= self.stride <= self.window:
            raise ValueError(f"a stride must not leave gaps: 0 to {self.window}, the window, not {self.stride}")
        if not self.scales or min(self.scales) <= 0:
            raise ValueError(f"scales must be greater than 0, one at least, not {self.scales}")
