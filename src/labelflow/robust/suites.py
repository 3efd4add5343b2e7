"""The suites of `labelflow robust`: one class in one file, one line in SUITES."""

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from labelflow.arguments import flag
from labelflow.lazy import deferred
from labelflow.robust.settings import Settings
from labelflow.spec import known

if TYPE_CHECKING:
    from labelflow.robust.results import Section
    from labelflow.robust.session import Session
    from labelflow.robust.sets import Set


class Suite(Protocol):
    """Whatever could be wrong with its settings and data is told when it is made, before any work is done."""

    @property
    def passes(self) -> int:
        """Forward passes of a picture, at most: what was asked before is not asked again."""
        ...

    def measure(self) -> "Section": ...


def _own(found: "Set | None") -> "Set":
    if found is None:
        raise ValueError("this suite needs images: --data FOLDER, or runs that were evaluated on the same images")
    return found


def _suite(place: str) -> Callable[..., Any]:
    return deferred(f"labelflow.robust.{place}")


SUITES: "dict[str, Callable[[Session, Set | None, Settings], Suite]]" = {
    "clean": lambda session, own, settings: _suite("clean:CleanImages")(session, _own(own)),
    "natural": lambda session, own, settings: _suite("natural:Natural")(session, settings.natural),
    "corruptions": lambda session, own, settings: _suite("corrupted:Corrupted")(session, own, settings.corrupting),
    "occlusion": lambda session, own, settings: _suite("hidden:Occlusion")(session, _own(own), settings.hiding),
    "salient": lambda session, own, settings: _suite("salient:Salient")(session, _own(own), settings.hiding.salient),
    "shuffle": lambda session, own, settings: _suite("hidden:Shuffling")(session, _own(own)),
    "calibration": lambda session, own, settings: _suite("calibration:Calibration")(session, _own(own)),
    "attack": lambda session, own, settings: _suite("attacked:Attacked")(session, _own(own), settings.attacking),
}


def _asking_for(settings: Settings) -> dict[str, list[str]]:
    """The flags that were given and ask for a suite."""
    corrupting = settings.corrupting
    return {
        "natural": [flag(name) for name, folder in asdict(settings.natural).items() if folder],
        "corruptions": [flag(name) for name in ("imagenet_c", "frost", "corruptions") if getattr(corrupting, name)],
        "salient": ["--salient"] * bool(settings.hiding.salient),
    }


def choose_suites(text: str, own: "Set | None", settings: Settings) -> list[str]:
    """The names in a text such as 'corruptions,attack'; of an empty one, all for which there are images."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if names:
        chosen = list(dict.fromkeys(known(name, SUITES, "suite") for name in names))
        for name, given in _asking_for(settings).items():
            if given and name not in chosen:
                raise ValueError(f"{given[0]} is for the suite {name}, which --suite {text} leaves out")
        return chosen
    without = {  # what they need is not given
        "natural": not _asking_for(settings)["natural"],
        "corruptions": own is None and not settings.corrupting.imagenet_c,
        "salient": own is None or not settings.hiding.salient,
    }
    chosen = [name for name in SUITES if not without.get(name, own is None)]
    if not chosen:
        raise ValueError(
            "there are no images to ask about: give --data FOLDER, --imagenet-v2 FOLDER, … or runs that were evaluated "
            "on the same images"
        )
    return chosen
