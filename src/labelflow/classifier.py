"""A classifier and how it sees images: the model of a run, or one of timm's.

Shapes: B images, C classes, H×W pixels.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import timm
import torch
from timm.data import ImageNetInfo, infer_imagenet_subset
from torch import Tensor, nn

from labelflow.data.folder import shorten
from labelflow.data.imagenet import title, wordnet_names
from labelflow.data.pictures import Images, Pictures, collate_pictures, list_images
from labelflow.data.preprocessing import Preprocessing
from labelflow.engine.run import CONFIG, Run
from labelflow.models.create import create, load_exactly, read_weights
from labelflow.models.tags import data_notice, exact_name
from labelflow.predictions import THRESHOLD, LabelPredictions, Prediction, Predictions, read_batches
from labelflow.spec import parse, split
from labelflow.tokens import check_image_size

RANDOM = " (random weights)"
OURS = ("merge_tokens",)  # arguments of a model that timm does not know; it makes the plain model of the same weights


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model, what its logits mean, and how it sees images.

    >>> classifier = load("test_vit", weights="random")
    >>> classifier.preprocessing.size, len(classifier.classes)
    (160, 1000)
    >>> from PIL import Image
    >>> classifier.probabilities([Image.new("RGB", (200, 300))]).shape
    torch.Size([1, 1000])
    """

    name: str  # of a run's folder, or of a timm model
    model: nn.Module = field(repr=False)  # in eval mode
    classes: tuple[str, ...]  # what the columns of its logits mean; empty: unknown
    preprocessing: Preprocessing
    architecture: str  # timm's name of the model, with arguments; with pretrained weights, with their tag
    weights: str  # pretrained, packaged, random, or a file's name and checksum
    folder: Path | None = None  # of a run
    multi_label: bool = False  # whether an image may show any number of its classes

    @property
    def trained(self) -> bool:
        return self.weights != "random"

    @property
    def label(self) -> str:
        """What a figure calls it."""
        return self.name if self.trained else f"{self.name}{RANDOM}"

    @property
    def data_notice(self) -> str:
        """A line about timm's weights that were trained on more than ImageNet-1k; empty for all others."""
        return data_notice(self.architecture) if self.weights == "pretrained" else ""

    @cached_property
    def key(self) -> str:
        """Changes with its architecture and its weights."""
        return hashlib.blake2b(f"{self.architecture} {weights_key(self.model)}".encode(), digest_size=16).hexdigest()

    def preprocess(self, images: Images) -> Tensor:
        """(B, 3, H, W), all at once"""
        pictures = self._pictures(images)
        batch = collate_pictures([pictures[index] for index in range(len(pictures))])
        if batch.problems:
            raise ValueError(f"cannot read {batch.problems[0]}")
        seen: Tensor = batch.seen
        return seen

    def _pictures(self, images: Images) -> Pictures:
        listed = list_images(images)
        if not listed:
            raise ValueError("there are no images: the list is empty")
        return Pictures(listed, self.preprocessing.transform())

    @torch.no_grad()
    def logits(self, images: Images) -> Tensor:
        """(B, C), on the device of the model"""
        parameter = next(self.model.parameters())
        logits: Tensor = self.model(self.preprocess(images).to(parameter.device, parameter.dtype))
        return logits

    def probabilities(self, images: Images) -> Tensor:
        """(B, C); each for itself where an image may show several classes, of sum 1 otherwise"""
        return self.as_probabilities(self.logits(images))

    def as_probabilities(self, logits: Tensor) -> Tensor:
        """(..., C)"""
        return logits.float().sigmoid() if self.multi_label else logits.float().softmax(-1)

    def predict(
        self,
        images: Images,
        top: int = 5,
        *,
        threshold: float = THRESHOLD,
        batch: int = 32,
        workers: int = 0,
        skip_unreadable: int = 0,
        quiet: bool = False,
    ) -> Predictions:
        """The likeliest classes of each image, with their probabilities; of a multi-label classifier, all classes whose
        probability is above a threshold, if any.

        images: a file, a folder (all images below it), a pattern such as "photos/**/*.jpg", a PIL image, a tensor that
        is preprocessed, (B, 3, H, W) or (3, H, W), or a list of any of these. batch: images at a time; workers:
        processes that read them. skip_unreadable: leave out up to so many unreadable images instead of stopping.
        """
        if top < 1:
            raise ValueError(f"top must be at least 1, not {top}")
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold, a probability, must lie in [0, 1], not {threshold}")
        found = LabelPredictions() if self.multi_label else Predictions()
        for read in read_batches(self._pictures(images), batch, workers, skip_unreadable, quiet):
            probabilities = self.probabilities(read.seen)
            classes = probabilities.shape[1]
            values, columns = probabilities.topk(classes if self.multi_label else min(top, classes))
            for file, best, chances in zip(read.names, columns.tolist(), values.tolist(), strict=True):
                pairs = zip(map(self.class_name, best), chances, strict=True)
                found.append(Prediction(file, [pair for pair in pairs if not self.multi_label or pair[1] > threshold]))
        return found

    def class_name(self, column: int) -> str:
        """What people call the class of a column of its logits; each class has a name of its own."""
        return self._titles[column] if self.classes else f"class {column}"

    @cached_property
    def _titles(self) -> list[str]:
        titles = list(map(title, self.classes))
        counts = Counter(titles)  # ImageNet has two cranes
        pairs = zip(titles, self.classes, strict=True)
        return [name if counts[name] == 1 else f"{name} ({own})" for name, own in pairs]

    def columns(self, classes: Sequence[str]) -> list[int] | None:
        """The columns of its logits that mean these classes; None: all of them, in their order."""
        own, wanted = wordnet_names(self.classes), wordnet_names(classes)
        if own == wanted:
            return None
        if not own:
            count = getattr(self.model, "num_classes", 0)
            raise ValueError(
                f"{self.name} has {count} classes, the data {len(wanted)}, and nothing says which are which"
            )
        places = {name: place for place, name in enumerate(own)}
        unknown = [name for name in wanted if name not in places]
        if unknown:
            raise ValueError(
                f"{len(unknown)} of the data's {len(wanted)} classes are unknown to {self.name}: {shorten(unknown)}; "
                f"it knows {len(own)}, such as {', '.join(own[:3])}"
            )
        return [places[name] for name in wanted]


