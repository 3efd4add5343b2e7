"""The settings of each suite of `labelflow robust`."""

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

if TYPE_CHECKING:
    from labelflow.robustness.attacks import Ball

AUTO = "autoattack"


@dataclass(frozen=True)
class NaturalSettings:
    """Folders of published test sets, which are evaluated if given. They need models of ImageNet's 1000 classes."""

    imagenet_v2: str = ""
    """ImageNet-V2: the folder of one of its three variants, or one that holds them."""
    imagenet_a: str = ""
    """ImageNet-A: 200 class folders."""
    imagenet_r: str = ""
    """ImageNet-R: 200 class folders."""
    imagenet_sketch: str = ""
    """ImageNet-Sketch: 1000 class folders."""
    imagenet_real: str = ""
    """ImageNet's validation images, in class folders or not, to be evaluated with the ReaL labels."""


@dataclass(frozen=True)
class CorruptionSettings:
    """Which corruptions, and where they come from."""

    corruptions: tuple[str, ...] = ()
    """Names of corruptions; default: the 15 of ImageNet-C."""
    extra_corruptions: bool = False
    """Also the four extra ones: speckle_noise, gaussian_blur, spatter, saturate. Means are without them."""
    style: Literal["imagecorruptions", "imagenet_c"] = "imagecorruptions"
    """As in the package imagecorruptions, for images of any size; or as in ImageNet-C's files, for 224 pixels."""
    frost: str = ""
    """A folder with the published frost textures, frost1.png to frost5.jpg; default: textures drawn by code."""
    imagenet_c: str = ""
    """The folder of ImageNet-C, to evaluate its files instead of corrupting images on the fly."""


@dataclass(frozen=True)
class AttackSettings:
    """Which attacks, how strong, on how many images."""

    attacks: tuple[str, ...] = ("fgsm", "pgd", AUTO)
    """Names of attacks, optionally with settings, such as 'pgd(steps=40)': fgsm, pgd, apgd_ce, apgd_dlr, apgd_t, fab_t,
    square; autoattack runs the standard four in turn."""
    norm: Literal["linf", "l2"] = "linf"
    """What the radius limits: the change of each pixel (linf), or the Euclidean norm of all changes (l2)."""
    radii: tuple[float, ...] = ()
    """For linf in 255ths, default 1 4; for l2 with colours from 0 to 1, default 0.5 3. Several make a curve, such as
    0.25 0.5 1 2 4: images that fall at one radius are not attacked at larger ones."""
    attack_samples: int = 100
    """Number of images to attack, a random sample that depends on --seed; 0: all."""
    attack_batch: int = 50
    """Images attacked at once; outcomes are cached after each batch."""

    def __post_init__(self) -> None:
        if not self.attacks:
            raise ValueError("--attacks needs at least one name")
        for name, least in (("attack_samples", 0), ("attack_batch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"--{name.replace('_', '-')} must be at least {least}, not {getattr(self, name)}")
        if not all(0 < radius < math.inf for radius in self.radii):
            raise ValueError(f"--radii must be above 0, not {' '.join(f'{radius:g}' for radius in self.radii)}")

    @property
    def balls(self) -> "dict[str, Ball]":
        """By name, the smallest first."""
        from labelflow.robustness.attacks import Ball

        if self.norm == "l2":
            return {f"L2 {radius:g}": Ball("l2", radius) for radius in sorted(self.radii or (0.5, 3))}
        radii = sorted(self.radii or (1, 4))
        return {f"L∞ {radius:g}/255": Ball("linf", radius / 255) for radius in radii}


@dataclass(frozen=True)
class OcclusionSettings:
    """What is occluded."""

    occlusion_grid: int = 14
    """Rows and columns of cells, of which 10 to 90 % are occluded; the image size occludes single pixels."""
    occlusion_shift: int = 0
    """Shifts the cells by this many pixels to the right and down, off the grid of a model's patches."""
    salient: str = ""
    """A run of a ViT, or a timm ViT such as vit_small_patch16_224.dino: the cells that get most of its attention are
    occluded, or all others."""

    def __post_init__(self) -> None:
        if self.occlusion_grid < 1 or self.occlusion_shift < 0:
            raise ValueError("--occlusion-grid must be at least 1, and --occlusion-shift at least 0")


@dataclass(frozen=True)
class Settings:
    """Of all suites, under the names that --help gives them."""

    natural: Annotated[NaturalSettings, arg(name="natural")] = field(default_factory=NaturalSettings)
    corruption: Annotated[CorruptionSettings, arg(name="corruption")] = field(default_factory=CorruptionSettings)
    attack: Annotated[AttackSettings, arg(name="attack")] = field(default_factory=AttackSettings)
    occlusion: Annotated[OcclusionSettings, arg(name="occlusion")] = field(default_factory=OcclusionSettings)
