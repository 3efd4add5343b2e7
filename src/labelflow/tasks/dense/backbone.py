"""Maps of features at four levels, from timm's models and ours, for images of any size.

Shapes: B batch, C channels, H×W the image, h×w a map, N tokens.
"""

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch.nn.functional as F
from timm.layers import LayerNorm2d
from timm.models import model_entrypoint, swin_transformer, swin_transformer_v2
from torch import Tensor, nn

from labelflow.engine.run import Run
from labelflow.models import lvvit
from labelflow.models.create import create
from labelflow.models.merging import require_all_tokens
from labelflow.spec import parse
from labelflow.tasks.checks import check_classifier, weights_file
from labelflow.tasks.dense.layers import fcn_side_layers, multi_level_neck, side_layers

_SWIN = {"strict_img_size": False, "always_partition": True}  # windows keep their size and shift
_VIT = {"dynamic_img_size": True}  # positions are interpolated bicubically as images come
ANY_SIZE: dict[str, dict[str, Any]] = {  # by the file of a model: with which arguments it takes images of any size
    **dict.fromkeys(("swin_transformer", "swin_transformer_v2"), _SWIN),
    **dict.fromkeys(("vision_transformer", "deit", "lvvit"), _VIT),
    "pvt": {},
}
# Their stages end in a residual sum: each level gets a LayerNorm of its own, with the ε of the others.
NORMED = {"swin_transformer": 1e-5, "swin_transformer_v2": 1e-5, "convnext": 1e-6}


class Levels(nn.Module):
    """A model without its classifier and final norm, whose features come out as maps, the finest first.

    `levels(images)`: (B, 3, H, W) -> a (B, channels[i], h, w) for each level, with cells of strides[i] pixels. Images
    are padded with zeros on the right and below, to whole cells of the coarsest level: all maps show the same.
    `levels.model` keeps the classifier's names.
    """

    def __init__(
        self,
        model: nn.Module,
        outs: Iterable[nn.Module],  # what is done to the features of each level
        *,
        indices: list[int],  # of the blocks or stages that the levels come from
        channels: list[int],
        strides: list[float],
    ) -> None:
        super().__init__()
        self.model, self.outs = model, nn.ModuleList(outs)
        self.indices, self.channels, self.strides = indices, channels, strides
        self.spec = ""  # the backbone, for `make_levels` to make the same again, with random weights

    def forward(self, images: Tensor) -> list[Tensor]:
        model: Any = self.model
        height, width = images.shape[2:]
        unit = int(max(self.strides))
        padded = F.pad(images, (0, -width % unit, 0, -height % unit))
        features = model.forward_intermediates(padded, indices=self.indices, intermediates_only=True)
        return [out(one) for out, one in zip(self.outs, features, strict=True)]

    def no_weight_decay(self) -> set[str]:
        """Parameters that timm exempts: positions, class tokens, tables of relative positions."""
        exempt: Any = getattr(self.model, "no_weight_decay", set)
        return {f"model.{name}" for name in exempt()}

    def set_grad_checkpointing(self, enable: bool = True) -> None:
        self.model.set_grad_checkpointing(enable)  # type: ignore[operator]


class _PadFirst:
    """Pads a map to whole windows before it is shifted, so that the mask lies where the map's border is. timm pads
    what is shifted already: at sizes that windows do not divide, its first row would see the last ones."""

    window_size: tuple[int, int]

    def _attn(self, x: Tensor) -> Tensor:
        height, width = x.shape[1:3]  # (B, h, w, C)
        rows, columns = self.window_size
        if height % rows == width % columns == 0:
            return super()._attn(x)  # type: ignore[misc]
        padded = F.pad(x, (0, 0, 0, -width % columns, 0, -height % rows))
        return super()._attn(padded)[:, :height, :width]  # type: ignore[misc]


class SwinTransformerBlock(_PadFirst, swin_transformer.SwinTransformerBlock):
    """With timm's name, by which FSDP knows what to wrap."""


class SwinTransformerV2Block(_PadFirst, swin_transformer_v2.SwinTransformerV2Block):
    """With timm's name, by which FSDP knows what to wrap."""


PADDED = {
    swin_transformer.SwinTransformerBlock: SwinTransformerBlock,
    swin_transformer_v2.SwinTransformerV2Block: SwinTransformerV2Block,
}


def make_levels(backbone: str, init: str = "", drop_path: float = 0.0, image_size: int = 0, count: int = 4) -> Levels:
    """The levels of a backbone: strides 4, 8, 16, 32 of a model in stages; of a plain ViT those of its neck.

    backbone: a timm model, with arguments where wanted, or the folder of a classifier's run, whose model and weights
    are taken. init: a timm model's weights, '', 'pretrained', 'packaged', a checkpoint file, or a run of the same
    model, which says the model's arguments, too. image_size: for which positions are learned, if there are such; 0:
    that of the backbone. Images of other sizes get them interpolated. count: 4, or 2 for an FCN: the last two, for
    which a plain ViT has other layers.

    >>> levels = make_levels("pvt_v2_b0")
    >>> levels.channels, levels.strides
    ([32, 64, 160, 256], [4, 8, 16, 32])
    """
    name, arguments, weights = resolve(backbone, init, image_size)
    family = _family(name)
    model = _create(name, weights, drop_path, {**ANY_SIZE.get(family, {}), **arguments})
    require_all_tokens(model, "segmenters and detectors need")
    levels = _plain_levels(model, count) if _is_plain(model) else _stage_levels(model, count, NORMED.get(family))
    levels.spec = Backbone(name, arguments, "").spec
    model.prune_intermediate_layers(levels.indices, prune_norm=True, prune_head=True)
    for last in ("head", "final_conv"):  # ConvNeXt's and FastViT's: no level depends on them
        if list(getattr(model, last, nn.Identity()).parameters()):
            setattr(model, last, nn.Identity())
    for module in model.modules():
        module.__class__ = PADDED.get(type(module), type(module))
    return levels


