"""What mixers that paste from the batch before (RecursiveMix) need of it: its mixed images, and what belongs to them.

Memory begins anew in each epoch. It is part of a checkpoint, for what the model said of the last batch cannot be
computed again: by then it has other weights.

Shapes: B micro-batch, C classes, N tokens, H×W pixels.
"""

from collections import deque
from collections.abc import Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from labelflow.align import Output
from labelflow.engine import Training
from labelflow.mix import Mix
from labelflow.process import process_count
from labelflow.sparse import Sparse, TokenLabels
from labelflow.targets import RecursiveMixTarget, Target, Truth
from labelflow.tasks.recipe import Recipe
from labelflow.tokens import token_grid


class Earlier(NamedTuple):
    """A micro-batch as it was mixed, without gradients."""

    images: Tensor  # (B, 3, H, W)
    classes: Tensor  # (B, C): labels, mixed by area
    logits: Tensor  # (B, C): what the model said of it
    dense_image: Tensor | None = None  # (B, C): dense labels of images and tokens in full, where there are any; of
    dense_tokens: Tensor | None = None  # (B, N, C): images in images, in images, all classes matter before long

    @classmethod
    def of(cls, mixed: Tensor, truth: Truth, mix: Mix, output: Output) -> "Earlier":
        """mixed: the images. truth: of those that were mixed."""
        classes, dense = mix.blend(truth.classes), truth.dense
        logits = output.logits.detach().to(torch.float32, copy=True)  # the model may reuse its memory (CUDA graphs)
        found = cls(mixed, classes, logits)
        if dense is None:
            return found
        grid = token_grid(dense.rest.shape[1], mixed.shape[2], mixed.shape[3])
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

    def __init__(self, length: int, updates: int) -> None:
        self.length, self.updates = length, updates  # micro-batches of this process in an update; updates in an epoch
        self.epoch, self.seen = -1, 0  # micro-batches of this epoch
        self.queue: deque[Earlier] = deque()

    def recall(self, epoch: int) -> Earlier | None:
        """The earlier micro-batch of the next one; None in the first update of an epoch."""
        if epoch != self.epoch:
            self.epoch, self.seen = epoch, 0
            self.queue.clear()
        return self.queue.popleft() if self.seen >= self.length and self.queue else None

    def remember(self, earlier: Earlier) -> None:
        """Those of the epoch's last update are of no use."""
        if self.seen < self.length * (self.updates - 1):
            self.queue.append(earlier)
        self.seen += 1

    def state_dict(self) -> dict[str, Tensor]:
        """After an update: (micro-batches, ...) each; nothing at the end of an epoch"""
        if not self.queue:
            return {}
        names = [name for name, value in zip(Earlier._fields, self.queue[0], strict=True) if value is not None]
        stacked = {name: torch.stack([getattr(one, name) for one in self.queue]) for name in names}
        counts = {"epoch": self.epoch, "seen": self.seen}
        return stacked | {name: stacked["logits"].new_full((len(self.queue),), value) for name, value in counts.items()}

    def load_state_dict(self, state_dict: Mapping[str, Tensor]) -> None:
        values = dict(state_dict)
        if not values:
            return
        self.epoch, self.seen = (int(values.pop(name)[0]) for name in ("epoch", "seen"))
        earlier = [Earlier(**dict(zip(values, parts, strict=True))) for parts in zip(*values.values(), strict=True)]
        if len(earlier) != self.length:  # another --micro-batch: the rest of the epoch begins anew
            earlier, self.seen = [], 0
        self.queue = deque(earlier)


def make_memory(training: Training, samples: int) -> Memory:
    return Memory(training.batch // training.micro_batch // process_count(), samples // training.batch)


def check_memory(recipe: Recipe, target: Target, remembers: bool) -> None:
    """A target that compares with the batch before needs a mixer that pastes from it, and others may not take one."""
    if remembers and target.teacher == "tokens":
        raise ValueError(
            f"the target {recipe.target} labels the tokens of one batch, but the mixer {recipe.mixer} pastes from the "
            "batch before; use another mixer, such as --mixer cutmix"
        )
    if isinstance(target, RecursiveMixTarget) and not remembers:
        raise ValueError(
            f"the target {recipe.target} compares with the batch before, from which the mixer {recipe.mixer} pastes "
            "nothing: --mixer recursivemix, or a mixture with it"
        )
