"""A study: its plan, its queue, what its cells decide, and what bad ones are told."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labelflow.cli import main
from labelflow.comparison.cells import read_result, run_cell
from labelflow.comparison.statistics import student_cdf, student_quantile
from labelflow.files import write_sealed
from labelflow.study import measures
from labelflow.study.page import forest, markdown, row
from labelflow.study.plan import Claim, read_plan
from labelflow.study.queue import open_cells, read_cells
from labelflow.study.verdicts import decide, holm, p_value

PLAN = """
[experiments.world]
recipe = "quickstart_cutmix"
methods = ["cutmix", "tl_align"]
seeds = 2
measures = ["fluctuation"]
only.tl_align = { lr = 0.002 }
[experiments.world.settings]
model = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
source = "world(train=32, val=20)"
image_size = 32
epochs = 2
warmup_epochs = 0
eval_epochs = 2
batch = 16
micro_batch = 16
workers = 0

[claims.gain]
paper = "TL-Align"
source = "Table 2"
says = "TL-Align beats CutMix"
reported = "+0.8"
contrast = "world.tl_align - world.cutmix"
margin = 0.8

[claims.moved]
paper = "TL-Align"
source = "Figure 3"
says = "labels move"
reported = "0.05"
contrast = "world.tl_align:rmse"
margin = 0.01
"""


def study(folder: Path, plan: str = PLAN) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "plan.toml").write_text(plan)
    return folder


def write_cells(folder: Path, numbers: dict[str, list[float]]) -> None:
    """Finished cells with these accuracies, seed by seed."""
    plan = read_plan(folder)
    (folder / "cells").mkdir(exist_ok=True)
    for name, values in numbers.items():
        experiment, _, method = name.partition(".")
        for seed, value in enumerate(values):
            cell = {"method": name, "seed": seed, "key": "k", "code": "c", "cpu_seconds": 3600}
            cell |= {"metrics": {"top1": value, "rmse": 0.1}, "plan": plan.experiments[experiment].digest(method)}
            (folder / "cells" / f"{name}-{seed}-k.json").write_text(json.dumps(cell))


@given(st.integers(1, 60), st.floats(-30, 30))
def test_student_is_scipy_s(freedom: int, t: float) -> None:
    assert student_cdf(t, freedom) == pytest.approx(stats.t.cdf(t, freedom), abs=1e-12)
    assert student_quantile(0.975, freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-6)


@given(st.lists(st.floats(-5, 5), min_size=3, max_size=20).filter(lambda values: max(values) - min(values) > 1e-3))
def test_p_is_the_t_test_s(values: list[float]) -> None:
    claim = Claim("c", "p", "s", "says", "r", "a.b", margin=0.5)
    assert p_value(dict(enumerate(values)), claim) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=1e-9)
    no_worse = Claim("c", "p", "s", "says", "r", "a.b", margin=0.5, at_least=True)
    assert p_value(dict(enumerate(values)), no_worse) == pytest.approx(stats.ttest_1samp(values, -0.5).pvalue, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_steps_down(p_values: list[float]) -> None:
    """By its definition: rejected at a level are the smallest ones as long as each is at most level / (those left)."""
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.3):
        rejected = 0
        for rank, p in enumerate(sorted(p_values)):
            if p * (len(p_values) - rank) > level:
                break
            rejected += 1
        assert sum(p <= level for p in corrected) == rejected
    assert [p for _, p in sorted(zip(p_values, corrected, strict=True))] == sorted(corrected)


GAINS = {
    "holds": [1.0, 1.4, 0.9, 1.2, 1.1, 1.0, 1.3, 1.2],
    "does not hold": [0.1, -0.1, 0.2, 0.0, 0.1, -0.2, 0.1, 0.0],  # surely less than 0.8
    "not decided": [4.0, -4.0, 1.0, 1.5, -2.0, 3.0, -1.0, 0.5],
}


@pytest.mark.parametrize("word", GAINS)
def test_verdicts(word: str, tmp_path: Path) -> None:
    folder, gains = study(tmp_path / "s", PLAN.replace("seeds = 2", "seeds = 8")), GAINS[word]
    write_cells(folder, {"world.cutmix": [70.0 + i for i in range(8)]})
    write_cells(folder, {"world.tl_align": [70.0 + i + gain for i, gain in enumerate(gains)]})
    plan = read_plan(folder)
    (gain, _) = decide(plan, read_cells(plan))
    assert gain.word == word
    assert gain.difference is not None
    assert gain.difference.mean == pytest.approx(mean(gains))
    worse = "does not hold"  # whatever is the other way round
    swapped = PLAN.replace("seeds = 2", "seeds = 8").replace(
        "world.tl_align - world.cutmix", "world.cutmix - world.tl_align"
    )
    study(folder, swapped)
    assert decide(read_plan(folder), read_cells(plan))[0].word == (word if word == "not decided" else worse)


@pytest.mark.parametrize(
    ("gains", "at_least", "word"),
    [
        ([0.3, 0.31, 0.29, 0.3, 0.32], False, "**holds**, by less than the margin"),  # the first that applies
        ([0.9, 1.1, 1.0, 0.95, 1.05], False, "**holds**"),
        ([0.2, -0.2, 0.1, -0.1, 0.15], False, "**does not hold**"),
        ([0.1, -0.1, 0.0, 0.05, -0.05], True, "**holds**"),  # no worse
        ([-0.3, -0.31, -0.29, -0.3, -0.32], True, "**holds**, though it is worse"),  # by less than the margin
        ([-1.1, -1.0, -0.9, -1.0, -1.05], True, "**does not hold**"),
        ([-1.0, 1.0, -0.5, 0.5, -2.0], True, "**not decided**"),
    ],
)
def test_the_first_verdict_that_applies(gains: list[float], at_least: bool, word: str, tmp_path: Path) -> None:
    """With a margin of 0.8, for "better" and for "at least as good"."""
    folder = study(tmp_path / "s", PLAN[: PLAN.index("[claims.moved]")].replace("seeds = 2", "seeds = 5"))
    if at_least:
        (folder / "plan.toml").write_text((folder / "plan.toml").read_text() + "at_least = true\n")
    write_cells(folder, {"world.cutmix": [70.0] * 5, "world.tl_align": [70.0 + gain for gain in gains]})
    plan = read_plan(folder)
    assert row(decide(plan, read_cells(plan))[0])[7] == word


def test_p_values_are_corrected_for_all_claims_of_a_paper_run_or_not(tmp_path: Path) -> None:
    """Two of three claims of one paper are finished, and the only one of another."""
    experiment, claim = PLAN[: PLAN.index("[claims.gain]")], PLAN[PLAN.index("[claims.gain]") : PLAN.index("[claims.m")]
    loss = claim.replace("claims.gain", "claims.loss").replace(
        "world.tl_align - world.cutmix", "world.cutmix - world.tl_align"
    )
    other = claim.replace("claims.gain", "claims.other").replace('"TL-Align"', '"another"')
    waiting = experiment.replace("experiments.world", "experiments.later") + claim.replace(
        "claims.gain", "claims.waiting"
    ).replace("world.", "later.")
    folder = study(tmp_path / "s", (experiment + claim + loss + other + waiting).replace("seeds = 2", "seeds = 5"))
    gains = [1.0, 0.2, 1.5, 0.9, 0.1]
    write_cells(folder, {"world.cutmix": [70.0] * 5, "world.tl_align": [70.0 + gain for gain in gains]})
    plan = read_plan(folder)
    verdicts = {verdict.claim.name: verdict for verdict in decide(plan, read_cells(plan))}
    p = stats.ttest_1samp(gains, 0).pvalue
    assert 0.02 < p < 0.05
    assert [verdicts[name].p for name in ("gain", "loss", "waiting", "other")] == pytest.approx([p, p, 1, p])
    corrected = [verdicts[name].corrected for name in ("gain", "loss", "waiting", "other")]
    assert corrected == pytest.approx([3 * p, 3 * p, 1, p])
    assert [verdicts[name].word for name in ("gain", "other")] == ["not decided", "holds"]
    plot = forest(list(verdicts.values()))
    assert "waiting" not in plot
    assert plot.count("<circle") == 3


def test_nothing_is_decided_before_all_seeds_have_run(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", PLAN.replace("seeds = 2", "seeds = 9"))
    write_cells(folder, {"world.cutmix": [70.0] * 8, "world.tl_align": [71.0 + 0.1 * i for i in range(8)]})
    plan = read_plan(folder)
    verdicts = decide(plan, read_cells(plan))
    assert verdicts[0].word == "waiting for seeds: 8 of 9"
    assert verdicts[0].difference
    assert row(verdicts[0])[4:8] == ["", "", "8 of 9", "waiting for seeds"]  # looking often would find something
    assert "| world | 16 of 18 |  |" in markdown(plan, verdicts, read_cells(plan))


def test_a_study_is_run_and_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study(tmp_path / "s")
    assert main(["study", "run", str(folder), "--dry-run"]) == 0
    assert "4 cells are missing" in capsys.readouterr().out
    assert main(["study", "run", str(folder), "--jobs", "2"]) == 0
    plan = read_plan(folder)
    results = read_cells(plan)
    assert {(cell["method"], cell["seed"]) for cell in results} == {
        (f"world.{method}", seed) for method in ("cutmix", "tl_align") for seed in (0, 1)
    }
    rates = {cell["method"]: cell["recipe"]["training"]["lr"] for cell in results}
    assert rates["world.tl_align"] == 0.002 != rates["world.cutmix"]
    assert all(cell["metrics"]["rmse"] > 0 for cell in results)
    assert results[0]["metrics"].keys() == {"top1", "top5", "loss", "rmse", "rmse_transmix"}
    assert open_cells(plan) == []
    page = tmp_path / "claims.md"
    page.write_text("# Claims\n\nWords.\n\n<!-- verdicts -->\n\nstale\n")
    capsys.readouterr()
    assert main(["study", "report", str(folder), "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith("# Claims\n\nWords.")
    assert "stale" not in text
    assert "TL-Align beats CutMix" in text
    by_method = {name: [one["metrics"]["top1"] for one in results if one["method"] == name] for name in rates}
    reached = [f"{mean(values):.1f} ± {stdev(values):.1f}" for values in by_method.values()]
    assert f"| world | 4 of 4 | cutmix {reached[0]}, tl_align {reached[1]} |" in text
    assert (tmp_path / "claims.svg").read_text().startswith("<svg")
    repeat = ["study", "repeat", str(folder), "world.cutmix", "--out", str(tmp_path / "again"), "--seed"]
    assert main([*repeat, "1"]) == 0
    told = capsys.readouterr().out
    assert "rmse: " in told
    assert told.endswith("world.cutmix, seed 1: the same numbers\n")
    (path,) = (folder / "cells").glob("world.cutmix-1-*.json")
    cell = read_result(path)
    write_sealed(path, {**cell, "metrics": {**cell["metrics"], "top1": cell["metrics"]["top1"] + 0.01}})
    with pytest.raises(SystemExit, match="1"):
        main([*repeat, "1"])  # finished there, so not trained again
    told = capsys.readouterr().out
    assert told.count("which differs") == 1
    assert told.endswith("other numbers (nothing else is known to differ)\n")
    write_sealed(path, {**cell, "arithmetic": {**cell["arithmetic"], "cpu": "abacus"}, "metrics": {"top1": 1.0}})
    with pytest.raises(SystemExit, match="1"):
        main([*repeat, "1"])
    assert "(cpu: abacus before, " in capsys.readouterr().out
    write_sealed(path, cell)
    assert main(["study", "repeat", str(folder), "world.cutmix", "--out", str(folder), "--seed", "1"]) == 2
    assert "is the study itself" in capsys.readouterr().err
    assert main([*repeat, "7"]) == 2
    assert "world.cutmix has not been run with seed 7; finished are 0, 1" in capsys.readouterr().err


def test_an_experiment_without_its_data_does_not_keep_the_others_waiting(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = PLAN[: PLAN.index("[claims.gain]")].replace("seeds = 2", "seeds = 1")
    waiting = first.replace("experiments.world", "experiments.photos").replace("world(train=32, val=20)", "photographs")
    folder = study(tmp_path / "s", waiting + first)
    assert main(["study", "run", str(folder)]) == 2
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("labelflow: photos is left out")
    assert "photos: " in told[-1]
    assert {cell["method"] for cell in read_cells(read_plan(folder))} == {"world.cutmix", "world.tl_align"}


def test_cells_of_another_queue_are_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study(tmp_path / "s", PLAN.replace("seeds = 2", "seeds = 1").replace('["cutmix", ', "["))
    folder = study(folder, (folder / "plan.toml").read_text().partition("[claims")[0])
    (cell,) = open_cells(read_plan(folder))
    (folder / "runs").mkdir()
    with FileLock(folder / "runs" / f".{cell.name}.lock"):
        assert main(["study", "run", str(folder)]) == 2
    assert "world.tl_align, seed 0: another process is training it" in capsys.readouterr().err
    assert not cell.run(folder).exists()


def test_a_segmenter_starts_from_the_trained_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "SCENES", "world(train=16, val=8, objects=2)")
    folder = study(tmp_path / "s", PLAN.replace("seeds = 2", "seeds = [3]").replace("depth=2", "depth=4"))
    (cell, _) = open_cells(read_plan(folder))
    run_cell(cell, folder, quiet=True)
    (miou,) = measures.segmentation(cell.run(folder)).values()
    segmenter = cell.run(folder) / "segmenter"
    recipe = json.loads((segmenter / "recipe.json").read_text())
    assert 0 < miou < 100
    assert recipe["backbone"] == str(cell.run(folder))
    assert recipe["training"]["seed"] == 3
    first = (segmenter / "metrics.jsonl").read_text()
    assert measures.segmentation(cell.run(folder)) == {"segmentation_miou": miou}
    assert (segmenter / "metrics.jsonl").read_text() == first, "it was trained again"


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ("claims = 3", "claims should be tables"),
        (PLAN.replace("margin = 0.8", ""), "claims.gain has no margin"),
        (PLAN.replace("margin = 0.8", "margn = 0.8"), "margn"),
        (PLAN.replace("world.tl_align -", "moon.tl_align -"), "no experiment 'moon'"),
        (PLAN.replace("world.tl_align - world.cutmix", "world.tl_align world.cutmix"), "is not of the form"),
        (PLAN.replace('["fluctuation"]', '["fluctuations"]'), "no measure"),
        (PLAN.replace('["fluctuation"]', '["occlusion"]'), "no metric of world 'rmse'"),
        (PLAN.replace(":rmse", ":rmsee"), "no metric of world 'rmsee'; did you mean rmse?"),
        (PLAN.replace("margin = 0.8", "margin = 0"), "claims.gain: margin should be a number above 0"),
        (PLAN.replace("margin = 0.8", 'margin = "0.8"'), "claims.gain: margin should be a number above 0"),
        (PLAN.replace("seeds = 2", 'seeds = "16"'), "experiments.world: seeds should be"),
        (PLAN.replace("seeds = 2", "seeds = [1, 1]"), "experiments.world: seeds should be"),
        (PLAN.replace('["cutmix", "tl_align"]', "3"), "experiments.world: methods should be a list"),
        (PLAN.replace("only.tl_align = { lr = 0.002 }", "only = 3"), "experiments.world: only should be a table"),
        (PLAN.replace('recipe = "quickstart_cutmix"', 'recipe = "quickstart_cutmix"\npilot = true'), "is a pilot"),
    ],
)
def test_a_bad_plan_is_one_line(plan: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "report", str(study(tmp_path / "s", plan))]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("metric", ["top5", "ema_top1", "balanced", "map", "macro_f1", "micro_f1", "rmse_transmix"])
def test_a_claim_may_be_about_any_metric(metric: str, tmp_path: Path) -> None:
    folder = study(tmp_path / "s", PLAN.replace(":rmse", f":{metric}"))
    assert read_plan(folder).claims["moved"].terms[0].metric == metric


def test_bad_cells_and_names_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = study(tmp_path / "s")
    write_cells(folder, {"world.cutmix": [70.0]})
    cell = folder / "cells" / "world.cutmix-0-k.json"

    def told(*arguments: str) -> str:
        assert main(["study", "report", str(folder), *arguments]) == 2
        return capsys.readouterr().err

    assert "there is no claim 'gian'; did you mean gain?" in told("--claims", "gian")
    whole = cell.read_text()
    cell.write_text(whole[:40])
    assert f"{cell} is damaged" in told()
    cell.write_text(whole.replace('"plan": "', '"plan": "0'))
    assert f"{cell} was run with another plan of world.cutmix" in told()
    cell.write_text(whole)
    second = cell.with_name("world.cutmix-0-l.json")
    second.write_text(whole.replace('"key": "k"', '"key": "l"'))
    assert f"{cell} and {second} are the same cell" in told()
    second.unlink()
    third = cell.with_name("world.cutmix-2-k.json")
    third.write_text(whole.replace('"seed": 0', '"seed": 2'))
    assert f"{third} has seed 2, which the plan of world does not" in told()
    third.unlink()
    cell = cell.rename(cell.with_name("moon.cutmix-0-k.json"))
    cell.write_text(whole.replace("world.cutmix", "moon.cutmix"))
    assert "is a cell of moon.cutmix" in told()
    assert main(["study", "run", str(folder), "--only", "moon"]) == 2
    assert main(["study", "run", str(tmp_path)]) == 2
    assert "has no plan.toml" in capsys.readouterr().err
