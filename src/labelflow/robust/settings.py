"""The settings of each suite of `labelflow robust`."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

if TYPE_CHECKING:
    from labelflow.robust.attacks import Ball

AUTO = "autoattack"


@dataclass(frozen=True)
class NaturalSets:
    """Where published sets lie; those that are given are evaluated. They need models of ImageNet's 1000 classes."""

    imagenet_v2: str = ""
    """ImageNet-V2: the folder of one of its three variants, or that which holds them."""
    imagenet_a: str = ""
    """ImageNet-A: 200 class folders."""
    imagenet_r: str = ""
    """ImageNet-R: 200 class folders."""
    imagenet_sketch: str = ""
    """ImageNet-Sketch: 1000 class folders."""
    imagenet_real: str = ""
    """ImageNet's validation images, in class folders or not, to be judged by the ReaL labels."""


@dataclass(frozen=True)
class Corrupting:
    """Which corruptions, and where they come from."""

    corruptions: tuple[str, ...] = ()
    """Which of them; none: the 15 of ImageNet-C."""
    extra_corruptions: bool = False
    """The four extra ones, too: speckle_noise, gaussian_blur, spatter, saturate. They don't count in means."""
    style: Literal["imagecorruptions", "imagenet_c"] = "imagecorruptions"
    """As the package imagecorruptions makes them, for images of any size; or as ImageNet-C was made, at 224 pixels."""
    frost: str = ""
    """A folder with the published textures of frost, frost1.png to frost5.jpg; without, frost is made by code."""
    imagenet_c: str = ""
    """The folder of ImageNet-C, which is then used instead of making corruptions."""


@dataclass(frozen=True)
class Attacking:
    """Which attacks, how strong, on how many images."""

    attacks: tuple[str, ...] = ("fgsm", "pgd", AUTO)
    """autoattack is the standard four in turn; others by name, with settings where wanted: 'pgd(steps=40)', apgd_ce,
    apgd_dlr, apgd_t, fab_t, square."""
    norm: Literal["linf", "l2"] = "linf"
    """How far an image may be moved: each pixel by the radius at most (linf), or all together (l2)."""
    radii: tuple[float, ...] = ()
    """For linf in 255ths, 1 4 if none is given; for l2, of colours from 0 to 1, 0.5 3. Many make a curve, such as 0.25
    0.5 1 2 4: an image that falls is not attacked again at larger ones."""
    attack_samples: int = 100
    """So many images are attacked, drawn with --seed; 0: all."""
    attack_batch: int = 50
    """So many are attacked at once, and kept when they are done."""

    def __post_init__(self) -> None:
        if not self.attacks:
            raise ValueError("--attacks needs a name at least")
        for name, least in (("attack_samples", 0), ("attack_batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if not all(0 < radius < math.inf for radius in self.radii):
            raise ValueError(f"--radii must be above 0, not {' '.join(f'{radius:g}' for radius in self.radii)}")

    @property
    def balls(self) -> "dict[str, Ball]":
        """By what people call them, the smallest first."""
        from labelflow.robust.attacks import Ball

        if self.norm == "l2":
            return {f"L2 {radius:g}": Ball("l2", radius) for radius in sorted(self.radii or (0.5, 3))}
        radii = sorted(self.radii or (1, 4))
        return {f"L∞ {radius:g}/255": Ball("linf", radius / 255) for radius in radii}


@dataclass(frozen=True)
class Hiding:
    """What is hidden and shuffled."""

    occlusion_grid: int = 14
    """Cells in a row and in a column, of which tenths are hidden; the image's size hides single pixels."""
    occlusion_shift: int = 0
    """By so many pixels the cells are moved to the right and down, so that they don't fall on a model's patches."""
    salient: str = ""
    """A run of a ViT, or one of timm's, such as vit_small_patch16_224.dino: its attention tells which cells matter
    most, and these are hidden, or all others."""

    def __post_init__(self) -> None:
        if self.occlusion_grid < 1 or self.occlusion_shift < 0:
            raise ValueError("--occlusion-grid must be at least 1, and --occlusion-shift at least 0")


@dataclass(frozen=True)
class Settings:
    """Of the suites, under the names that --help gives them."""

    natural: Annotated[NaturalSets, arg(name="natural")] = field(default_factory=NaturalSets)
    corrupting: Annotated[Corrupting, arg(name="corruption")] = field(default_factory=Corrupting)
    attacking: Annotated[Attacking, arg(name="attack")] = field(default_factory=Attacking)
    hiding: Annotated[Hiding, arg(name="occlusion")] = field(default_factory=Hiding)
