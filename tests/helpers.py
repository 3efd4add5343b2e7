"""What several tests need: models, mixes, golden weights, shards."""

import io
import math
import sys
import tarfile
from collections.abc import Iterable
from pathlib import Path

import timm
import torch
from torch import Tensor, nn

import labelflow as lf
import labelflow.models  # registers PVT, LV-ViT and T2T-ViT with timm
from families import FAMILIES

GOLDEN = Path(__file__).parent / "golden"
sys.path.insert(0, str(GOLDEN))
import golden  # noqa: E402

__all__ = ["FAMILIES", "GOLDEN", "box_mix", "build", "fill", "golden", "images_for", "pack", "sharpen"]


def build(family: str) -> nn.Module:
    """A small model of that family in eval mode, with weights large enough that its attention is far from flat."""
    name, arguments, _ = FAMILIES[family]
    model = timm.create_model(name, **arguments) if isinstance(name, str) else name(**arguments)
    model = sharpen(model).eval()
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
    return lf.CutMix(alpha=1.0, per="sample")(images, torch.Generator().manual_seed(5))


def fill(model: nn.Module, skip: tuple[str, ...] = ()) -> nn.Module:
    """The weights behind the golden numbers; those that `skip` names stay as the model makes them."""
    state = model.state_dict()
    filled = golden.fill_all({name: tuple(tensor.shape) for name, tensor in state.items()}, skip)
    model.load_state_dict({name: torch.from_numpy(filled[name]) if name in filled else state[name] for name in state})
    return model


def pack(path: Path | str, members: Iterable[tuple[str, bytes]], form: int = tarfile.PAX_FORMAT) -> None:
    """A shard of WebDataset's: a tar file with members of these names and contents."""
    with tarfile.open(path, "w", format=form) as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
