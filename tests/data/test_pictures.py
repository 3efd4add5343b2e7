"""Images as people give them."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from labelflow.data.pictures import Images, Pictures, collate_pictures, list_images
from labelflow.data.preprocessing import Preprocessing


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in (2, 1):
        Image.new("RGB", (40, 30), (number, 0, 0)).save(tmp_path / f"{number}.png")
    return tmp_path


def test_every_kind_and_lists_of_them(photos: Path) -> None:
    files = [str(photos / "1.png"), str(photos / "2.png")]
    picture, tensor = Image.new("RGB", (8, 8)), torch.rand(3, 8, 8)
    kinds: list[tuple[Images, list[Any]]] = [
        (photos, files),
        (str(photos), files),
        (f"{photos}/2*", files[1:]),
        (photos / "2.png", files[1:]),
        (picture, [picture]),
        ([picture, photos / "2.png", [photos]], [picture, files[1], *files]),
        ((file for file in files), files),
    ]
    for given, listed in kinds:
        assert list_images(given) == listed
    for tensors, count in ((tensor, 1), (tensor[None], 1), (torch.rand(4, 3, 8, 8, requires_grad=True), 4)):
        alike = list_images(tensors)
        assert len(alike) == count
        assert all(isinstance(one, torch.Tensor) and one.shape == (3, 8, 8) for one in alike)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (torch.zeros(8, 8), r"\(B, 3, H, W\) or \(3, H, W\) of floats, not \(8, 8\)"),
        (torch.zeros(8, 8, 3), r"not \(8, 8, 3\)"),
        (torch.zeros(3, 8, 8, dtype=torch.uint8), r"not \(3, 8, 8\) of torch.uint8"),
        (3, "not int"),
        ([None], "not NoneType"),
        ("none.png", r"there is no file or folder none\.png"),
    ],
)
def test_what_is_not_an_image(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        list_images(given)


def test_names_and_contents(photos: Path) -> None:
    opened = Image.open(photos / "1.png")
    (photos / "bad.png").write_text("no image")
    images = [str(photos / "1.png"), opened, Image.new("L", (9, 9)), torch.ones(3, 4, 4), str(photos / "bad.png")]
    pictures = Pictures(images, Preprocessing(4).transform())
    read = [pictures[index] for index in range(5)]
    assert [one.name for one in read[:4]] == [str(photos / "1.png")] * 2 + ["image 2", "image 3"]
    assert torch.equal(read[0].seen, read[1].seen)
    assert torch.equal(read[3].seen, torch.ones(3, 4, 4))
    assert str(read[4].problem).startswith(f"{photos / 'bad.png'}: ")
    batch = collate_pictures(read)
    assert batch.seen.shape == (4, 3, 4, 4)
    assert batch.names == [one.name for one in read[:4]]
    assert batch.problems == [read[4].problem]
    with pytest.raises(ValueError, match=r"can't be in one batch: \(3, 4, 4\) and \(3, 5, 5\)"):
        collate_pictures([read[0], Pictures([torch.ones(3, 5, 5)], Preprocessing(4).transform())[0]])


def test_they_can_be_sent_to_spawned_workers(photos: Path) -> None:
    pictures = Pictures([str(photos / "1.png"), Image.open(photos / "2.png")], Preprocessing(16).transform())
    copy = pickle.loads(pickle.dumps(pictures))
    assert all(torch.equal(copy[index].seen, pictures[index].seen) for index in range(2))
