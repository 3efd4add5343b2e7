"""Golden numbers (tests/golden/README.md): made with the original authors' programs, but for Swin's, which has no
official code and comes from our own dense oracle."""

import json

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from helpers import GOLDEN, fill, golden


def load(name: str) -> tuple[dict, dict[str, Tensor]]:
    arrays = np.load(GOLDEN / f"{name}.npz")
    return json.loads((GOLDEN / f"{name}.json").read_text()), {key: torch.from_numpy(arrays[key]) for key in arrays}


def pasted(batch: int, top: int, bottom: int, left: int, right: int) -> tuple[Tensor, lf.Mix]:
    """The golden images, and a mix whose box lies there."""
    images = torch.from_numpy(golden.images(batch, 3, 224, 224))
    share = torch.ones(batch, 1, 224, 224)
    share[:, :, top:bottom, left:right] = 0
    return images, lf.Mix(torch.arange(batch).flip(0), share)


@pytest.fixture(scope="module")
def deit() -> dict:
    """The whole golden training step of TL-Align on DeiT-T."""
    facts, arrays = load("tlalign_deit_tiny")
    top, bottom, left, right = (16 * edge for edge in facts["token_box_rows_cols"])
    images, mix = pasted(facts["batch"], top, bottom, left, right)
    model = fill(timm.create_model(facts["model"], num_classes=facts["num_classes"])).train()
    aligned = lf.Aligned(model)
    y = lf.soft_labels(torch.tensor(facts["labels"]), facts["num_classes"], facts["smoothing"])
    logits, share = aligned(mix.apply(images), mix.share)
    loss = F.cross_entropy(logits, mix.blend(y, share))
    loss.backward()
    return {**locals()}


def test_tl_align_on_deit(deit: dict) -> None:
    facts, arrays, mix, y = deit["facts"], deit["arrays"], deit["mix"], deit["y"]
    assert_close(mix.lam, torch.full((4,), facts["lam_own"]))
    assert_close(deit["logits"], arrays["logits"], atol=1e-4, rtol=0)
    assert_close(mix.blend(y, deit["share"]), arrays["label_all_last"][:, 0], atol=1e-5, rtol=0)
    assert_close(deit["loss"].item(), facts["loss"], atol=1e-5, rtol=0)
    for name, parameter in deit["model"].named_parameters():
        assert_close(parameter.grad.norm().item(), facts["grad_norm"][name], atol=0, rtol=1e-3, msg=name)


def test_tl_align_on_deit_layer_by_layer(deit: dict) -> None:
    arrays, mix, y = deit["arrays"], deit["mix"], deit["y"]
    area = mix.tokens((14, 14)).flatten(1)  # (B, 196): patches start with their own area, the class token with λ
    for token, share in enumerate([mix.lam, *area.T]):
        assert_close(mix.blend(y, share), arrays["label_initial"][:, token], atol=1e-6, rtol=0)
    trace = deit["aligned"].trace(mix.apply(deit["images"]), mix.share)
    for layer, expected in zip(trace, arrays["label_cls_after_block"], strict=True):
        assert_close(mix.blend(y, layer.share[:, 0]), expected, atol=1e-5, rtol=0)
    for token in range(197):
        expected = arrays["label_all_last"][:, token]
        assert_close(mix.blend(y, trace[-1].share[:, token]), expected, atol=1e-5, rtol=0)


def test_tl_align_on_swin() -> None:
    """Against our own dense oracle."""
    facts = json.loads((GOLDEN / "tlalign_swin_tiny_final.json").read_text())
    images, mix = pasted(2, 48, 144, 64, 192)
    model = fill(timm.create_model(facts["model"], num_classes=facts["num_classes"])).eval()
    for fused in (False, True):
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = fused
        _, share = lf.Aligned(model)(mix.apply(images), mix.share)
        assert_close(share, torch.tensor(facts["final_share_own"]), atol=1e-6, rtol=0)


def test_pvt() -> None:
    facts, arrays = load("pvt_tiny_eval")
    model = fill(timm.create_model(facts["model"])).eval()
    images = torch.from_numpy(golden.images(2, 3, 224, 224))
    with torch.no_grad():
        assert_close(model(images), arrays["logits"], atol=3e-4, rtol=0)
        assert_close(model.forward_features(images)[:, 0], arrays["features_cls"], atol=3e-4, rtol=0)


@pytest.mark.parametrize("mixer", [lf.CutMix(grid=1, per="sample"), lf.MixToken(patch=1, per="sample")])
def test_boxes_on_a_token_grid(mixer: lf.mixers.Mixer) -> None:
    """On a grid of patches (here, pixels of a 14×14 image), boxes are drawn as the public code draws them."""
    facts = json.loads((GOLDEN / "mixtoken_bbox_stats.json").read_text())
    lam = mixer(torch.empty(40_000, 1, 14, 14), torch.Generator().manual_seed(0)).lam
    assert abs(lam.mean().item() - facts["exact_mean_lam"]) < 4 * facts["std_lam"] / 200
    assert abs((lam == 1).float().mean().item() - facts["exact_p_no_mix"]) < 0.003
    histogram = facts["histogram_own_tokens_of_196"]
    counts = torch.bincount((lam * 196).round().long(), minlength=197) / 40_000
    expected = torch.tensor([histogram.get(str(count), 0) / facts["draws"] for count in range(197)])
    assert (counts - expected).abs().max() < 0.005
