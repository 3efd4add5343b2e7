"""Cells: what their keys stand for, and what they leave."""

import json
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
from PIL import Image
from safetensors.torch import save_file
from torch import Generator, Tensor

import labelflow
from helpers import pack
from labelflow.comparison import make_cells
from labelflow.comparison.cells import Cell, _without_paths, code_version, run_cell
from labelflow.comparison.speed import measure_speeds
from labelflow.data import Data
from labelflow.engine import Training
from labelflow.mix import Mix
from labelflow.mixers import Mixer, make_mixer
from labelflow.recipes.methods import METHODS, find_method, token_side
from labelflow.tasks import Classification, Recipe

RECIPE = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
    data=Data(source="world(train=32, val=16)", image_size=32, test_crop=1.0, workers=0),
    training=Training(epochs=1, batch=16, micro_batch=8, warmup_epochs=0, log_updates=1),
)


WORLDS = ["world(train=32, val=16)", "world(train=32, val=8)", "world(train=32, val=16, seed=1)"]


def cell(**changes: object) -> Cell:
    return Cell("cutmix", RECIPE.change(**changes), "data", "code")


def test_a_key_tells_what_is_computed() -> None:
    key = cell().key
    for changes in ({"lr": 1e-3}, {"seed": 1}, {"mixer": "none"}, {"epochs": 2}, {"image_size": 64}):
        assert cell(**changes).key != key
    for changes in ({"workers": 3}, {"keep": 5}, {"log_updates": 7}):  # what is kept and shown only
        assert cell(**changes).key == key
    assert Cell("cutmix", RECIPE, "other data", "code").key != key
    assert Cell("cutmix", RECIPE, "data", "other code").key != key
    made = {make_cells(RECIPE.change(source=data), [METHODS["cutmix"]], (0,))[0].key for data in WORLDS}
    assert len(made) == len(WORLDS)


def test_a_result_has_the_settings_that_were_used(tmp_path: Path) -> None:
    (made,) = make_cells(RECIPE.change(micro_batch=64, warmup_epochs=5), [METHODS["cutmix"]], (0,))
    assert (made.recipe.training.micro_batch, made.recipe.training.precision) == (16, "no")  # on a CPU
    used = run_cell(made, tmp_path, quiet=True)["recipe"]["training"]
    assert (used["micro_batch"], used["warmup_epochs"], used["warmup_updates"]) == (16, 0, 0)  # of two updates


def test_a_key_tells_which_weights_it_starts_from(tmp_path: Path) -> None:
    model = Classification(RECIPE).student.model

    def key(name: str) -> str:
        return make_cells(RECIPE.change(init=str(tmp_path / name)), [METHODS["cutmix"]], (0,))[0].key

    save_file(model.state_dict(), tmp_path / "one.safetensors")
    save_file(model.state_dict(), tmp_path / "same.safetensors")
    save_file({name: 2 * value for name, value in model.state_dict().items()}, tmp_path / "other.safetensors")
    assert key("one.safetensors") == key("same.safetensors") != key("other.safetensors")
    names = {make_cells(RECIPE.change(init=name), [METHODS["cutmix"]], (0,))[0].key for name in ("", "pretrained")}
    assert len(names) == 2


def test_a_folder_may_move_but_not_change(tmp_path: Path) -> None:
    for place in ("here", "there"):
        for number in range(12):
            folder = tmp_path / place / "ab"[number % 2]
            folder.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(folder / f"{number}.png")

    def key(place: str) -> str:
        recipe = RECIPE.change(source=str(tmp_path / place))
        return make_cells(recipe, [METHODS["cutmix"]], (0,))[0].key

    assert key("here") == key("there")
    before = key("there")
    (tmp_path / "there" / "a" / "0.png").rename(tmp_path / "there" / "b" / "new.png")
    assert key("there") != before


def test_shards_may_move_but_not_change(tmp_path: Path) -> None:
    def key(place: str, label: bytes = b"1") -> str:
        (tmp_path / place).mkdir(exist_ok=True)
        for split in ("train", "val"):
            pack(tmp_path / place / f"{split}.tar", [("a.png", b""), ("a.cls", label), ("b.png", b""), ("b.cls", b"2")])
        where = {"source": "wds", "root": str(tmp_path / place), "train_split": "train.tar", "val_split": "val.tar"}
        return make_cells(RECIPE.change(**where), [METHODS["cutmix"]], (0,))[0].key

    assert key("here") == key("there")
    assert key("there", label=b"0") != key("here")


