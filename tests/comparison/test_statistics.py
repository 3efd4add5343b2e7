"""What a comparison says of its numbers."""

import math
from html import unescape
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labelflow.comparison import Row, rows
from labelflow.comparison.page import cells_of, markdown, notes, plot, write_page
from labelflow.comparison.statistics import compare

accuracies = st.lists(st.floats(0, 100), min_size=2, max_size=40)


@given(accuracies, st.data())
def test_the_interval_is_the_paired_t_test_s(first: list[float], data: st.DataObject) -> None:
    other = data.draw(st.lists(st.floats(0, 100), min_size=len(first), max_size=len(first)))
    gaps = [b - a for a, b in zip(first, other, strict=True)]
    found = compare(dict(enumerate(first)), dict(enumerate(other)))
    assert found is not None
    reach = stats.t.ppf(0.975, len(gaps) - 1) * stats.sem(gaps)
    assert found.mean == pytest.approx(mean(gaps))
    assert (found.low, found.high) == pytest.approx((mean(gaps) - reach, mean(gaps) + reach), rel=1e-3, abs=2e-2)


@given(st.lists(st.floats(-3, 3), min_size=2, max_size=3))
def test_with_three_seeds_a_win_needs_all_of_them(gaps: list[float]) -> None:
    first = dict.fromkeys(range(len(gaps)), 70.0)
    found = compare(first, {seed: 70.0 + gap for seed, gap in enumerate(gaps)})
    assert found is not None
    if min(gaps) <= 0:
        assert found.verdict != "better"
    if max(gaps) >= 0:
        assert found.verdict != "worse"


def test_verdicts() -> None:
    first = {0: 70.0, 1: 71.0, 2: 70.5}
    assert compare(first, {0: 71.0, 1: 72.1, 2: 71.4}).verdict == "better"
    assert compare(first, {0: 69.0, 1: 69.9, 2: 69.4}).verdict == "worse"
    assert compare(first, {0: 73.0, 1: 71.0, 2: 70.6}).verdict == "no difference shown"  # +1.1 on average
    assert compare(first, {1: 99.0}).verdict == "one seed: no verdict"
    assert compare(first, {7: 99.0}) is None  # no seed that both have
    assert compare(first, {1: 72.0, 2: 71.5, 9: 0.0}).mean == 1.0  # only seeds that both have


def result(method: str, seed: int, top1: float, **more: object) -> dict[str, object]:
    return {
        "method": method,
        "seed": seed,
        "metrics": {"top1": top1, **more},
        "val_samples": 10_000,
        "peak_memory": 2**20 * (seed + 1),
        "parameters": 470_000,
        "guide_parameters": 3_400_000 if method == "attentive" else 0,
        "seconds": 60.0,
    }


@pytest.fixture
def table() -> list[Row]:
    results = [result("cutmix", seed, 50.0 + seed) for seed in range(3)]
    results += [result("attentive", seed, 48.0 + seed, ema_top1=55.0 + seed) for seed in range(3)]
    results.append(result("late <one>", 0, 51.0))
    methods = ["cutmix", "not begun", "attentive", "late <one>"]
    return rows(results, {"cutmix": 1.0, "attentive": 0.876}, methods)


def test_without_the_baseline_nothing_is_better() -> None:
    (row,) = rows([result("tl_align", seed, 70.0) for seed in range(3)], {}, ["cutmix", "tl_align"])
    assert row.against_first is None
    assert cells_of(row)[2:6] == ["", "", "", ""]


def test_equal_differences_are_rounding_not_certainty() -> None:
    first, other = {0: 70.0, 1: 71.0}, {0: 70.4, 1: 71.4}
    assert compare(first, other, step=0.1).verdict == "no difference shown"
    assert compare(first, {0: 90.0, 1: 91.0}, step=0.1).verdict == "better"


