"""The papers' figures, for any run, model and images. A figure is a module: `compute(request) -> data`, `draw(data)`.

>>> from labelflow.figures import FIGURES
>>> from labelflow.figures.base import FigureRequest
>>> data = FIGURES["mixtoken"].compute(FigureRequest(("vit_tiny_patch16_224(depth=1)=random",)))
>>> figure = FIGURES["mixtoken"].draw(data)
"""

from typing import TYPE_CHECKING

from labelflow.lazy import Registry, exports

if TYPE_CHECKING:
    from labelflow.figures.base import Drawing, FigureRequest, save, styled
else:
    __getattr__, __dir__ = exports(__name__)

FIGURES: "Registry[Drawing]" = Registry(
    {
        "rmse": "labelflow.figures.rmse",
        "ratio": "labelflow.figures.ratio",
        "presence": "labelflow.figures.presence",
        "aligned": "labelflow.figures.aligned",
        "flow": "labelflow.figures.flow",
        "mixing": "labelflow.figures.mixing",
        "dense": "labelflow.figures.dense",
        "mixtoken": "labelflow.figures.mixtoken",
        "accuracy": "labelflow.figures.accuracy",
        "participation": "labelflow.figures.participation",
        "annotators": "labelflow.figures.annotators",
        "token_labels": "labelflow.figures.token_labels",
        "relevance": "labelflow.figures.relevance",
    }
)

__all__ = ["FIGURES", "Drawing", "FigureRequest", "save", "styled"]
