"""Pyramid Vision Transformer, first version (Wang et al., ICCV 2021), which timm lacks.

Four stages; each embeds patches of the map before it, adds positions, and attends to keys pooled R×R. A class token
joins in the last stage. Parameters are named as in the released weights, which load as they are, for another image
size or other classes too:

    timm.create_model("pvt_tiny", checkpoint_path="pvt_tiny.pth")
    timm.create_model("pvt_tiny", pretrained=True, pretrained_cfg_overlay={"file": "pvt_tiny.pth"}, num_classes=10)
"""

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import DropPath, Format, Mlp, calculate_drop_path_rates, to_2tuple, trunc_normal_
from timm.models import build_model_with_cfg, checkpoint, generate_default_cfgs, register_model
from timm.models.pvt_v2 import Attention
from torch import Tensor, nn

LayerNorm = partial(nn.LayerNorm, eps=1e-6)  # in blocks and at the end; elsewhere torch's 1e-5


class PatchEmbed(nn.Module):
    """Patches of an image or of the map of the stage before: (B, C, H, W) -> (B, H', W', D)."""

    output_fmt = Format.NHWC

    def __init__(self, in_chans: int, dim: int, patch_size: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(in_chans, dim, patch_size, patch_size)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.proj(x).permute(0, 2, 3, 1))


class Block(nn.Module):
    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float,
        sr_ratio: int,
        attn_drop: float,
        proj_drop: float,
        drop_path: float,
    ) -> None:
        super().__init__()
        self.norm1 = LayerNorm(dim)
        self.attn = Attention(dim, num_heads, sr_ratio, attn_drop=attn_drop, proj_drop=proj_drop)
        self.drop_path = DropPath(drop_path)
        self.norm2 = LayerNorm(dim)
        self.mlp = Mlp(dim, int(dim * mlp_ratio), drop=proj_drop)

    def forward(self, x: Tensor, grid: tuple[int, int]) -> Tensor:
        x = x + self.drop_path(self.attn(self.norm1(x), grid))
        return x + self.drop_path(self.mlp(self.norm2(x)))


