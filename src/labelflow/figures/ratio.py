"""The mixing ratio layer by layer: what tokens resemble, against what each method says (TL-Align, Figures 4 and 6).

Distances are root mean squares over pairs and layers; correlations are Pearson's over pairs, at the last layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor, nn

from labelflow.analysis.images import LabelledImage, pairs_of
from labelflow.analysis.ratio import LayerRatio, dense_ratio, evidence_ratio, layer_ratios, method_ratios
from labelflow.analysis.samples import draw_mix
from labelflow.classifier import Classifier, load
from labelflow.figures.base import COLOURS, PAGE, FigureRequest
from labelflow.mix import Mix
from labelflow.mixers import make_mixer

PAIRS, FEW = 64, 8  # pairs, and how many a correlation needs at least
HALF = "always 0.5"
LINES = {"CutMix": "#636363", "TransMix": COLOURS[1], "Token Labeling": COLOURS[2], "TL-Align": COLOURS[3]}


@dataclass(frozen=True)
class Data:
    name: str
    pairs: int
    annotator: str
    layers: list[str]
    area: float  # λ of the pair that is shown: the one whose label moves most
    similarity: list[float]  # of that pair, after each layer
    aligned: list[float]
    methods: dict[str, float]  # what each method would train it on
    distance: dict[str, float]  # of each method from the similarity-based ratio
    token_distance: dict[str, float]  # the same for the tokens with a place in the image
    correlation: dict[str, float | None]  # with the similarity-based ratio; None: too few pairs, or it never changes
    truth_distance: dict[str, float]  # from the part of the visible objects that is one's own; empty: nobody knows it
    truth_correlation: dict[str, float | None]


@dataclass(frozen=True)
class _Pair:
    """What was found for one pair."""

    mix: Mix
    layers: list[LayerRatio]
    methods: dict[str, float]
    truth: float | None


@torch.no_grad()
def compute(request: FigureRequest) -> Data:
    (classifier,) = request.load(limit=1)
    annotator = load(request.annotator) if request.annotator else None
    found = pairs_of(classifier, *request.images(PAIRS, of_each=2), request.evaluation_data(classifier))
    mixing, pairs = make_mixer(request.mixer), []
    for number, pair in enumerate(request.track(found, "pairs")):
        mix = draw_mix(classifier, pair, mixing, number, draws=1)  # whatever comes, as in training
        pairs.append(_of_pair(classifier, pair, mix, annotator))
    shown = max(pairs, key=lambda pair: abs(float(pair.layers[-1].aligned[0] - pair.mix.lam[0])))
    distance, tokens, correlation = _against_similarity(pairs)
    truth_distance, truth_correlation = _against_truth(pairs)
    return Data(
        classifier.label,
        len(pairs),
        annotator.label if annotator else f"{classifier.label} itself",
        [layer.name for layer in shown.layers],
        float(shown.mix.lam[0]),
        [float(layer.similarity[0]) for layer in shown.layers],
        [float(layer.aligned[0]) for layer in shown.layers],
        shown.methods,
        distance,
        tokens,
        correlation,
        truth_distance,
        truth_correlation,
    )


def _of_pair(
    classifier: Classifier, pair: tuple[LabelledImage, LabelledImage], mix: Mix, annotator: Classifier | None
) -> _Pair:
    images = torch.stack([one.image for one in pair])
    both = layer_ratios(classifier.model, images, mix)
    layers = [LayerRatio(layer.name, *(values[:1] for values in layer[1:])) for layer in both]
    ratios = method_ratios(classifier.model, images, mix)
    if annotator:
        ratios["Token Labeling"] = dense_ratio(annotator.model, seen_by(annotator, images, classifier), mix)
    return _Pair(mix, layers, {name: float(ratio[0]) for name, ratio in ratios.items()}, _truth(pair, mix))


def seen_by(annotator: Classifier, images: Tensor, classifier: Classifier) -> Tensor:
    """Images as one model sees them, (B, 3, H, W), as another one wants to see them."""
    (mean, std), (own_mean, own_std) = (
        (images.new_tensor(colours.mean).reshape(3, 1, 1), images.new_tensor(colours.std).reshape(3, 1, 1))
        for colours in (annotator.preprocessing, classifier.preprocessing)
    )
    size = (annotator.preprocessing.size, annotator.preprocessing.size)
    resized = nn.functional.interpolate(images * own_std + own_mean, size, mode="bicubic", antialias=True)
    return (resized - mean) / std


def _truth(pair: tuple[LabelledImage, LabelledImage], mix: Mix) -> float | None:
    """The own part of what is to be seen of both objects."""
    if not all(one.name in one.masks for one in pair):
        return None
    objects = torch.stack([one.masks[one.name] for one in pair]).float()  # (2, H, W)
    return float(evidence_ratio(objects, mix)[0])


def _against_similarity(pairs: list[_Pair]) -> tuple[dict[str, float], dict[str, float], dict[str, float | None]]:
    found = torch.stack([torch.cat([layer.similarity for layer in pair.layers]) for pair in pairs])  # (pairs, layers)
    aligned = torch.stack([torch.cat([layer.aligned for layer in pair.layers]) for pair in pairs])
    said = _said(pairs)
    per_layer = {name: values[:, None].expand_as(found) for name, values in said.items()} | {"TL-Align": aligned}
    distance = {name: _rms(values - found) for name, values in per_layer.items()}
    correlation = {name: _correlation(values[:, -1], found[:, -1]) for name, values in per_layer.items()}
    every = [(pair.mix, layer) for pair in pairs for layer in pair.layers]
    gaps = {
        "CutMix": [_area(mix, layer) - layer.similarity_tokens for mix, layer in every],
        "TL-Align": [layer.aligned_tokens - layer.similarity_tokens for _, layer in every],
        HALF: [0.5 - layer.similarity_tokens for _, layer in every],
    }
    tokens = {name: _rms(torch.cat([gap.flatten() for gap in parts])) for name, parts in gaps.items()}
    return distance, tokens, correlation


def _area(mix: Mix, layer: LayerRatio) -> Tensor:
    """The tokens' labels that CutMix believes in: (1, h, w)"""
    _, height, width = layer.similarity_tokens.shape
    return mix.tokens((height, width))[:1]


