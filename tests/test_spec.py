import pytest
import torch

from labelflow.chance import drawn_from, generator, seed_of
from labelflow.spec import build, mixture, parse


def test_names_with_arguments() -> None:
    assert parse("deit_tiny_patch16_224") == ("deit_tiny_patch16_224", {})
    assert parse("tl_align(layers=[1, 3], residual=False)") == ("tl_align", {"layers": [1, 3], "residual": False})
    assert parse("vit.augreg_in1k") == ("vit.augreg_in1k", {})


@pytest.mark.parametrize("text", ["", "f(", "f(1)", "f(**x)", "f(x=__import__('os'))", "f(x=1) y"])
def test_malformed_names(text: str) -> None:
    with pytest.raises(ValueError, match="form"):
        parse(text)


def test_mixtures() -> None:
    assert mixture("cutmix") == [(1.0, "cutmix")]
    assert mixture("0.2*a(x=1) + 0.8*b") == [(0.2, "a(x=1)"), (0.8, "b")]
    with pytest.raises(ValueError, match="number"):
        mixture("half*a + b")


def test_unknown_names_and_arguments_say_what_there_is() -> None:
    with pytest.raises(ValueError, match="did you mean cutmix"):
        build("cutmx", {"cutmix": dict}, "mixer")
    with pytest.raises(ValueError, match="there are cutmix"):
        build("zzz", {"cutmix": dict}, "mixer")
    with pytest.raises(ValueError, match="beta"):
        build("cutmix(beta=1)", {"cutmix": lambda alpha=1: alpha}, "mixer")


def test_chance_is_a_function_of_the_key() -> None:
    keys = [(0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)]
    assert len({seed_of(*key) for key in keys}) == len(keys)
    first = torch.rand(3, generator=generator(3, 1))
    assert torch.equal(first, torch.rand(3, generator=generator(3, 1)))
    torch.manual_seed(5)
    expected = torch.rand(2)
    torch.manual_seed(5)
    with drawn_from(1, 2):
        inside = torch.rand(4)
    assert torch.equal(torch.rand(2), expected)  # what was outside goes on
    with drawn_from(1, 2):
        assert torch.equal(torch.rand(4), inside)
