"""Predictions as rows, files and tables."""

import csv
import io
import json
import sys
from pathlib import Path

import pytest

from labelflow.predictions import Prediction, Predictions

CATS = Predictions(
    [
        Prediction("a.jpg", [("cat", 0.75), ("dog, wild", 0.2500004)]),
        Prediction("<b>\x1b[1m.jpg", [("dog, wild", 1.0), ("cat", 1e-9)]),
    ]
)


def test_rows() -> None:
    assert len(CATS) == 2
    assert [(row.file, row.label, row.probability) for row in CATS] == [
        ("a.jpg", "cat", 0.75),
        ("<b>\x1b[1m.jpg", "dog, wild", 1.0),
    ]
    assert CATS[0].top == [("cat", 0.75), ("dog, wild", 0.2500004)]


def test_the_same_table_in_every_form() -> None:
    head, *rows = csv.reader(io.StringIO(CATS.to_csv()))
    assert head == ["file", "label", "probability", "label_2", "probability_2"]
    assert rows == [["a.jpg", "cat", "0.75", "dog, wild", "0.25"], ["<b>\x1b[1m.jpg", "dog, wild", "1.0", "cat", "0.0"]]
    assert json.loads(CATS.to_jsonl().splitlines()[0]) == {
        "file": "a.jpg",
        "label": "cat",
        "probability": 0.75,
        "top": [{"label": "cat", "probability": 0.75}, {"label": "dog, wild", "probability": 0.25}],
    }
    frame = CATS.to_pandas()
    assert [*frame.columns] == head
    assert [[str(cell) for cell in row] for row in frame.to_numpy().tolist()] == rows


def test_pandas_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ValueError, match="pip install pandas"):
        CATS.to_pandas()


def test_saved_by_its_ending(tmp_path: Path) -> None:
    CATS.save(tmp_path / "new" / "found.CSV")
    assert (tmp_path / "new" / "found.CSV").read_text() == CATS.to_csv()
    CATS.save(str(tmp_path / "found.jsonl"))
    assert (tmp_path / "found.jsonl").read_text() == CATS.to_jsonl()
    with pytest.raises(ValueError, match=r"saved as \.csv or \.jsonl, not as found\.parquet"):
        CATS.save("found.parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["found.jsonl", "new"]


def test_what_a_notebook_shows() -> None:
    page = CATS._repr_html_()
    assert "<td>a.jpg</td><td>cat</td><td>75.0 %</td><td>dog, wild 25.0 %</td>" in page
    assert "<b>" not in page
    assert "\x1b" not in page + repr(CATS)
    assert repr(CATS).splitlines()[0] == "a.jpg  cat  75.0 %"
    many = Predictions([*CATS] * 15)
    assert many._repr_html_().count("<tr>") == 1 + 20
    for shown in (many._repr_html_(), repr(many)):
        assert shown.endswith("and 10 more")


def test_none(tmp_path: Path) -> None:
    assert Predictions().to_csv() == "file,label,probability\n"
    assert Predictions().to_jsonl() == ""
    assert repr(Predictions()) == "no predictions"
