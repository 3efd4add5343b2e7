"""Models whose classifier reads the average of a map, and what their paths have in common."""

from collections.abc import Callable
from typing import Any

from torch import nn

from labelflow.adapters.registry import register_model

AVERAGES = ("avg", "fast", "fastavg")  # timm's names for one and the same


def check(pool: str) -> int:
    """The head_tokens of a model that averages: all. Any other pooling is refused."""
    if pool not in AVERAGES:
        raise ValueError(f"labelflow follows labels to an average, not to global_pool={pool!r}")
    return 0


def pool_of(model: Any) -> str:
    """What a model's pooling module says, its own or its head's."""
    for owner in (model, getattr(model, "head", None)):
        pool: Any = getattr(owner, "global_pool", None)
        if hasattr(pool, "pool_type"):
            return pool.pool_type
    raise ValueError(f"{type(model).__name__} does not say how it pools: there is no global_pool")


def register_average(
    *classes: type[nn.Module],
    path: Callable[[Any], list[nn.Module]],
    pool: Callable[[Any], str] = pool_of,
) -> None:
    """`register_model`, for models that end with an average; `pool` says what a model really does."""
    register_model(
        *classes,
        path=path,
        heads=lambda model, labels: labels.mean(1, keepdim=True),
        head_tokens=lambda model: check(pool(model)),
    )


def present(*modules: nn.Module | None) -> list[nn.Module]:
    """The modules that are there: no None, no nn.Identity."""
    return [module for module in modules if module is not None and not isinstance(module, nn.Identity)]


def convolutions_in(module: nn.Module) -> list[nn.Module]:
    """The convolutions inside a stem or a down-sampling layer, in the order in which they are registered."""
    return [one for one in module.modules() if isinstance(one, nn.Conv2d)]


def staged(model: Any) -> list[nn.Module]:
    """The path of a model with a stem and stages, each with a down-sampling layer and blocks."""
    stages = [[*convolutions_in(stage.downsample), *stage.blocks] for stage in model.stages]
    return [*convolutions_in(model.stem), *(module for stage in stages for module in stage)]
