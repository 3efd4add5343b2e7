"""TokenMix: blocks of a fixed number of tokens, one choice for the batch."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Generator

import labelflow as lf


def seeded(seed: int) -> Generator:
    return Generator().manual_seed(seed)


@given(batch=st.integers(1, 5), height=st.integers(1, 16), width=st.integers(1, 16), seed=st.integers(0, 2**31))
def test_whole_tokens_the_same_for_all_and_never_too_many(batch: int, height: int, width: int, seed: int) -> None:
    mix = lf.TokenMix(patch=2)(torch.empty(batch, 3, 2 * height, 2 * width), seeded(seed))
    tokens = mix.tokens((height, width))
    assert set(tokens.unique().tolist()) <= {0.0, 1.0}
    assert (tokens == tokens[0]).all()
    assert (tokens[0] == 0).sum() <= min(height * width, height * width // 2 + height)


def test_112_of_196_tokens_show_the_partner() -> None:
    counts = [
        int((lf.TokenMix()(torch.empty(1, 3, 224, 224), seeded(seed)).tokens((14, 14)) == 0).sum())
        for seed in range(50)
    ]
    assert max(counts) == 112
    assert min(counts) >= 108  # ten tries may fail in the end, but only for the last few
    assert counts.count(112) >= 45


def test_blocks_may_be_single_tokens() -> None:
    """Areas are drawn from 1 on, where BEiT's start at 16."""
    drawn: list[float] = []

    class Watched(lf.TokenMix):
        def _proposals(self, smallest, largest, generator):  # type: ignore[no-untyped-def]
            assert smallest == 1
            for block in super()._proposals(smallest, largest, generator):
                drawn.append(block[0])
                yield block

    for seed in range(20):
        Watched()(torch.empty(1, 3, 224, 224), seeded(seed))
    assert min(drawn) < 2
    assert max(drawn) > 90


def test_only_the_place_is_random() -> None:
    mixes = [lf.TokenMix()(torch.empty(2, 3, 224, 224), seeded(seed)) for seed in (0, 1)]
    assert not torch.equal(mixes[0].share, mixes[1].share)
    assert mixes[0].partner.tolist() == [1, 0]
    assert lf.TokenMix(pairing="permute")(torch.empty(9, 3, 16, 16)).partner.sort().values.tolist() == list(range(9))
    assert isinstance(lf.mixers.make_mixer("tokenmix(patch=8)"), lf.TokenMix)


def test_patches_must_fit() -> None:
    with pytest.raises(ValueError, match="40×64 pixels do not divide into patches of 16×16"):
        lf.TokenMix()(torch.empty(2, 3, 40, 64))
