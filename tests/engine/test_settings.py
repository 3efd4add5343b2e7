"""Settings of the engine, as a command line gives them."""

import pytest

from labelflow.arguments import parse_arguments
from labelflow.engine import Training


@pytest.mark.parametrize(
    ("given", "mode"),
    [
        ("", ""),
        ("--compile", "default"),
        ("--compile --clip 1", "default"),
        ("--compile default", "default"),
        ("--clip 1 --compile max-autotune --ema 0.5", "max-autotune"),
    ],
)
def test_compile_alone_or_with_a_mode(given: str, mode: str) -> None:
    assert parse_arguments(Training, given.split(), "labelflow train").compile == mode


@pytest.mark.parametrize("given", ["--compile fast", "--compile True", "--compile default reduce-overhead"])
def test_other_modes_are_refused(given: str) -> None:
    with pytest.raises(ValueError, match=r"--compile takes no mode or one of default, .*no-cudagraphs, not"):
        parse_arguments(Training, given.split(), "labelflow train")


def test_runs_from_before_there_were_modes() -> None:
    assert (Training(compile=True).compile, Training(compile=False).compile) == ("default", "")  # type: ignore[arg-type]
