"""Attention: what the model's own patch tokens look at, in its last block.

Shapes: B batch, H×W pixels, h×w the grid of the final tokens, K = h·w.
"""

import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from labelflow.adapters.registry import MODULES, known_module
from labelflow.align import Student, cells_as_sources, evaluating
from labelflow.follow import Flow, Follower, ForwardPass
from labelflow.guides.base import Guidance, UnmixedBatch


class Attention:
    """The last block's attention from patch token to patch token, mean over heads and queries, and the model's logits.

    It is one step of label flow, of the last layer only, without residual, where each cell is a source of its own and
    tokens without a place in the image are one more, so that what goes to them stays separate and rows need no Norm.
    Blocks at a model's end that leave patch tokens alone (CaiT's class attention) are passed over.
    """

    parameters = 0

    def __init__(self) -> None:
        self.watchers: weakref.WeakKeyDictionary[nn.Module, _Watcher] = weakref.WeakKeyDictionary()

    @torch.no_grad()
    def __call__(self, batch: UnmixedBatch) -> Guidance:
        model = batch.student.model
        with evaluating(model):
            grid = batch.student.token_grid((batch.images.shape[2], batch.images.shape[3]))
            if model not in self.watchers:
                self.watchers[model] = _find(batch.student, batch.images[:1], grid)
            return self.watchers[model].guidance(batch.student, batch.images, grid)


class _Watcher:
    """Hooks on one layer of a model, which go with it."""

    def __init__(self, model: nn.Module, layer: int) -> None:
        self.follower = _Apart(model, [layer], residual=False)

    def guidance(self, student: Student, images: Tensor, grid: tuple[int, int]) -> Guidance:
        logits, flow = self._run(student, images, grid)
        assert flow.tokens is not None
        return Guidance(flow.tokens[..., :-1].mean(1).unflatten(1, grid), logits)

    def moves_patches(self, student: Student, image: Tensor, grid: tuple[int, int]) -> bool:
        _, flow = self._run(student, image, grid)
        assert flow.tokens is not None
        still = torch.eye(grid[0] * grid[1], device=image.device)
        return not torch.equal(flow.tokens[0, :, :-1], still)

    def _run(self, student: Student, images: Tensor, grid: tuple[int, int]) -> tuple[Any, Flow]:
        share = torch.ones(1, 1, 1, 1, device=images.device).expand(len(images), 1, *images.shape[2:])
        return self.follower.run(
            student.model,
            images,
            share,
            tokens=True,
            initial_labels=lambda tokens: F.pad(cells_as_sources(tokens, grid, images.device), (0, 1)).expand(
                len(images), -1, -1
            ),
            call=lambda images: student(images).logits,  # with whatever precision the student is run in
        )


class _Apart(Follower):
    """Tokens without a place in the image are a source of their own, the last."""

    def move(self, current: ForwardPass, module: nn.Module, tokens: Any, hook: Any) -> None:
        super().move(current, module, tokens, hook)
        if hook.name == self.entry:
            current.image_label = torch.zeros_like(current.image_label)
            current.image_label[:, -1] = 1


def _find(student: Student, image: Tensor, grid: tuple[int, int]) -> _Watcher:
    """Of the last layer that moves something from patch to patch."""
    Follower(student.model, None, residual=False).require_attention("a mixer that attention guides", "--mixer cutmix")
    last = _Watcher(student.model, -1)
    modules = [student.model.get_submodule(step) for step in last.follower.steps]
    layers = sum(MODULES[known_module(module)].layer for module in modules)
    watchers = (_Watcher(student.model, -1 - place) for place in range(layers))
    return next((watcher for watcher in watchers if watcher.moves_patches(student, image, grid)), last)
