"""The mixing ratio, layer by layer: what tokens resemble, and what labels say (TL-Align, Eq. 13, Figures 4 and 6).

Shapes: B batch, N tokens, M tokens of another image, D width, H×W pixels, h×w a grid, P tokens without a place in it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from labelflow.adapters.registry import MODELS, known_model
from labelflow.align import Aligned
from labelflow.follow import Layer
from labelflow.labels.annotation import place_logits
from labelflow.mix import Mix
from labelflow.models.merging import require_all_tokens
from labelflow.targets import TransMix
from labelflow.tokens import sequence


class LayerRatio(NamedTuple):
    """The own share after one layer: as the tokens resemble the two images, and as labels flow."""

    name: str  # of the block in the model, such as "blocks.3"
    similarity: Tensor  # (B,): of what the classifier would read
    aligned: Tensor  # (B,)
    similarity_tokens: Tensor  # (B, h, w): of each token with a place in the image
    aligned_tokens: Tensor  # (B, h, w)


@torch.no_grad()
def layer_ratios(model: nn.Module, images: Tensor, mix: Mix) -> list[LayerRatio]:
    """Two passes, of the images (B, 3, H, W) and of their mix, and the own share after every layer that puts out all
    tokens (CaiT's last two put out the class token alone).

    >>> import timm, labelflow as lf
    >>> model, images = timm.create_model("deit_tiny_patch16_224").eval(), torch.rand(2, 3, 224, 224)
    >>> [layer.name for layer in layer_ratios(model, images, lf.CutMix()(images))][:2]
    ['blocks.0', 'blocks.1']
    """
    require_all_tokens(model, "ratios layer by layer need")
    aligned = Aligned(model)
    whole = torch.ones_like(mix.share)
    with _tokens_of(aligned) as clean:
        aligned.trace(images, whole)
    with _tokens_of(aligned) as mixed:
        trace = aligned.trace(mix.apply(images), mix.share)
    layers = []
    for layer in trace:
        before, after = (_sequence(tokens.get(layer.name), layer) for tokens in (clean, mixed))
        if before is None or after is None:
            continue
        ratio = similarity_ratio(after, before, before[mix.partner])  # (B, N)
        prefix = ratio.shape[1] - layer.grid[0] * layer.grid[1]
        layers.append(
            LayerRatio(
                layer.name,
                similarity=read_by_classifier(model, ratio, prefix),
                aligned=read_by_classifier(model, layer.share, prefix),
                similarity_tokens=ratio[:, prefix:].unflatten(1, layer.grid),
                aligned_tokens=layer.map,
            )
        )
    if not layers:
        raise ValueError(f"no block of {type(model).__name__} puts out one token for each of its labels")
    return layers


def similarity_ratio(mixed: Tensor, own: Tensor, partner: Tensor) -> Tensor:
    """Eq. 13, and its softmax: (B, N, D), (B, M, D), (B, M, D) -> the own share of each token, (B, N)"""
    mixed, own, partner = (nn.functional.normalize(tokens.float(), dim=-1) for tokens in (mixed, own, partner))
    nearest = [(mixed @ tokens.mT).amax(2) for tokens in (own, partner)]
    return torch.stack(nearest, -1).softmax(-1)[..., 0]


@torch.no_grad()
def method_ratios(model: nn.Module, images: Tensor, mix: Mix) -> dict[str, Tensor]:
    """The own share in the target that each method gives the images (B, 3, H, W): (B,) each.

    For Token Labeling the model is its own annotator; `dense_ratio` asks another one.
    """
    mixed, trans = mix.apply(images), TransMix()
    seen = trans.student(model)(mixed, mix).flow
    assert seen is not None
    return {
        "CutMix": mix.lam,
        "TransMix": trans.share(seen, mix),
        "Token Labeling": dense_ratio(model, images, mix),
        "TL-Align": Aligned(model)(mixed, mix.share)[1],
    }


def dense_ratio(annotator: nn.Module, images: Tensor, mix: Mix) -> Tensor:
    """By the label maps of both images, how much of what speaks for their classes the own one brings along: (B,)

    images (B, 3, H, W): the unmixed ones, as the annotator wants to see them; their classes are what it takes them for.
    """
    logits, grid = place_logits(annotator, images)  # (B, h·w, C)
    scores = logits.float().softmax(-1)
    classes = scores.mean(1).argmax(-1)  # (B,)
    evidence = scores[torch.arange(len(scores)), :, classes].unflatten(1, grid)  # (B, h, w)
    return evidence_ratio(evidence, mix)


def evidence_ratio(evidence: Tensor, mix: Mix) -> Tensor:
    """The own part of the evidence that is still to be seen: (B, h, w), for each image's own class -> (B,)

    Where nothing is to be seen of either, it is λ.
    """
    grid = (evidence.shape[1], evidence.shape[2])
    own, pasted = (moved.squeeze(-1) for moved in mix.move(evidence.flatten(1).unsqueeze(-1), grid))
    share = mix.tokens(grid).flatten(1)  # (B, h·w)
    own, pasted = (share * own).sum(1), ((1 - share) * pasted).sum(1)
    return torch.where(own + pasted > 0, own / (own + pasted).clamp_min(1e-12), mix.lam)


def read_by_classifier(model: nn.Module, share: Tensor, prefix: int) -> Tensor:
    """What the classifier would read of the tokens' shares (B, P + h·w), were this the last layer: (B,)"""
    adapter = MODELS[known_model(model)]
    to_come = getattr(model, "attn_pool", None) is not None or prefix < adapter.head_tokens(model)
    if to_come or not prefix:  # what pools them, or a class token, comes later; or their mean is read
        return share.mean(1)
    return adapter.heads(model, torch.stack([share, 1 - share], -1))[..., 0].mean(1)


def _sequence(tokens: Tensor | None, layer: Layer) -> Tensor | None:
    """A block's output as (B, N, D), if it is one token for each label."""
    if tokens is not None and tokens.ndim == 4:
        tokens = sequence(tokens, channels_first=tokens.shape[1:3] != layer.grid)
    return tokens if tokens is not None and tokens.shape[:2] == layer.share.shape else None


@contextmanager
def _tokens_of(aligned: Aligned) -> Iterator[dict[str, Tensor]]:
    """The tokens (B, N, D) that every block puts out in a pass inside, under the names that its labels have."""
    found: dict[str, Tensor] = {}
    steps = aligned.follower.steps

    def keep(name: str, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        tokens = output[0] if isinstance(output, tuple) else output
        if isinstance(tokens, Tensor):
            found[name] = tokens

    handles = [aligned.model.get_submodule(name).register_forward_hook(partial(keep, name)) for name in steps]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
