"""Models by name, with weights to start from."""

import argparse
import pickle
import warnings
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors import SafetensorError
from timm.layers import resample_abs_pos_embed
from timm.models import load_state_dict
from timm.models.cait import Cait
from torch import Tensor, nn

from labelflow.files import check_file
from labelflow.models.merging import merge_tokens
from labelflow.models.packaged import PACKAGES, packaged_weights
from labelflow.spec import parse


def create(model: str, init: str = "", **arguments: Any) -> nn.Module:
    """A timm model. init: '' for random weights, 'pretrained' for timm's own, 'packaged' for those of a package, or a
    checkpoint file.

    Weights are fitted by timm's own rules: position embeddings and windows are interpolated to another image size, and
    a classifier for another number of classes starts anew. A ViT's tokens can be merged: "NAME(merge_tokens=13)".
    """
    name, given = parse(model)
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=3) or timm.list_models(f"*{name.split('_')[0]}*")[:5]
        hint = f"; there are {', '.join(close)} …" if close else ""
        raise ValueError(f"timm has no model {name!r}{hint}")
    arguments |= given
    merged = arguments.pop("merge_tokens", 0)
    made = _with_weights(model, name, init, arguments)
    if merged:
        merge_tokens(made, merged)
    return made


def _with_weights(model: str, name: str, init: str, arguments: dict[str, Any]) -> nn.Module:
    if not init:
        return _create(model, name, **arguments)
    if init == "pretrained":
        try:
            return _fitted(name, **arguments)
        except Exception as error:  # whatever goes wrong between here and the hub
            hint = "; try 'packaged' instead of 'pretrained'" if name in PACKAGES else ""
            what = f"could not load timm's pretrained weights for {name}{hint}"
            raise ValueError(f"{what}: {first_line(error)}") from None
    fresh = _create(model, name, **arguments)
    weights = packaged_weights(name) if init == "packaged" else read_weights(init)
    weights = _with_classifier(_with_positions(weights, fresh), fresh)
    overlay = {
        "state_dict": weights,
        "num_classes": fresh.num_classes,
        "custom_load": False,
    }  # as strict as timm can be
    try:
        return _fitted(name, pretrained_cfg_overlay=overlay, **arguments)
    except (RuntimeError, KeyError) as error:
        raise ValueError(f"{init} holds the weights of another model than {model}: {first_line(error)}") from None


def _fitted(name: str, **arguments: Any) -> nn.Module:
    """With weights that timm fits to the model. What torch says of how timm resizes tables of positions is left out."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="timm.layers.interpolate")
        return timm.create_model(name, pretrained=True, **arguments)


def _create(model: str, name: str, **arguments: Any) -> nn.Module:
    try:
        return timm.create_model(name, **arguments)
    except (TypeError, AssertionError, RuntimeError) as error:  # arguments, or an image size, that don't fit
        raise ValueError(f"model {model!r}: {error}") from error


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """From a safetensors or torch file, without executing anything in it; checked, if its checksum lies beside it."""
    try:
        check_file(Path(path))
        with torch.serialization.safe_globals([argparse.Namespace]):  # timm's training saves its settings in one
            return load_state_dict(str(path), weights_only=True)
    except FileNotFoundError:
        raise ValueError(f"there is no checkpoint {path}") from None
    except (RuntimeError, pickle.UnpicklingError, SafetensorError, OSError, EOFError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is not a checkpoint that can be read: {first_line(error)}") from None


def load_exactly(model: nn.Module, path: Path | str) -> nn.Module:
    """Weights of this very model."""
    try:
        model.load_state_dict(read_weights(path))
    except RuntimeError as error:
        raise ValueError(f"{path} holds the weights of another model: {first_line(error)}") from None
    return model


def _with_classifier(weights: dict[str, Tensor], fresh: nn.Module) -> dict[str, Tensor]:
    """The weights, and a new model's classifier where theirs is for another number of classes, or missing."""
    cfg: Any = fresh.pretrained_cfg
    names = cfg.get("classifier") or ()
    own = fresh.state_dict()
    for name in (names,) if isinstance(names, str) else names:
        for key in (f"{name}.weight", f"{name}.bias"):
            if key in own and (key not in weights or weights[key].shape != own[key].shape):
                weights = {**weights, key: own[key]}
    return weights


def _with_positions(weights: dict[str, Tensor], fresh: nn.Module) -> dict[str, Tensor]:
    """The weights, with a CaiT's positions (1, h·w, D) for its own grid, which timm interpolates for other models."""
    given = weights.get("pos_embed")
    if not isinstance(fresh, Cait) or given is None or given.shape[1] == fresh.pos_embed.shape[1]:
        return weights
    grid = list(fresh.patch_embed.grid_size)
    return {**weights, "pos_embed": resample_abs_pos_embed(given, grid, num_prefix_tokens=0)}


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] or type(error).__name__
