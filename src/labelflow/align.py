"""A model and its labels, side by side: `Aligned`, and the `Student` that a target sees.

Both leave the model alone: its weights, its `state_dict`, its logits and its cost at inference are its own. Both may be
called in several threads at once, and so may their model. Their hooks on the model are removed when they are deleted.

Shapes: B batch, C classes, H×W pixels, N tokens, K sources.
"""

import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Generic, NamedTuple, Self, TypeVar

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from torch import Tensor, nn

from labelflow.flow import Labels
from labelflow.follow import Flow, Follower, InitialLabels, Layer
from labelflow.mix import Mix
from labelflow.token_mixer import TokenMixer
from labelflow.tokens import final_places, has_token_head

Value = TypeVar("Value")
_SWITCHING = threading.RLock()  # held while a model is in eval mode for a moment


class Output(NamedTuple):
    """What a target sees of one forward pass."""

    logits: Any  # as the model returns them; of the class token alone where an LV-ViT gives token logits
    tokens: Tensor | None = None  # (B, N, C): logits of each patch token, where they were needed
    flow: Flow | None = None  # where it was needed
    distilled: Tensor | None = None  # (B, C): logits of the distillation token, where it has a part of its own
    features: Tensor | None = None  # (B, D): what the classifier sees, pooled, where it was needed


class Aligned(nn.Module):
    """A model whose labels follow its tokens: `aligned(images, share) -> (logits, share)`.

    share (B, 1, H, W) says how much of each pixel is one's own; the share that comes back, (B,), is what reached the
    classifier, or the mean over classifiers where a model has two. Attach before compiling, sharding or wrapping.

    layers: the blocks that move labels, counted from 0 (negative: from the end); the others are the identity.
    residual: False turns Y ← Norm(Y + A·Y) into Y ← A·Y. Both are for ablations (TL-Align, Table 8).

    >>> import timm, labelflow as lf
    >>> model = timm.create_model("deit_tiny_patch16_224", num_classes=10)
    >>> aligned, cutmix = lf.Aligned(model), lf.CutMix(alpha=1.0)
    >>> images, classes = torch.rand(4, 3, 224, 224), torch.tensor([3, 1, 4, 1])
    >>> mix = cutmix(images)
    >>> logits, share = aligned(mix.apply(images), mix.share)
    >>> target = mix.blend(lf.soft_labels(classes, 10, smoothing=0.1), share)
    >>> loss = nn.functional.cross_entropy(logits, target)
    """

    def __init__(self, model: nn.Module, layers: Iterable[int] | None = None, residual: bool = True) -> None:
        super().__init__()
        if isinstance(model, Aligned):
            raise ValueError("this model is aligned already")
        self.model = model
        self.follower = Follower(model, layers, residual)

    def __call__(self, images: Tensor, share: Tensor) -> tuple[Any, Tensor]:
        return super().__call__(images, _Uncast(share))

    def forward(self, images: Tensor, share: "Tensor | _Uncast[Tensor]") -> tuple[Any, Tensor]:
        logits, flow = self.follower.run(self.model, images, _unwrap(share))
        return logits, flow.heads[..., 0].mean(1)

    @torch.no_grad()
    def trace(self, images: Tensor, share: Tensor) -> list[Layer]:
        """The own share of every token after every block, for looking at."""
        layers: list[Layer] = []

        def leave(name: str, labels: Labels) -> None:
            placed = torch.cat([labels.prefix, labels.map.flatten(1, 2)], 1)  # row by row, also where tokens are not
            layers.append(Layer(name, placed[..., 0], labels.grid))

        self.follower.run(self.model, images, share, tokens=True, leave=leave)
        return layers


