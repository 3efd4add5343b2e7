"""Two gloo processes: DDP gives what one process gives, and sharding keeps labels exact."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing
from accelerate.state import AcceleratorState
from safetensors.torch import load_file
from torch.testing import assert_close

import labelflow as lf
import workers
from helpers import build
from labelflow.classifier import load
from labelflow.data import Batch
from labelflow.engine import Run
from labelflow.targets import TokenLabel
from labelflow.tasks import train_run
from labelflow.tasks.multilabel import MultiLabel
from test_training_examples import ddp_task, new_task, small_vit, step


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What both processes come to, for each piece of work: they are started once, which takes longest."""
    folder = tmp_path_factory.mktemp("processes")
    works = [ddp_task, workers.ddp, workers.ddp_tokens, workers.ddp_taught, workers.fsdp, workers.fsdp_runs]
    works += [workers.multi_label]
    torch.multiprocessing.spawn(workers.start, args=(works, folder, 2), nprocs=2)
    ranks = [torch.load(folder / f"{rank}.pt") for rank in range(2)]
    return {name: [rank[name] for rank in ranks] for name in ranks[0]}


def test_ddp_gives_the_single_process_result(results: dict[str, list[Any]]) -> None:
    ranks = results["ddp"]
    for family in ("vit", "swin", "pvt"):
        model = build(family)
        aligned = lf.Aligned(model)
        single = [workers.step(aligned, *half) for half in workers.halves(family)]
        for rank, (loss, share) in zip(ranks, single, strict=True):
            assert_close(rank[family]["loss"], loss)
            assert_close(rank[family]["share"], share)
            for parameter, gradient in zip(model.parameters(), rank[family]["grad"], strict=True):
                assert_close(gradient, parameter.grad / 2, atol=1e-5, rtol=1e-4)


def test_timms_task_shares_gradients(results: dict[str, list[Any]]) -> None:
    first, second = results["ddp_task"]
    task, names = new_task(), list(small_vit().state_dict())
    step(task, 0)
    assert_close(first["own"], task.trainable_module.head.weight.grad)
    assert not torch.allclose(first["own"], second["own"])
    for rank in (first, second):
        assert_close(rank["mean"], (first["own"] + second["own"]) / 2)
        assert rank["names"] == rank["ema names"] == names


def test_a_token_head_is_trained_by_all_processes(results: dict[str, list[Any]]) -> None:
    ranks = results["ddp_tokens"]
    torch.manual_seed(0)
    student = TokenLabel().student(build("vit"))
    for number, rank in enumerate(ranks):
        assert_close(rank["loss"], workers.dense_step(student, number)["loss"])
    for name, parameter in student.named_parameters():
        for rank in ranks:
            assert_close(rank["grad"][name], parameter.grad / 2, atol=1e-5, rtol=1e-4)


def test_a_distillation_token_is_trained_by_all_processes(results: dict[str, list[Any]]) -> None:
    ranks, student = results["ddp_taught"], workers.taught_student()
    for number, rank in enumerate(ranks):
        assert_close(rank["loss"], workers.taught_step(student, number)["loss"])
    for name, parameter in student.named_parameters():
        for rank in ranks:
            assert_close(rank["grad"][name], parameter.grad / 2, atol=1e-5, rtol=1e-4)


def test_fully_shard_keeps_labels(results: dict[str, list[Any]]) -> None:
    ranks = results["fsdp"]
    for family in workers.SHARDED:
        aligned = lf.Aligned(build(family))
        for rank, half in zip(ranks, workers.halves(family), strict=True):
            loss, share = workers.step(aligned, *half)
            exact, rounded = rank[family, torch.float32], rank[family, torch.bfloat16]
            assert_close(exact["share"], share, atol=1e-6, rtol=0)
            assert_close(exact["loss"], loss, atol=1e-5, rtol=0)
            for result in (exact, rounded):  # a share in bfloat16 would be off by 8e-4
                assert_close(result["kept"], torch.full((4,), 0.3), atol=1e-6, rtol=0)
            assert rounded["share"].dtype == torch.float32
            error = (rounded["share"] - share).abs().mean()  # attention itself is rounded
            assert error < 0.3 * (share - half[1].lam).abs().mean()
            if family in ("mixer", "convnext"):  # labels follow weights alone: exactly those that the model runs with
                _, expected = lf.Aligned(build(family).bfloat16().float())(half[1].apply(half[0]), half[1].share)
                assert_close(rounded["share"], expected, atol=1e-6, rtol=0)


def test_a_sharded_run_trains_as_one_process_does(results: dict[str, list[Any]], tmp_path: Path) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    train_run(workers.LVVIT, tmp_path, resume=False, quiet=True)
    expected = [line for line in Run(tmp_path).metrics() if line["kind"] == "train"]
    weights, model = results["fsdp_runs"][0]["alone"], load(tmp_path).model
    assert {name: value.shape for name, value in weights["last.safetensors"].items()} == {
        name: value.shape for name, value in model.state_dict().items()
    }
    for rank in results["fsdp_runs"]:
        for metrics, close in zip(rank["metrics"], (1e-5, 1e-5, 3e-3), strict=True):
            found = [line for line in metrics if line["kind"] == "train"]
            for line, reference in zip(found, expected, strict=False):
                assert_close(line["loss"], reference["loss"], atol=close, rtol=0)
        alone, _, rounded = (metrics[0]["loss"] for metrics in rank["metrics"])
        assert alone != rounded  # bf16 is what it ran in


def test_a_sharded_run_resumes_identically(results: dict[str, list[Any]]) -> None:
    """Its weights, their average, and what both are worth: batch norms' statistics are the first process's."""
    for rank in results["fsdp_runs"]:
        for name, weights in rank["alone"].items():
            assert all(torch.equal(value, rank["resumed"][name][key]) for key, value in weights.items())
        alone, resumed, _ = ([line for line in lines if line["kind"] == "eval"] for lines in rank["metrics"])
        assert alone == resumed
        assert "ema_top1" in alone[0]


def test_batches_are_remembered_as_by_one_process(results: dict[str, list[Any]], tmp_path: Path) -> None:
    """Which images are pasted into which, and what they show, does not depend on the number of processes."""
    AcceleratorState._reset_state(reset_partial_state=True)
    train_run(workers.RECURSIVE, tmp_path, resume=False, quiet=True)
    expected = load_file(tmp_path / workers.MEMORY)
    for rank in results["fsdp_runs"]:
        assert rank["memory"].keys() == expected.keys()
        for name in ("images", "classes", "epoch"):
            assert torch.equal(rank["memory"][name], expected[name])
        assert_close(rank["memory"]["logits"], expected["logits"], atol=1e-5, rtol=0)
    assert len(expected["images"]) == workers.RECURSIVE.training.batch // workers.RECURSIVE.training.micro_batch > 1


def test_several_labels_are_evaluated_exactly(results: dict[str, list[Any]]) -> None:
    AcceleratorState._reset_state(reset_partial_state=True)
    logits, labels = workers.scores()
    metric = MultiLabel("abc")
    sums = metric.measure(logits, Batch(torch.empty(19, 3, 1, 1), labels, torch.ones(19), []))
    expected = metric.metrics(sums)
    for rank in results["multi_label"]:
        assert rank["metrics"] == pytest.approx(expected, rel=1e-6)
        assert rank["metrics"]["map"] == expected["map"]
        assert rank["details"] == metric.details()