def load(name: str | Path, weights: str = "", image_size: int = 0, classes: Sequence[str] = ()) -> Classifier:
    """The model of a run, "runs/quickstart", or one of timm's, "vit_tiny_patch16_224(img_size=64, depth=4)".

    weights: of a run best (the default), last, or a file; of a timm model pretrained (the default), packaged (from a
    package), random, or a checkpoint file. A model may name them itself: "resnet50=my.pth", "resnet50=random".
    It is on the CPU; `.model.cuda()` moves it, and what it is asked follows.
    image_size: 0 for what the weights were evaluated with. classes: those of the data, for a checkpoint that does not
    name its own.
    """
    if Path(name).is_dir():
        return _load_run(Path(name), weights or "best", image_size)
    model, *own = split(str(name), "=")
    if "/" in model.partition("(")[0] or Path(model).exists():
        raise ValueError(f"{model} is not a run: there is no such folder. Give a run's folder, or a model of timm's")
    chosen = "=".join(own) or weights or "pretrained"
    found = _load_timm(model, chosen, image_size, tuple(classes))
    return found if chosen == "random" else replace(found, name=str(name))


def _load_run(folder: Path, weights: str, image_size: int) -> Classifier:
    run = Run(folder)
    config = run.config()
    if "pretrained_cfg" not in config:
        raise ValueError(f"{folder} is not the run of a classifier: its {CONFIG} has no pretrained_cfg")
    file, arguments = run.weights(weights), config.get("model_args", {})
    if image_size and image_size != arguments.get("img_size", image_size):  # timm interpolates what depends on it
        cfg = {**config["pretrained_cfg"], "input_size": (3, image_size, image_size)}
        other = {**config, "pretrained_cfg": cfg, "model_args": {**arguments, "img_size": image_size}}
        model = build(other, str(file))
    else:
        model = load_exactly(build(config), file)
    if image_size:
        check_image_size(model.eval(), image_size, str(folder))
    is_run = run.has("recipe.json")  # or what was exported of one
    return Classifier(
        folder.resolve().name,
        model.eval(),
        tuple(config.get("label_names", ())),
        Preprocessing.of_cfg(config["pretrained_cfg"], image_size),
        run.read("recipe.json")["model"] if is_run else config["architecture"],
        fingerprint(file),
        folder if is_run else None,
        bool(config.get("multi_label", False)),
    )