def _create(name: str, weights: str, drop_path: float, arguments: dict[str, Any]) -> Any:
    """Some of timm's models have no drop-path, others have some where nothing is said."""
    try:
        return create(name, weights, **{"drop_path_rate": drop_path, **arguments})
    except ValueError as error:
        if "drop_path_rate" not in str(error):
            raise
    if drop_path:
        raise ValueError(f"{name} has no drop-path: choose --drop-path 0")
    return create(name, weights, **arguments)


class Backbone(NamedTuple):
    """What to make, and from which weights to start: as `labelflow.models.create.create` takes it."""

    name: str
    arguments: dict[str, Any]
    weights: str

    @property
    def spec(self) -> str:
        """Name and arguments in words.

        >>> Backbone("pvt_v2_b0", {"depths": [1, 1, 2, 1]}, "").spec
        'pvt_v2_b0(depths=[1, 1, 2, 1])'
        """
        arguments = ", ".join(f"{key}={value!r}" for key, value in self.arguments.items())
        return f"{self.name}({arguments})" if arguments else self.name


def resolve(backbone: str, init: str = "", image_size: int = 0) -> Backbone:
    """What a backbone and its weights mean. Arguments: those of a run, the image size, those that were asked for; each
    goes before the ones that come earlier."""
    given: dict[str, Any] = {}
    learned: dict[str, Any] = {}
    if _is_run(backbone):
        if init:
            raise ValueError(f"the run {backbone} brings its own weights: omit --init, or name a model")
        name, learned = _run_model(backbone)
        init = backbone
    else:
        name, given = parse(backbone)
        if init and Path(init).is_dir():
            trained, learned = _run_model(init)
            if trained != name:
                raise ValueError(
                    f"{init} is a run of {trained}, not of {name}: give the run itself as --backbone, without --init"
                )
    size = {"img_size": image_size} if image_size and _family(name) in ANY_SIZE else {}
    return Backbone(name, {**learned, **size, **given}, weights_file(init))


def _is_run(backbone: str) -> bool:
    if timm.is_model(backbone):
        return False
    if "/" in backbone.partition("(")[0] and not Path(backbone).is_dir():
        raise ValueError(f"there is no folder {backbone}; a backbone is a timm model or the folder of a run")
    return Path(backbone).is_dir()


def _run_model(folder: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments of a run's model, without those that are the classifier's alone."""
    check_classifier(folder)
    config = Run(folder).config()
    own = ("num_classes", "drop_path_rate")
    return config["architecture"], {key: value for key, value in config["model_args"].items() if key not in own}


def _family(name: str) -> str:
    """The file that a model comes from."""
    if not timm.is_model(name):
        return ""  # an error of create
    family = model_entrypoint(name).__module__.rpartition(".")[2]
    if timm.get_pretrained_cfg(name).fixed_input_size and family not in ANY_SIZE:
        raise ValueError(
            f"{name} takes images of one size only; there are models of any size in {', '.join(ANY_SIZE)}, "
            "and timm's convolutional ones and pvt_v2"
        )
    return family


def _is_plain(model: nn.Module) -> bool:
    return isinstance(model, timm.models.vision_transformer.VisionTransformer)


def _plain_levels(model: Any, count: int) -> Levels:
    """Of tokens after some blocks, without the final norm: LV-ViT's own side layers, or the multi-level neck."""
    depth, width, patch = len(model.blocks), model.embed_dim, model.patch_embed.patch_size[0]
    if depth < 4:
        raise ValueError(f"four levels need at least four blocks; this model has {depth}")
    if isinstance(model, lvvit.LVViT):
        step = min(3, depth // 4)
        indices = [depth - 1 - step * (3 - i) for i in range(4)]
    else:
        indices = [depth * (i + 1) // 4 - 1 for i in range(4)]
    make = fcn_side_layers if count == 2 else side_layers if isinstance(model, lvvit.LVViT) else multi_level_neck
    outs, channels, scales = make(width)
    strides = [_number(patch / scale) for scale in scales]
    return Levels(model, outs, indices=indices[-count:], channels=channels, strides=strides)


def _stage_levels(model: Any, count: int, epsilon: float | None) -> Levels:
    """Of the last block at each of the strides 4, 8, 16, 32. epsilon: that of a norm on each level, if there is one."""
    infos = getattr(model, "feature_info", []) if hasattr(model, "forward_intermediates") else []
    found = {info["reduction"]: (i, info["num_chs"]) for i, info in enumerate(infos)}
    strides = [4, 8, 16, 32][-count:]
    if not set(strides) <= found.keys():
        raise ValueError(
            f"{type(model).__name__} has no maps at strides 4, 8, 16 and 32; choose a model in stages, such as Swin, "
            "PVT or ConvNeXt, or a ViT, DeiT or LV-ViT"
        )
    indices, channels = ([found[stride][part] for stride in strides] for part in (0, 1))
    norm: Callable[[int], nn.Module] = partial(LayerNorm2d, eps=epsilon) if epsilon else nn.Identity
    return Levels(model, map(norm, channels), indices=indices, channels=channels, strides=[*strides])


def _number(value: float) -> float:
    """An int where it is one."""
    return int(value) if value == int(value) else value
