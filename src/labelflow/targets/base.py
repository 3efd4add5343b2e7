"""What every target is."""

from typing import Literal, NamedTuple, Protocol

from torch import Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Loss, Term
from labelflow.mix import Mix
from labelflow.sparse import Sparse, TokenLabels

Teaching = Literal["", "logits", "features", "tokens"]  # what a target needs of a teacher; "": nothing


class Taught(NamedTuple):
    """What a teacher says of a batch's images, as they were mixed."""

    logits: Tensor | None = None  # (B, C), for the classes of the data
    features: Tensor | None = None  # (B, D): what its classifier sees of them
    several: bool = False  # whether an image may show any number of its classes: a sigmoid of each logit, no softmax


class Truth(NamedTuple):
    """What is known of a batch's images, before they were mixed; and what compares with it."""

    classes: Tensor  # (B, C): soft labels
    dense: TokenLabels | None = None  # what an annotator saw in them, for targets that say `dense = True`
    clean: Tensor | None = None  # (B, C): the model's own logits for them, where the mixer's guide asked the model
    loss: Loss = Loss()  # of logits and (mixed) labels: one number a sample or token
    earlier: Tensor | None = None  # (B, C): the model's logits for the earlier batch, where the mixer pastes from it
    taught: Taught | None = None  # what a teacher says of the mixed images, for targets that name what they need of it
    tokens: Sparse | None = None  # (B, N, …): their tokens' labels, for targets that need a teacher's "tokens"


class Target(Protocol):
    """Turns one forward pass into the terms of a loss. One that makes sense for images of one class only says
    `single_label = True`. One that needs a teacher's "tokens" has `token_labels(logits, generator) -> Sparse`, which
    makes labels of them."""

    dense: bool  # whether it needs dense labels
    teacher: Teaching  # what it needs of a teacher

    def student(self, model: nn.Module) -> Student:
        """The model as this target has to see it: what is needed is computed, and nothing else."""
        ...

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]: ...
