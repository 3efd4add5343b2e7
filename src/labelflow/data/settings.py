"""What is seen: the data of a recipe."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from tyro.conf import arg

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Columns:
    """What the columns of a table hold, where images come from one; those of Hugging Face have images of their own."""

    image_column: str = ""
    """Of a table: paths of images, as seen from its folder; '': the first of image, file, file_name and path."""
    label_column: str = "label"
    """Of a table or a Hugging Face data set: the class of an image."""
    labels_column: str = "labels"
    """The classes of an image, any number of them: a list, or text with separators. Of a table, '*' stands for all
    other columns: each is a class, and holds 0 and 1."""
    label_separator: str = ";"
    """What stands between the classes of an image, where they are text."""
    split_column: str = "split"
    """Of a table: train or val. Without such a column val_fraction of the images are set aside."""
    class_names: tuple[str, ...] = ()
    """Of a table, or of a Hugging Face column of texts: the classes in their order, if not the sorted ones of the
    training images."""

    def __post_init__(self) -> None:
        if not self.label_separator:
            raise ValueError("label_separator must not be empty; ';', for example, is one")
        if len(set(self.class_names)) < len(self.class_names):
            raise ValueError(f"class_names must differ from one another, not {', '.join(self.class_names)}")


@dataclass(frozen=True)
class Data:
    """Where images come from, and how they are seen."""

    source: Annotated[str, arg(name="data")] = "world"
    """A folder of images, or a table of them, .csv or .parquet; or world, torch/NAME (torchvision), hfds/NAME or, as a
    stream, hfids/NAME (Hugging Face), wds (WebDataset)."""
    columns: Columns = field(default_factory=Columns)
    root: str = "data"
    """Where torchvision and Hugging Face keep their files, and where the shards of wds are."""
    train_split: str = "train"
    """The part to train on: its name, or the shards of wds, such as train-{0000..1023}.tar."""
    val_split: str = "val"
    """The part to evaluate on."""
    val_fraction: float = 0.1
    """How much of a folder or a table without train and val is set aside, the same files for the same split_seed."""
    split_seed: int = 0
    """Chooses which files are set aside."""
    train_samples: int = 0
    """How many samples the training stream has, where its files don't say (remote wds)."""
    val_samples: int = 0
    """How many samples the evaluation stream has, where its files don't say (remote wds)."""
    classes: int = 0
    """How many classes wds has; 0: as many as the labels of local training shards say."""

    labels: str = ""
    """The folder of dense labels that `labelflow annotate` made for the training part, for targets that use them."""
    compat: Literal["none", "official"] = "none"
    """official: dense labels with crop boxes transposed, as the public Token Labeling code had them; to compare."""

    image_size: int = 224
    """Side of the images that the model sees, in pixels."""
    sizes: tuple[int, ...] = ()
    """Sizes that grow in training, such as 160 192 224: in equal stages of epochs, the last of which has image_size; a
    size given twice lasts twice as long. None: image_size throughout."""
    crop: Literal["resized", "simple"] = "resized"
    """resized: a random part of the image (scale, ratio), stretched to a square; simple: DeiT III's Simple Random Crop,
    all of its shorter side and a place along the longer one, give or take 4 mirrored pixels; scale and ratio do not
    matter then."""
    scale: tuple[float, float] = (0.08, 1.0)
    """Part of the image's area that a random crop shows."""
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    """Aspect of a random crop."""
    flip: float = 0.5
    """Probability of a horizontal flip."""
    auto_augment: str = "rand-m9-mstd0.5-inc1"
    """timm's name of RandAugment or AutoAugment; '' for none."""
    color_jitter: float = 0.4
    """Strength of colour jitter; timm leaves it out where auto_augment is on."""
    erasing: float = 0.25
    """Probability of random erasing."""
    augment: Literal["workers", "device"] = "workers"
    """Where views are augmented: by the workers, with timm's pixels; or in batches on the device, while workers only
    decode and crop, so that a few of them can feed a GPU."""
    interpolation: Literal["bicubic", "bilinear", "random"] = "bicubic"
    """How images are resized; random concerns training only."""
    sampling: str = "uniform"
    """Which samples an epoch has: uniform, each once; balanced, as many of each class; sqrt or power(p=0.5), between
    the two; repeat_factor(threshold=0.001), images of rarer classes several times. An epoch keeps its length."""
    repeats: int = 1
    """Repeated augmentation: views of a sample in an epoch, which then shows 1/repeats of the samples."""
    test_crop: float = 0.875
    """Part of the side that the centre crop of an evaluation shows."""
    mean: tuple[float, float, float] = IMAGENET_MEAN
    """Per-channel mean, which is subtracted."""
    std: tuple[float, float, float] = IMAGENET_STD
    """Per-channel standard deviation, which is divided by."""

    workers: int = -1
    """Processes that read images, for each training process; -1: as many as there are cores for them, at most 8."""
    skip_unreadable: int = 0
    """Skip and report up to this many unreadable images; one more stops the run."""
    hash_data: bool = False
    """Record the contents of all files, and compare them on --resume; otherwise only sizes and times."""

    def __post_init__(self) -> None:
        if self.image_size < 1 or self.repeats < 1:
            raise ValueError(f"image_size and repeats must be at least 1, not {self.image_size} and {self.repeats}")
        if not 0 < self.test_crop <= 1:
            raise ValueError(f"test_crop, a part of the side, must lie in (0, 1], not {self.test_crop}")
        if self.auto_augment and not self.auto_augment.startswith(("rand-", "augmix-", "original", "v0", "3a")):
            raise ValueError(f"auto_augment is timm's, such as rand-m9-mstd0.5-inc1, not {self.auto_augment!r}")
        if self.augment == "device" and self.auto_augment.startswith("augmix"):
            raise ValueError("augmix blends several views, which is done by workers only: --augment workers")
        if self.crop == "simple":
            self._check_simple_crop()
        for name in ("flip", "erasing"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name}, a probability, must lie in [0, 1], not {getattr(self, name)}")
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale, parts of the image's area, must be 0 < least ≤ most ≤ 1, not {self.scale}")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio, aspects of a crop, must be 0 < least ≤ most, not {self.ratio}")
        if min(self.std) <= 0:
            raise ValueError(f"std, which is divided by, must be positive, not {self.std}")
        for name, least in (("skip_unreadable", 0), ("color_jitter", 0), ("workers", -1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, not {getattr(self, name)}")

    def _check_simple_crop(self) -> None:
        if self.augment == "device":
            raise ValueError("--crop simple mirrors borders, which is done by workers only: --augment workers")
        if self.compat == "official":
            raise ValueError("--compat official repeats what the public code did to --crop resized, and to no other")