def timm_config(
    model: nn.Module, name: str, arguments: dict[str, Any], classes: Sequence[str], preprocessing: Preprocessing
) -> dict[str, Any]:
    """The config.json from which `timm.create_model("local-dir:…")` makes a model again, with how it sees images and
    the names of its classes."""
    before: Any = model.pretrained_cfg
    ours = {key: arguments[key] for key in OURS if key in arguments}
    parts = {part: before[part] for part in ("fixed_input_size", "first_conv", "classifier") if part in before}
    return {
        "architecture": name,
        "num_classes": len(classes),
        "label_names": list(classes),
        "model_args": {key: value for key, value in arguments.items() if value is not None and key not in OURS},
        **ours,
        "pretrained_cfg": {**parts, **preprocessing.cfg, "num_classes": len(classes)},
    }


def build(config: dict[str, Any], weights: str = "") -> nn.Module:
    """The model that a run's config.json describes: with random weights, or with those of a file, fitted to it."""
    cfg = {**config["pretrained_cfg"], "label_names": config.get("label_names")}
    ours = {key: config[key] for key in OURS if key in config}
    return create(config["architecture"], weights, pretrained_cfg=cfg, **config.get("model_args", {}), **ours)


def _load_timm(text: str, weights: str, image_size: int, classes: tuple[str, ...]) -> Classifier:
    name, arguments = parse(text)
    cfg = timm.get_pretrained_cfg(name) if timm.is_model(name) else None
    if weights == "pretrained" and cfg is not None and not cfg.has_weights:
        raise ValueError(f"timm has no weights of {name}; give a checkpoint file, {name}=FILE, or {name}=random")
    if weights == "pretrained":
        text = exact_name(text)
        name = parse(text).name
    is_file = weights not in ("pretrained", "packaged", "random")
    if is_file:
        arguments = {"num_classes": _count_classes(weights, cfg), **arguments}
    default = (cfg.test_input_size or cfg.input_size)[1:] if cfg is not None else 224
    size = image_size or arguments.get("img_size") or default
    height, width = (size, size) if isinstance(size, int) else size
    if height != width or arguments.get("in_chans", 3) != 3:
        raise ValueError(f"{text} does not take square colour images, which are needed here")
    if cfg is not None and cfg.fixed_input_size and height != cfg.input_size[-1]:
        arguments = {**arguments, "img_size": height}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # random weights are the same each time
        model: Any = create(name, "" if weights == "random" else weights, **arguments)
    if image_size:
        check_image_size(model.eval(), image_size, text)
    preprocessing = Preprocessing.of_cfg(model.pretrained_cfg, height)
    names = _class_names(model)
    if is_file and model.num_classes == len(classes) and set(names) != set(classes):
        names = classes
    return Classifier(text, model.eval(), names, preprocessing, text, fingerprint(weights) if is_file else weights)


def _count_classes(file: str, cfg: Any) -> int:
    """How many classes the classifier in a checkpoint has."""
    names = (cfg.classifier if cfg else None) or ("head", "fc", "classifier")
    weights = read_weights(file)
    for name in (names,) if isinstance(names, str) else names:
        if f"{name}.weight" in weights:
            return len(weights[f"{name}.weight"])
    raise ValueError(f"{file} has no classifier")


def _class_names(model: Any) -> tuple[str, ...]:
    """ImageNet's, if a model has as many classes."""
    subset = infer_imagenet_subset(model) if model.num_classes else None
    return tuple(ImageNetInfo(subset).label_names()) if subset else ()


def fingerprint(file: Path | str) -> str:
    """A checkpoint's file name and checksum."""
    with open(file, "rb") as opened:
        return f"{Path(file).name} sha256:{hashlib.file_digest(opened, 'sha256').hexdigest()[:16]}"


def weights_key(model: nn.Module) -> str:
    """Of all parameters and buffers."""
    found = hashlib.blake2b(digest_size=16)
    for name, tensor in model.state_dict().items():
        found.update(f"{name} {tuple(tensor.shape)}".encode())
        found.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
