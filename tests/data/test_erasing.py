"""What is drawn first and done later is what timm does at once."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.random_erasing import RandomErasing

from labelflow.chance import drawn_from
from labelflow.data.erasing import Box, Patch, Patches, draw_patch

CPU = torch.device("cpu")


@given(
    seed=st.integers(0, 10_000), size=st.sampled_from([(2, 2), (3, 40), (32, 32), (48, 20)]), chance=st.floats(0.1, 1)
)
def test_patches_are_bit_for_bit_timms_erasing(seed: int, size: tuple[int, int], chance: float) -> None:
    """On images of any size, which may be too small for a box, with the same draws before and after."""
    erasing = RandomErasing(chance, mode="pixel", device="cpu")
    images = torch.randn(5, 3, *size, generator=torch.Generator().manual_seed(seed))
    expected = images.clone()
    with drawn_from(seed):
        for image in expected:
            erasing(image)
        next_draws = random.random(), torch.rand(1)
    with drawn_from(seed):
        patches = Patches.stack([draw_patch(erasing, image.shape) for image in images])
        assert (random.random(), torch.rand(1)) == next_draws
    patches.to(CPU).paint(images)
    assert torch.equal(images, expected)


def test_a_patch_changes_its_box_and_nothing_else() -> None:
    images, noise = torch.zeros(3, 3, 8, 8), torch.arange(1.0, 25.0).view(3, 4, 2)
    patches = Patches.stack([None, Patch(3, 5, noise), None])
    assert patches.boxes == [Box(1, 3, 5, 4, 2)]
    patches.paint(images)
    assert torch.equal(images[1, :, 3:7, 5:7], noise)
    assert images.count_nonzero() == 24


def test_a_batch_may_have_none() -> None:
    images = torch.randn(2, 3, 8, 8)
    patches, before = Patches.stack([None, None]), images.clone()
    patches.to(CPU).paint(images)
    assert torch.equal(images, before)
    assert (patches.boxes, patches.noise.nbytes) == ([], 0)
