"""A web page to play with: mix two images, and watch the labels move through a model."""

from labelflow.explore.answer import try_out
from labelflow.explore.server import make_app
from labelflow.explore.uploads import Shelf, square

__all__ = ["Shelf", "make_app", "square", "try_out"]