def _against_truth(pairs: list[_Pair]) -> tuple[dict[str, float], dict[str, float | None]]:
    known = [pair for pair in pairs if pair.truth is not None]
    if not known:
        return {}, {}
    truth = torch.tensor([pair.truth for pair in known])
    said = _said(known) | {"similarity": torch.cat([pair.layers[-1].similarity for pair in known])}
    return (
        {name: _rms(values - truth) for name, values in said.items()},
        {name: _correlation(values, truth) for name, values in said.items()},
    )


def _said(pairs: list[_Pair]) -> dict[str, Tensor]:
    """What each method trains on: (pairs,) each"""
    said = {name: torch.tensor([pair.methods[name] for pair in pairs]) for name in LINES}
    return said | {HALF: torch.full((len(pairs),), 0.5)}


def _rms(gaps: Tensor) -> float:
    return float(gaps.square().mean().sqrt())


def _correlation(one: Tensor, other: Tensor) -> float | None:
    """Pearson's, where there is enough to tell."""
    if len(one) < FEW or min(float(one.std()), float(other.std())) < 1e-7:
        return None
    return float(torch.corrcoef(torch.stack([one, other]))[0, 1])


def draw(data: Data) -> Figure:
    groups: list[tuple[str, Mapping[str, float | None]]] = [
        ("distance from similarity", data.distance),
        ("correlation with similarity", data.correlation),
    ]
    if data.truth_distance:
        groups += [
            ("distance from the visible objects", data.truth_distance),
            ("correlation with the visible objects", data.truth_correlation),
        ]
    rows = len(groups) // 2
    figure = Figure(figsize=(PAGE, 3.2 + 2.5 * rows), layout="constrained")
    parts: Any = figure.subfigures(2, 1, height_ratios=[3.2, 2.5 * rows])
    above, below = parts
    _draw_curve(above.subplots(), data)
    for panel, (title, said) in zip(below.subplots(rows, 2, squeeze=False).flat, groups, strict=True):
        _draw_bars(panel, title, {name: value for name, value in said.items() if value is not None})
    figure.suptitle(f"{data.name}, {data.pairs} pairs")
    return figure


def _draw_curve(panel: Axes, data: Data) -> None:
    """The pair that is shown, layer by layer."""
    places = range(1, 1 + len(data.layers))
    panel.plot(places, data.similarity, "k.-", label="similarity (Eq. 13)")
    panel.plot(places, data.aligned, ".-", color=LINES["TL-Align"], label="TL-Align")
    for (name, colour), dashes in zip(LINES.items(), ("--", "-.", ":"), strict=False):
        panel.axhline(data.methods[name], color=colour, ls=dashes, lw=2, label=name)
    panel.set_ylim(0, 1)
    panel.set_xlabel("layer")
    panel.set_ylabel("own share")
    panel.set_title(f"what the classifier reads: the pair whose label moves most, of {data.pairs}")
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def _draw_bars(panel: Axes, title: str, values: Mapping[str, float]) -> None:
    names = list(values)
    panel.barh(
        range(len(names)), [values[name] for name in names], color=[LINES.get(name, "#bdbdbd") for name in names]
    )
    for place, name in enumerate(names):
        panel.text(max(values[name], 0), place, f" {values[name]:.2f}", va="center")
    panel.set_yticks(range(len(names)), names)
    panel.invert_yaxis()
    panel.margins(x=0.25)
    panel.set_title(title)
    panel.grid(visible=False, axis="y")


def summary(data: Data) -> str:
    columns: dict[str, Mapping[str, float | None]] = {"distance": data.distance, "correlation": data.correlation}
    if data.truth_distance:
        columns |= {"truth: distance": data.truth_distance, "truth: correlation": data.truth_correlation}
    names = dict.fromkeys(name for values in columns.values() for name in values)
    lines = [f"{'':16}" + "".join(f"{column:>20}" for column in columns)]
    for name in names:
        cells = (_cell(values.get(name)) for values in columns.values())
        lines.append(f"{name:16}" + "".join(cells))
    return "\n".join(lines)


def _cell(value: float | None) -> str:
    return f"{'–':>20}" if value is None else f"{value:20.3f}"
