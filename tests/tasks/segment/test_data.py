"""Folders of images and masks: what is read, what is refused, and how training sees it."""

import colorsys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile
from torch.testing import assert_close
from torchvision.transforms.v2 import functional as T

from labelflow.chance import generator
from labelflow.data.batches import Draw
from labelflow.data.changes import DataFiles
from labelflow.tasks.dense.loading import Samples
from labelflow.tasks.segment.data import Sample, check, open_source
from labelflow.tasks.segment.settings import SegmentData
from labelflow.tasks.segment.views import draw_crop, eval_batches, recolour, saturate, train_batches, train_view

PLAIN = {"photometric": False, "mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0), "workers": 0}


def write(
    root: Path, image: Path | str, mask: Path | str, values: object = 0, size: tuple[int, int] = (12, 10)
) -> np.ndarray:
    """An image whose red channel is ten times its mask; of (W, H) pixels."""
    for path in (root / image, root / mask):
        path.parent.mkdir(parents=True, exist_ok=True)
    ids = np.broadcast_to(np.asarray(values, np.uint8), size[::-1])
    Image.fromarray(ids).save(root / mask)
    Image.fromarray(np.stack([ids * 10] * 3, -1)).save(root / image)
    return ids


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(10):
        write(tmp_path, f"images/{number}.png", f"masks/{number}.png", np.arange(12) % 3)
    (tmp_path / "classes.txt").write_text("sky\ntree\nroad\n")
    return tmp_path


def test_a_folder_is_split_and_paired(folder: Path) -> None:
    data = SegmentData(source=str(folder), val_fraction=0.3)
    train, val = open_source(data, "train"), open_source(data, "val")
    assert (len(train), len(val)) == (7, 3)
    assert not {train.name(i) for i in range(7)} & {val.name(i) for i in range(3)}
    assert train.classes == ["sky", "tree", "road"]
    sample = train.load(0)
    assert torch.equal(sample.image[0], sample.mask * 10)
    other = open_source(SegmentData(source=str(folder), val_fraction=0.3, split_seed=1), "val")
    assert [other.name(i) for i in range(3)] != [val.name(i) for i in range(3)]


@pytest.mark.parametrize("order", ["images/{}", "{}/images"])
def test_train_and_val_folders(tmp_path: Path, order: str) -> None:
    for split, count in (("training", 3), ("val", 2)):
        where = order.format(split)
        for number in range(count):
            mask = f"{where.replace('images', 'masks')}/a/{number}.png"
            write(tmp_path, f"{where}/a/{number}.png", mask, np.arange(12) % 2)
    data = SegmentData(source=str(tmp_path), classes="2")
    assert [len(open_source(data, split)) for split in ("train", "val")] == [3, 2]


def test_ade20k_takes_zero_for_void_and_counts_from_one(tmp_path: Path) -> None:
    for part in ("training", "validation"):
        write(tmp_path, f"images/{part}/x.png", f"annotations/{part}/x.png", [0, 1, 2, 150] * 3)
    source = open_source(SegmentData(source=str(tmp_path)), "val")
    assert source.load(0).mask[0, :4].tolist() == [255, 0, 1, 149]
    assert (len(source.classes), source.classes[0]) == (150, "class 1")
    lines = ["Idx\tRatio\tTrain\tVal\tName", *(f"{number}\t0\t0\t0\tthing {number}" for number in range(1, 151))]
    (tmp_path / "objectInfo150.txt").write_text("\n".join(lines))
    assert open_source(SegmentData(source=str(tmp_path)), "train").classes[149] == "thing 150"


def test_camvid_and_pets(tmp_path: Path) -> None:
    write(tmp_path / "camvid", "train/a.png", "trainannot/a.png", [0, 10, 11] * 4)
    assert open_source(SegmentData(source=str(tmp_path / "camvid")), "train").load(0).mask[0, :3].tolist() == [
        0,
        10,
        255,
    ]
    write(tmp_path / "pets", "images/cat_1.png", "trimaps/cat_1.png", [1, 2, 3] * 4)
    write(tmp_path / "pets", "images/cat_2.png", "trimaps/cat_2.png", [1, 2, 3] * 4)
    (tmp_path / "pets/trainval.txt").write_text("cat_2 1 1 1\n")
    pets = open_source(SegmentData(source=str(tmp_path / "pets")), "train")
    assert len(pets) == 1
    assert pets.load(0).mask[0, :3].tolist() == [1, 0, 255]


def test_the_sample_world_needs_no_files() -> None:
    source = open_source(SegmentData(source="world(train=3, val=2, size=48)"), "val")
    sample = source.load(1)
    assert (len(source), len(source.classes), sample.mask.shape) == (2, 11, (48, 48))
    assert 2 in sample.mask  # scene 1 shows class 1, after the background
    with pytest.raises(ValueError, match="train, val, seed, objects and size"):
        open_source(SegmentData(source="world(length=3)"), "train")


def _rgb(root: Path) -> None:
    Image.new("RGB", (12, 10)).save(root / "masks/3.png")


REFUSED: list[tuple[str, Callable[[Path], object], dict[str, object]]] = [
    (r"3\.png has 10×12 pixels.*has 5×6", lambda root: Image.new("L", (6, 5)).save(root / "masks/3.png"), {}),
    (
        "class ids 7, 9, which are not among the 3",
        lambda root: write(root, "images/3.png", "masks/3.png", [7, 9] * 6),
        {},
    ),
    (r"class ids 2, which are not among the 2 classes \(ids 0 to 1\)", lambda root: None, {"classes": "2"}),
    ("no masks for 3", lambda root: (root / "masks/3.png").unlink(), {}),
    ("one channel", _rgb, {}),
    ("has no images", lambda root: [file.unlink() for file in (root / "images").iterdir()], {}),
    ("no .*classes.txt", lambda root: (root / "classes.txt").unlink(), {}),
    (r"classes\.txt is not UTF-8", lambda root: (root / "classes.txt").write_bytes(b"caf\xe9\nbar\nzoo"), {}),
    ("different names", lambda root: (root / "classes.txt").write_text("sky\nsky\nroad"), {}),
    ("takes values away", lambda root: None, {"void": (2,)}),
    ("takes values away", lambda root: None, {"void": (-1,)}),
    ("no folder .*masks", lambda root: (root / "masks").rename(root / "elsewhere"), {}),
    ("no folder nowhere", lambda root: None, {"source": "nowhere"}),
]


@pytest.mark.parametrize(("message", "spoil", "settings"), REFUSED)
def test_what_does_not_fit_is_refused_at_once(
    folder: Path, message: str, spoil: Callable[[Path], object], settings: dict[str, object]
) -> None:
    spoil(folder)
    data = SegmentData(**{"source": str(folder), **settings})
    with pytest.raises(ValueError, match=message):
        [open_source(data, split) for split in ("train", "val")]


SKY, NUMBERS = "only the class 'sky'", "the number of a class: 0 sky, 1 tree, 2 road$"
ONE_CLASS: list[tuple[list[int], dict[str, object], str]] = [
    ([0, 255], {}, rf"{SKY}: their values are 0, 255 \(void: 255\); .*{NUMBERS}"),
    ([0], {}, f"{SKY}: their values are 0; .*{NUMBERS}"),
    ([255], {}, rf"no class: their values are 255 \(void: 255\); .*{NUMBERS}"),
    ([0, 7, 9], {"void": (7, 9)}, rf"{SKY}: their values are 0, 7, 9 \(void: 7, 9\); .*{NUMBERS}"),
    ([0, 1], {"void": (0,)}, rf"{SKY}: .*0, 1 \(void: 0\); .*class: 1 sky, 2 tree, 3 road"),
]


@pytest.mark.parametrize(("values", "settings", "message"), ONE_CLASS)
def test_masks_of_one_class_are_refused(
    folder: Path, values: list[int], settings: dict[str, object], message: str
) -> None:
    for number in range(10):
        write(folder, f"images/{number}.png", f"masks/{number}.png", values[number % len(values)])
    with pytest.raises(ValueError, match=f"{folder}: the masks to train on show {message}"):
        open_source(SegmentData(source=str(folder), **settings), "train")


def test_one_pixel_of_another_class_is_enough(folder: Path) -> None:
    train = open_source(SegmentData(source=str(folder)), "train")
    for image, mask in train.pairs:
        write(folder, image, mask, 255)
    values = np.full((10, 12), 255)
    values[0, 0], values[5, 7] = 0, 2
    write(folder, *train.pairs[4], values)
    assert open_source(SegmentData(source=str(folder)), "train").absent == ["tree"]


def test_a_few_masks_to_evaluate_on_may_be_of_one_class_but_not_beside_void(folder: Path) -> None:
    data = SegmentData(source=str(folder))
    ((image, mask),) = open_source(data, "val").pairs
    write(folder, image, mask, 1)
    assert len(open_source(data, "val")) == 1
    for values in ([1, 255] * 6, 255):
        write(folder, image, mask, values)
        with pytest.raises(ValueError, match=r"masks to evaluate on show .*\(void: 255\)"):
            open_source(data, "val")


def test_classes_are_absent_only_where_every_mask_was_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "classes.txt").write_text("sky\ntree\nroad\nrail\nroof")
    data = SegmentData(source=str(folder))
    train = open_source(data, "train")
    assert train.absent == ["rail", "roof"]
    with monkeypatch.context() as patch:
        patch.setattr("labelflow.tasks.segment.data.check", partial(check, masks=8))
        assert open_source(data, "train").absent == ()
    train.pairs[3][1].write_bytes(b"not an image")
    assert open_source(data, "train").absent == ()
    for _, mask in train.pairs:
        mask.write_bytes(b"not an image")
    assert len(open_source(data, "train")) == 9  # told when they are read


