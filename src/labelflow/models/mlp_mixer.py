"""A small MLP-Mixer (Tolstikhin et al., 2021) for small images: timm's have fixed patches, widths and depths."""

from typing import Any

from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from timm.models.mlp_mixer import MlpMixer

default_cfgs = generate_default_cfgs(
    {
        "mixer_tiny_patch8_64": {
            "num_classes": 1000,
            "input_size": (3, 64, 64),
            "pool_size": None,
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "fixed_input_size": True,
            "mean": IMAGENET_DEFAULT_MEAN,
            "std": IMAGENET_DEFAULT_STD,
            "first_conv": "stem.proj",
            "classifier": "head",
        }
    }
)


@register_model
def mixer_tiny_patch8_64(pretrained: bool = False, **kwargs: Any) -> MlpMixer:
    """As wide and as deep as the quickstart's ViT: 0.34 M parameters."""
    shape = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "num_blocks": 4, **kwargs}
    return build_model_with_cfg(MlpMixer, "mixer_tiny_patch8_64", pretrained, **shape)
