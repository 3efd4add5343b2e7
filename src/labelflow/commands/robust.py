"""`labelflow robust`: how robust models are, side by side."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import OmitArgPrefixes, Positional, arg

from labelflow.arguments import flag
from labelflow.data.settings import Data
from labelflow.robust.settings import Settings
from labelflow.robust.suites import SUITES, choose_suites

if TYPE_CHECKING:
    import torch

    from labelflow.classifier import Classifier
    from labelflow.robust.results import Section
    from labelflow.robust.session import Session
    from labelflow.robust.sets import Set


WHICH = "Which suites, such as corruptions,attack"


@dataclass(frozen=True)
class Robust:
    """What is asked, of which models."""

    models: Annotated[Positional[tuple[str, ...]], arg(metavar="RUN|MODEL …")]
    """Folders of runs, and timm models, which may name their weights: resnet50, resnet50=packaged, resnet50=my.pth."""
    suite: Annotated[str, arg(help=f"{WHICH}: {', '.join(SUITES)}; '' is all for which there are images.")] = ""
    data: str = ""
    """Images to ask about: a folder (val/CLASS/…, CLASS/…, or labels.csv), or world, torch/NAME, hfds/NAME; '' is what
    the runs were evaluated on."""
    out: Path = Path("robust")
    """Where the results are written. What models said is kept there, too, and not asked again."""
    weights: str = ""
    """Of timm models: pretrained (the default), packaged (from a package), or a checkpoint file; of runs: best (the
    default), last, or a file."""
    image_size: int = 0
    """Another image size for all models, if they take it."""
    samples: int = 0
    """Ask about so many images of each set, drawn with --seed; 0: all."""
    seed: int = 0
    """Draws corruptions, what is hidden, attacks and samples."""
    batch: int = 0
    """Pictures that pass through a model at once; 0: 64, or as few as are fastest on a CPU."""
    workers: int = -1
    """Processes that read images; -1: as many as there are cores for them, at most 8."""
    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision; attacks compute in full precision."""
    skip_unreadable: int = 0
    """How many images that cannot be read are left out, and told, before it stops."""
    root: str = ""
    """Where torchvision and Hugging Face keep their files; '' is data, or what the runs had."""
    as_json: bool = False
    """Print JSON, for programs."""
    settings: Annotated[Settings, OmitArgPrefixes, arg(name="")] = field(default_factory=Settings)

    def __post_init__(self) -> None:
        for name, least in (("samples", 0), ("batch", 0), ("image_size", 0), ("seed", 0), ("workers", -1)):
            if getattr(self, name) < least:
                raise ValueError(f"{flag(name)} must be at least {least}, not {getattr(self, name)}")


def robust(options: Annotated[Robust, OmitArgPrefixes, arg(name="")]) -> None:
    """How robust models are: natural shifts, corruptions, attacks, occlusion, calibration; side by side.

    Args:
        options: Which models, which images, which suites.
    """
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError("labelflow robust runs in one process; start it without torchrun or accelerate launch")
    import torch

    from labelflow.robust.session import Session

    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    device = device or torch.device("cpu")
    models, own = _open(options, device)
    session = Session(
        models,
        options.out / "answers",
        device,
        seed=options.seed,
        samples=options.samples,
        batch=options.batch,
        workers=options.workers,
        precision=options.precision,
        skip_unreadable=options.skip_unreadable,
        quiet=options.as_json,
    )
    own = own and session.pick(own)
    names = choose_suites(options.suite, own, options.settings)
    suites = [SUITES[name](session, own, options.settings) for name in names]  # what is wrong is told now
    try:
        session.folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"nothing can be written to --out {options.out}: {error.strerror}") from None
    if not options.as_json:
        costs = ", ".join(f"{name} {suite.passes:,}" for name, suite in zip(names, suites, strict=True))
        print(f"forward passes, at most: {costs}. What is kept in {session.folder} is not asked again.")
    sections: list[Section] = []
    try:
        for suite in suites:
            sections.append(suite.measure())
            _write(options, models, sections)  # attacks may take hours: the others are there to look at
    except KeyboardInterrupt:
        page = f"; {options.out / 'robust.html'} has {', '.join(names[: len(sections)])}" if sections else ""
        told = f"labelflow: interrupted{page}. What was answered is kept, and the same command goes on"
        print(told, file=sys.stderr)
        raise SystemExit(130) from None
    _tell(options, session, sections)


def _open(options: Robust, device: "torch.device") -> "tuple[list[Classifier], Set | None]":
    """The models, and the images that they are asked about."""
    from labelflow.classifier import wordnet_names
    from labelflow.robust.models import load_models, own_data
    from labelflow.robust.sets import all_images, open_own

    folder = Path(options.data)
    classes: tuple[str, ...] = ()  # of the data, where it can tell without a model
    if options.data and folder.is_dir() and not (folder / "labels.csv").exists():
        classes = tuple(all_images(folder).classes)
    models = load_models(
        options.models,
        device,
        weights=options.weights,
        image_size=options.image_size,
        classes=classes,
    )
    data = own_data(models)
    if options.suite.strip() == "natural" or not (options.data or data):
        return models, None
    asked = data or Data()
    if options.data:
        asked = replace(asked, source=options.data, root=options.root or asked.root)
    is_own = data is not None and _same(asked.source, data.source)
    asked = replace(asked, image_size=max(model.preprocessing.size for model in models))
    own = open_own(asked, is_own, wordnet_names(models[0].classes))
    for model in models:
        model.columns(own.classes)  # tells which it doesn't know
    return models, own


def _same(one: str, other: str) -> bool:
    """Two names of the same data: a path may be written in several ways."""
    return one == other or (Path(one).is_dir() and Path(one).resolve() == Path(other).resolve())


def _found(options: Robust, models: "Sequence[Classifier]", sections: "Sequence[Section]") -> dict[str, Any]:
    from labelflow.robust.page import as_json

    settings = {key: str(value) if isinstance(value, Path) else value for key, value in asdict(options).items()}
    return as_json(models, sections, {"settings": settings})


def _write(options: Robust, models: "Sequence[Classifier]", sections: "Sequence[Section]") -> None:
    from labelflow.robust.page import write_json, write_page, write_svg

    write_json(options.out / "robust.json", _found(options, models, sections))
    facts = [
        f"{model.name}: {model.architecture} at {model.preprocessing.size} px, {model.weights}" for model in models
    ]
    write_page(options.out / "robust.html", models, sections, facts)
    charts = [chart for section in sections for chart in section.charts]
    if charts:
        write_svg(options.out / "robust.svg", [model.name for model in models], charts)


def _tell(options: Robust, session: "Session", sections: "list[Section]") -> None:
    from labelflow.robust.page import show

    if options.as_json:
        print(json.dumps(_found(options, session.models, sections)))
        return
    show(session.models, sections)
    attacked = f", and {session.attacked:,} forward passes of attacks" if session.attacked else ""
    kept = f"; the answers to {session.recalled:,} were there" if session.recalled else ""
    print(f"\n{session.asked:,} pictures were asked about{attacked}{kept}. All answers are kept in {session.folder}")
    print(f"  look at it     {options.out / 'robust.html'}")
