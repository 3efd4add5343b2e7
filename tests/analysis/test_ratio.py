"""Eq. 13 of TL-Align by brute force, and what each method trains on."""

import math

import pytest
import timm
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import labelflow as lf
from labelflow.analysis.ratio import dense_ratio, evidence_ratio, layer_ratios, method_ratios, similarity_ratio
from labelflow.labels.annotation import place_logits

TINY = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 3, "num_classes": 5}


def cosine(one: Tensor, other: Tensor) -> float:
    return float((one * other).sum() / (one.square().sum().sqrt() * other.square().sum().sqrt()))


def naive_ratio(mixed: Tensor, own: Tensor, partner: Tensor) -> float:
    """Of one token, from all tokens of both images."""
    similarities = [max(cosine(mixed, token) for token in tokens) for tokens in (own, partner)]
    return math.exp(similarities[0]) / sum(map(math.exp, similarities))


def vit(**changes: object) -> torch.nn.Module:
    return timm.create_model("vit_tiny_patch16_224", **{**TINY, **changes}).eval()


def tokens_after_each_block(model: torch.nn.Module, images: Tensor) -> list[Tensor]:
    x = model._pos_embed(model.patch_embed(images))  # type: ignore[operator]
    found = []
    for block in model.blocks:  # type: ignore[union-attr]
        x = block(x)
        found.append(x)
    return found


@pytest.mark.parametrize("pooled", [False, True])
@torch.no_grad()
def test_layers_are_eq_13_and_the_flow(pooled: bool) -> None:
    model = vit(**{"class_token": False, "global_pool": "avg"} if pooled else {})
    images = torch.rand(3, 3, 32, 32)
    mix = lf.CutMix(per="sample")(images)
    layers = layer_ratios(model, images, mix)
    clean, mixed = tokens_after_each_block(model, images), tokens_after_each_block(model, mix.apply(images))
    trace = lf.Aligned(model).trace(mix.apply(images), mix.share)
    for layer, own, after, flowed in zip(layers, clean, mixed, trace, strict=True):
        for i, partner in enumerate(mix.partner.tolist()):
            naive = torch.tensor([naive_ratio(token, own[i], own[partner]) for token in after[i]])
            read = naive.mean() if pooled else naive[0]
            torch.testing.assert_close(layer.similarity[i], read, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(layer.similarity_tokens[i].flatten(), naive[-16:], atol=1e-5, rtol=1e-5)
        share = flowed.share.mean(1) if pooled else flowed.share[:, 0]
        torch.testing.assert_close(layer.aligned, share)
        torch.testing.assert_close(layer.aligned_tokens, flowed.map)


def test_an_image_mixed_with_nothing_resembles_itself_most() -> None:
    tokens = torch.randn(2, 6, 8)
    other = torch.randn(2, 6, 8)
    assert (similarity_ratio(tokens, tokens, other) > 0.5).all()
    torch.testing.assert_close(similarity_ratio(tokens, tokens, tokens), torch.full((2, 6), 0.5))
    torch.testing.assert_close(
        similarity_ratio(tokens, tokens, other) + similarity_ratio(tokens, other, tokens), torch.ones(2, 6)
    )


@torch.no_grad()
def test_methods() -> None:
    model, images = vit(), torch.rand(4, 3, 32, 32)
    mix = lf.CutMix(per="sample")(images)
    ratios = method_ratios(model, images, mix)
    assert list(ratios) == ["CutMix", "TransMix", "Token Labeling", "TL-Align"]
    torch.testing.assert_close(ratios["CutMix"], mix.share.mean((1, 2, 3)))
    torch.testing.assert_close(ratios["TL-Align"], lf.Aligned(model)(mix.apply(images), mix.share)[1])
    torch.testing.assert_close(ratios["TL-Align"], layer_ratios(model, images, mix)[-1].aligned)
    alone = lf.MixUp(alpha=1.0)(images)  # a constant share: labels have nowhere to go
    same = method_ratios(model, images, alone)
    torch.testing.assert_close(same["TransMix"], alone.lam)
    torch.testing.assert_close(same["TL-Align"], alone.lam)


@torch.no_grad()
def test_token_labeling_counts_evidence() -> None:
    model, images = vit(class_token=False, global_pool="avg"), torch.rand(2, 3, 32, 32)
    mix = lf.CutMix(grid=8)(images)
    logits, grid = place_logits(model, images)
    assert grid == (4, 4)
    scores = logits.softmax(-1)
    classes = scores.sum(1).argmax(-1)
    for i, partner in enumerate(mix.partner.tolist()):
        own = pasted = 0.0
        for cell in range(16):
            share = float(mix.tokens(grid)[i].flatten()[cell])
            own += share * float(scores[i, cell, classes[i]])
            pasted += (1 - share) * float(scores[partner, cell, classes[partner]])
        assert float(dense_ratio(model, images, mix)[i]) == pytest.approx(own / (own + pasted), abs=1e-5)


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**31))
def test_evidence_laws(batch: int, height: int, width: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    partner = torch.randperm(batch, generator=generator)
    share = torch.rand(batch, 1, 4 * height, 4 * width, generator=generator)
    mix = lf.Mix(partner, share)
    even = evidence_ratio(torch.ones(batch, height, width), mix)
    torch.testing.assert_close(even, mix.lam)  # everywhere alike: the area
    torch.testing.assert_close(evidence_ratio(torch.zeros(batch, height, width), mix), mix.lam)  # nothing to be seen
    all_own = lf.Mix(partner, torch.ones_like(share))
    torch.testing.assert_close(evidence_ratio(torch.ones(batch, height, width), all_own), torch.ones(batch))


@torch.no_grad()
def test_moved_evidence_moves_along() -> None:
    """A mixer that moves cells: what is to be seen is counted where it lies in the mixed image."""
    evidence = torch.rand(2, 2, 2)
    partner, share = torch.tensor([1, 0]), torch.zeros(2, 1, 8, 8)
    share[:, :, :4] = 1  # the upper half is one's own
    sources = torch.tensor([[[[2, 3], [2, 3]], [[0, 1], [0, 1]]]] * 2)  # own: its lower half; the partner's upper half
    mix = lf.Mix(partner, share, sources=sources)
    own, pasted = evidence[:, 1].sum(1), evidence[[1, 0], 0].sum(1)
    torch.testing.assert_close(evidence_ratio(evidence, mix), own / (own + pasted))


def test_attention_pooling_is_still_to_come() -> None:
    """Before it, the mean of all tokens stands for what is read; not the first patch."""
    model = timm.create_model("vit_base_patch16_siglip_224", img_size=32, patch_size=8, embed_dim=24, depth=2).eval()
    images = torch.rand(2, 3, 32, 32)
    layers = layer_ratios(model, images, lf.CutMix()(images))
    for layer in layers:
        torch.testing.assert_close(layer.aligned, layer.aligned_tokens.mean((1, 2)))


def test_a_class_token_that_comes_late() -> None:
    model = timm.create_model("cait_xxs24_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=2).eval()
    images = torch.rand(2, 3, 32, 32)
    mix = lf.CutMix()(images)
    layers = layer_ratios(model, images, mix)
    assert [layer.name for layer in layers] == ["blocks.0", "blocks.1"]
    torch.testing.assert_close(layers[0].aligned, layers[0].aligned_tokens.mean((1, 2)))
