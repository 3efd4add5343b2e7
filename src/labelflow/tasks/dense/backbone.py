"""Maps of features at four levels, from timm's models and ours, for images of any size.

Shapes: B batch, C channels, H×W the image, h×w a map, N tokens.
"""

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import timm
import torch
import torch.nn.functional as F
from timm.layers import LayerNorm2d, resample_abs_pos_embed
from timm.models import checkpoint, model_entrypoint, swin_transformer, swin_transformer_v2
from torch import Tensor, nn

from labelflow.engine.run import Run
from labelflow.models import lvvit, pvt
from labelflow.models.create import create
from labelflow.spec import parse
from labelflow.tasks.classify import weights_file
from labelflow.tasks.dense.necks import fcn_side_layers, multi_level_neck, side_layers

_SWIN = {"strict_img_size": False, "always_partition": True}  # windows keep their size and shift
_VIT = {"dynamic_img_size": True}  # positions are interpolated bicubically as images come
ANY_SIZE: dict[str, dict[str, Any]] = {  # by the file of a model: with which arguments it takes images of any size
    **dict.fromkeys(("swin_transformer", "swin_transformer_v2"), _SWIN),
    **dict.fromkeys(("vision_transformer", "deit", "lvvit"), _VIT),
    "pvt": {},
}
# Their stages end in a residual sum: each level gets a LayerNorm of its own.
NORMED = {"swin_transformer", "swin_transformer_v2", "convnext"}


class Levels(nn.Module):
    """A model without its classifier and final norm, whose features come out as maps, the finest first.

    `levels(images)`: (B, 3, H, W) -> a (B, channels[i], h, w) for each level, with cells of strides[i] pixels. Images
    are padded with zeros to multiples of `unit` on the right and below. `levels.model` keeps the classifier's names.
    """

    def __init__(
        self,
        model: nn.Module,
        outs: Iterable[nn.Module],  # what is done to the features of each level
        *,
        indices: list[int],  # of the blocks or stages that the levels come from
        channels: list[int],
        strides: list[float],
        unit: int,
    ) -> None:
        super().__init__()
        self.model, self.outs = model, nn.ModuleList(outs)
        self.indices, self.channels, self.strides, self.unit = indices, channels, strides, unit

    def forward(self, images: Tensor) -> list[Tensor]:
        height, width = images.shape[2:]
        padded = F.pad(images, (0, -width % self.unit, 0, -height % self.unit))
        return [out(features) for out, features in zip(self.outs, self._features(padded), strict=True)]

    def _features(self, images: Tensor) -> list[Tensor]:
        model: Any = self.model
        if isinstance(model, pvt.PyramidVisionTransformer):
            return [features for i, features in enumerate(_pvt_features(model, images)) if i in self.indices]
        return model.forward_intermediates(images, indices=self.indices, intermediates_only=True)

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)  # type: ignore[operator]


class _PadFirst:
    """Pads a map to whole windows before it is shifted, so that the mask lies where the map's border is. timm pads
    what is shifted already: at sizes that windows do not divide, its first row would see the last ones."""

    window_size: tuple[int, int]

    def _attn(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]  # (B, h, w, C)
        rows, columns = self.window_size
        padded = F.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
        return super()._attn(padded)[:, :height, :width]  # type: ignore[misc]


class PadFirst(_PadFirst, swin_transformer.SwinTransformerBlock):
    pass


class PadFirstV2(_PadFirst, swin_transformer_v2.SwinTransformerV2Block):
    pass


PADDED = {
    swin_transformer.SwinTransformerBlock: PadFirst,
    swin_transformer_v2.SwinTransformerV2Block: PadFirstV2,
}


def make_levels(backbone: str, start: str = "", drop_path: float = 0.0, image_size: int = 0, count: int = 4) -> Levels:
    """The levels of a backbone by its name: strides 4, 8, 16, 32 of a model in stages; of a plain ViT those of its
    neck. count: 4, or 2 for an FCN: the last two, for which a plain ViT has other layers.

    start: '', 'pretrained', 'packaged', a checkpoint file, or the folder of a run, which says the model's arguments,
    too. image_size: for which positions are learned, if there are such; 0: that of the backbone. Images of other sizes
    get them interpolated.

    >>> levels = make_levels("pvt_v2_b0")
    >>> levels.channels, levels.strides
    ([32, 64, 160, 256], [4, 8, 16, 32])
    """
    name, given = parse(backbone)
    family = _family(name)
    arguments = {**_run_arguments(name, start), **ANY_SIZE.get(family, {}), "drop_path_rate": drop_path}
    if image_size and family in ANY_SIZE:
        arguments["img_size"] = image_size
    arguments |= given
    model: Any = create(name, start=weights_file(start), **arguments)
    if _is_plain(model):
        levels = _plain_levels(model, count)
    else:
        levels = _stage_levels(model, count, LayerNorm2d if family in NORMED else nn.Identity)
    _strip(model, levels.indices)
    for module in model.modules():
        module.__class__ = PADDED.get(type(module), type(module))
    return levels


