"""A picture whose colour is its coordinate shows whether a view's geometry tells where its pixels come from."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import create_transform
from timm.data.auto_augment import AugmentOp, RandAugment
from torch import Tensor

from labelflow.chance import drawn_from
from labelflow.data import Data, Folder, train_transform
from labelflow.data.geometry import Chosen, Geometry, Matrix, OnImage, Tracked
from labelflow.data.normalise import Normalise
from labelflow.data.transforms import Steps, _posterize
from labelflow.data.views import View, collate
from labelflow.labels import Draft, Manifest, Store, StoreLabels
from labelflow.labels.sampling import ViewedMap

CLOSE = 0.1 / 18  # a tenth of a cell of an 18×18 map, as a part of the image
PLAIN = Data(
    image_size=112, auto_augment="", color_jitter=0, erasing=0, mean=(0.0,) * 3, std=(1.0,) * 3, scale=(0.2, 1)
)
RANDOM = replace(PLAIN, auto_augment="rand-m9-mstd0.5-inc1")
MOVES = ["ShearX", "ShearY", "TranslateXRel", "TranslateYRel", "TranslateX", "TranslateY", "Rotate"]
SEEDS = range(12)


def coordinates(width: int = 300, height: int = 200, backwards: bool = False) -> Image.Image:
    """Red is x, green is y, or what lacks to 1; blue is 200 where there is a picture."""
    y, x = np.indices((height, width)) + 0.5
    colours = np.stack([255 * x / width, 255 * y / height, np.full(x.shape, 200)], 2).round().astype(np.uint8)
    return Image.fromarray(np.where([True, True, False], 255 - colours, colours) if backwards else colours)


def seen_at(image: Tensor, grid: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The coordinates that tokens show (N, 2), which of them show nothing but picture, and which no picture (N,)."""
    side = image.shape[2] // grid
    tokens = image.unfold(1, side, side).unfold(2, side, side).flatten(3).flatten(1, 2).double().numpy()  # (3, N, ·)
    return tokens[:2].mean(2).T, (np.abs(tokens[2] - 200 / 255) < 0.006).all(1), (tokens[2] == 0).all(1)


def middles(matrix: Matrix, grid: int) -> np.ndarray:
    """Where a matrix sends the middles of tokens: (N, 2)"""
    y, x = (np.indices((grid, grid)).reshape(2, -1) + 0.5) / grid
    return (matrix @ np.stack([x, y, np.ones_like(x)]))[:2].T


def moving(*names: str) -> Callable[[Image.Image], Tracked]:
    """A training transform whose RandAugment draws from these operations alone, as many."""
    transform = train_transform(RANDOM)
    step = rand_augment(transform)
    step.ops = [AugmentOp(name, prob=1.0, magnitude=9, hparams=step.ops[0].hparams) for name in names]
    step.num_layers, step.choice_weights = len(names), None
    return transform


def rand_augment(transform: Steps) -> RandAugment:
    return next(step.step for step in transform.steps if isinstance(step, Chosen))


def as_tensor(pixels: np.ndarray) -> Tensor:
    """(H, W, 3) -> (3, H, W)"""
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def view(transform: Callable[[Image.Image], Tracked], seed: int) -> Tracked:
    """Of the coordinates. Pillow rounds down in each move: a picture of the opposite takes that out."""
    views = []
    for backwards in (False, True):
        with drawn_from(seed):
            views.append(transform(coordinates(backwards=backwards)))
    forth, back = (as_tensor(seen.image) / 255 for seen in views)
    exact = torch.cat([(forth[:2] - back[:2] + 1) / 2, forth[2:]])
    return replace(views[0], image=exact)


# ---- where pixels come from


@pytest.mark.parametrize("grid", [7, 14])
@pytest.mark.parametrize("moves", [(), *((move,) for move in MOVES), MOVES[:2], MOVES[2:4], MOVES[4:], MOVES[1::2]])
def test_pixels_come_from_where_the_geometry_says(moves: Sequence[str], grid: int) -> None:
    """Crop and flip, then each operation or several of a kind, drawn again and again."""
    transform = moving(*moves) if moves else train_transform(PLAIN)
    whole = mirrored = 0
    for seed in SEEDS:
        seen = view(transform, seed)
        shown, inside, _ = seen_at(seen.image, grid)
        error = np.abs(shown - middles(seen.geometry.matrix, grid))[inside]
        assert error.max(initial=0) <= CLOSE, f"{moves} with seed {seed}: {error.max() * 18:.3f} cells"
        whole += inside.sum()
        mirrored += seen.geometry.mirrored
        assert seen.geometry.size == (300, 200)
        assert bool(moves) == (not np.allclose(seen.geometry.moved, np.eye(3)))
    assert whole > 0.2 * len(SEEDS) * grid**2
    assert 0 < mirrored < len(SEEDS)


