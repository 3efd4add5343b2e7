"""How families of models move labels. One family and its kin, one file; its line in FAMILIES registers it."""

from importlib import import_module

from labelflow.adapters import graph
from labelflow.adapters.registry import MODELS, MODULES, UNAVAILABLE, Observed, Tap, register, register_model

__all__ = ["MODELS", "MODULES", "Observed", "Tap", "graph", "register", "register_model"]

FAMILIES = [
    "beit",
    "cait",
    "cnns",
    "conv_mixers",
    "convnext",
    "crossvit",
    "csatv2",
    "efficientformer",
    "efficientvim",
    "efficientvit",
    "fastvit",
    "hiera",
    "hieradet_sam2",
    "hybrids",
    "levit",
    "local_attention",
    "lowformer",
    "map_attention",
    "maxxvit",
    "merging",
    "metaformer",
    "mlp_mixer",
    "mobile_attention",
    "mobilevit",
    "mvitv2",
    "pvt",
    "sequencer",
    "swin",
    "t2t",
    "tiny_vit",
    "tnt",
    "torchvision",
    "twins",
    "vit",
    "vlm_vit",
    "volo",
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
