"""The folder of a run: what is read back after a kill, and what is refused."""

import contextlib
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from labelflow.engine.run import Run
from labelflow.files import atomic_folder, atomic_write


def test_only_a_last_unfinished_line_of_metrics_is_dropped(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.metrics() == []
    run.log({"kind": "train", "update": 1})
    run.log({"kind": "train", "update": 2})
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"update": 3, "lo')
    assert run.metrics() == [{"kind": "train", "update": 1}, {"kind": "train", "update": 2}]
    run.rewind(1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"kind": "train", "update": 1}\n'


@pytest.mark.parametrize("damaged", [1, 2, 3])
def test_any_other_damaged_line_is_an_error(tmp_path: Path, damaged: int) -> None:
    lines = ['{"kind": "train", "update": 1}\n', '{"kind": "train", "update": 2}\n', '{"kind": "train", "update": 3}\n']
    lines[damaged - 1] = '{"upda\n'
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    with pytest.raises(ValueError, match=rf"metrics\.jsonl is damaged in line {damaged}: "):
        Run(tmp_path).metrics()


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_weights_may_be_read_by_whom_the_umask_says(tmp_path: Path, umask: int) -> None:
    """safetensors makes files for their owner alone."""
    before = os.umask(umask)
    try:
        with atomic_write(tmp_path / "a.safetensors") as draft:
            save_file({"a": torch.ones(1)}, draft)
        with atomic_folder(tmp_path / "b") as folder:
            save_file({"a": torch.ones(1)}, folder / "a.safetensors")
    finally:
        os.umask(before)
    for path in (tmp_path / "a.safetensors", tmp_path / "b" / "a.safetensors"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("old")
    with contextlib.suppress(KeyError), atomic_write(tmp_path / "a.txt") as draft:
        draft.write_text("half")
        raise KeyError
    with contextlib.suppress(KeyError), atomic_folder(tmp_path / "b") as folder:
        (folder / "c.txt").write_text("half")
        raise KeyError
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a.txt": "old"}
