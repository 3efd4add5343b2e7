"""Mixes of tokens: done right after the patch embedding, by a hook that leaves the model alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from labelflow.follow import Hooks, PerThread
from labelflow.mix import Mix
from labelflow.tokens import embedding_of, is_channels_first, sequence


class TokenMixer:
    """Mixes what the patch embedding returns inside `mixing`, in that thread only (Token Labeling, Eq. 5)."""

    def __init__(self, model: nn.Module) -> None:
        self.current = PerThread()  # _TokenMix, or None: idle
        embedding = embedding_of(model)
        hook = _TokenMixHook(self.current)
        self.hooks = Hooks([] if embedding is None else [embedding.register_forward_hook(hook)])

    @contextmanager
    def mixing(self, mix: Mix) -> Iterator[None]:
        current = _TokenMix(mix)
        self.current.value = current
        try:
            yield
        finally:
            self.current.value = None
        if current.times != 1:
            raise ValueError("the model has no patch embedding after which tokens could be mixed; use --mixer cutmix")


@dataclass
class _TokenMix:
    mix: Mix
    times: int = 0  # how often it has been applied


class _TokenMixHook:
    def __init__(self, current: PerThread) -> None:
        self.current = current

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...], tokens: Any) -> Tensor | None:
        current = self.current.value
        if current is None:
            return None
        if not isinstance(tokens, Tensor) or tokens.ndim not in (3, 4):
            raise ValueError(f"{type(module).__name__} does not return plain tokens, which could be mixed")
        current.times += 1
        first = tokens.ndim == 4 and is_channels_first(module, tokens, *current.mix.share.shape[2:])
        mixed = current.mix.apply_to_tokens(sequence(tokens, first))
        return (mixed.transpose(1, 2) if first else mixed).reshape(tokens.shape)