@pytest.mark.parametrize("move", MOVES)
def test_moves_of_oblong_images(move: str) -> None:
    """Views are square; an image need not be."""
    operation = AugmentOp(move, prob=1.0, magnitude=9, hparams={"translate_const": 60, "img_mean": (0, 0, 0)})
    for seed in SEEDS:
        with drawn_from(seed):
            seen = operation(Tracked(coordinates(), Geometry((300, 200))))
        pixels = np.asarray(seen.image, float)
        y, x = (np.indices((200, 300)) + 0.5) / np.array([200, 300]).reshape(2, 1, 1)
        expected = seen.geometry.matrix[:2] @ np.stack([x.ravel(), y.ravel(), np.ones(x.size)])
        shown = np.abs(pixels[..., 2] - 200).ravel() <= 1
        error = np.abs(255 * expected.T - pixels[..., :2].reshape(-1, 2))[shown]
        assert shown.mean() > 0.4
        assert error.max() <= 2, f"seed {seed}: {error.max()} of 255"


def test_a_whole_view_is_the_image() -> None:
    seen = view(train_transform(replace(PLAIN, scale=(1, 1), ratio=(1.5, 1.5), flip=0)), 0)
    np.testing.assert_allclose(seen.geometry.matrix, np.eye(3), atol=1e-12)


def test_a_flip_alone_mirrors() -> None:
    seen = view(train_transform(replace(PLAIN, scale=(1, 1), ratio=(1.5, 1.5), flip=1)), 0)
    np.testing.assert_allclose(seen.geometry.matrix @ [0.25, 0.5, 1], [0.75, 0.5, 1], atol=1e-12)


# ---- the same views as timm's


@pytest.mark.parametrize(
    "changes",
    [
        {"auto_augment": ""},
        {"auto_augment": "", "color_jitter": 0.4, "interpolation": "random"},
        {"auto_augment": "rand-m9-mstd0.5-inc1"},
        {"auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "random", "erasing": 0.5},
        {"auto_augment": "rand-m7-n3-mstd101-t3a"},
        {"auto_augment": "original"},
        {"auto_augment": "original-mstd0.5"},
        {"auto_augment": "v0"},
        {"auto_augment": "3a"},
        {"auto_augment": "augmix-m5-w4-d2"},
    ],
    ids=lambda changes: " ".join(map(str, changes.values())) or "none",
)
def test_views_are_bit_for_bit_timms(changes: dict) -> None:
    data = replace(PLAIN, image_size=64, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), **changes)
    timms = create_transform(
        64,
        is_training=True,
        scale=data.scale,
        color_jitter=data.color_jitter or None,
        auto_augment=data.auto_augment or None,
        interpolation=data.interpolation,
        re_prob=data.erasing,
        re_mode="pixel",
        mean=data.mean,
        std=data.std,
    )
    transform, image = train_transform(data), coordinates(90, 70)
    compared = 0
    for seed in range(60):
        try:
            with drawn_from(seed):
                expected = timms(image)
                next_draw = np.random.random()  # noqa: NPY002
        except ValueError:  # it posterizes to 0 bits, which Pillow refuses since version 13
            continue
        with drawn_from(seed):
            seen = transform(image)
            batch = collate([View(seen.image, 0, 1.0, patch=seen.patch)], Normalise(data.mean, data.std))
            batch.patches.paint(expected[None])  # noise of our own
            assert torch.equal(batch.to(torch.device("cpu")).images[0], expected), f"seed {seed}"
            assert np.random.random() == next_draw  # noqa: NPY002
        compared += 1
    assert compared > 50


@pytest.mark.parametrize(("magnitude", "values"), [(9, {0, 128}), (10, {0})])
def test_posterizing_to_no_bits_is_black(magnitude: int, values: set[int]) -> None:
    """timm's RandAugment posterizes to 4 - ⌊4·m/10⌋ bits; Pillow refuses 0 bits since version 13."""
    transform = train_transform(replace(PLAIN, image_size=32, interpolation="bilinear", auto_augment="rand-n1-inc1"))
    step = rand_augment(transform)
    step.ops = [op for op in step.ops if op.aug_fn.__class__ is OnImage and op.aug_fn.step is _posterize][:1]
    step.ops[0].prob, step.ops[0].magnitude, step.choice_weights = 1.0, magnitude, None
    with drawn_from(0):
        image = transform(coordinates(40, 30)).image
    assert set(np.unique(image).tolist()) == values


# ---- labels of views


def scores_of(image: Image.Image, cells: int) -> np.ndarray:
    """A map whose two classes have as their scores the x and y of cells: (2, cells, cells)"""
    shown = np.asarray(image.resize((cells, cells), Image.Resampling.BOX, reducing_gap=None), float)[..., :2]
    return np.moveaxis(4 * shown / 255, 2, 0)


