"""RecursiveMix: boxes and partners from their definition, and batches in batches in batches."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

import labelflow as lf
from labelflow.mixers import Choose, make_mixer, remembers


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**31), st.sampled_from(["batch", "sample"]))
def test_the_earlier_batch_is_resized_into_a_clipped_box(height: int, width: int, seed: int, per: str) -> None:
    images, earlier = torch.rand(2, 3, 3, height, width, generator=seeded(seed))
    mix = lf.RecursiveMix(alpha=0.5, per=per)(images, seeded(seed), earlier=earlier)  # type: ignore[arg-type]
    assert mix.box is not None
    assert mix.partner.tolist() == [3, 4, 5]  # the image at the same place of the earlier batch
    mixed = mix.apply(torch.cat([images, earlier]))
    for image, (top, left, bottom, right) in enumerate(mix.box.tolist()):
        assert 0 <= top <= bottom <= height
        assert 0 <= left <= right <= width
        assert bottom - top <= 0.5**0.5 * height
        assert right - left <= 0.5**0.5 * width
        assert_close(mix.lam[image], torch.tensor(1 - (bottom - top) * (right - left) / (height * width)))
        expected = images[image].clone()
        if bottom > top and right > left:
            shrunk = F.interpolate(earlier[image : image + 1], (bottom - top, right - left))
            expected[:, top:bottom, left:right] = shrunk[0]
        assert torch.equal(mixed[image], expected)
    if per == "batch":
        assert len(mix.box.unique(dim=0)) == 1


def test_boxes_follow_their_distribution() -> None:
    """r ~ U(0, 0.5); sides ⌊√r·W⌋ around a uniform centre. Unclipped boxes have the sides' mean, 2/3·√0.5."""
    images = torch.empty(1, 1, 200, 200).expand(6_000, -1, -1, -1)
    mix = lf.RecursiveMix(per="sample")(images, seeded(), earlier=images)
    assert mix.box is not None
    top, left, bottom, right = mix.box.T
    clipped = (top == 0) | (left == 0) | (bottom == 200) | (right == 200)
    side = ((bottom - top) / 200)[~clipped]
    assert abs(((top + bottom) / 2)[~clipped].mean() - 100) < 2
    assert side.max() < 0.5**0.5
    # A box of side s is inside for (1-s)² of the centres: E[s] = ∫ s(1-s)² 2s ds / ∫ (1-s)² 2s ds over (0, √0.5)
    s = torch.linspace(0, 0.5**0.5, 10_001, dtype=torch.float64)
    weight = (1 - s) ** 2 * 2 * s
    assert abs(side.mean() - (s * weight).sum() / weight.sum()) < 0.01


def test_labels_hold_all_earlier_batches() -> None:
    """y = λ·y + (1-λ)·y_earlier, again and again: one row of a table of all labels so far."""
    recursive, chance = lf.RecursiveMix(), seeded()
    earlier = labels = None
    history = []
    for step in range(4):
        images, own = torch.rand(2, 3, 16, 16, generator=chance), torch.zeros(2, 4)
        own[:, step] = 1
        mix = recursive(images, chance, earlier=earlier)
        if labels is not None:
            images, own = torch.cat([images, earlier]), torch.cat([own, labels])  # type: ignore[list-item]
        earlier, labels = mix.apply(images), mix.blend(own)
        history.append(float(mix.lam[0]))
    expected = [history[step] * torch.tensor([1 - lam for lam in history[step + 1 :]]).prod() for step in range(4)]
    assert history[0] == 1
    assert labels is not None
    assert_close(labels[0], torch.stack(expected))
    assert_close(labels.sum(1), torch.ones(2))


def test_without_an_earlier_batch_nothing_is_mixed() -> None:
    images = torch.rand(2, 3, 8, 8)
    mix = lf.RecursiveMix()(images, seeded())
    assert torch.equal(mix.apply(images), images)
    assert mix.lam.tolist() == [1, 1]


def test_what_it_refuses() -> None:
    images = torch.rand(2, 3, 8, 8)
    with pytest.raises(ValueError, match=r"shape of this one, \(2, 3, 8, 8\), not \(3, 3, 8, 8\)"):
        lf.RecursiveMix()(images, earlier=torch.rand(3, 3, 8, 8))
    with pytest.raises(ValueError, match=r"\(0, 1\], not 0"):
        lf.RecursiveMix(alpha=0)
    with pytest.raises(ValueError, match="no pairs"):
        lf.RecursiveMix(per="pair")
    with pytest.raises(ValueError, match="or an earlier batch, can't be chosen per sample"):
        Choose([lf.RecursiveMix(), lf.CutMix()], [0.5, 0.5], per="sample")


def test_a_choice_has_no_earlier_batch() -> None:
    with pytest.raises(ValueError, match="RecursiveMix needs an earlier batch: use mix_batch"):
        Choose([lf.RecursiveMix()], [1.0])(torch.rand(2, 3, 8, 8))


def test_which_mixers_remember() -> None:
    assert remembers(make_mixer("recursivemix(alpha=0.3)"))
    assert remembers(make_mixer("0.5*mixup + 0.5*recursivemix"))
    assert not remembers(make_mixer("0.5*mixup + 0.5*cutmix"))
