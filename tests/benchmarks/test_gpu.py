"""The benchmark for the first person with a GPU, on a CPU, at a size that takes seconds; in this process."""

import runpy
from pathlib import Path

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TINY = "vit_tiny_patch16_224(embed_dim=24, depth=2, num_heads=3)"
SECTIONS = ("eager", "memory", "methods", "waits", "mixers", "errors")  # compiling takes longer than all of them


@pytest.mark.skipif(torch.cuda.is_available(), reason="what a CPU says")
@pytest.mark.usefixtures("_own_threads")
def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    main = runpy.run_path(str(BENCHMARKS / "gpu.py"))["main"]
    few = ["--rounds", "1", "--methods", "cutmix", "tl_align", "--mixers", "cutmix", "saliencymix"]
    main(["--sections", *SECTIONS, "--models", TINY, "no_such_model", *few, "--out", str(tmp_path)])
    table = (tmp_path / "gpu.md").read_text()
    assert "measured on a CPU" in capsys.readouterr().out
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    results = {what: result for what, result, *_ in rows}
    assert results["GPU"].startswith("none")
    assert results["torch"] == torch.__version__
    assert float(results[f"step, eager, {TINY}"].split()[0]) > 0
    assert float(results[f"images/s to cutmix, cutmix, {TINY}"].split()[0]) == 1
    assert float(results[f"images/s to cutmix, tl_align, {TINY}"].split()[0]) > 0
    assert float(results[f"largest error of a share, {TINY}"]) < 1e-6
    assert 0 < float(results["largest error of a share, sharp attention"]) < 1e-5
    for what in (f"peak memory, {TINY}", f"the host waits in 3 aligned steps, {TINY}", "the host waits, saliencymix"):
        assert "this is a CPU" in results[what]
    failed = [row for row in rows if row[1] == "failed"]  # and the rest went on
    assert [row[0] for row in failed] == [f"{section}, no_such_model" for section in ("eager", "waits", "errors")]
    assert all("no_such_model" in row[2] for row in failed)
    assert len(rows) == 7 + 1 + 2 + 2 + 1 + 2 + 2 + len(failed)
