"""DeiT III's Simple Random Crop (Touvron et al., 2022, Section 3.2): the shorter side as a whole, and a place along the
longer one, a few pixels more or less."""

from dataclasses import replace

from timm.data.transforms import RandomResizedCropAndInterpolation
from torchvision.transforms import RandomCrop
from torchvision.transforms import functional as F

from labelflow.data.geometry import Tracked, choose_interpolation

BORDER = 4  # pixels that are mirrored around the resized image


class SimpleCrop:
    """Resize until the shorter side is that of the view, mirror the border, and cut a square out."""

    def __init__(self, step: RandomResizedCropAndInterpolation) -> None:
        """step: the size and the interpolation are its."""
        self.step = step

    def __call__(self, tracked: Tracked) -> Tracked:
        side = self.step.size[0]
        resized = F.resize(tracked.image, side, choose_interpolation(self.step))
        padded = F.pad(resized, BORDER, padding_mode="reflect")
        top, left, *_ = RandomCrop.get_params(padded, (side, side))
        width, height = resized.size
        box = ((top - BORDER) / height, (left - BORDER) / width, side / height, side / width)
        geometry = replace(tracked.geometry, box=box, border=(BORDER / width, BORDER / height))
        return Tracked(F.crop(padded, top, left, side, side), geometry)