def coordinate_store(folder: Path, images: dict[str, Image.Image], cells: int = 36) -> Store:
    manifest = Manifest("coordinates", "", 0, "whole", "logits", (cells, cells), 2, ("x", "y", "none"), len(images))
    draft = Draft(folder, manifest, list(images))
    scores = np.stack([scores_of(image, cells) for image in images.values()])
    draft.write(0, scores, np.broadcast_to(np.array([0, 1]).reshape(1, 2, 1, 1), scores.shape))
    return draft.finish()


def told(labels: ViewedMap) -> np.ndarray:
    """The coordinates that labels of tokens tell (N, 2): their scores are above that of "none", which is 0."""
    y = labels.stack([labels]).to(torch.device("cpu")).tokens.dense(3)[0].double().numpy()
    return np.log(y[:, :2] / y[:, 2:]) / 4


@pytest.mark.parametrize("moves", [(), *((move,) for move in MOVES), MOVES[:2], MOVES[2:4], MOVES[4:]])
def test_labels_are_of_what_is_seen(moves: Sequence[str], tmp_path: Path) -> None:
    """From picture to labels: tokens that show picture get the labels of that place, tokens that show none no label."""
    labeller = StoreLabels(coordinate_store(tmp_path, {"a": coordinates()}), (14, 14))
    transform = moving(*moves) if moves else train_transform(PLAIN)
    empty_tokens = 0
    for seed in SEEDS:
        seen = view(transform, seed)
        shown, inside, empty = seen_at(seen.image, 14)
        labels = told(labeller("a", seen.geometry))
        border = 0.5 / 36  # beyond the middle of a map's outer cells, its scores say no more
        inside &= (np.abs(middles(seen.geometry.matrix, 14) - 0.5) < 0.5 - border - 0.6 / 14).all(1)
        error = np.abs(labels - shown)[inside]
        assert error.max(initial=0) <= CLOSE, f"{moves} with seed {seed}: {error.max() * 18:.3f} cells"
        np.testing.assert_allclose(labels[empty], 0, atol=1e-6, err_msg=f"{moves} with seed {seed}")
        empty_tokens += empty.sum()
    assert (empty_tokens > 0) == bool(moves)


def test_what_a_move_pushed_out_does_not_come_back(tmp_path: Path) -> None:
    """There and back again: the geometry is the identity, but a part of the picture is gone."""
    labeller = StoreLabels(coordinate_store(tmp_path, {"a": coordinates(112, 112)}), (7, 7))
    seen = Tracked(coordinates(112, 112), Geometry((112, 112)))
    for pixels in (48, -48):
        seen = seen.transform(seen.size, Image.Transform.AFFINE, (1, 0, pixels, 0, 1, 0), fillcolor=(0, 0, 0))
    np.testing.assert_allclose(seen.geometry.matrix, np.eye(3), atol=1e-12)
    image = torch.from_numpy(np.array(seen.image)).permute(2, 0, 1) / 255
    _, inside, empty = seen_at(image, 7)
    assert empty.reshape(7, 7)[0].tolist() == [True] * 3 + [False] * 4
    labels = told(labeller("a", seen.geometry))
    np.testing.assert_allclose(labels[empty], 0, atol=1e-6)
    assert (labels[inside, 0] > 0.4).all()


@pytest.mark.parametrize("orientation", range(1, 9))
def test_files_that_are_turned_when_read(orientation: int, tmp_path: Path) -> None:
    """Pixels and labels are those of the turned image, whatever the file holds."""
    undo = {
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }
    image = coordinates()
    stored = image.transpose(undo[orientation]) if orientation in undo else image
    exif = Image.Exif()
    exif[0x0112] = orientation
    (tmp_path / "data" / "cat").mkdir(parents=True)
    for name in ("1", "2"):
        stored.save(tmp_path / "data" / "cat" / f"{name}.png", exif=exif)
    source = Folder(tmp_path / "data", val_fraction=0.5)
    labeller = StoreLabels(coordinate_store(tmp_path / "labels", {source.key(0): image}), (7, 7))
    with drawn_from(orientation):
        seen = train_transform(PLAIN)(source.load(0)[0])
    assert seen.geometry.size == (300, 200)
    shown, _, _ = seen_at(as_tensor(seen.image) / 255, 7)
    np.testing.assert_allclose(shown, middles(seen.geometry.matrix, 7), atol=CLOSE)
    inner = (np.abs(shown - 0.5) < 0.4).all(1)
    np.testing.assert_allclose(told(labeller(source.key(0), seen.geometry))[inner], shown[inner], atol=CLOSE)
