"""How large the parts of a detector are behind its backbone."""

from dataclasses import dataclass


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
