"""What several tests need: small models of every family, mixes, golden weights."""

import math
import sys
from pathlib import Path

import timm
import torch
from timm.models.vision_transformer import ResPostBlock
from torch import Tensor, nn

import labelflow as lf

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
import golden  # noqa: E402

__all__ = ["FAMILIES", "GOLDEN", "box_mix", "build", "fill", "golden", "images_for", "sharpen"]

VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}
SWIN = {"patch_size": 4, "window_size": 4, "embed_dim": 8, "depths": (2, 2), "num_heads": (2, 4), "num_classes": 5}
PVT = {"embed_dims": (8, 16, 24, 32), "num_heads": (1, 2, 3, 4), "depths": (1, 2, 1, 2), "num_classes": 5}
LVVIT = {"img_size": 64, "embed_dim": 24, "depth": 3, "num_heads": 3, "stem_width": 8, "num_classes": 5}
T2T = {"token_dim": 8, "embed_dim": 24, "depth": 2, "num_heads": 3, "num_classes": 5}

# name: (timm model, its arguments, an image size it takes)
FAMILIES: dict[str, tuple[str, dict, tuple[int, int]]] = {
    "vit": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, oblong": ("vit_tiny_patch16_224", {**VIT, "img_size": (24, 40)}, (24, 40)),
    "vit, any size": ("vit_tiny_patch16_224", {**VIT, "dynamic_img_size": True, "dynamic_img_pad": True}, (28, 45)),
    "vit, unfused": ("vit_tiny_patch16_224", VIT, (32, 32)),
    "vit, registers": ("vit_tiny_patch16_224", {**VIT, "reg_tokens": 4, "qk_norm": True}, (32, 32)),
    "vit, average": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg"}, (32, 32)),
    "vit, average of all": (
        "vit_tiny_patch16_224",
        {**VIT, "global_pool": "avg", "pool_include_prefix": True, "reg_tokens": 2},
        (32, 32),
    ),
    "vit, post-norm": ("vit_tiny_patch16_224", {**VIT, "block_fn": ResPostBlock, "init_values": 1.0}, (32, 32)),
    "vit, no class token": ("vit_tiny_patch16_224", {**VIT, "global_pool": "avg", "class_token": False}, (32, 32)),
    "deit distilled": ("deit_tiny_distilled_patch16_224", VIT, (32, 32)),
    "deit3": ("deit3_small_patch16_224", VIT, (32, 32)),
    "swin": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": 32}, (32, 32)),
    "swin, fused": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": 32}, (32, 32)),
    "swin, padded": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": (40, 60)}, (40, 60)),
    "swin, padded, fused": ("swin_tiny_patch4_window7_224", {**SWIN, "img_size": (40, 60)}, (40, 60)),
    "swin, any size": (
        "swin_tiny_patch4_window7_224",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
    "swin, any size, fused": (
        "swin_tiny_patch4_window7_224",
        {**SWIN, "img_size": 32, "strict_img_size": False, "always_partition": True},
        (36, 52),
    ),
    "pvt": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 64)),
    "pvt, unfused": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 64)),
    "pvt, oblong": ("pvt_tiny", {**PVT, "img_size": 64}, (64, 96)),
    "pvt v2": ("pvt_v2_b0", PVT, (64, 64)),
    "pvt v2, linear": ("pvt_v2_b2_li", PVT, (96, 64)),
    "lvvit": ("lvvit_s", LVVIT, (64, 64)),
    "lvvit, unfused": ("lvvit_s", LVVIT, (64, 64)),
    "lvvit, oblong": ("lvvit_l", {**LVVIT, "img_size": (48, 80)}, (48, 80)),
    "lvvit, any size": ("lvvit_t", {**LVVIT, "dynamic_img_size": True, "dynamic_img_pad": True}, (56, 90)),
    "lvvit, plain": ("lv_vit_plain_small", LVVIT, (64, 64)),
    "t2t performer": ("t2t_vit_14", {**T2T, "img_size": 64}, (64, 64)),
    "t2t performer, oblong": ("t2t_vit_14", {**T2T, "img_size": 64}, (48, 72)),
    "t2t transformer": ("t2t_vit_t_14", {**T2T, "img_size": 64, "qk_scale": 0.2}, (64, 64)),
    "t2t transformer, unfused": ("t2t_vit_t_14", {**T2T, "img_size": (40, 64)}, (40, 64)),
}


def build(family: str) -> nn.Module:
    """A small model of that family in eval mode, with weights large enough that its attention is far from flat."""
    name, arguments, _ = FAMILIES[family]
    model = sharpen(timm.create_model(name, **arguments)).eval()
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = "unfused" not in family and ("fused" in family or "swin" not in family)
    return model


def sharpen(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            scale = 0.5 if "pos_embed" in name or name.endswith("_token") else 1.6 / math.sqrt(parameter[0].numel())
            scale = 1.0 if "bias_table" in name else scale
        else:
            scale = 0.1
        noise = scale * torch.randn(parameter.shape, generator=generator)
        parameter.data = noise + 1 if parameter.ndim == 1 and name.endswith("weight") else noise
    return model


def images_for(family: str, batch: int = 4) -> Tensor:
    return torch.randn(batch, 3, *FAMILIES[family][2], generator=torch.Generator().manual_seed(2))


def box_mix(images: Tensor) -> lf.Mix:
    """A box, one for each sample, whose edges cut through patches."""
    return lf.CutMix(alpha=1.0, per_sample=True)(images, torch.Generator().manual_seed(5))


def fill(model: nn.Module, skip: tuple[str, ...] = ()) -> nn.Module:
    """The weights behind the golden numbers; those that `skip` names stay as the model makes them."""
    state = model.state_dict()
    filled = golden.fill_all({name: tuple(tensor.shape) for name, tensor in state.items()}, skip)
    model.load_state_dict({name: torch.from_numpy(filled[name]) if name in filled else state[name] for name in state})
    return model
