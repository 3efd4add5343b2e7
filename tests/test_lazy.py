"""What is imported when it is first used is all there."""

import importlib
import inspect
import pkgutil

import pytest
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD

import labelflow
from labelflow.data.settings import IMAGENET_MEAN, IMAGENET_STD
from labelflow.figures import FIGURES
from labelflow.lazy import Registry, deferred
from labelflow.mixers import MIXERS
from labelflow.recipes.methods import METHODS
from labelflow.spec import build
from labelflow.targets import TARGETS
from labelflow.tasks.recipe import KINDS

PACKAGES = [
    "",
    ".comparison",
    ".data",
    ".engine",
    ".figures",
    ".labels",
    ".mixers",
    ".robustness",
    ".targets",
    ".tasks",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    module = importlib.import_module(f"labelflow{package}")
    assert set(module.__all__) <= set(dir(module))
    files = {found.name for found in pkgutil.iter_modules(module.__path__)}
    for name in module.__all__:  # a file of the same name would take its place once it is imported
        assert inspect.ismodule(getattr(module, name)) == (name in files)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = module.nothing


def test_names_can_be_imported_at_once() -> None:
    names: dict[str, object] = {}
    exec("from labelflow import *", names)
    assert set(labelflow.__all__) <= names.keys()


@pytest.mark.parametrize("registry", [FIGURES, MIXERS, TARGETS], ids=["figures", "mixers", "targets"])
def test_registries_name_what_there_is(registry: Registry[object]) -> None:
    assert len(list(registry.values())) == len(registry) == len(registry.places) > 7


def test_a_deferred_callable_is_called() -> None:
    assert deferred("math:hypot")(3, 4) == 5


def test_settings_agree_with_what_is_not_imported_for_them() -> None:
    assert (IMAGENET_MEAN, IMAGENET_STD) == (IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD)
    for method in METHODS.values():
        target = build(method.target, TARGETS, "target")
        assert (method.dense, method.taught) == (target.dense, bool(target.teacher)), method.name
    assert {kind.headline for kind in KINDS.values()} == {"top1", "miou", "box_ap"}