@pytest.mark.parametrize("kind", [np.uint8, np.uint16, np.int32, np.float32])
def test_masks_of_any_depth_mean_the_same(folder: Path, kind: type) -> None:
    source = open_source(SegmentData(source=str(folder), void=(0, 200), classes="5"), "train")
    ending = "png" if kind is np.uint8 else "tiff"
    path = folder / f"masks/mask.{ending}"
    source.pairs[0] = (source.pairs[0][0], path)
    values = np.random.default_rng(1).choice([0, 1, 2, 5, 200], (10, 12))
    Image.fromarray(values.astype(kind)).save(path)
    naive = [[255 if value in (0, 200) else value - 1 for value in row] for row in values.tolist()]
    found = source.mask(0)
    assert (found.dtype, found.tolist()) == (torch.uint8, naive)
    far = [] if kind is np.uint8 else [999]
    values[0, : 2 + len(far)] = [7, 201, *far]
    Image.fromarray(values.astype(kind)).save(path)
    with pytest.raises(
        ValueError, match=rf"class ids {', '.join(map(str, [7, 201, *far]))}, which are not among the 5"
    ):
        source.mask(0)


def test_masks_of_one_bit(folder: Path) -> None:
    source = open_source(SegmentData(source=str(folder)), "train")
    values = np.arange(120).reshape(10, 12) % 7 > 2
    Image.fromarray(values).save(source.pairs[0][1])
    assert source.mask(0).tolist() == values.astype(int).tolist()