def test_only_code_that_computes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment in a page, a command or a robustness suite does not make finished cells be trained again."""
    root = Path(labelflow.__file__).parent
    copied = copytree(root, tmp_path / "labelflow", ignore=ignore_patterns("__pycache__"))
    monkeypatch.setattr("labelflow.__file__", str(copied / "__init__.py"))
    code = code_version()

    def comment(name: str) -> str:
        with open(copied / name, "a") as file:
            file.write("# a comment\n")
        return code_version()

    for name in (
        "robustness/__init__.py",
        "report/page.py",
        "html/document.py",
        "comparison/page.py",
        "recipes/base.py",
    ):
        assert comment(name) == code
    for name in ("study/plan.py", "figures/base.py", "explore/server.py", "commands/labels.py", "cli.py"):
        assert comment(name) == code
    for name in (
        "mix.py",
        "adapters/vit.py",
        "targets/transmix.py",
        "data/views.py",
        "engine/loop.py",
        "labels/store.py",
    ):
        assert comment(name) != code
        code = code_version()
    (copied / "mixers" / "new.py").write_text("")
    assert code_version() != code


def test_a_cell_is_a_run_and_a_small_file(tmp_path: Path) -> None:
    (one,) = make_cells(RECIPE, [METHODS["tl_align"]], (3,))
    assert one.finished(tmp_path) is None
    result = run_cell(one, tmp_path, quiet=True)
    written = json.loads(one.file(tmp_path).read_text())
    assert one.finished(tmp_path) == result == {name: value for name, value in written.items() if name != "sha256"}
    assert (result["method"], result["seed"], result["samples"]) == ("tl_align", 3, 32)
    assert result["recipe"]["target"] == "tl_align"
    assert result["recipe"]["training"]["seed"] == 3
    assert result["peak_memory"] > 2**20
    assert result["parameters"] == sum(p.numel() for p in Classification(one.recipe).student.model.parameters())
    assert len(result["curve"]) == 1
    assert "/" not in one.file(tmp_path).read_text().replace("images/s", "")  # no path of this machine
    assert (one.run(tmp_path) / "last.safetensors").exists()
    whole = one.file(tmp_path).read_text()
    one.file(tmp_path).write_text(json.dumps(result))  # as they were before they had checksums
    assert one.finished(tmp_path) == result
    for damaged, told in (
        ("{", "Expecting"),
        ("[]", "it holds no JSON object"),
        ("{}", "it has no code, key"),
        (whole.replace('"seed": 3', '"seed": 2', 1), "checksum mismatch"),
        (json.dumps({**result, "seed": 2}), "it holds the result of tl_align-2-"),
    ):
        one.file(tmp_path).write_text(damaged)
        with pytest.raises(ValueError, match=f"json is damaged: {told}.*; remove it to train the cell again"):
            one.finished(tmp_path)


def test_cells_come_seed_by_seed() -> None:
    cells = make_cells(RECIPE, [METHODS["cutmix"], METHODS["tl_align"]], (4, 1))
    assert [(one.method, one.seed) for one in cells] == [("cutmix", 4), ("tl_align", 4), ("cutmix", 1), ("tl_align", 1)]


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_made(name: str) -> None:
    method = METHODS[name]
    recipe = method.of(RECIPE.change(labels="labels"))
    assert bool(recipe.data.labels) == method.dense
    assert "{" not in recipe.mixer
    if name != "attentive_cutmix" and not (method.dense or method.taught):  # a pretrained CNN, labels, a teacher
        Classification(recipe)


def test_methods_of_one_s_own() -> None:
    method = find_method("mine=0.5*mixup(alpha=0.8) + 0.5*random_patches(patch={patch})/tl_align(layers=[-1])")
    assert method.of(RECIPE).mixer == "0.5*mixup(alpha=0.8) + 0.5*random_patches(patch=8)"
    assert method.target == "tl_align(layers=[-1])"
    file = find_method("mine=attentive_cutmix(init='a/b=c.pth')/plain")
    assert (file.mixer, file.target) == ("attentive_cutmix(init='a/b=c.pth')", "plain")
    for wrong in ("mine=cutmix", "my-name=cutmix/plain", "mine=attentive_cutmix(init='a/b.pth')"):
        with pytest.raises(ValueError, match="NAME=MIXER/TARGET"):
            find_method(wrong)
    with pytest.raises(ValueError, match="no method 'cutmx'; did you mean cutmix"):
        find_method("cutmx")
    assert token_side(RECIPE.change(model="deit_tiny_patch16_224")) == 16
    assert token_side(RECIPE.change(model="swin_tiny_patch4_window7_224")) == 4
    with pytest.raises(ValueError, match="does not say how large its tokens are"):
        token_side(RECIPE.change(model="resnet18"))


def test_mixers_in_turn_are_all_measured() -> None:
    asked: list[str] = []

    def make_recorded(text: str) -> Mixer:
        mixer = make_mixer(text)

        def recorded(images: Tensor, generator: Generator | None = None) -> Mix:
            asked.append(text)
            return mixer(images, generator)

        return recorded

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labelflow.comparison.speed.make_mixer", make_recorded)
        measure_speeds({"both": METHODS["mixup_cutmix"].of(RECIPE)}, 1)
    assert asked == ["mixup(alpha=0.8)", "cutmix(alpha=1.0)"] * 2


def test_speeds_are_relative_to_the_first() -> None:
    told: list[int] = []
    recipes = {name: METHODS[name].of(RECIPE) for name in ("cutmix", "tl_align")}
    speeds = measure_speeds(recipes, 3, told.append)
    assert list(speeds) == ["cutmix", "tl_align"]
    assert (speeds["cutmix"].ratio, speeds["cutmix"].low, speeds["cutmix"].high) == (1.0, 1.0, 1.0)
    assert speeds["tl_align"].low <= speeds["tl_align"].ratio <= speeds["tl_align"].high
    assert told == [1] * 4


@pytest.mark.parametrize(
    ("teacher", "kept"),
    [("/home/me/runs/big", "big"), ("resnet50(width=1)=/home/me/w.pth", "resnet50(width=1)=w.pth"), ("", "")],
)
def test_a_cell_s_file_has_no_paths_of_teachers(teacher: str, kept: str) -> None:
    assert _without_paths(RECIPE.change(teacher=teacher)).teacher == kept


def test_speeds_do_not_depend_on_the_epoch() -> None:
    """In so many updates of micro-batches there are fewer epochs, and mixing would end beyond them."""
    recipe = RECIPE.change(epochs=0, updates=20, warmup_epochs=0, batch=8, micro_batch=4, mix_off_epoch=4)
    assert measure_speeds({"cutmix": recipe}, rounds=1)["cutmix"].ratio == 1
