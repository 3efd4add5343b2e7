"""Tokens-to-Token ViT (Yuan et al., ICCV 2021), which timm lacks.

Soft splits make tokens of overlapping windows, three times; between them a token module, a transformer or a performer
of one narrow head, mixes tokens, with its values as the skip connection. Then follows a ViT with fixed sinusoid
positions. Parameters are named as in the released weights, which were trained with attention scaled by embed_dim^-½
instead of head_dim^-½, and load for another image size or other classes too:

    timm.create_model("t2t_vit_14", qk_scale=384**-0.5, checkpoint_path="81.5_T2T_ViT_14.pth.tar")
"""

import math
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import calculate_drop_path_rates, resample_abs_pos_embed, to_2tuple, trunc_normal_
from timm.models import build_model_with_cfg, checkpoint_seq, generate_default_cfgs, register_model
from timm.models.vision_transformer import Block
from torch import Tensor, nn

from labelflow.models.t2t_tokens import TOKEN_MODULES, TokensToToken


class Multiply(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


class T2TViT(nn.Module):
    """qk_scale: of the attention of the blocks; None: head_dim^-½. token_module: "performer" or "transformer"."""

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        in_chans: int = 3,
        num_classes: int = 1000,
        global_pool: str = "token",
        token_module: str = "performer",
        token_dim: int = 64,
        embed_dim: int = 384,
        depth: int = 14,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        qk_scale: float | None = None,
        drop_rate: float = 0.0,
        token_drop_rate: float = 0.0,
        proj_drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,
    ) -> None:
        super().__init__()
        if token_module not in TOKEN_MODULES:
            raise ValueError(f"token_module must be one of {', '.join(TOKEN_MODULES)}, not {token_module!r}")
        _check_pooling(global_pool)
        self.num_classes = num_classes
        self.in_chans = in_chans
        self.global_pool = global_pool
        self.num_features = self.head_hidden_size = self.embed_dim = embed_dim
        self.num_prefix_tokens = 1
        self.grad_checkpointing = False

        self.tokens_to_token = TokensToToken(in_chans, token_dim, embed_dim, token_module, token_drop_rate)
        self.grid_size = self.tokens_to_token.grid(to_2tuple(img_size))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        positions = sinusoid(1 + self.grid_size[0] * self.grid_size[1], embed_dim)
        self.pos_embed = nn.Parameter(positions.unsqueeze(0), requires_grad=False)
        self.pos_drop = nn.Dropout(proj_drop_rate)
        self.blocks = nn.Sequential(
            *[
                Block(
                    embed_dim,
                    num_heads,
                    mlp_ratio,
                    proj_drop=proj_drop_rate,
                    attn_drop=attn_drop_rate,
                    drop_path=rate,
                    norm_layer=nn.LayerNorm,  # with torch's eps of 1e-5
                )
                for rate in calculate_drop_path_rates(drop_path_rate, depth)
            ]
        )
        if qk_scale is not None:
            for block in self.blocks:  # fused attention scales by head_dim^-½; queries bring the rest
                block.get_submodule("attn").q_norm = Multiply(qk_scale * math.sqrt(embed_dim // num_heads))
        self.norm = nn.LayerNorm(embed_dim)
        self.head_drop = nn.Dropout(drop_rate)
        self.head = self._classifier(num_classes)
        self.init_weights()

    def init_weights(self) -> None:
        trunc_normal_(self.cls_token, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def _classifier(self, num_classes: int) -> nn.Module:
        return nn.Linear(self.num_features, num_classes) if num_classes > 0 else nn.Identity()

    @torch.jit.ignore
    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}  # positions are not trained

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        return {
            "stem": r"^cls_token|pos_embed|tokens_to_token",
            "blocks": [(r"^blocks\.(\d+)", None), (r"^norm", (99999,))],
        }

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.grad_checkpointing = self.tokens_to_token.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        return self.head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        _check_pooling(global_pool or "token")
        self.num_classes = num_classes
        self.head = self._classifier(num_classes).to(self.cls_token.device, self.cls_token.dtype)

    def forward_features(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, 1 + N, D), the class token first."""
        if min(x.shape[2:]) < 16:
            raise ValueError(f"T2T-ViT takes images of at least 16×16 pixels, not {x.shape[2]}×{x.shape[3]}")
        x = self.tokens_to_token(x)  # (B, h, w, D)
        positions = _resize(self.pos_embed, self.grid_size, (x.shape[1], x.shape[2]))
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x.flatten(1, 2)], 1)
        x = self.pos_drop(x + positions)
        x = checkpoint_seq(self.blocks, x) if self.grad_checkpointing else self.blocks(x)
        return self.norm(x)

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        x = self.head_drop(x[:, 0])
        return x if pre_logits else self.head(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.forward_head(self.forward_features(x))


def sinusoid(length: int, dim: int) -> Tensor:
    """Positions (length, dim): sines in even columns and cosines in odd ones, of position / 10000^(2⌊j/2⌋/dim)."""
    column = torch.arange(dim, dtype=torch.float64)
    angles = torch.arange(length, dtype=torch.float64).unsqueeze(1) / 10000 ** (2 * (column // 2) / dim)
    return torch.where(column % 2 == 0, angles.sin(), angles.cos()).float()


def _resize(positions: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Positions (1, 1 + h·w, D) for another grid, bicubically; the class token's stays."""
    if old == new:
        return positions
    return resample_abs_pos_embed(positions, new, old, num_prefix_tokens=1, antialias=False)


def _check_pooling(global_pool: str) -> None:
    if global_pool != "token":
        raise ValueError(f"T2T-ViT classifies its class token: global_pool must be 'token', not {global_pool!r}")


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: T2TViT) -> dict[str, Tensor]:
    """Released weights, for the resolution of this model."""
    state_dict = dict(state_dict)
    positions = state_dict["pos_embed"]
    if positions.shape != model.pos_embed.shape:
        side = math.isqrt(positions.shape[1] - 1)  # released weights are for square images
        state_dict["pos_embed"] = _resize(positions, (side, side), model.grid_size)
    return state_dict


def _create(variant: str, pretrained: bool, **kwargs: Any) -> T2TViT:
    return build_model_with_cfg(T2TViT, variant, pretrained, pretrained_filter_fn=checkpoint_filter_fn, **kwargs)


_CFG = {
    "url": "",
    "num_classes": 1000,
    "input_size": (3, 224, 224),
    "pool_size": None,
    "fixed_input_size": True,  # that is, it takes img_size
    "crop_pct": 0.9,
    "interpolation": "bicubic",
    "mean": IMAGENET_DEFAULT_MEAN,
    "std": IMAGENET_DEFAULT_STD,
    "first_conv": None,  # there is none to adapt to other channels
    "classifier": "head",
    "license": "apache-2.0",
}
PERFORMER = {"token_module": "performer", "token_drop_rate": 0.1}
TRANSFORMER = {"token_module": "transformer"}
LITE = {"embed_dim": 256, "num_heads": 4, "mlp_ratio": 2.0}
SIZES = {
    "t2t_vit_7": {**PERFORMER, **LITE, "depth": 7},
    "t2t_vit_10": {**PERFORMER, **LITE, "depth": 10},
    "t2t_vit_12": {**PERFORMER, **LITE, "depth": 12},
    "t2t_vit_14": {**PERFORMER, "embed_dim": 384, "num_heads": 6, "depth": 14},
    "t2t_vit_19": {**PERFORMER, "embed_dim": 448, "num_heads": 7, "depth": 19},
    "t2t_vit_24": {**PERFORMER, "embed_dim": 512, "num_heads": 8, "depth": 24},
    "t2t_vit_t_14": {**TRANSFORMER, "embed_dim": 384, "num_heads": 6, "depth": 14},
    "t2t_vit_t_19": {**TRANSFORMER, "embed_dim": 448, "num_heads": 7, "depth": 19},
    "t2t_vit_t_24": {**TRANSFORMER, "embed_dim": 512, "num_heads": 8, "depth": 24},
}
default_cfgs = generate_default_cfgs(dict.fromkeys(SIZES, _CFG))


def _register(variant: str) -> None:
    def build(pretrained: bool = False, **kwargs: Any) -> T2TViT:
        return _create(variant, pretrained, **{**SIZES[variant], **kwargs})

    build.__name__ = variant
    register_model(build)


for _variant in SIZES:
    _register(_variant)
