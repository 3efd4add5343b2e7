"""What tells a mixer where the important parts of an image are: the image itself, a CNN, a gradient, attention."""

from labelflow.guides.base import Guide, Look, Scene
from labelflow.guides.mixing import Mixing
from labelflow.guides.registry import GUIDES

__all__ = ["GUIDES", "Guide", "Look", "Mixing", "Scene"]
