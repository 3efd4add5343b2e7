"""How families of models move labels. One family, one file; importing it here registers it."""

from labelflow.adapters import patches, pvt, swin, vit
from labelflow.adapters.registry import MODELS, MODULES, Seen, Tap, register, register_model

__all__ = ["MODELS", "MODULES", "Seen", "Tap", "patches", "pvt", "register", "register_model", "swin", "vit"]
