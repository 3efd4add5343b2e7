"""What a classifier's task knows before anything is written."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from safetensors.torch import load_file
from timm.data import create_transform
from torch import Tensor
from torch.testing import assert_close

from labelflow.chance import Purpose, drawn_from, seed_of
from labelflow.data import Batch, Data, PixelBatch, unreadable
from labelflow.data.batches import TrainBatches
from labelflow.engine import Training
from labelflow.models.create import create
from labelflow.tasks import Classification, Recipe, classify, train_run

VIT = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)"
TINY = Recipe(
    model=VIT,
    data=Data(source="world(train=16, val=8)", image_size=32, test_crop=1.0, workers=0),
    training=Training(epochs=1, batch=4, micro_batch=4, warmup_epochs=0, log_updates=1),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes, of which one has two files that can't be read."""
    for split, count in (("train", 8), ("val", 2)):
        for name in ("cat", "dog"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(count):
                Image.new("RGB", (40, 40)).save(tmp_path / "photos" / split / name / f"{number}.jpg")
    (tmp_path / "photos" / "train" / "cat" / "3.jpg").write_text("not an image")
    whole = (tmp_path / "photos" / "val" / "cat" / "1.jpg").read_bytes()
    (tmp_path / "photos" / "val" / "cat" / "1.jpg").write_bytes(whole[: len(whole) // 2])
    return tmp_path / "photos"


class TestUnreadableFiles:
    def test_they_are_found_before_anything_is_written(self, photos: Path, tmp_path: Path) -> None:
        recipe = TINY.change(source=str(photos), skip_unreadable=1)
        with pytest.raises(
            ValueError, match=r"read 2 images: .*train/cat/3\.jpg.*val/cat/1\.jpg.*unreadable 2; labelflow data check"
        ):
            train_run(recipe, tmp_path / "run", resume=False)
        assert not (tmp_path / "run").exists()
        train_run(recipe.change(skip_unreadable=2), tmp_path / "run", resume=False)

    def test_where_there_are_many_they_stop_the_run(
        self, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        go_on, look = Event(), unreadable.check_file
        monkeypatch.setattr(classify, "CHECK_SECONDS", 0.0)
        monkeypatch.setattr(unreadable, "check_file", lambda path: look(path) if go_on.wait() else None)
        (photos / "train" / "cat" / "3.jpg").unlink()  # the other one is met in the evaluation, and not before
        task = Classification(TINY.change(source=str(photos)))
        assert task.find_unreadable() == []
        batches = task.train_batches(updates=2, first_update=0, rank=0, processes=1)
        assert next(batches).problems == []
        go_on.set()
        task.file_check.wait(60.0)
        assert [Path(problem.name).name for problem in next(batches).problems] == ["1.jpg"]


class Seen:
    """A batch whose images are made at once, by timm's transforms."""

    def __init__(self, batch: PixelBatch, images: Tensor) -> None:
        self.batch, self.images, self.problems = batch, images, batch.problems

    def to(self, device: torch.device) -> Batch:
        return self.batch.to(device)._replace(images=self.images)


def test_weights_are_bit_for_bit_those_of_normalised_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where workers would normalise, bytes give the same run."""
    recipe = TINY.change(erasing=0.0, auto_augment="rand-m7-mstd0.5-inc1", model=VIT)
    train_run(recipe, tmp_path / "bytes", resume=False)
    read, data = Classification.train_batches, recipe.data

    def train_batches(task: Classification, updates: int, *args: int) -> Iterator[Seen]:
        colours = {"mean": data.mean, "std": data.std}
        randomly = {"auto_augment": data.auto_augment, "interpolation": "bicubic"}
        transform = create_transform(32, is_training=True, **colours, **randomly)
        draws = TrainBatches(16, batch=4, micro_batch=4, updates=updates, seed=0)
        for group, batch in zip(draws, read(task, updates, *args), strict=True):
            images = []
            for draw in group:
                with drawn_from(0, Purpose.VIEW, draw.epoch, draw.position):
                    images.append(transform(task.train_source.load(draw.sample)[0]))
            yield Seen(batch, torch.stack(images))

    monkeypatch.setattr(Classification, "train_batches", train_batches)
    train_run(recipe, tmp_path / "floats", resume=False)
    one, other = (load_file(tmp_path / name / "last.safetensors") for name in ("bytes", "floats"))
    assert_close(one, other, rtol=0, atol=0)


def refusal(**changes: object) -> str:
    with pytest.raises(ValueError, match=r".") as refused:
        Classification(TINY.change(**changes))
    return str(refused.value)


def test_one_class_is_not_enough(tmp_path: Path) -> None:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    for number in range(8):
        Image.new("RGB", (40, 40)).save(tmp_path / "photos" / "cat" / f"{number}.jpg")
    assert "has one class, 'cat'; a classifier needs at least two" in refusal(source=str(tmp_path / "photos"))


@pytest.mark.parametrize(
    ("model", "size", "message"),
    [
        (VIT, 63, r"patches of 8×8 pixels, which do not divide images of 63×63; .*: --image-size 56 or 64"),
        (VIT, 7, "does not take images of 7×7 pixels"),
        ("inception_next_atto", 7, "does not take images of 7×7 pixels"),
        ("swin_tiny_patch4_window7_224(embed_dim=8, depths=(1, 1), num_heads=(1, 1))", 30, "--image-size 28 or 32"),
        ("pit_ti_224", 7, "model 'pit_ti_224'"),
        ("test_vit(dynamic_img_size=True)", 40, "should be divisible by patch size"),
    ],
)
def test_image_sizes_that_do_not_fit(model: str, size: int, message: str) -> None:
    assert re.search(message, refusal(model=model, image_size=size, test_crop=0.25, target="plain"))


@pytest.mark.parametrize(
    ("model", "size"),
    [
        ("test_vit(dynamic_img_size=True, dynamic_img_pad=True)", 40),  # it fills up the last patches
        ("swin_tiny_patch4_window7_224(embed_dim=8, depths=(1, 1), num_heads=(1, 1))", 36),  # and here the windows
        ("test_resnet", 33),
        ("test_convnext", 45),
        ("pvt_v2_b0(embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1), depths=(1, 1, 1, 1))", 45),  # patches overlap
    ],
)
def test_image_sizes_that_fit(model: str, size: int) -> None:
    Classification(TINY.change(model=model, image_size=size, target="plain"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "transmix"}, "TransMix, in the last block, needs attention .* use --target tl_align"),
        ({"mixer": "smmix"}, "a mixer that attention guides needs attention .* use --mixer cutmix"),
        ({"mixer": "0.9*cutmix + 0.1*mixtoken(patch=8)"}, "no patch embedding after which tokens could be mixed"),
    ],
)
def test_what_a_model_without_tokens_cannot_serve(changes: dict[str, str], message: str) -> None:
    assert re.search(message, refusal(model="test_resnet", **changes))
    Classification(TINY.change(**changes))  # a ViT can


def test_a_rehearsal_leaves_no_trace() -> None:
    """Neither on the weights, running means among them, nor on gradients and modes."""
    recipe = TINY.change(model="test_resnet", mixer="0.5*puzzlemix + 0.5*mixup", smoothing=0.0)
    torch.manual_seed(seed_of(recipe.training.seed, Purpose.WEIGHTS))
    fresh = create("test_resnet", num_classes=10, drop_path_rate=0.1)
    task = Classification(recipe)
    assert task.student.training
    for name, value in fresh.state_dict().items():
        assert torch.equal(task.student.model.state_dict()[name], value)
    assert all(parameter.grad is None for parameter in task.student.parameters())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"target": "tl_align"},
            r"makes every label 0 or 1, so the target tl_align would make no difference.*--loss bce",
        ),
        ({"target": "transmix"}, "the target transmix would make no difference"),
        ({"target": "distill(target='tl_align')", "teacher": "resnet18=random"}, "would make no difference"),
        ({"target": "token_label", "teacher": "resnet18=random"}, "or a wrong one: --loss bce"),
    ],
)
def test_labels_of_0_and_1_have_no_shares_and_no_places(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Classification(TINY.change(loss="bce(threshold=0)", smoothing=0.0, **settings))


def test_plain_targets_take_labels_of_0_and_1() -> None:
    Classification(TINY.change(loss="bce(threshold=0)", smoothing=0.0, target="plain"))
    assert TINY.change(loss="bce(threshold=None)").smoothing == 0.1


def test_a_teacher_s_settings_need_a_teacher() -> None:
    with pytest.raises(ValueError, match="are for a --teacher, and there is none"):
        Classification(TINY.change(teacher_size=64))
