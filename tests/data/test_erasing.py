"""What is drawn first and done later is what timm does at once, but for where the noise comes from."""

import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from timm.data.random_erasing import RandomErasing

from labelflow.chance import drawn_from
from labelflow.data.erasing import NOISE, Patch, Patches, draw_patch, normal_noise

CPU = torch.device("cpu")


@given(
    seed=st.integers(0, 10_000), size=st.sampled_from([(2, 2), (3, 40), (32, 32), (48, 20)]), chance=st.floats(0.1, 1)
)
def test_patches_are_where_timm_erases(seed: int, size: tuple[int, int], chance: float) -> None:
    """On images of any size, which may be too small for a box; one random number more says which noise is shown."""
    erased, painted = torch.zeros(5, 3, *size), torch.zeros(5, 3, *size)
    patches = []
    for number, image in enumerate(erased):
        with drawn_from(seed, number):
            RandomErasing(chance, mode="pixel", device="cpu")(image)
            after = random.random()
        with drawn_from(seed, number):
            patches.append(draw_patch(RandomErasing(chance, device="cpu"), image.shape))
            assert patches[-1] is None or patches[-1].noise == after
    Patches.stack(patches).paint(painted)
    assert torch.equal(painted != 0, erased != 0)


def test_noise_is_normal_and_the_same_for_all() -> None:
    noise = normal_noise(NOISE, CPU)
    assert len(noise) == 2**20
    assert abs(noise.mean()) < 0.004
    assert abs(noise.std() - 1) < 0.004
    assert abs((noise.abs() < 1).float().mean() - 0.6827) < 0.002
    assert abs((noise[:-1] * noise[1:]).mean()) < 0.004  # neighbours know nothing of one another
    images = torch.zeros(2, 3, 8, 8)
    Patches.stack([Patch(0, 0, 8, 8, 0.0), Patch(0, 0, 8, 8, 1.0)]).paint(images)
    assert torch.equal(images[0].flatten(), noise[:192])
    assert torch.equal(images[1].flatten(), noise[-192:])


def test_a_large_patch_has_noise_enough() -> None:
    images = torch.zeros(1, 3, 600, 600)
    Patches.stack([Patch(0, 0, 600, 599, 0.999)]).paint(images)
    assert (images[..., :599] != 0).all()
    assert (images[..., 599] == 0).all()
    assert len(images.unique()) > 0.9 * 3 * 600 * 599


def test_a_patch_changes_its_box_and_nothing_else() -> None:
    images = torch.zeros(3, 3, 8, 8)
    patches = Patches.stack([None, Patch(3, 5, 4, 2, 0.5), None])
    patches.paint(images)
    assert (images[1, :, 3:7, 5:7] != 0).all()
    assert images.count_nonzero() == 24


def test_a_batch_may_have_none() -> None:
    images = torch.randn(2, 3, 8, 8)
    patches, before = Patches.stack([None, None]), images.clone()
    patches.paint(images)
    assert torch.equal(images, before)
