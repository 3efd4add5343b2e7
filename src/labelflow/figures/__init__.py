"""The papers' figures, for any run, model and images. A figure is a module: `compute(asked) -> data`, `draw(data)`.

>>> from labelflow.figures import FIGURES
>>> from labelflow.figures.base import Asked
>>> data = FIGURES["mixtoken"].compute(Asked(("vit_tiny_patch16_224(depth=1)",)))
>>> figure = FIGURES["mixtoken"].draw(data)
"""

from labelflow.figures import (
    accuracy,
    aligned,
    annotators,
    dense,
    mixing,
    mixtoken,
    participation,
    presence,
    ratio,
    relevance,
    rmse,
)
from labelflow.figures.base import Asked, Drawing, save, styled

FIGURES: dict[str, Drawing] = {
    "rmse": rmse,
    "ratio": ratio,
    "presence": presence,
    "aligned": aligned,
    "mixing": mixing,
    "dense": dense,
    "mixtoken": mixtoken,
    "accuracy": accuracy,
    "participation": participation,
    "annotators": annotators,
    "relevance": relevance,
}

__all__ = ["FIGURES", "Asked", "Drawing", "save", "styled"]
