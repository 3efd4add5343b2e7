"""How families of models move labels. One family, one file; importing it here registers it."""

from labelflow.adapters import lvvit, patches, pooling, pvt, swin, t2t, vit
from labelflow.adapters.registry import MODELS, MODULES, Seen, Tap, register, register_model

__all__ = [
    "MODELS",
    "MODULES",
    "Seen",
    "Tap",
    "lvvit",
    "patches",
    "pooling",
    "pvt",
    "register",
    "register_model",
    "swin",
    "t2t",
    "vit",
]
