"""Mean corruption error: errors relative to AlexNet's. Hendrycks and Dietterich (2019), "Benchmarking Neural Network
Robustness to Common Corruptions and Perturbations"."""

from collections.abc import Mapping, Sequence

# AlexNet's top-1 errors on ImageNet-C, means over the five severities, as AugMix's code has them (Apache-2.0).
ALEXNET = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.92264,
    "defocus_blur": 0.81988,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.79836,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.71784,
    "jpeg_compression": 0.6065,
}
ALEXNET_CLEAN = 0.4345


def corruption_errors(errors: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """CE_c = 100 · Σ_s E_{s,c} / Σ_s E^AlexNet_{s,c}, from errors in [0, 1] at the five severities."""
    _check(errors)
    return {name: 100 * sum(errors[name]) / (5 * alexnet) for name, alexnet in ALEXNET.items()}


def mce(errors: Mapping[str, Sequence[float]]) -> float:
    """The mean of CE_c over the 15 corruptions.

    >>> round(mce({name: [error] * 5 for name, error in ALEXNET.items()}), 6)
    100.0
    """
    return sum(corruption_errors(errors).values()) / len(ALEXNET)


def relative_mce(errors: Mapping[str, Sequence[float]], clean: float) -> float:
    """The mean of 100 · Σ_s (E_{s,c} − E_clean) / Σ_s (E^AlexNet_{s,c} − E^AlexNet_clean): the accuracy lost."""
    _check(errors)
    lost = [
        sum(error - clean for error in errors[name]) / (5 * (alexnet - ALEXNET_CLEAN))
        for name, alexnet in ALEXNET.items()
    ]
    return 100 * sum(lost) / len(lost)


def _check(errors: Mapping[str, Sequence[float]]) -> None:
    missing = [name for name in ALEXNET if len(errors.get(name, ())) != 5]
    if missing:
        raise ValueError(f"mCE needs errors of all 15 corruptions at 5 severities; incomplete: {', '.join(missing)}")