def test_the_table(table: list[Row]) -> None:
    assert [row.method for row in table] == ["cutmix", "attentive", "late <one>"]
    assert (table[0].mean, table[0].spread, table[0].against_first) == (51.0, 1.0, None)
    assert table[1].mean == 56.0  # of the average of the weights, where there is one
    assert table[1].memory == 3 * 2**20
    assert table[2].spread is None
    assert cells_of(table[1]) == [
        "attentive",
        "56.0 ± 1.0 (3)",
        "",  # as many images of each class, and cells from before there was a worst fifth
        "",
        "+5.0 (+5.0 to +5.0)",
        "better",
        "0.88",
        "3 MB",
        "0.47 M + 3.4 M",
    ]
    assert cells_of(table[2])[1:7] == ["51.0 (1)", "", "", "+1.0", "one seed: no verdict", ""]
    assert markdown(table).count("\n| ") == 4
    assert "worst fifth" not in markdown(table)


def test_columns_of_unbalanced_data() -> None:
    """Of 6 classes the worst fifth is 2."""
    recalls = {0: [80.0, 10.0, 90.0, 20.0, 70.0, 95.0], 1: [80.0, 30.0, 90.0, 40.0, 70.0, 95.0]}
    results = [result("cutmix", seed, 70.0, balanced=60.0 + seed) | {"recalls": recalls[seed]} for seed in (0, 1)]
    results += [result("tl_align", 0, 70.0, ema_top1=71.0, balanced=50.0, ema_balanced=65.0)]
    table = rows(results, {}, ["cutmix", "tl_align"])
    assert [(row.balanced, row.worst) for row in table] == [(60.5, 25.0), (65.0, None)]
    head, _, first, second = markdown(table).splitlines()
    assert head.startswith("| method | top-1, % | balanced, % | worst fifth, % | difference")
    assert first.startswith("| cutmix | 70.0 ± 0.0 (2) | 60.5 | 25.0 |")
    assert second.startswith("| tl_align | 71.0 (1) | 65.0 |  |")


def wide(*accuracies: float) -> list[Row]:
    results = [result("cutmix", seed, 50.0) for seed in range(len(accuracies))]
    results += [result("tl_align", seed, top1) for seed, top1 in enumerate(accuracies)]
    return rows(results, {}, ["cutmix", "tl_align"])


def test_wide_intervals_are_explained() -> None:
    """Two seeds: t(0.975, 1 degree of freedom) = 12.706, so that 12.706 / √2 = 8.98 standard deviations."""
    assert stats.t.ppf(0.975, 1) / math.sqrt(2) == pytest.approx(8.985, abs=1e-3)
    _, why = notes(wide(50.0, 54.0))  # a standard deviation of 2.8 points
    assert "2 seeds say little" in why
    assert "reach 9.0 standard deviations" in why
    assert "with 5 seeds 1.2" in why
    assert "2.8 points" in why
    needed = next(n for n in range(2, 999) if stats.t.ppf(0.975, n - 1) * math.sqrt(8) / math.sqrt(n) <= 1)
    assert f"would take about {needed} seeds" in why
    assert "more than 100 seeds" in notes(wide(20.0, 80.0))[1]
    assert "One seed has no interval" in notes(wide(50.0))[1]


def test_enough_seeds_need_no_explanation() -> None:
    assert len(notes(wide(50.0, 51.0, 52.0, 53.0, 54.0))) == 1
    assert len(notes(wide(50.0, 51.0)[:1])) == 1  # nothing to compare yet


def test_the_page_explains_what_the_terminal_does(tmp_path: Path) -> None:
    write_page(tmp_path / "compare.html", "title", [], wide(50.0, 54.0))
    assert notes(wide(50.0, 54.0))[1] in unescape((tmp_path / "compare.html").read_text())


def test_the_deviation_is_that_of_the_differences() -> None:
    found = compare({0: 70.0, 1: 71.0, 2: 70.5}, {0: 72.0, 1: 70.1, 2: 71.4})
    assert found is not None
    assert found.deviation == pytest.approx(stats.tstd([2.0, -0.9, 0.9]), rel=1e-6)


def test_the_plot_shows_every_seed(table: list[Row]) -> None:
    drawing = plot(table)
    assert drawing.count("<circle") == 7
    assert "late &lt;one&gt;" in drawing
    assert not any(bad in drawing for bad in ("nan", "inf"))
    same = plot([Row("one", {0: 50.0}, None, 0, 1, 0, 1.0, None)])
    assert same.count("<circle") == 1
    assert math.isfinite(float(same.split('cx="')[1].split('"')[0]))
