"""What is remembered of earlier batches: of which, for how long, and on resume."""

from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import labelflow as lf
from engine.test_freezing import failing_after
from labelflow.align import Output
from labelflow.data import Data
from labelflow.engine import Training
from labelflow.engine.checkpoint import Checkpoints
from labelflow.sparse import Sparse, TokenLabels
from labelflow.targets import Truth
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.classify import Classification
from labelflow.tasks.memory import Earlier, Memory

RECIPE = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)",
    mixer="recursivemix",
    target="recursive_mix",
    data=Data(source="world(train=24, val=4)", image_size=16, workers=0, test_crop=1.0),
    training=Training(epochs=2, batch=8, micro_batch=4, warmup_epochs=0, save_updates=1, log_updates=1, keep=9),
)


def earlier(number: float) -> Earlier:
    return Earlier(torch.full((2, 3, 4, 4), number), torch.full((2, 5), number), torch.full((2, 5), -number))


def test_each_place_of_an_update_has_its_own_memory() -> None:
    """Of the micro-batches 0, 1 | 2, 3 | 4, 5: 2 remembers 0, 3 remembers 1, 4 remembers 2. An epoch begins anew, and
    after its last update there is nothing to keep."""
    memory = Memory(length=2, updates=3)
    recalled, kept = [], []
    for number, epoch in enumerate((0, 0, 0, 0, 0, 0, 1, 1, 1)):
        found = memory.recall(epoch)
        recalled.append(None if found is None else int(found.images[0, 0, 0, 0]))
        memory.remember(earlier(number))
        kept.append(len(memory.queue))
    assert recalled == [None, None, 0, 1, 2, 3, None, None, 6]
    assert kept == [1, 2, 2, 2, 1, 0, 1, 2, 2]
    assert not Memory(length=2, updates=3).state_dict()


def test_processes_share_places() -> None:
    """Process r of R has the places r, r+R, …: its slice of what all of them remember."""
    memory = Memory(length=4, updates=5)
    memory.recall(3)
    for number in range(4):
        memory.remember(earlier(number))
    state = memory.state_dict()
    for rank in range(2):
        other = Memory(length=2, updates=5)
        other.load_state_dict({name: value[rank::2] for name, value in state.items()})
        assert (other.epoch, other.seen) == (3, 4)
        assert [int(one.images[0, 0, 0, 0]) for one in other.queue] == [rank, rank + 2]
        assert all(torch.equal(one.logits, -one.classes) for one in other.queue)
    smaller = Memory(length=8, updates=5)  # another --micro-batch: nothing fits, and it begins anew
    smaller.load_state_dict(state)
    assert smaller.recall(3) is None


def test_dense_labels_are_remembered_in_full() -> None:
    """Labels of tokens, resized into the box, again and again: the mean over the pixels of each token."""
    chance = torch.Generator().manual_seed(0)
    pixels = found = None
    for _ in range(3):
        dense = torch.rand(2, 16, 3, generator=chance)  # three of seven classes
        classes = torch.stack([torch.randperm(7, generator=chance)[:3] for _ in range(2)])
        labels = TokenLabels(Sparse(classes, dense.mean(1), torch.zeros(2)), dense, torch.full((2, 16), 0.1))
        images, truth = torch.rand(2, 3, 32, 32, generator=chance), Truth(torch.eye(2, 7), labels)
        full = labels.tokens.dense(7).mT.unflatten(2, (4, 4)).repeat_interleave(8, 2).repeat_interleave(8, 3)
        mix = lf.RecursiveMix()(images, chance, earlier=found.images if found else None)
        if found is not None and pixels is not None:
            images, truth = found.behind(images, truth)
            full = torch.cat([full, pixels])
        tokens = torch.nn.functional.avg_pool2d(mix.apply(full), 8)
        pixels = tokens.repeat_interleave(8, 2).repeat_interleave(8, 3)  # a label is a token's
        output = Output(torch.zeros(2, 7))
        found = Earlier.of(mix.apply(images), truth, mix, output)
        assert found.logits.data_ptr() != output.logits.data_ptr()  # which CUDA graphs overwrite
        assert found.dense_tokens is not None
        assert found.dense_image is not None
        assert_close(found.dense_tokens, tokens.flatten(2).mT)
        assert_close(found.images, mix.apply(images))
        assert_close(found.classes, mix.blend(truth.classes))
        assert truth.dense is not None
        whole = truth.dense.image.dense(7)
        assert_close(found.dense_image, mix.blend(whole))


def test_a_batch_is_pasted_into_the_next() -> None:
    task = Classification(RECIPE)
    for number, batch in zip(range(6), task.train_batches(3, 0, 0, 1), strict=False):
        seen = batch.to(torch.device("cpu"))
        before = task.memory.queue[0] if task.memory and number > 1 else None
        terms = task.terms(task.student.train(), seen, torch.Generator().manual_seed(number))
        assert task.memory is not None
        if number > 3:  # the epoch's last update
            assert len(task.memory.queue) == 5 - number
            continue
        mixed = task.memory.queue[-1].images
        mix = lf.RecursiveMix()(seen.images, torch.Generator().manual_seed(number), earlier=mixed)
        if before is None:
            assert torch.equal(mixed, seen.images)
            assert terms[1].value.detach() == 0
        else:
            assert torch.equal(mixed, mix.apply(torch.cat([seen.images, before.images])))
            assert terms[1].value.detach() > 0


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    train_run(RECIPE, folder, resume=False, quiet=True)
    return folder


@pytest.mark.parametrize("stopped", [2, 3])
def test_a_run_resumes_identically(run: Path, tmp_path: Path, stopped: int) -> None:
    """In the middle of an epoch, and at its end."""
    with pytest.raises(InterruptedError), patch.object(Checkpoints, "save", failing_after(stopped)):
        train_run(RECIPE, tmp_path, resume=False, quiet=True)
    train_run(RECIPE, tmp_path, resume=True, quiet=True)
    for file, update in (("model", 6), ("heads", 6), ("memory", 5)):
        expected, found = (
            load_file(folder / "checkpoints" / f"{update:08d}" / f"{file}.safetensors") for folder in (run, tmp_path)
        )
        assert expected.keys() == found.keys()
        assert all(torch.equal(value, found[name]) for name, value in expected.items())
    assert not (run / "checkpoints" / "00000006" / "memory.safetensors").exists()  # the next epoch begins anew


def test_a_target_of_earlier_batches_needs_its_mixer() -> None:
    with pytest.raises(ValueError, match="cutmix pastes nothing: --mixer recursivemix, or a mixture with it"):
        Classification(RECIPE.change(mixer="cutmix"))
