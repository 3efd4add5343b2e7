"""Sizes of images."""


def fit(size: tuple[int, int], short: int, long: int, scale: float = 1.0) -> tuple[int, int]:
    """The size at which (H, W) fits into short × long, times a scale, with its aspect kept.

    >>> fit((240, 320), 512, 2048), fit((100, 800), 512, 2048), fit((240, 320), 512, 2048, scale=0.5)
    ((512, 683), (256, 2048), (256, 341))
    """
    factor = scale * min(short / min(size), long / max(size))
    return max(1, int(size[0] * factor + 0.5)), max(1, int(size[1] * factor + 0.5))
