"""Pictures without what matters most in them, or with nothing but that: what is left of a model's accuracy.

Naseer et al. (2021), "Intriguing Properties of Vision Transformers". There, attention of a DINO tells what matters;
here, attention rollout through the model that `--salient` names, the same for all models that are asked.

Shapes: B batch, n = h×w cells, the saliency model's patches, S×S pixels, L levels.
"""

import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from labelflow.analysis.relevance import relevance
from labelflow.classifier import load, weights_key
from labelflow.robust.models import FromPixels
from labelflow.robust.pictures import CLEAN, LateChange
from labelflow.robust.results import Chart, Finding, Section, Strip
from labelflow.robust.session import Session
from labelflow.robust.sets import Set, digest

TENTHS = torch.arange(1, 11) / 10  # parts of all relevance, (10,)


def foreground(maps: Tensor, parts: Tensor) -> Tensor:
    """The fewest cells that hold a part of a map's relevance: maps (B, n), parts (P,) -> (B, P, n) bool

    >>> foreground(torch.tensor([[0.1, 0.6, 0.3]]), torch.tensor([0.5, 0.7, 1.0]))
    tensor([[[False,  True, False],
             [False,  True,  True],
             [ True,  True,  True]]])
    """
    ordered, order = maps.double().sort(dim=1)
    up_to = ordered.cumsum(1)  # (B, n), from the least relevant on
    inside = up_to[:, None] > (1 - parts.to(up_to)[:, None]) * up_to[:, None, -1:]  # (B, P, n)
    places = order[:, None].expand_as(inside)
    return torch.zeros_like(inside).scatter(2, places, inside)


class SalientCells(LateChange):
    """Levels 0 to 9: the cells that hold 1 to 10 tenths of the relevance are black; 10 to 18: all but 1 to 9 tenths."""

    levels = 2 * len(TENTHS) - 1  # all but all of it is the clean picture

    def __init__(self, model: FromPixels, size: int) -> None:
        """model: a ViT, which sees size×size pixels."""
        self.model, self.size = model, size
        self.key = digest("salient", str(size), weights_key(model))

    def spread(self, pictures: Tensor) -> Tensor:
        maps = self.relevance(pictures)
        front = foreground(maps.flatten(1), TENTHS)  # (B, 10, n)
        hidden = torch.cat([front, ~front[:, :-1]], 1).unflatten(2, maps.shape[1:])  # (B, L, h, w)
        pairs = zip(pictures.shape[2:], maps.shape[1:], strict=True)
        rows, columns = (torch.arange(side, device=maps.device) * cells // side for side, cells in pairs)
        cells = hidden[:, :, rows][:, :, :, columns]  # (B, L, S, S)
        return (pictures[:, None] * ~cells[:, :, None]).flatten(0, 1)

    def relevance(self, pictures: Tensor) -> Tensor:
        """(B, h, w): what reaches the classifier from each cell"""
        seen = F.interpolate(pictures, (self.size, self.size), mode="bilinear", antialias=True)
        any_class = torch.zeros(len(seen), dtype=torch.long, device=seen.device)  # rollout is the same for all
        return relevance(self.model.model, self.model.normalised(seen), any_class, method="rollout")


def load_salient(name: str, device: torch.device) -> SalientCells:
    """Of a run, or of one of timm's ViTs, which may name its weights; a ValueError if it is no ViT."""
    classifier = load(name)
    model, own = classifier.model, classifier.preprocessing
    if isinstance(model, VisionTransformer) and not model.num_classes:
        model.reset_classifier(1)  # DINO's have none; rollout asks where it would be
    cells = SalientCells(FromPixels(model, own.mean, own.std).eval().to(device), own.size)
    cells.relevance(torch.zeros(1, 3, cells.size, cells.size, device=device))  # tells if it can't be read
    return cells


class Salient:
    """Accuracy over the part of the relevance that is hidden, or alone is left."""

    def __init__(self, session: Session, own: Set, model: str) -> None:
        if not model:
            raise ValueError("this suite needs a ViT that tells what matters: --salient RUN|MODEL")
        self.session, self.own, self.name = session, own, model
        self.change = load_salient(model, session.device)
        self.passes = session.passes(own, [CLEAN, self.change])

    def measure(self) -> Section:
        clean, changed = self.session.ask(self.own, [CLEAN, self.change], "salient cells")
        count, tenths, names = len(TENTHS), TENTHS.tolist(), [model.name for model in self.session.models]
        pairs = list(zip(clean, changed, strict=True))
        top1 = {  # [model][tenth]
            "the salient cells hidden": [found.top1[:count] for _, found in pairs],
            "only the salient cells left": [found.top1[count:] + own.top1 for own, found in pairs],
        }
        findings = [
            Finding(f"top-1, {title}, half of the relevance", [own[count // 2 - 1] for own in values])
            for title, values in top1.items()
        ]
        charts = [
            Chart(
                f"Top-1 accuracy, %, {title}",
                "part of the relevance in these cells",
                {name: list(zip(tenths, own, strict=True)) for name, own in zip(names, values, strict=True)},
            )
            for title, values in top1.items()
        ]
        note = f"What is salient is told by attention rollout through {self.name}, of each picture, for all models."
        return Section("salient", "Salient cells", findings, charts, notes=[note], strips=self._strips(list(top1)))

    def _strips(self, titles: list[str]) -> list[Strip]:
        seen = self.session.example(self.own, [self.change, CLEAN])
        if not seen:
            return []
        pictures, count = [one for levels in seen for one in levels], len(TENTHS)
        captions = [f"{part:.0%}" for part in TENTHS.tolist()]
        halves = (pictures[:count], pictures[count:])
        return [
            Strip(f"An image, {title}", dict(zip(captions, half, strict=True)))
            for title, half in zip(titles, halves, strict=True)
        ]