def _family(name: str) -> str:
    """The file that a model comes from."""
    if not timm.is_model(name):
        return ""  # create says so
    family = model_entrypoint(name).__module__.rpartition(".")[2]
    if timm.get_pretrained_cfg(name).fixed_input_size and family not in ANY_SIZE:
        raise ValueError(
            f"{name} takes images of one size only; there are models of any size in {', '.join(ANY_SIZE)}, "
            "and timm's convolutional ones and pvt_v2"
        )
    return family


def _run_arguments(name: str, start: str) -> dict[str, Any]:
    """With which a run made its model, if that is where to start."""
    if not start or not Path(start).is_dir():
        return {}
    card = Run(start).read("model.json")
    if card["model"] != name:
        raise ValueError(f"{start} is a run of {card['model']}, not of {name}: name the same model as backbone")
    return dict(card["arguments"])


def _is_plain(model: nn.Module) -> bool:
    return isinstance(model, timm.models.vision_transformer.VisionTransformer)


def _plain_levels(model: Any, count: int) -> Levels:
    """Of tokens after some blocks, without the final norm: LV-ViT's own side layers, or the multi-level neck."""
    depth, width, patch = len(model.blocks), model.embed_dim, model.patch_embed.patch_size[0]
    if depth < 4:
        raise ValueError(f"four levels need four blocks at least; this model has {depth}")
    if isinstance(model, lvvit.LVViT):
        step = min(3, depth // 4)
        indices = [depth - 1 - step * (3 - i) for i in range(4)]
    else:
        indices = [depth * (i + 1) // 4 - 1 for i in range(4)]
    make = fcn_side_layers if count == 2 else side_layers if isinstance(model, lvvit.LVViT) else multi_level_neck
    outs, channels, scales = make(width)
    strides = [_number(patch / scale) for scale in scales]
    return Levels(model, outs, indices=indices[-count:], channels=channels, strides=strides, unit=patch)


def _stage_levels(model: Any, count: int, norm: Callable[[int], nn.Module]) -> Levels:
    """Of the last block at each of the strides 4, 8, 16, 32."""
    if isinstance(model, pvt.PyramidVisionTransformer):
        found = {4 << i: (i, positions.shape[-1]) for i, (_, positions, _) in enumerate(model.stages)}
    else:
        infos = getattr(model, "feature_info", []) if hasattr(model, "forward_intermediates") else []
        found = {info["reduction"]: (i, info["num_chs"]) for i, info in enumerate(infos)}
    strides = [4, 8, 16, 32][-count:]
    if not set(strides) <= found.keys():
        raise ValueError(
            f"{type(model).__name__} has no maps at strides 4, 8, 16 and 32; choose a model in stages, such as Swin, "
            "PVT or ConvNeXt, or a ViT, DeiT or LV-ViT"
        )
    indices, channels = ([found[stride][part] for stride in strides] for part in (0, 1))
    pads_itself = any(type(module) in PADDED for module in model.modules())
    unit = model.patch_embed.patch_size[0] if pads_itself else strides[-1]
    outs = map(norm, channels)
    return Levels(model, outs, indices=indices, channels=channels, strides=list(strides), unit=unit)


def _strip(model: nn.Module, indices: list[int]) -> None:
    """Leaves away what no level depends on: every parameter that stays gets a gradient."""
    own: Any = model
    if isinstance(model, pvt.PyramidVisionTransformer):
        own.norm = nn.Identity()
        own.reset_classifier(0)
    else:
        own.prune_intermediate_layers(indices, prune_norm=True, prune_head=True)
    if list(getattr(own, "head", nn.Identity()).parameters()):  # ConvNeXt's has a norm
        own.head = nn.Identity()


def _pvt_features(model: pvt.PyramidVisionTransformer, x: Tensor) -> Iterable[Tensor]:
    """Each stage's map, (B, C, h, w). The class token takes part in the last stage, as in training."""
    for i, (patch_embed, positions, blocks) in enumerate(model.stages):
        x = patch_embed(x)  # (B, h, w, C)
        grid = (x.shape[1], x.shape[2])
        tokens = x.flatten(1, 2)  # (B, N, C)
        extra = positions.shape[1] - math.prod(model.grids[i])
        if extra:
            tokens = torch.cat([model.cls_token.expand(len(x), -1, -1), tokens], 1)
        tokens = model.pos_drop(
            tokens + resample_abs_pos_embed(positions, list(grid), list(model.grids[i]), extra, "bilinear", False)
        )
        for block in blocks:
            tokens = checkpoint(block, tokens, grid) if model.grad_checkpointing else block(tokens, grid)
        x = tokens[:, extra:].unflatten(1, grid).permute(0, 3, 1, 2).contiguous()
        yield x


def _number(value: float) -> float:
    """An int where it is one."""
    return int(value) if value == int(value) else value
