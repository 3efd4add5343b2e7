"""LV-ViT (Jiang et al., "All Tokens Matter: Token Labeling for Training Better Vision Transformers", NeurIPS 2021).

A ViT with a convolutional stem (Table 9), residual branches that are divided by a constant (Table 10), and a second
classifier, `aux_head`, for every patch token. Parameters are named as in the released weights, which load as they are,
for another image size or other classes too:

    timm.create_model("lvvit_s", checkpoint_path="lvvit_s-26M-224-83.3.pth.tar")
    labelflow.models.create.create("lvvit_s", init="lvvit_s-26M-224-83.3.pth.tar", img_size=384, num_classes=10)
"""

import math
from functools import partial
from typing import Any, NamedTuple

import torch.nn.functional as F
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.layers import PatchEmbed, trunc_normal_
from timm.layers.format import nchw_to
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model, vision_transformer
from torch import Tensor, channels_last, nn


class Stem(NamedTuple):
    """A patch embedding of several convolutions, one kernel size and stride for each; strides multiply to a patch."""

    kernels: tuple[int, ...]
    strides: tuple[int, ...]


STEMS = {  # the rows of Table 9
    "conv1": Stem((16,), (16,)),  # that of ViT
    "conv2": Stem((7, 8), (2, 8)),
    "conv3_fast": Stem((7, 3, 8), (2, 2, 4)),
    "conv3": Stem((7, 3, 8), (2, 1, 8)),
    "conv4": Stem((7, 3, 3, 8), (2, 1, 1, 8)),  # that of LV-ViT
    "conv6": Stem((7, 3, 3, 3, 3, 8), (2, 1, 1, 1, 1, 8)),
}


class ConvStem(PatchEmbed):
    """Convolutions with batch norm and ReLU, then one that makes a token of each patch: (B, C, H, W) -> (B, N, D)."""

    proj: nn.Conv2d

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,
        in_chans: int = 3,
        embed_dim: int = 384,
        stem: Stem = STEMS["conv4"],
        width: int = 64,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        **embed: Any,
    ) -> None:
        super().__init__(img_size, patch_size, in_chans, embed_dim, bias=bias, device=device, dtype=dtype, **embed)
        del self.proj  # comes last in the released weights
        *layers, last = zip(stem.kernels, stem.strides, strict=True)
        made: Any = {"device": device, "dtype": dtype}
        channels = in_chans
        self.depth = len(layers)
        for i, (kernel, stride) in enumerate(layers, 1):
            conv = nn.Conv2d(channels, width, kernel, stride, _padding(kernel, stride), bias=False, **made)
            self.add_module(f"conv{i}", conv)
            self.add_module(f"bn{i}", nn.BatchNorm2d(width, **made))
            channels = width
        self.proj = nn.Conv2d(channels, embed_dim, *last, _padding(*last), bias=bias, **made)

    def set_input_size(
        self, img_size: int | tuple[int, int] | None = None, patch_size: int | tuple[int, int] | None = None
    ) -> None:
        if patch_size not in (None, self.patch_size, self.patch_size[0]):
            raise ValueError(f"the stem's strides make patches of {self.patch_size[0]} pixels, not {patch_size}")
        super().set_input_size(img_size)

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        rows, columns = self.patch_size
        if self.strict_img_size and (height, width) != self.img_size:
            raise ValueError(
                f"this model takes images of {self.img_size[0]}×{self.img_size[1]} pixels, not {height}×{width}: "
                f"create it with img_size=({height}, {width}) or dynamic_img_size=True"
            )
        if self.dynamic_img_pad:
            x = F.pad(x, (0, -width % columns, 0, -height % rows))
        elif height % rows or width % columns:
            raise ValueError(
                f"images must be multiples of {rows}×{columns} pixels, not {height}×{width}: "
                f"resize them, or create the model with dynamic_img_pad=True"
            )
        # Tensor cores want channels last: cuDNN would transpose to and fro at each convolution.
        x = x.contiguous(memory_format=channels_last) if x.is_cuda else x
        for i in range(1, self.depth + 1):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(x)))
        x = self.proj(x)  # (B, D, h, w)
        return self.norm(x.flatten(2).transpose(1, 2) if self.flatten else nchw_to(x, self.output_fmt))


