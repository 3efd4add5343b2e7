"""`labelflow coverage`: what it finds, what it writes, and that it notices labels that do not flow as they should."""

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import timm
from timm.models.convnext import ConvNeXtBlock

import labelflow as lf
from labelflow.adapters.registry import MODULES, Observed
from labelflow.analysis import coverage
from labelflow.cli import main
from labelflow.flow import Labels

PAGE = Path(__file__).parents[2] / "docs" / "models.md"


def test_the_command_writes_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "test_vit", "test_vit?", "test_convnext*", "--write", str(tmp_path / "models.md")]) == 0
    assert "convnext" in capsys.readouterr().out
    page = (tmp_path / "models.md").read_text()
    assert "**7 of the 7 model names**" in page
    assert re.search(r"\| convnext \| 3 \| 3 \| 1 \|  \|", page)
    assert re.search(r"\| vision_transformer \| 4 \| 4 \| 2 \|  \|", page)


def test_a_name_that_timm_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coverage", "no_such_model"]) == 2
    assert "timm has no model no_such_model" in capsys.readouterr().err


def test_labels_that_get_lost_are_noticed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lf.flow, "residual", lambda labels, mixed: 0.9 * mixed)
    assert main(["coverage", "test_vit", "--write", str(tmp_path / "models.md")]) == 2
    assert "labels do not flow as they should, or change the logits, in test_vit" in capsys.readouterr().err
    assert not (tmp_path / "models.md").exists()


def test_labels_that_go_elsewhere_are_noticed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One cell's label everywhere: a constant share is still constant."""
    adapter = MODULES[ConvNeXtBlock]

    def copied(module: ConvNeXtBlock, observed: Observed, labels: Labels) -> Labels:
        moved = adapter.move(module, observed, labels)
        return moved.with_map(moved.map[:, :1, :1].expand_as(moved.map))

    monkeypatch.setitem(MODULES, ConvNeXtBlock, replace(adapter, move=copied))
    assert main(["coverage", "test_convnext"]) == 2
    assert "labels do not flow as they should, or change the logits, in test_convnext" in capsys.readouterr().err
    result = coverage.run("test_convnext")
    assert result.error < 1e-5
    assert result.same_logits


def test_a_refused_model_says_why() -> None:
    refused = coverage.Found(
        "odd", "file", "Odd", (), 1, "labelflow has no adapter for timm.models.file.Odd; write one with …"
    )
    row = coverage.table([refused], {})[0]
    assert row == ("file", 1, 0, 0, "no adapter for file.Odd")
    assert coverage.smallest_of_each_kind([refused]) == []


def test_what_cannot_be_followed_says_why() -> None:
    assert "no classifier" in coverage.look("qwen3_vit_88m_enc").refused
    assert "three grids" in coverage.look("coat_tiny").refused
    assert "BilinearAttnTransform" in coverage.look("bat_resnext26ts").refused
    assert "MobileNetV5" in coverage.look("mobilenetv5_base").refused


def test_the_page_counts_what_timm_has() -> None:
    page = PAGE.read_text()
    if f"names** of timm {timm.__version__}:" not in page:
        pytest.skip("the page was written with another timm")
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \| \d+ \|", page, re.M)
    assert {name: int(count) for name, count, _ in rows} == Counter(
        map(coverage._architecture, coverage.names_of_timm())
    )
    assert f"**{sum(int(aligned) for _, _, aligned in rows)} of the {sum(int(count) for _, count, _ in rows)}" in page