class PyramidVisionTransformer(nn.Module):
    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        depths: tuple[int, ...] = (2, 2, 2, 2),
        embed_dims: tuple[int, ...] = (64, 128, 320, 512),
        num_heads: tuple[int, ...] = (1, 2, 5, 8),
        mlp_ratios: tuple[float, ...] = (8, 8, 4, 4),
        sr_ratios: tuple[int, ...] = (8, 4, 2, 1),
        drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if global_pool != "token":
            raise ValueError(f"PVT v1 classifies its class token: global_pool must be 'token', not {global_pool!r}")
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = global_pool
        self.depths = depths
        self.num_features = self.head_hidden_size = embed_dims[-1]
        self.num_prefix_tokens = 1
        self.grad_checkpointing = False

        height, width = to_2tuple(img_size)
        self.feature_info = [
            {"num_chs": dim, "reduction": 4 << i, "module": f"block{i + 1}"} for i, dim in enumerate(embed_dims)
        ]
        self.grids = [(height // (4 << i), width // (4 << i)) for i in range(len(depths))]
        drop_path = calculate_drop_path_rates(drop_path_rate, depths, stagewise=True)
        channels = (in_chans, *embed_dims)
        for i, (depth, dim, (h, w)) in enumerate(zip(depths, embed_dims, self.grids, strict=True)):
            blocks = [
                Block(dim, num_heads[i], mlp_ratios[i], sr_ratios[i], attn_drop_rate, proj_drop_rate, drop_path[i][j])
                for j in range(depth)
            ]
            extra = int(i == len(depths) - 1)  # the class token
            self.add_module(f"patch_embed{i + 1}", PatchEmbed(channels[i], dim, 4 if i == 0 else 2))
            self.register_parameter(f"pos_embed{i + 1}", nn.Parameter(torch.zeros(1, extra + h * w, dim)))
            self.add_module(f"block{i + 1}", nn.ModuleList(blocks))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, self.num_features))
        self.pos_drop = nn.Dropout(proj_drop_rate)
        self.norm: nn.Module = LayerNorm(self.num_features)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self._classifier(num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        for name, parameter in self.named_parameters():
            if name.startswith("pos_embed") or name == "cls_token":
                trunc_normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def _classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    @property
    def stages(self) -> Iterator[tuple[PatchEmbed, nn.Parameter, nn.ModuleList]]:
        """Each stage's patch embedding, positions and blocks."""
        for i in range(1, len(self.depths) + 1):
            yield getattr(self, f"patch_embed{i}"), getattr(self, f"pos_embed{i}"), getattr(self, f"block{i}")

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}  # positions are decayed, as in the published training

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {
            "stem": r"^patch_embed1|pos_embed1",
            "blocks": r"^(?:block|patch_embed|pos_embed)(\d+)"
            if coarse
            else [
                (r"^block(\d+)\.(\d+)", None),
                (r"^(?:patch_embed|pos_embed)(\d+)", (0,)),
                (r"^norm|cls_token", (99999,)),
            ],
        }

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        if global_pool not in (None, "token"):
            raise ValueError(f"PVT v1 classifies its class token: global_pool must be 'token', not {global_pool!r}")
        self.num_classes = num_classes
        self.head = self._classifier(num_classes).to(self.cls_token.device, self.cls_token.dtype)

    def _stage(self, number: int, x: Tensor) -> tuple[Tensor, Tensor]:
        """Image or map -> tokens (B, P + N, D), the class token first in the last stage, and their map (B, D, h, w)."""
        patch_embed, positions, blocks = list(self.stages)[number]
        x = patch_embed(x)  # (B, h, w, D)
        grid = (x.shape[1], x.shape[2])
        tokens = x.flatten(1, 2)
        extra = int(number == len(self.depths) - 1)
        if extra:
            tokens = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), tokens], 1)
        tokens = self.pos_drop(tokens + _resize(positions, self.grids[number], grid))
        for block in blocks:
            tokens = checkpoint(block, tokens, grid) if self.grad_checkpointing else block(tokens, grid)
        return tokens, tokens[:, extra:].unflatten(1, grid).permute(0, 3, 1, 2)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1 + N, D), the class token first."""
        if min(x.shape[2:]) < 32:
            raise ValueError(f"PVT takes images of at least 32×32 pixels, not {x.shape[2]}×{x.shape[3]}")
        tokens = x
        for number in range(len(self.depths)):
            tokens, x = self._stage(number, x)
        return self.norm(tokens)

    def _taken(self, indices: int | list[int] | None) -> list[int]:
        """Which stages: all, the last few, or those of these indices, as timm counts."""
        numbers = range(len(self.depths))
        if indices is None or isinstance(indices, int):
            return list(numbers[-(indices or len(numbers)) :])
        return [numbers[index] for index in indices]

    def forward_intermediates(
        self, x: Tensor, indices: int | list[int] | None = None, intermediates_only: bool = False
    ) -> Any:
        """The maps of stages, (B, D, h, w) each, without the final norm; before them the last tokens with it, if
        not intermediates_only. As timm's models have it."""
        tokens, maps = x, []
        for number in range(len(self.depths)):
            tokens, x = self._stage(number, x)
            maps.append(x.contiguous())
        maps = [maps[number] for number in self._taken(indices)]
        return maps if intermediates_only else (self.norm(tokens), maps)

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """Leaves away the final norm and the classifier, which maps do without. All stages stay."""
        if prune_norm:
            self.norm = nn.Identity()
        if prune_head:
            self.reset_classifier(0)
        return self._taken(indices)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x[:, 0])
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def _resize(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Position embeddings (1, P + h·w, D) for another grid, bilinearly; the P leading ones have no place in it."""
    if old == new:
        return positions
    extra = positions.shape[1] - old[0] * old[1]
    grid = positions[:, extra:].unflatten(1, old).permute(0, 3, 1, 2)
    grid = F.interpolate(grid, new, mode="bilinear").flatten(2).transpose(1, 2)
    return torch.cat([positions[:, :extra], grid], 1)


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: PyramidVisionTransformer) -> dict[str, Tensor]:
    """Released weights, for the resolution of this model."""
    state_dict = dict(state_dict.get("model", state_dict))
    for i, (_, positions, _) in enumerate(model.stages):
        name = f"pos_embed{i + 1}"
        extra = int(i == len(model.depths) - 1)
        if state_dict[name].shape != positions.shape:
            side = math.isqrt(state_dict[name].shape[1] - extra)  # released weights are for square images
            state_dict[name] = _resize(state_dict[name], (side, side), model.grids[i])
    return state_dict


def _create(variant: str, pretrained: bool, **kwargs: Any) -> PyramidVisionTransformer:
    return build_model_with_cfg(
        PyramidVisionTransformer, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **kwargs
    )


_CFG = {
    "url": "",
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "pool_size": None,
    "fixed_input_size": True,  # that is, it takes img_size
    "crop_pct": 0.875,
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": "patch_embed1.proj",
    "classifier": "head",
    "license": "apache-2.0",
}
default_cfgs = generate_default_cfgs({f"pvt_{size}": _CFG for size in ("tiny", "small", "medium", "large")})


@register_model
def pvt_tiny(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    return _create("pvt_tiny", pretrained, **{"depths": (2, 2, 2, 2), **kwargs})


@register_model
def pvt_small(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    return _create("pvt_small", pretrained, **{"depths": (3, 4, 6, 3), **kwargs})


@register_model
def pvt_medium(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    return _create("pvt_medium", pretrained, **{"depths": (3, 4, 18, 3), **kwargs})


@register_model
def pvt_large(pretrained: bool = False, **kwargs: Any) -> PyramidVisionTransformer:
    return _create("pvt_large", pretrained, **{"depths": (3, 8, 27, 3), **kwargs})
