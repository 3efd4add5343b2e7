"""How families of models move labels. One family, one file; its line in FAMILIES registers it."""

from importlib import import_module

from labelflow.adapters import graph
from labelflow.adapters.registry import MODELS, MODULES, UNAVAILABLE, Observed, Tap, register, register_model

__all__ = ["MODELS", "MODULES", "Observed", "Tap", "graph", "register", "register_model"]

FAMILIES = [
    "beit",
    "cait",
    "cnns",
    "coat",
    "conv_mixers",
    "convit",
    "convnext",
    "crossvit",
    "csatv2",
    "davit",
    "edgenext",
    "efficientformer",
    "efficientvim",
    "efficientvit",
    "eva",
    "fastvit",
    "focalnet",
    "gcvit",
    "hiera",
    "hieradet_sam2",
    "iformer",
    "levit",
    "lowformer",
    "lvvit",
    "map_attention",
    "maxxvit",
    "metaformer",
    "mlp_mixer",
    "mobilevit",
    "mvitv2",
    "naflexvit",
    "nest",
    "nextvit",
    "pit",
    "pvt",
    "rdnet",
    "sequencer",
    "shvit",
    "swiftformer",
    "swin",
    "swin_v2",
    "t2t",
    "tiny_vit",
    "tnt",
    "torchvision",
    "twins",
    "visformer",
    "vit",
    "vit_relpos",
    "vit_sam",
    "vlm_vit",
    "volo",
    "xcit",
]


def _load(family: str) -> None:
    """A timm or torchvision that has renamed or dropped something costs the families of one file, and whoever asks for
    one of them is told; any other error is a mistake of ours."""
    try:
        import_module(f"labelflow.adapters.{family}")
    except ImportError as error:
        if (error.name or "").partition(".")[0] not in ("timm", "torchvision"):
            raise
        UNAVAILABLE[family] = error


for _family in FAMILIES:
    _load(_family)
