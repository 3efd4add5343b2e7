"""What mixers that paste from the batch before (RecursiveMix) need of it: its mixed images, and what belongs to them.

Memory begins anew in each epoch. It is part of a checkpoint, for what the model said of the last batch cannot be
computed again: by then it has other weights.

Shapes: B micro-batch, C classes, N tokens, H×W pixels.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.align import Output
from labelflow.mix import Mix
from labelflow.sparse import Sparse, TokenLabels
from labelflow.targets import Truth
from labelflow.tokens import token_grid


class Earlier(NamedTuple):
    """A micro-batch as it was mixed, without gradients."""

    images: Tensor  # (B, 3, H, W)
    classes: Tensor  # (B, C): labels, mixed by area
    logits: Tensor  # (B, C): what the model said of it
    dense_image: Tensor | None = None  # (B, C): dense labels of images and tokens in full, where there are any; of
    dense_tokens: Tensor | None = None  # (B, N, C): images in images, in images, all classes matter before long

    @classmethod
    def of(cls, images: Tensor, truth: Truth, mix: Mix, output: Output) -> "Earlier":
        """images: those that were mixed. truth: of the same."""
        mixed = replace(mix, at="image").apply(images)
        classes, dense = mix.blend(truth.classes), truth.dense
        found = cls(mixed, classes, output.logits.detach().float())
        if dense is None:
            return found
        grid = token_grid(dense.rest.shape[1], images.shape[2], images.shape[3])
        count = classes.shape[1]
        image, tokens = dense.image.mixed(mix.partner, mix.lam), dense.tokens.mixed_tokens(mix, grid)
        return found._replace(dense_image=image.dense(count), dense_tokens=tokens.dense(count))

    def behind(self, images: Tensor, truth: Truth) -> tuple[Tensor, Truth]:
        """A batch's images, and what is known of them, followed by these: a `pool` for a mix."""
        classes, dense = torch.cat([truth.classes, self.classes]), truth.dense
        if dense is not None:
            dense = self._dense_behind(dense)
        truth = truth._replace(classes=classes, dense=dense, earlier=self.logits)
        return torch.cat([images, self.images]), truth

    def _dense_behind(self, labels: TokenLabels) -> TokenLabels:
        assert self.dense_image is not None
        assert self.dense_tokens is not None
        batch, count = self.dense_image.shape
        more = count - labels.above.shape[-1]  # classes that the batch's labels do not name, as many as these do
        named, above, rest = labels.image
        image = Sparse(F.pad(named, (0, more)), F.pad(above, (0, more)), rest)
        every = torch.arange(count, device=image.classes.device, dtype=image.classes.dtype).expand(batch, -1)
        nothing = self.dense_image.new_zeros(batch, self.dense_tokens.shape[1])
        ours = Sparse(every, self.dense_image, nothing[:, 0])
        return TokenLabels(
            Sparse(*(torch.cat(both) for both in zip(image, ours, strict=True))),
            torch.cat([F.pad(labels.above, (0, more)), self.dense_tokens]),
            torch.cat([labels.rest, nothing]),
        )


class Memory:
    """The micro-batches of the last update, of this process: each is the earlier one of the micro-batch at the same
    place in the next update. So partners do not depend on how many processes share an update."""

    def __init__(self, length: int) -> None:
        self.length = length  # micro-batches of this process in an update
        self.epoch = -1
        self.queue: deque[Earlier] = deque()

    def recall(self, epoch: int) -> Earlier | None:
        """The earlier micro-batch of the next one; None in the first update of an epoch."""
        if epoch != self.epoch:
            self.epoch = epoch
            self.queue.clear()
        return self.queue.popleft() if len(self.queue) == self.length else None

    def remember(self, earlier: Earlier) -> None:
        self.queue.append(earlier)

    def state_dict(self) -> dict[str, Tensor]:
        """After an update: (micro-batches, ...) each"""
        names = [name for name, value in zip(Earlier._fields, self.queue[0], strict=True) if value is not None]
        stacked = {name: torch.stack([getattr(one, name) for one in self.queue]) for name in names}
        return stacked | {"epoch": stacked["logits"].new_full((len(self.queue),), self.epoch)}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        values = dict(state_dict)
        self.epoch = int(values.pop("epoch")[0])
        earlier = [Earlier(**dict(zip(values, parts, strict=True))) for parts in zip(*values.values(), strict=True)]
        self.queue = deque(earlier if len(earlier) == self.length else [])
