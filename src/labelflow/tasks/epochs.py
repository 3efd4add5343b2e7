"""What of a classifier's training depends on the epoch: the size of images, and whether they are mixed."""

from labelflow.data import Growth
from labelflow.data.settings import Data
from labelflow.engine import Training
from labelflow.tasks.recipe import Recipe


def count_epochs(training: Training, samples: int) -> int:
    """Those of a whole run; the last may be cut short."""
    return training.epochs + training.cooldown_epochs or -(-training.updates // (samples // training.batch))


def make_growth(data: Data, epochs: int) -> Growth | None:
    """The size of images in each epoch; None: image_size in all of them."""
    if data.sizes and data.sizes[-1] != data.image_size:
        raise ValueError(
            f"--sizes must end with --image-size, at which the model is evaluated and saved: {data.image_size}, not "
            f"{data.sizes[-1]}"
        )
    return Growth(data.sizes, epochs) if data.sizes else None


def check_mixing(recipe: Recipe, epochs: int) -> None:
    if recipe.mix_off_epoch >= epochs:
        raise ValueError(
            f"--mix-off-epoch {recipe.mix_off_epoch} lies beyond the run, whose epochs are numbered from 0 to "
            f"{epochs - 1}; 0 mixes images to the end"
        )


def is_mixed(recipe: Recipe, epoch: int) -> bool:
    """Whether the images of an epoch are mixed."""
    return not recipe.mix_off_epoch or epoch < recipe.mix_off_epoch
