"""Makes reference.npz, with the package imagecorruptions 1.1.2, in an old environment (see README.md)."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

SEVERITIES = (1, 2, 3, 4, 5)
TEXTURES = ("frost1.png", "frost2.png", "frost3.png", "frost4.jpg", "frost5.jpg", "frost6.jpg")


def seed_of(number: int, severity: int) -> int:
    """What numpy's legacy stream starts from, for the corruption of this number."""
    return 10 * number + severity


def write_textures(folder: Path) -> None:
    """Noise instead of the photographs, of sizes below and above the image's; PNG all, so that reading is exact."""
    for number, name in enumerate(TEXTURES):
        pixels = np.random.default_rng(number).integers(0, 256, (30 + 20 * number, 110 - 10 * number, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name, "PNG")


def main(folder: Path) -> None:
    import imagecorruptions
    from skimage.data import astronaut

    textures = folder / "textures"
    textures.mkdir()
    write_textures(textures)
    imagecorruptions.corruptions.resource_filename = lambda package, path: str(textures / Path(path).name)
    pixels = astronaut()[30:150, 160:256]
    clean = pixels.reshape(60, 2, 48, 2, 3).mean((1, 3)).astype(np.uint8)  # not square
    found = {"clean": clean}
    for number, name in enumerate(imagecorruptions.get_corruption_names("all")):
        images = []
        for severity in SEVERITIES:
            np.random.seed(seed_of(number, severity))  # noqa: NPY002
            images.append(imagecorruptions.corrupt(clean, severity, name))
        found[name] = np.stack(images)
    np.savez_compressed(folder / "reference.npz", **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
