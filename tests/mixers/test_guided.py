"""Mixers and their guides: who is asked, when, and with what."""

import pytest
import torch
from torch import Generator, Tensor
from torch.testing import assert_close

import labelflow as lf
from labelflow.guides import Guidance, UnmixedBatch
from labelflow.mixers import GuidedMixer, guide_parameters, make_mixer, mix_batch
from labelflow.mixers.saliencymix import SaliencyMix

MEAN, STD = (0.4, 0.5, 0.6), (0.2, 0.25, 0.5)


class Recorded:
    """A guide that knows where things are, and writes down what it was asked."""

    parameters = 7

    def __init__(self) -> None:
        self.asked: list[UnmixedBatch] = []

    def __call__(self, batch: UnmixedBatch) -> Guidance:
        self.asked.append(batch)
        importance = torch.zeros(len(batch.images), 8, 8)
        importance[:, 6, 1] = 1
        return Guidance(importance, logits=torch.ones(len(batch.images), 3))


def unmixed(colours: Tensor) -> UnmixedBatch:
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    student = lf.Student(torch.nn.Identity())
    return UnmixedBatch((colours - mean) / std, torch.eye(3)[:2], student, MEAN, STD)


def test_a_plain_mixer_asks_nobody() -> None:
    batch = unmixed(torch.rand(2, 3, 8, 8))
    mix, guidance = mix_batch(lf.CutMix(), batch, Generator().manual_seed(4))
    assert guidance is None
    assert torch.equal(mix.share, lf.CutMix()(batch.images, Generator().manual_seed(4)).share)
    assert isinstance(make_mixer("cutmix(alpha=1.0)"), lf.CutMix)
    assert guide_parameters(lf.CutMix()) == 0


def test_a_guided_mixer_is_given_what_its_guide_found_and_the_colours() -> None:
    colours, guide = torch.rand(2, 3, 8, 8), Recorded()
    given: list[Tensor] = []

    class Seeing(SaliencyMix):
        def __call__(self, images: Tensor, generator: Generator | None = None, *, importance: Tensor) -> lf.Mix:
            given.append(images)
            return super().__call__(images, generator, importance=importance)

    batch = unmixed(colours)
    mix, guidance = mix_batch(GuidedMixer(Seeing(), guide), batch, Generator().manual_seed(0))
    assert guide.asked == [batch]
    assert_close(given[0], colours)
    expected = SaliencyMix()(colours, Generator().manual_seed(0), importance=guidance.importance)
    assert torch.equal(mix.share, expected.share)
    assert torch.equal(guidance.logits, torch.ones(2, 3))


def test_of_mixers_in_turn_only_the_drawn_ones_guide_is_asked() -> None:
    guide, batch, generator = Recorded(), unmixed(torch.rand(2, 3, 8, 8)), Generator().manual_seed(0)
    mixer = lf.Choose([GuidedMixer(SaliencyMix(), guide), lf.CutMix()], [0.3, 0.7])
    found = [mix_batch(mixer, batch, generator)[1] for _ in range(100)]
    assert 15 < len(guide.asked) == sum(guidance is not None for guidance in found) < 45


def test_mixers_that_name_the_same_guide_share_it() -> None:
    both = make_mixer("0.5*puzzlemix(alpha=1.0) + 0.3*puzzlemix(alpha=0.5) + 0.2*puzzlemix(size=1.0)")
    first, second, other = (one.guide for one in both.mixers)
    assert first is second is not other
    guide = Recorded()
    shared = lf.Choose([GuidedMixer(SaliencyMix(), guide), GuidedMixer(SaliencyMix(0.5), guide)], [0.5, 0.5])
    assert guide_parameters(shared) == 7


def test_bad_input() -> None:
    batch = unmixed(torch.rand(2, 3, 8, 8))
    with pytest.raises(ValueError, match="SMMix has no guide: make it with make_mixer"):
        mix_batch(lf.SMMix(), batch)
    with pytest.raises(ValueError, match="can't be chosen per sample"):
        lf.Choose([GuidedMixer(SaliencyMix(), Recorded()), lf.CutMix()], [0.5, 0.5], per="sample")
    with pytest.raises(ValueError, match="GuidedMixer needs importance: use mix_batch"):
        lf.Choose([GuidedMixer(SaliencyMix(), Recorded())], [1.0])(batch.images)
