"""Every command that a page shows is one that there is: parsed by the program that it starts, option by option."""

import argparse
import re
import runpy
import shlex
import sys
import tomllib
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
from accelerate.commands.launch import launch_command_parser
from torch.distributed.run import get_args_parser

from labelflow import cli
from labelflow.arguments import parse_arguments
from labelflow.commands import train
from labelflow.figures import FIGURES
from labelflow.recipes import find_any
from labelflow.recipes.methods import find_method
from labelflow.recipes.transfer import transferred_to
from labelflow.tasks.recipe import KINDS

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "RELEASING.md",
    *sorted([*ROOT.glob("docs/**/*.md"), *ROOT.glob("studies/**/*.md")]),
]
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
POSITIONAL = re.compile(r'add_argument\("[a-z]')
PACKAGE = tomllib.loads((ROOT / "pyproject.toml").read_text())


def commands(page: Path, *programs: str) -> list[list[str]]:
    """The command lines of a page from the program on: in its blocks, and in its text where they are complete."""
    text = page.read_text().replace("\\\n", " ")
    lines = [line for language, block in FENCE.findall(text) if not language for line in block.splitlines()]
    spans = [span for span in re.findall(r"`([^`]+)`", FENCE.sub("", text)) if " " in span and "…" not in span]
    start = re.compile(rf"((\w+=\S+|nice|-n|\d+) )*({'|'.join(programs)}) ")
    if "labelflow" in programs:  # in a block it may stand behind what a command says of it
        lines = [re.sub(r"^.*\s{2,}(labelflow )", r"\1", line) for line in lines]
    words = [shlex.split(line, comments=True) for line in [*lines, *spans] if start.match(line.lstrip())]
    return [line[next(place for place, word in enumerate(line) if word in programs) :] for line in words]


def of_labelflow(page: Path) -> list[list[str]]:
    """After `labelflow`, started by itself, by torchrun and accelerate, or by the job script."""
    found = [
        ["labelflow" if word.endswith("train.sbatch") else word.replace("%a", "0") for word in line]
        for line in commands(page, "labelflow", "torchrun", "accelerate", "sbatch")
    ]
    lines = [line[line.index("labelflow") + 1 :] for line in found if "labelflow" in line]
    return [line for line in lines if len(line) > 1 and line[1] not in ("RECIPE", "NAME")]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


class Parsed(Exception):
    """What a command was asked to do, before it does it."""


@pytest.mark.parametrize("page", [page for page in PAGES if of_labelflow(page)], ids=name_of)
def test_every_command_in_the_documentation_is_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the parser of the command line itself: commands, recipes, methods, figures and options."""

    def parse_only(*args: object, **options: object) -> None:
        raise Parsed(parse_arguments(*args, **options))

    for module in ("labelflow.arguments", "labelflow.commands.train", "labelflow.commands.compare"):
        monkeypatch.setattr(f"{module}.parse_arguments", parse_only)
    monkeypatch.setattr(train, "transferred_to", lambda run, data: transferred_to("deit_small_patch16_224", data))
    kinds = {kind.command: kind.name for kind in KINDS.values()}
    for words in of_labelflow(page):
        if len(words) == 2 and words[0] in kinds:  # a recipe as it is: some pages have hundreds
            assert find_any(words[1], kinds[words[0]])
            continue
        arguments = [word for word in words if word != "--help"]
        with pytest.raises(Parsed) as parsed:
            cli._call("labelflow", cli.COMMANDS, arguments)
        if words[0] == "compare":
            assert all(map(find_method, parsed.value.args[0].methods))
        if words[0] == "figure":
            assert words[1] in FIGURES


def test_the_documentation_shows_every_command() -> None:
    shown = {words[0] for page in PAGES for words in of_labelflow(page)}
    assert shown | {"list"} == cli.COMMANDS.keys()


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page, "python", "torchrun")], ids=name_of)
def test_every_script_in_the_documentation_is_there(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its options are parsed by its own parser; a script without one takes no options but those that its text names."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse_only(parser: argparse.ArgumentParser, *args: Sequence[str]) -> None:
        raise Parsed(parse_args(parser, *args))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    monkeypatch.chdir(ROOT)
    for words in commands(page, "python", "torchrun"):
        scripts = [place for place, word in enumerate(words) if word.endswith(".py")]
        if not scripts:
            assert words[1:2] == ["-c"] or "-m" in words, words
            continue
        script, *options = words[scripts[0] :]
        text = (ROOT / script).read_text()
        if not options and not POSITIONAL.search(text):
            continue  # nothing to parse; the import may take long
        if "argparse" not in text:
            assert all(option in text for option in options if option.startswith("--")), words
            continue
        monkeypatch.setattr(sys, "argv", [script, *options])
        monkeypatch.syspath_prepend(str((ROOT / script).parent))
        with pytest.raises(Parsed):
            runpy.run_path(script, run_name="__main__")


def test_every_launcher_in_the_documentation_is_understood() -> None:
    for page in PAGES:
        for _, *options in commands(page, "torchrun"):
            assert get_args_parser().parse_args(options).training_script, options
        for _, launch, *options in commands(page, "accelerate"):
            assert launch == "launch"
            if options:  # otherwise it is only spoken of
                assert launch_command_parser().parse_args(options).training_script == "labelflow"


def test_every_target_of_make_in_the_documentation_is_there() -> None:
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    shown = {words[1] for page in PAGES for words in commands(page, "make")}
    assert shown
    assert shown <= set(targets)


def test_everything_that_the_documentation_installs_is_known() -> None:
    """An extra of this package, or a package that pyproject.toml names, with the same lowest version."""
    extras, groups = PACKAGE["project"]["optional-dependencies"], PACKAGE["dependency-groups"].values()
    named = [*PACKAGE["project"]["dependencies"], *chain(*extras.values()), *chain(*groups)]
    floors = dict(one.split(">=") for one in named if isinstance(one, str) and ">=" in one)
    for page in PAGES:
        if page.is_relative_to(ROOT / "studies"):
            continue  # a study may have needed more
        for _, install, *packages in commands(page, "pip"):
            assert install == "install"
            for package in packages:
                if own := re.fullmatch(r"(\.|labelflow)(\[.+\])?(==[\d.]+)?", package):
                    assert set(re.findall(r"[\w-]+", own[2] or "")) <= extras.keys(), package
                else:
                    name, _, floor = package.partition(">=")
                    assert name in floors
                    assert floor in ("", floors[name])