class Student(nn.Module):
    """A model as a target sees it: `student(images, mix) -> Output`. Only what `needs` names is computed:

    "tokens": logits of every patch token. An LV-ViT has a head for them; any other model gets one here, which is
    trained beside it and is no part of it: `student.model` is what is evaluated and saved.
    "flow": the labels (own, partner) that reach each classifier; "flow_tokens": those of the patch tokens, too.
    "cells": the same with the cells of the final grid as sources, so that any labels of these cells can flow.
    "distillation": logits of the distillation token apart from the class token's, in models that have one (timm's with
    `set_distilled_training`); labels then flow to the class token alone. Evaluation is timm's: the mean of both.
    "features": what the classifier sees of an image; `project` makes them as wide as a teacher's.

    A mix of tokens (`mix.at == "tokens"`) is done here, right after the patch embedding. Without a mix only the model
    runs: `student(images)` is what is evaluated, through whatever the student is wrapped in.

    layers, residual: see `Aligned`. For TransMix: label_prefix=False gives tokens without a place in the image no
    label, first_pixel=True gives a token the label of its first pixel instead of its area's.
    """

    NEEDS = frozenset({"tokens", "flow", "flow_tokens", "cells", "distillation", "features"})

    def __init__(
        self,
        model: nn.Module,
        needs: Collection[str] = (),
        layers: Iterable[int] | None = None,
        residual: bool = True,
        label_prefix: bool = True,
        first_pixel: bool = False,
    ) -> None:
        super().__init__()
        unknown = set(needs) - self.NEEDS
        if unknown:
            raise ValueError(f"a student cannot give {sorted(unknown)}; it knows {sorted(self.NEEDS)}")
        self.model = model
        self.needs = frozenset(needs)
        self.first_pixel = first_pixel
        follows = bool(self.needs & {"flow", "flow_tokens", "cells"})
        self.follower = Follower(model, layers, residual, label_prefix) if follows else None
        self.token_head = _token_head(model) if "tokens" in self.needs and not has_token_head(model) else None
        self.projection: nn.Linear | None = None
        self.token_mixer = TokenMixer(model)
        self.grids: dict[tuple[int, int], tuple[int, int]] = {}
        self.add(*self.needs & {"distillation", "features"})

    def add(self, *needs: str) -> Self:
        """Give "distillation" or "features", too: for a target that adds to another one's."""
        self.needs |= set(needs)
        if "distillation" in needs and hasattr(self.model, "set_distilled_training"):
            self.model.set_distilled_training(True)  # type: ignore[operator]
        if "features" in needs:
            _check_head(self.model, "features")
        return self

    def project(self, width: int) -> None:
        """Make features so wide, with a linear layer where they are not. Like a token head, it is trained beside the
        model and is no part of it."""
        own = head_width(self.model)
        self.projection = nn.Linear(own, width) if own != width else None

    def __call__(self, images: Tensor, mix: Mix | None = None) -> Output:
        if "cells" in self.needs and mix is not None:
            self.token_grid((images.shape[2], images.shape[3]))  # known before `forward`, which may be compiled
        return super().__call__(images, _Uncast(mix))

    def forward(self, images: Tensor, mix: "Mix | _Uncast[Mix | None] | None" = None) -> Output:
        mix = _unwrap(mix)
        if mix is not None and not isinstance(mix, Mix):
            raise ValueError(f"a student takes a Mix, what a mixer returns, not a {type(mix).__name__}")
        if mix is None:
            return self._heads(self.model(images))
        initial_labels = self._initial_labels(images, mix)
        with self.token_mixer.mixing(mix) if mix.at == "tokens" else nullcontext():
            return self._forward_mixed(images, mix, initial_labels)

    def token_grid(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """The grid (h, w) of the tokens that the model ends with, for images of H×W pixels."""
        if image_size not in self.grids:
            if not hasattr(self.model, "forward_features"):
                raise ValueError(f"{type(self.model).__name__} does not say where its tokens lie; a timm model does")
            image = next(self.model.parameters()).new_zeros(1, getattr(self.model, "in_chans", 3), *image_size)
            with evaluating(self.model), torch.no_grad():
                features = self.model.forward_features(image)  # type: ignore[operator]
            self.grids[image_size] = final_places(self.model, features, *image_size).grid
        return self.grids[image_size]

    def no_weight_decay(self) -> set[str]:
        """The model's own list, under the names that parameters have here."""
        own = getattr(self.model, "no_weight_decay", set)
        return {f"model.{name}" for name in own()}

    def _forward_mixed(self, images: Tensor, mix: Mix, initial_labels: InitialLabels | None) -> Output:
        if self.follower is None:
            return self._forward_model(images)
        tokens = bool(self.needs & {"flow_tokens", "cells"})
        output, flow = self.follower.run(
            self.model, images, mix.share, tokens, initial_labels, call=self._forward_model
        )
        if output.distilled is not None:
            flow = flow._replace(heads=flow.heads[:, :1])  # the distillation token learns from no label
        return output._replace(flow=flow)

    def _forward_model(self, images: Tensor) -> Output:
        if not self.needs & {"tokens", "features"}:
            return self._heads(self.model(images))
        model: Any = self.model
        features = model.forward_features(images)
        if "tokens" not in self.needs:
            output = self._heads(model.forward_head(features))
        elif self.token_head is None:
            output = Output(*model.dense_head(features))
        else:
            places = final_places(model, features, *images.shape[2:])
            tokens = places.apply(model.forward_head, pre_logits=True)  # normalised as the classifier's input is
            output = self._heads(model.forward_head(features))._replace(tokens=self.token_head(tokens))
        if "features" not in self.needs:
            return output
        pooled = model.forward_head(features, pre_logits=True)
        return output._replace(features=pooled if self.projection is None else self.projection(pooled))

    def _heads(self, logits: Any) -> Output:
        """In training, models with a distillation token return a pair, if they are asked to."""
        if "distillation" in self.needs and isinstance(logits, tuple):
            return Output(logits[0], distilled=logits[1])
        return Output(logits)

    def _initial_labels(self, images: Tensor, mix: Mix) -> InitialLabels | None:
        """The labels of tokens as they leave the patch embedding; None: those of their pixels."""
        if "cells" in self.needs:
            cells = self.token_grid((images.shape[2], images.shape[3]))
            return lambda grid: cells_as_sources(grid, cells, images.device).expand(len(images), -1, -1)
        if self.first_pixel:
            return lambda grid: _pair(F.interpolate(mix.share, grid, mode="nearest").flatten(1))
        if mix.at == "tokens":
            return lambda grid: _pair(mix.tokens(grid).flatten(1))
        return None


def _pair(own: Tensor) -> Tensor:
    return torch.stack([own, 1 - own], -1)


def cells_as_sources(grid: tuple[int, int], cells: tuple[int, int], device: torch.device) -> Tensor:
    """For each token of a grid, the cell of a coarser (or the same) grid in which it lies: (1, h·w, K)"""
    rows, columns = (
        ((torch.arange(fine, device=device) + 0.5) * coarse / fine).long()
        for fine, coarse in zip(grid, cells, strict=True)
    )
    places = rows[:, None] * cells[1] + columns  # (h, w)
    return F.one_hot(places.flatten(), cells[0] * cells[1]).float().unsqueeze(0)


def head_width(model: nn.Module) -> int:
    """Of what a timm model's classifier sees; 0 if it does not say."""
    return getattr(model, "head_hidden_size", None) or getattr(model, "num_features", None) or 0


def _check_head(model: nn.Module, what: str) -> None:
    if not head_width(model) or not getattr(model, "num_classes", None) or not hasattr(model, "forward_head"):
        raise ValueError(
            f"{what} need a timm model with forward_features, forward_head and num_classes, which "
            f"{type(model).__name__} is not"
        )


def _token_head(model: nn.Module) -> nn.Linear:
    """A linear classifier for every token."""
    _check_head(model, "token logits")
    head = nn.Linear(head_width(model), model.num_classes)  # type: ignore[arg-type]
    trunc_normal_(head.weight, std=0.02)
    nn.init.zeros_(head.bias)
    return head


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Inside, the model is in eval mode; afterwards each of its modules is in the mode it was in.

    One thread at a time: otherwise two could take each other's eval mode for the mode to go back to.
    """
    with nullcontext() if torch.compiler.is_compiling() else _SWITCHING:
        modes = [(module, module.training) for module in model.modules()]
        model_was_training = model.training
        model.eval()
        try:
            yield
        finally:
            model.train(model_was_training)  # some throw away then what they keep in eval mode (LeViT)
            for module, training in modes:
                module.training = training


class _Uncast(Generic[Value]):
    """Keeps what it holds in float32: FSDP's mixed precision rounds every tensor and dataclass on its way in."""

    def __init__(self, value: Value) -> None:
        self.value = value


def _unwrap(held: Value | _Uncast[Value]) -> Value:
    return held.value if isinstance(held, _Uncast) else held