class Divide(nn.Module):
    def __init__(self, divisor: float) -> None:
        super().__init__()
        self.divisor = divisor

    def forward(self, x: Tensor) -> Tensor:
        return x / self.divisor

    def extra_repr(self) -> str:
        return f"{self.divisor:g}"


class Block(vision_transformer.Block):
    """X ← X + F(X)/divisor for attention and MLP (Table 10), in the place of timm's layer scale."""

    def __init__(self, *args: Any, residual_divisor: float = 1.0, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if residual_divisor != 1:
            self.ls1, self.ls2 = Divide(residual_divisor), Divide(residual_divisor)


class LVViT(vision_transformer.VisionTransformer):
    """`model(images)` is head(class token) + token_share · max over patch tokens of aux_head(token), in training and in
    evaluation; `model.dense_logits(images)` gives both classifiers' logits, for training with token labels.

    stem: a row of Table 9 by name (`STEMS`), or a `Stem` of its own. residual_divisor: Table 10. aux_head=False or
    token_share=0: the class token alone. The rest: as timm's VisionTransformer.
    """

    def __init__(
        self,
        num_classes: int = 1000,
        global_pool: str = "token",
        embed_dim: int = 384,
        depth: int = 16,
        num_heads: int = 6,
        mlp_ratio: float = 3.0,
        stem: str | Stem = "conv4",
        stem_width: int = 64,
        residual_divisor: float = 1.0,
        aux_head: bool = True,
        token_share: float = 0.5,
        qkv_bias: bool = False,
        **vit: Any,
    ) -> None:
        kernels, strides = _stem(stem)
        if residual_divisor <= 0:
            raise ValueError(f"residual_divisor must be positive, not {residual_divisor}")
        if residual_divisor != 1 and vit.get("init_values"):
            raise ValueError("a layer scale (init_values) and a residual_divisor exclude each other")
        _check_pooling(num_classes, global_pool)
        super().__init__(
            patch_size=math.prod(strides),
            num_classes=num_classes,
            global_pool=global_pool,
            embed_dim=embed_dim,
            depth=depth,
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            qkv_bias=qkv_bias,
            norm_layer=nn.LayerNorm,  # with torch's eps of 1e-5
            embed_layer=partial(ConvStem, stem=Stem(kernels, strides), width=stem_width),
            block_fn=partial(Block, residual_divisor=residual_divisor),
            **vit,
        )
        self.token_share = token_share
        self.aux_head = self._aux_classifier() if aux_head else None

    def _aux_classifier(self) -> nn.Module:
        if self.num_classes == 0:
            return nn.Identity()
        head = nn.Linear(self.embed_dim, self.num_classes, device=self.cls_token.device, dtype=self.cls_token.dtype)
        trunc_normal_(head.weight, std=0.02)
        nn.init.zeros_(head.bias)
        return head

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        _check_pooling(num_classes, self.global_pool if global_pool is None else global_pool)
        super().reset_classifier(num_classes, global_pool)
        if self.aux_head is not None:
            self.aux_head = self._aux_classifier()

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        pooled = super().forward_head(x, pre_logits)
        if pre_logits or self.num_classes == 0 or self.aux_head is None or not self.token_share:
            return pooled
        return pooled + self.token_share * self._token_logits(x).amax(1)

    def _token_logits(self, x: Tensor) -> Tensor:
        """(B, 1 + N, D) -> (B, N, C)"""
        assert self.aux_head is not None
        return self.aux_head(x[:, self.num_prefix_tokens :])

    def dense_logits(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of the class token (B, C), and of every patch token (B, N, C)."""
        return self.dense_head(self.forward_features(images))

    def dense_head(self, x: Tensor) -> tuple[Tensor, Tensor]:  # of what `forward_features` returned
        if self.aux_head is None:
            raise ValueError("this model has no classifier for its patch tokens: create it with aux_head=True")
        if self.num_classes == 0:
            raise ValueError("this model has no classifier: give it one with reset_classifier(num_classes)")
        return super().forward_head(x), self._token_logits(x)


def _stem(stem: str | Stem) -> Stem:
    if isinstance(stem, str):
        if stem not in STEMS:
            raise ValueError(f"there is no stem {stem!r}; there are {', '.join(STEMS)}, or Stem(kernels, strides)")
        return STEMS[stem]
    kernels, strides = stem
    if len(kernels) != len(strides) or not kernels or any(k < s for k, s in zip(kernels, strides, strict=True)):
        raise ValueError(f"a stem has a kernel size for each stride, and none smaller than its stride, not {stem}")
    return Stem(tuple(kernels), tuple(strides))


def _padding(kernel: int, stride: int) -> int:
    """With which a convolution makes a map exactly `stride` times smaller."""
    return (kernel - stride + 1) // 2


def _check_pooling(num_classes: int, global_pool: str) -> None:
    if num_classes and global_pool != "token":
        raise ValueError(f"LV-ViT classifies its class token: global_pool must be 'token', not {global_pool!r}")


def checkpoint_filter_fn(state_dict: dict[str, Tensor], model: LVViT) -> dict[str, Tensor]:
    """Released weights, for the resolution of this model (bicubically, as published), and for its classifiers."""
    state_dict = vision_transformer.checkpoint_filter_fn(state_dict, model, antialias=False)
    if model.aux_head is None:
        state_dict = {name: tensor for name, tensor in state_dict.items() if not name.startswith("aux_head.")}
    return state_dict


def _create(variant: str, pretrained: bool, **kwargs: Any) -> LVViT:
    return build_model_with_cfg(
        LVViT,
        variant,
        pretrained,
        pretrained_filter_fn=checkpoint_filter_fn,
        feature_cfg={"out_indices": kwargs.pop("out_indices", 3), "feature_cls": "getter"},
        **kwargs,
    )


def _cfg(crop_pct: float = 0.9, first_conv: str = "patch_embed.conv1") -> dict[str, Any]:
    return {
        "url": "",
        "num_classes": 1000,
        "input_size": (3, 224, 224),
        "pool_size": None,
        "fixed_input_size": True,  # that is, it takes img_size
        "crop_pct": crop_pct,
        "interpolation": "bicubic",
        "mean": IMAGENET_DEFAULT_MEAN,
        "std": IMAGENET_DEFAULT_STD,
        "first_conv": first_conv,
        "classifier": ("head", "aux_head"),
        "license": "apache-2.0",
    }


default_cfgs = generate_default_cfgs(
    {
        "lvvit_t": _cfg(),
        "lvvit_s": _cfg(),
        "lvvit_m": _cfg(1.0),
        "lvvit_l": _cfg(1.0),
        "lv_vit_plain_small": _cfg(first_conv="patch_embed.proj"),
    }
)


@register_model
def lvvit_t(pretrained: bool = False, **kwargs: Any) -> LVViT:
    return _create("lvvit_t", pretrained, **{"embed_dim": 240, "depth": 12, "num_heads": 4, **kwargs})


@register_model
def lvvit_s(pretrained: bool = False, **kwargs: Any) -> LVViT:
    sizes = {"embed_dim": 384, "depth": 16, "num_heads": 6, "residual_divisor": 2.0}
    return _create("lvvit_s", pretrained, **{**sizes, **kwargs})


@register_model
def lvvit_m(pretrained: bool = False, **kwargs: Any) -> LVViT:
    sizes = {"embed_dim": 512, "depth": 20, "num_heads": 8, "residual_divisor": 2.0}
    return _create("lvvit_m", pretrained, **{**sizes, **kwargs})


@register_model
def lvvit_l(pretrained: bool = False, **kwargs: Any) -> LVViT:
    sizes = {"embed_dim": 768, "depth": 24, "num_heads": 12, "residual_divisor": 3.0, "stem_width": 128}
    return _create("lvvit_l", pretrained, **{**sizes, **kwargs})


@register_model
def lv_vit_plain_small(pretrained: bool = False, **kwargs: Any) -> LVViT:
    """Row 3 of Table 8: DeiT-Small with 16 blocks and an MLP ratio of 3, from which LV-ViT-S sets out."""
    return _create("lv_vit_plain_small", pretrained, **{"stem": "conv1", "aux_head": False, **kwargs})
