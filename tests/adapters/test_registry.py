"""The registry: everything in it is held against an oracle, and what cannot be loaded says so."""

import pytest
import timm
from timm.models.vision_transformer import VisionTransformer
from torch import nn

import labelflow as lf
from families import FAMILIES
from labelflow import adapters
from labelflow.adapters.registry import MODELS, MODULES, UNAVAILABLE

PACKAGES = ("timm", "torchvision", "transformers", "labelflow", "torch")  # other tests register classes of their own


def _built(name: object, arguments: dict) -> nn.Module:
    return timm.create_model(name, **arguments) if isinstance(name, str) else name(**arguments)  # type: ignore[operator]


def test_every_registered_class_is_held_against_an_oracle() -> None:
    """`test_align.py` compares each of these families with its oracle: who registers a class adds one."""
    seen: set[type] = set()
    for name, arguments, _ in FAMILIES.values():
        model = _built(name, arguments)
        seen.update(type(model).__mro__, *(type(module).__mro__ for module in model.modules()))
    registered = [kind for kind in (*MODELS, *MODULES) if kind.__module__.partition(".")[0] in PACKAGES]
    assert len(registered) > 250
    assert [kind.__name__ for kind in registered if kind not in seen] == []


def _fails_with(error: ImportError, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise error

    monkeypatch.setattr(adapters, "import_module", fail)
    monkeypatch.delitem(MODELS, VisionTransformer)
    monkeypatch.setitem(UNAVAILABLE, "vit", ImportError())  # removed again after the test
    adapters._load("vit")


def test_who_asks_for_a_family_that_failed_to_import_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ImportError("cannot import name 'Block' from 'timm.models.vision_transformer'", name="timm.models")
    _fails_with(error, monkeypatch)
    with pytest.raises(
        ValueError, match=r"VisionTransformer \(adapters/vit\.py failed to import: cannot import"
    ) as told:
        lf.Aligned(_built("vit_tiny_patch16_224", {}))
    assert told.value.__cause__ is error


def test_an_import_error_of_our_own_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ImportError, match="no module named labelflow"):
        _fails_with(ImportError("no module named labelflow.x", name="labelflow.x"), monkeypatch)