@pytest.mark.parametrize("ending", ["png", "jpg", "tiff", "webp"])
def test_sizes_are_checked_without_decoding_and_turned_images_are_turned(
    folder: Path, ending: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_source(SegmentData(source=str(folder)), "train")
    path = folder / f"images/turned.{ending}"
    source.pairs = [(path, source.pairs[0][1])]
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.new("RGB", (10, 12)).save(path, exif=turned)  # its mask is 12 wide
    loads = []
    for plugin in (PngImageFile, JpegImageFile, TiffImageFile, WebPImageFile):
        monkeypatch.setattr(plugin, "load", lambda self, load=plugin.load: loads.append(self.filename) or load(self))
    check(source)
    assert source.load(0).image.shape == (3, 10, 12)
    loads.clear()
    for size, notes in (((10, 12), {}), ((12, 10), {"exif": turned})):
        Image.new("RGB", size).save(path, **notes)
        with pytest.raises(ValueError, match=r"has 12×10 pixels.*has 10×12"):
            check(source)
    assert not [file for file in loads if Path(file) == path]


def test_image_and_mask_move_together() -> None:
    """The image repeats the mask, so the two can be compared after any crop, scale and flip."""
    ids = torch.arange(4).repeat_interleave(24)[:, None] // 2 * 2 + torch.arange(2).repeat_interleave(40)[None]
    sample = Sample((ids * 60).to(torch.uint8).expand(3, -1, -1), ids.to(torch.uint8))  # (96, 80)
    data = SegmentData(crop=64, short=64, long=256, **PLAIN)
    sizes = set()
    for number in range(30):
        image, mask = train_view(sample, generator(number), data)
        assert (image.shape, mask.shape, mask.dtype) == ((3, 64, 64), (64, 64), torch.uint8)
        void = mask == 255
        assert (image[:, void] == 0).all()
        difference = (image[0] * 255 / 60 - mask).abs()[~void]
        assert (difference > 0.5).float().mean() < 0.06  # edges blur
        sizes.add(int((~void).sum()))
    assert len(sizes) > 5
    again = [train_view(sample, generator(3), data) for _ in range(2)]
    assert_close(again[0], again[1])


def test_a_crop_is_drawn_again_while_one_class_covers_too_much() -> None:
    mask = torch.zeros(64, 64, dtype=torch.uint8)
    mask[:, 56:] = 1  # most crops show class 0 alone

    def most(limit: float) -> list[float]:
        found = []
        for number in range(60):
            top, left, height, width = draw_crop(mask, 16, limit, generator(number))
            share = float(mask[top : top + height, left : left + width].float().mean())
            found.append(max(share, 1 - share))
        return found

    free, held = most(1.0), most(0.75)
    assert sum(share > 0.75 for share in held) < sum(share > 0.75 for share in free) / 2
    assert draw_crop(torch.full((8, 99), 255, dtype=torch.uint8), 16, 0.75, generator(0))[2:] == (8, 16)


def test_saturation_is_that_of_hsv() -> None:
    colours = torch.rand(3, 5, 5, generator=generator(1))
    for factor in (0.5, 1.0, 1.5):
        found = saturate(colours, factor)
        for row in range(5):
            for column in range(5):
                hue, saturation, value = colorsys.rgb_to_hsv(*colours[:, row, column].tolist())
                expected = colorsys.hsv_to_rgb(hue, min(1, saturation * factor), value)
                assert_close(found[:, row, column], torch.tensor(expected), atol=1e-5, rtol=0)


def test_colours_change_within_bounds_and_half_of_the_steps_do_nothing() -> None:
    grey = torch.full((3, 2, 2), 0.5)  # neither saturation nor hue can change it
    found = torch.stack([recolour(grey, generator(number)) for number in range(400)])[:, 0, 0, 0]
    assert 0.2 < (found == 0.5).float().mean() < 0.3  # neither brightness nor contrast
    assert found.min() >= 0.5 * (0.5 - 32 / 255) - 1e-6
    assert found.max() <= 1.5 * (0.5 + 32 / 255)
    assert found.max() - found.min() > 0.5


def test_hue_turns_by_a_tenth_at_most_and_value_stays() -> None:
    colour = torch.tensor([0.6, 0.3, 0.2])[:, None, None]  # a hue of 15°
    found = [colorsys.rgb_to_hsv(*recolour(colour, generator(number)).flatten().tolist()) for number in range(400)]
    hues = [(hue - 15 / 360 + 0.5) % 1 - 0.5 for hue, saturation, _ in found if 0.1 < saturation < 0.99]
    assert max(map(abs, hues)) <= 0.1 + 0.03  # brightness moves what is clipped
    assert min(hues) < -0.08
    assert max(hues) > 0.08
    assert 0.3 < sum(abs(hue) > 0.01 for hue in hues) / len(hues) < 0.6


def test_masks_are_long_on_a_device() -> None:
    """Small on their way there, and what losses need."""
    data = SegmentData(source="world(train=4, val=2, size=32)", crop=16, short=32, workers=0)
    train, val = open_source(data, "train"), open_source(data, "val")
    (batch,) = train_batches(train, data, batch=2, micro_batch=2, updates=1, seed=0)
    (evaluated,) = eval_batches(val, data, batch=2)
    cpu = torch.device("cpu")
    assert (batch.masks.dtype, batch.to(cpu).masks.dtype) == (torch.uint8, torch.long)
    assert torch.equal(batch.masks, batch.to(cpu).masks.to(torch.uint8))
    assert [mask.dtype for mask in evaluated.to(cpu).masks] == [torch.long] * 2


def test_an_evaluation_sees_bytes_as_torchvision_normalises_them() -> None:
    data = SegmentData(source="world(train=4, val=2, size=32)", short=32, workers=0)
    (batch,) = eval_batches(open_source(data, "val"), data, batch=2)
    for image, seen in zip(batch.images, batch.to(torch.device("cpu")).images, strict=True):
        assert image.dtype == torch.uint8
        assert_close(seen, T.normalize(image.float() / 255, list(data.mean), list(data.std)), rtol=0, atol=0)


def test_a_damaged_mask_does_not_hide_what_else_is_wrong(folder: Path) -> None:
    """It is told when it is read, as an image is; what does not fit is refused at once."""
    (folder / "masks/0.png").write_bytes(b"not an image")
    whole = (folder / "masks/1.png").read_bytes()
    (folder / "masks/1.png").write_bytes(whole[: len(whole) // 2])
    data = SegmentData(source=str(folder), val_fraction=0.3)
    sources = [open_source(data, split) for split in ("train", "val")]
    assert sum(map(len, sources)) == 10
    write(folder, "images/9.png", "masks/9.png", 77)
    with pytest.raises(ValueError, match="class ids 77"):
        [open_source(data, split) for split in ("train", "val")]


def test_batches_start_anywhere_and_every_sample_is_evaluated_once(folder: Path) -> None:
    data = SegmentData(source=str(folder), crop=8, short=10, val_fraction=0.3, **PLAIN)
    train, val = open_source(data, "train"), open_source(data, "val")
    whole = list(train_batches(train, data, batch=4, micro_batch=2, updates=3, seed=5))
    late = list(train_batches(train, data, batch=4, micro_batch=2, updates=3, seed=5, first_update=2))
    assert len(whole) == 6
    for one, two in zip(whole[4:], late, strict=True):
        assert_close(one, two)
    others = [
        list(train_batches(train, data, batch=4, micro_batch=2, updates=3, seed=5, rank=r, processes=2)) for r in (0, 1)
    ]
    assert_close(whole[0::2], others[0])
    assert_close(whole[1::2], others[1])
    parts = [list(eval_batches(val, data, batch=2, rank=rank, processes=2)) for rank in (0, 1)]
    counted = [int((mask != 255).any()) for part in parts for batch in part for mask in batch.masks]
    assert sorted(counted) == [0, 1, 1, 1]  # three samples, and one that fills up


def test_what_cannot_be_read_is_told_and_does_not_count(folder: Path) -> None:
    data = SegmentData(source=str(folder), crop=8, short=10, val_fraction=0.3, **PLAIN)
    train, val = open_source(data, "train"), open_source(data, "val")
    for source in (train, val):
        Path(source.name(0)).write_bytes(b"not an image")
    batches = list(eval_batches(val, data, batch=3))
    assert [len(batch.problems) for batch in batches] == [1]
    assert Path(val.name(0)).name in str(batches[0].problems[0])
    assert (batches[0].masks[0] == 255).all()
    seen = list(train_batches(train, data, batch=7, micro_batch=7, updates=1, seed=0))
    assert len(seen[0].problems) == 1
    assert seen[0].images.shape == (7, 3, 8, 8)


def test_a_view_is_a_function_of_seed_epoch_and_position() -> None:
    data = SegmentData(source="world(train=1, val=1, size=32)", crop=16, short=32, workers=0)
    source = open_source(data, "train")
    draws = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)]
    seen = [
        Samples(source, partial(train_view, data=data), seed, True)[Draw(0, epoch, position)].content[0]
        for seed, epoch, position in draws
    ]
    assert torch.equal(seen[0], seen[4])
    assert not any(torch.equal(seen[0], other) for other in seen[1:4])


@pytest.mark.parametrize("changed", ["images/4.png", "masks/4.png"])
def test_a_file_that_was_replaced_is_noticed(changed: str, folder: Path, tmp_path: Path) -> None:
    sources = [open_source(SegmentData(source=str(folder)), split) for split in ("train", "val")]
    files = DataFiles(tmp_path, sources, resumed=False)
    assert list(files.compare(contents=False)) == []
    files.write()
    Image.open(folder / changed).point(lambda value: 255 - value).save(folder / changed, compress_level=0)
    with pytest.raises(ValueError, match=rf"1 file of another size \(.*{changed}\)"):
        list(DataFiles(tmp_path, sources, resumed=True).compare(contents=False))
