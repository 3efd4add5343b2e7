"""A classifier for programs without labelflow, compared with torch before it is kept."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Any

import torch
from huggingface_hub.utils import validate_repo_id
from timm.models._hub import generate_readme
from torch import Tensor

from labelflow.analysis.images import images_of
from labelflow.classifier import Classifier, load
from labelflow.files import atomic_folder
from labelflow.formats import FORMATS
from labelflow.formats.card import model_card
from labelflow.formats.timm_folder import push
from labelflow.models.create import first_line
from labelflow.spec import known

COUNT = 24  # images that are compared
TOLERANCE = 1e-3  # of the range of the logits


@dataclass(frozen=True)
class Exported:
    """What was written, and how it compares with the model in torch."""

    path: Path  # what is opened
    images: str  # that were compared
    agreement: float  # part of them with the same likeliest class
    difference: float  # the largest, between two logits
    hub: str = ""  # where it was pushed to, or how to do it

    def __str__(self) -> str:
        how = f"{100 * self.agreement:.4g} % of predictions agree, logits differ by at most {self.difference:.1g}"
        return "\n".join(filter(None, [str(self.path), f"compared with torch on {self.images}: {how}", self.hub]))


def export(
    model: Classifier | Path | str,
    format: str = "timm",
    out: Path | str | None = None,
    weights: str = "",
    repo: str = "",
) -> Exported:
    """Write a run's model, or one of timm's, for programs without labelflow: `export("runs/photos", "onnx")`.

    format: timm (a folder for `timm.create_model("local-dir:…", pretrained=True)`), onnx, or torch (`torch.export`);
    onnx and torch hold their preprocessing and the names of their classes, and take any number of images. out: a new
    folder; RUN/FORMAT by default. repo: also push it to the Hugging Face Hub, as timm does. What was written is
    opened again and compared with torch; what disagrees is not kept.
    """
    if weights and isinstance(model, Classifier):
        raise ValueError(f"{model.name} is loaded already; choose its weights in labelflow.load, not here")
    way = FORMATS[known(format, FORMATS, "format")]
    _check_packages(format, way.PACKAGES)
    if repo and format != "timm":
        raise ValueError(f"the Hub gets timm's format, not {format}: leave out the format, or the repo")
    _check_repo(repo)
    folder = _new_folder(model.folder if isinstance(model, Classifier) else Path(model), format, out)
    classifier = _own_copy(model if isinstance(model, Classifier) else load(model, weights))
    card = model_card(classifier, way.USAGE, format, repo)
    with atomic_folder(folder) as draft:
        result = _write(format, classifier, draft, folder)
        title = repo.rpartition("/")[2] or classifier.name
        (draft / "README.md").write_text(generate_readme(card, title), encoding="utf-8")
    result = replace(result, path=folder / way.FILE)
    return replace(result, hub=_push(classifier, repo, card, folder)) if repo else result


def _write(format: str, classifier: Classifier, draft: Path, folder: Path) -> Exported:
    """Write it, open it again, and compare it. folder: what the draft will be."""
    way = FORMATS[format]
    what, images = _images(classifier)
    try:
        way.write(classifier, draft)
        found = _logits(way.read(draft), images)
    except Exception as error:  # whatever goes wrong in an exporter
        raise ValueError(f"{classifier.name} cannot be exported to {folder} as {format}: {first_line(error)}") from None
    expected = _logits(classifier.model, images)
    agreement = float((found.argmax(1) == expected.argmax(1)).float().mean())
    result = Exported(draft, f"{len(images)} {what}", agreement, float((found - expected).abs().max()))
    if result.difference > TOLERANCE * float(expected.max() - expected.min()):
        raise ValueError(
            f"the exported {format} model disagrees with {classifier.name} and was discarded: on {result.images}, "
            f"logits differ by up to {result.difference:.1g}, and {100 * agreement:.0f} % of predictions agree"
        )
    return result


@torch.no_grad()
def _logits(model: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """(B, C), of several batches: one of a single image, and more"""
    return torch.cat([model(batch) for batch in (images[:1], *images[1:].split(9))])


def _images(classifier: Classifier) -> tuple[str, Tensor]:
    """What they are, and the images (B, 3, H, W): some that the run is evaluated on, or of the sample world."""
    try:
        what, found = "evaluation images", images_of(classifier, COUNT) if classifier.folder else []
    except (ValueError, OSError):  # the data is not there any more
        found = []
    if not found:
        what, found = "sample images", images_of(replace(classifier, folder=None), COUNT)
    return what, torch.stack([one.image for one in found])


def _own_copy(classifier: Classifier) -> Classifier:
    """On the CPU, and without a second list of its classes."""
    model: Any = copy.deepcopy(classifier.model).cpu().float().eval()
    model.pretrained_cfg.pop("label_names", None)
    return replace(classifier, model=model)


def _new_folder(run: Path | None, format: str, out: Path | str | None) -> Path:
    if out is None and not (run and run.is_dir()):
        raise ValueError(f"{run or 'this model'} is not the folder of a run: say where to write, with --out FOLDER")
    folder = Path(out or run / format)  # type: ignore[operator]
    if folder.exists():
        raise ValueError(f"{folder} already exists; choose another --out")
    return folder


def _check_packages(format: str, packages: tuple[str, ...]) -> None:
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise ValueError(f"the format {format} needs {', '.join(missing)}: pip install {' '.join(missing)}")


def _check_repo(repo: str) -> None:
    try:
        if repo:
            validate_repo_id(repo)
    except ValueError:
        raise ValueError(f"{repo!r} is not the name of a repo on the Hub, such as me/photos") from None


def _push(classifier: Classifier, repo: str, card: dict[str, Any], folder: Path) -> str:
    try:
        return f"pushed to {push(classifier, repo, card)}"
    except Exception as error:  # whatever goes wrong between here and the Hub
        how = f"when you are online and logged in (hf auth login): hf upload {repo} {quote(str(folder))}"
        return f"not pushed: {first_line(error)}\n{how}"
