"""The suites of `labelflow robust`: one class each, and one line in SUITES."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from labelflow.arguments import flag
from labelflow.lazy import deferred
from labelflow.robustness.settings import Settings
from labelflow.spec import known

if TYPE_CHECKING:
    from labelflow.robustness.datasets import ImageSet
    from labelflow.robustness.evaluator import Evaluator
    from labelflow.robustness.results import Section


class Suite(Protocol):
    """Checks its settings and data when it is created, before any model runs."""

    @property
    def passes(self) -> int:
        """Forward passes of an image, at most: cached predictions are not computed again."""
        ...

    def measure(self) -> "Section": ...


def _images(dataset: "ImageSet | None") -> "ImageSet":
    if dataset is None:
        raise ValueError("this suite needs images: use --data FOLDER, or runs that were evaluated on the same images")
    return dataset


def _suite(place: str) -> Callable[..., Any]:
    return deferred(f"labelflow.robustness.{place}")


SUITES: "dict[str, Callable[[Evaluator, ImageSet | None, Settings], Suite]]" = {
    "clean": lambda evaluator, images, settings: _suite("clean:CleanSuite")(evaluator, _images(images)),
    "natural": lambda evaluator, images, settings: _suite("natural:NaturalSuite")(evaluator, settings.natural),
    "corruptions": lambda evaluator, images, settings: _suite("corruption_suite:CorruptionSuite")(
        evaluator, images, settings.corruption
    ),
    "occlusion": lambda evaluator, images, settings: _suite("occlusion:OcclusionSuite")(
        evaluator, _images(images), settings.occlusion
    ),
    "salient": lambda evaluator, images, settings: _suite("occlusion:SalientSuite")(
        evaluator, _images(images), settings.occlusion.salient
    ),
    "shuffle": lambda evaluator, images, settings: _suite("shuffle:ShuffleSuite")(evaluator, _images(images)),
    "calibration": lambda evaluator, images, settings: _suite("calibration:CalibrationSuite")(
        evaluator, _images(images)
    ),
    "attack": lambda evaluator, images, settings: _suite("attack_suite:AttackSuite")(
        evaluator, _images(images), settings.attack
    ),
}


SINGLE_LABEL = ("natural", "calibration", "attack")  # suites that are defined for images of one class


def _requested_by(settings: Settings) -> dict[str, list[str]]:
    """The options that were given and belong to one suite."""
    corruption = settings.corruption
    return {
        "natural": [flag(name) for name, folder in asdict(settings.natural).items() if folder],
        "corruptions": [flag(name) for name in ("imagenet_c", "frost", "corruptions") if getattr(corruption, name)],
        "salient": ["--salient"] if settings.occlusion.salient else [],
    }


def choose_suites(text: str, dataset: "ImageSet | None", settings: Settings) -> list[str]:
    """The names in a text such as 'corruptions,attack'; if it is empty, all suites for which there are images."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names:
        chosen = list(dict.fromkeys(known(name, SUITES, "suite") for name in names))
        single = [name for name in chosen if name in SINGLE_LABEL]
        if single and dataset is not None and dataset.several:
            raise ValueError(
                f"the {single[0]} suite is defined for images of one class, but those of {dataset.name} have several: "
                f"--suite {','.join(name for name in SUITES if name not in (*SINGLE_LABEL, 'salient'))}"
            )
        for name, given in _requested_by(settings).items():
            if given and name not in chosen:
                raise ValueError(f"{given[0]} is an option of the {name} suite, which --suite {text} leaves out")
        return chosen
    impossible = {
        "natural": not _requested_by(settings)["natural"],
        "corruptions": dataset is None and not settings.corruption.imagenet_c,
        "salient": dataset is None or not settings.occlusion.salient,
    }
    impossible |= {name: True for name in SINGLE_LABEL if dataset and dataset.several}
    chosen = [name for name in SUITES if not impossible.get(name, dataset is None)]
    if not chosen:
        raise ValueError(
            "no images to evaluate on: use --data FOLDER, --imagenet-v2 FOLDER, …, or runs that were evaluated on the "
            "same images"
        )
    return chosen
