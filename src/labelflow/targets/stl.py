"""Self-emerging token labels (STL): a ViT labels the tokens of another one, without an external annotator.

Two stages, two targets: the first trains the labeller, whose tokens learn to agree on the image's class; the second
trains a model on the labels that this labeller, `--teacher`, gives to each token of each view.

Shapes: B batch, N tokens, C classes.
"""

from typing import Literal

import torch
from torch import Generator, Tensor, nn

from labelflow.align import Output, Student
from labelflow.loss import Term
from labelflow.mix import Mix
from labelflow.sparse import Sparse
from labelflow.targets.base import Teaching, Truth
from labelflow.targets.token_label import mixed_cells

Kind = Literal["drawn", "soft", "likeliest"]


class STLLabeler:
    """Stage 1: H(X^cls, y) + β · H(mean over tokens of Xⁱ, y), both with the image's label, mixed by area. No token has
    a label of its own: what each says of its place emerges.

    beta: weight of the tokens' part.
    """

    dense = False
    teacher: Teaching = ""

    def __init__(self, beta: float = 1.0) -> None:
        self.beta = _check_weight(beta)

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens"})

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        label = mix.blend(truth.classes)
        tokens = truth.loss(output.tokens.mean(1), label)
        return [Term("class", truth.loss(output.logits, label).mean()), Term("tokens", tokens.mean(), self.beta)]


class STL:
    """Stage 2: H(X^cls, y) + β · mean over tokens of H(Xⁱ, yⁱ), where yⁱ is what the labeller says of the token.

    labels: yⁱ "drawn" from the labeller's softmax, one class for each token, anew in every step (a hard Gumbel-softmax,
    whatever its temperature); all of it, "soft"; or its "likeliest" class.
    mixed: mix the tokens' labels as the images are. False: each token keeps the label of the own, unmixed image, also
    where the partner shows, as in the released code.
    """

    dense = False
    teacher: Teaching = "tokens"
    single_label = True  # a softmax over classes that exclude one another

    def __init__(self, beta: float = 1.0, labels: Kind = "drawn", mixed: bool = True) -> None:
        if labels not in ("drawn", "soft", "likeliest"):
            raise ValueError(f"labels must be 'drawn', 'soft' or 'likeliest', not {labels!r}")
        self.beta, self.labels, self.mixed = _check_weight(beta), labels, mixed

    def student(self, model: nn.Module) -> Student:
        return Student(model, {"tokens"})

    def token_labels(self, logits: Tensor, generator: Generator | None = None) -> Sparse:
        """Of tokens, from what a labeller says of them: (B, N, C)"""
        if self.labels == "soft":
            every = torch.arange(logits.shape[2], device=logits.device).expand(len(logits), 1, -1)
            return Sparse(every, logits.softmax(2), torch.zeros_like(logits[:, :, 0]))
        chosen = draw(logits, generator) if self.labels == "drawn" else logits.argmax(2)
        above = torch.ones_like(logits[:, :, :1])
        return Sparse(chosen.unsqueeze(2), above, torch.zeros_like(above[:, :, 0]))

    def __call__(self, output: Output, truth: Truth, mix: Mix) -> list[Term]:
        assert output.tokens is not None
        assert truth.tokens is not None
        image = truth.loss(output.logits, mix.blend(truth.classes))
        tokens = truth.loss(output.tokens, mixed_cells(truth.tokens, mix) if self.mixed else truth.tokens)
        return [Term("class", image.mean()), Term("tokens", tokens.mean(), self.beta)]


def draw(logits: Tensor, generator: Generator | None = None) -> Tensor:
    """A class for each token, with the probabilities of a softmax: (B, N, C) -> (B, N). One random number a token is
    enough: the class in whose part of [0, 1) it falls. It is drawn where the generator is, the same on every device."""
    device = generator.device if generator is not None else torch.device("cpu")
    number = torch.rand(logits.shape[:2], generator=generator, device=device)
    number = number.pin_memory() if logits.is_cuda and not number.is_cuda else number  # or the host would wait
    upper = logits.float().softmax(2).cumsum(2)  # the end of each class's part
    place = number.to(logits.device, non_blocking=True).unsqueeze(2) * upper[:, :, -1:]
    return torch.searchsorted(upper, place, right=True).squeeze(2).clamp(max=logits.shape[2] - 1)


def _check_weight(beta: float) -> float:
    if beta < 0:
        raise ValueError(f"beta, a weight, must not be negative, but is {beta}")
    return beta
