"""The suites of `labelflow robust`: one class in one file, one line in SUITES."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Protocol

from tyro.conf import arg

from labelflow.robust.attacked import Attacked, Attacking
from labelflow.robust.calibration import Calibration
from labelflow.robust.corrupted import Corrupted, Corrupting
from labelflow.robust.hidden import Hiding, Occlusion, Shuffling
from labelflow.robust.natural import NATURAL, Natural, NaturalSets, flag
from labelflow.robust.results import Finding, Section, uncertainty
from labelflow.robust.salient import Salient
from labelflow.robust.session import Session
from labelflow.robust.sets import Set
from labelflow.spec import known


@dataclass(frozen=True)
class Settings:
    """Of the suites, under the names that --help gives them."""

    natural: Annotated[NaturalSets, arg(name="natural")] = field(default_factory=NaturalSets)
    corrupting: Annotated[Corrupting, arg(name="corruption")] = field(default_factory=Corrupting)
    attacking: Annotated[Attacking, arg(name="attack")] = field(default_factory=Attacking)
    hiding: Annotated[Hiding, arg(name="occlusion")] = field(default_factory=Hiding)


class Suite(Protocol):
    """Whatever could be wrong with its settings and data is told when it is made, before any work is done."""

    @property
    def passes(self) -> int:
        """Forward passes of a picture, at most: what was asked before is not asked again."""
        ...

    def measure(self) -> Section: ...


class CleanImages:
    """Accuracy on the images as they are."""

    def __init__(self, session: Session, own: Set) -> None:
        self.session, self.own = session, own
        self.passes = session.passes(own)

    def measure(self) -> Section:
        (answers,) = self.session.ask(self.own, title="clean images")
        findings = [Finding("top-1", [found.top1[0] for found in answers])]
        if len(self.own.classes) > 5:
            findings.append(Finding("top-5", [found.top5[0] for found in answers]))
        counted, unread = int(answers[0].counts.sum()), int((~answers[0].counts).sum())
        notes = [f"{counted} images of {len(self.own.classes)} classes: {self.own.name}; {uncertainty(counted)}."]
        notes += [f"{unread} images could not be read and are left out everywhere."] * bool(unread)
        notes += [
            f"The answers of {model.name} are restricted to the classes of the data."
            for model in self.session.models
            if model.columns(self.own.classes) is not None
        ]
        return Section("clean", "Clean images", findings, notes=notes)


def _own(found: Set | None) -> Set:
    if found is None:
        raise ValueError("this suite needs images: --data FOLDER, or runs that were evaluated on the same images")
    return found


SUITES: dict[str, Callable[[Session, Set | None, Settings], Suite]] = {
    "clean": lambda session, own, settings: CleanImages(session, _own(own)),
    "natural": lambda session, own, settings: Natural(session, settings.natural),
    "corruptions": lambda session, own, settings: Corrupted(session, own, settings.corrupting),
    "occlusion": lambda session, own, settings: Occlusion(session, _own(own), settings.hiding),
    "salient": lambda session, own, settings: Salient(session, _own(own), settings.hiding.salient),
    "shuffle": lambda session, own, settings: Shuffling(session, _own(own)),
    "calibration": lambda session, own, settings: Calibration(session, _own(own)),
    "attack": lambda session, own, settings: Attacked(session, _own(own), settings.attacking),
}


def _asking_for(settings: Settings) -> dict[str, list[str]]:
    """The flags that were given and ask for a suite."""
    corrupting = settings.corrupting
    return {
        "natural": [flag(name) for name in NATURAL if getattr(settings.natural, name)],
        "corruptions": [flag(name) for name in ("imagenet_c", "frost", "corruptions") if getattr(corrupting, name)],
        "salient": ["--salient"] * bool(settings.hiding.salient),
    }


def choose_suites(text: str, own: Set | None, settings: Settings) -> list[str]:
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
