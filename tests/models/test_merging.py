"""Token merging: against a loop, a model written from the paper, and labels that are carried through it."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
from families.lvvit import LVVIT
from families.merging import VIT, Token, features_and_labels, merged, small
from helpers import FAMILIES, box_mix, build, images_for, sharpen
from labelflow.analysis.presence import presence
from labelflow.analysis.ratio import layer_ratios
from labelflow.analysis.relevance import relevance
from labelflow.models import merging
from labelflow.models.create import create
from labelflow.tasks.dense.backbone import make_levels, resolve
from test_api import TINY, WORLD

MERGING = [family for family in FAMILIES if family.startswith("merging")]
PLAIN = {
    "vit": ("vit_tiny_patch16_224", VIT),
    "distilled": ("deit_tiny_distilled_patch16_224", VIT),
    "deit3, unfused": ("deit3_small_patch16_224", VIT),
    "lvvit": ("lvvit_s", {**LVVIT, "img_size": 32}),
}


def some_tokens(count: int, seed: int) -> tuple[list[Token], Tensor]:
    """Tokens that stand for some patches each, and their keys."""
    generator = torch.Generator().manual_seed(seed)
    x, labels, keys = (torch.randn(count, 4, generator=generator).double() for _ in range(3))
    sizes = torch.randint(1, 6, (count,), generator=generator).tolist()
    return [Token(*pair, [0] * size) for *pair, size in zip(x, labels, sizes, strict=True)], keys


@given(st.integers(0, 5), st.integers(2, 24), st.integers(1, 30), st.integers(0, 99))
def test_a_merge_is_that_of_the_definition(prefix: int, patches: int, r: int, seed: int) -> None:
    tokens, keys = some_tokens(prefix + patches, seed)
    expected = merged(tokens, keys, r, prefix)
    match, size = merging.Match(r, prefix), torch.tensor([[len(token.patches) for token in tokens]])
    left = match.remaining(len(tokens))
    assert left == len(expected) == len(tokens) - min(r, patches // 2)
    target = match(keys.unsqueeze(0))
    assert target[0, :prefix].tolist() == list(range(prefix))  # in front, and alone
    assert (target[:, prefix:] >= prefix).all()
    after = torch.zeros(1, left, dtype=torch.long).scatter_add(1, target, size)
    assert after[0].tolist() == [len(token.patches) for token in expected]
    for part in ("x", "label"):
        values = torch.stack([getattr(token, part) for token in tokens])
        found = merging.merge(values.unsqueeze(0), size, target, left)[0]
        assert_close(found, torch.stack([getattr(token, part) for token in expected]))
        total = (after[0, prefix:, None] * found[prefix:]).sum(0)
        assert_close(total, (size[0, prefix:, None] * values[prefix:]).sum(0))  # Σ s·Y over patches is conserved


def test_autocast_does_not_round_what_is_matched() -> None:
    keys = 1 + 0.01 * torch.randn(2, 65, 8)  # cosines that bfloat16 cannot tell apart
    expected = merging.match(keys, 20, 1)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(merging.match(keys, 20, 1), expected)


@settings(max_examples=12)
@given(st.integers(0, 9), st.sampled_from([0, -1, 1, 0.5]), st.floats(0, 1))
def test_a_constant_share_stays(r: int, inflect: float, value: float) -> None:
    model, images = sharpen(small((r, inflect), depth=3)), images_for("merging", 2)
    mix = lf.Mix(torch.tensor([1, 0]), torch.full((2, 1, 32, 32), value))
    flow = lf.Student(model, {"flow_tokens"})(images, mix).flow
    for share in (flow.heads[..., 0], flow.tokens[..., 0]):
        assert_close(share, torch.full_like(share, value), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", MERGING)
def test_tokens_and_their_labels_are_those_of_the_definition(family: str) -> None:
    """Every patch that leaves the model, and its label."""
    model, images = build(family), images_for(family)
    mix = box_mix(images)
    classes = F.one_hot(torch.tensor([1, 4, 3, 2]), 5).float()
    with torch.no_grad():
        features, labels = features_and_labels(model, mix.apply(images), mix, classes)
        assert_close(model.forward_features(mix.apply(images)), features, atol=1e-4, rtol=1e-4)
        flow = lf.Student(model, {"flow_tokens"})(mix.apply(images), mix).flow
    own = flow.tokens[..., :1]
    found = own * classes.unsqueeze(1) + (1 - own) * classes[mix.partner].unsqueeze(1)
    assert_close(found, labels[:, model.num_prefix_tokens :], atol=2e-6, rtol=0)


@pytest.mark.parametrize("kind", PLAIN)
def test_with_r_0_it_is_the_plain_model(kind: str) -> None:
    """To the bit, gradients too; also after it has merged some. Weights go from one to the other."""
    name, arguments = PLAIN[kind]
    plain = sharpen(timm.create_model(name, **arguments)).train()
    for module in plain.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = "unfused" not in kind
    model, images = copy.deepcopy(plain), images_for("merging")
    lf.merge_tokens(model, 3)
    assert model.load_state_dict(plain.state_dict()) == plain.load_state_dict(model.state_dict())
    merged_logits = model(images)
    lf.merge_tokens(model, 0)
    logits, expected = model(images), plain(images)
    assert torch.equal(logits, expected)
    assert not torch.allclose(merged_logits, expected)
    for result in (logits, expected):
        result.square().sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_schedules() -> None:
    assert merging.schedule(13, 12) == [13] * 12
    assert merging.schedule((13, -1), 12) == [26, 23, 21, 18, 16, 14, 11, 9, 7, 4, 2, 0]  # from 2·r to 0
    assert merging.schedule([8, 0.5], 5) == [4, 6, 8, 10, 12]  # as JSON has it
    model = build("merging")
    tokens: list[int] = []
    for block in model.blocks:
        block.norm2.register_forward_hook(lambda module, inputs, output: tokens.append(output.shape[1]))
    model(images_for("merging"))
    assert tokens == [14, 11, 8, 5]  # of 1 + 16


def test_token_logits_lie_on_the_whole_grid() -> None:
    """Patches of one token have one logit; token labels and their targets need not know of it."""
    model, images = build("merging"), images_for("merging")
    student = lf.Student(model, {"tokens", "cells"})
    output = student(images, box_mix(images))
    assert student.token_grid((32, 32)) == (4, 4)
    assert output.tokens.shape == (4, 16, 5)
    assert [len(image.unique(dim=0)) for image in output.tokens] == [4] * 4  # 17 - 4·3 tokens, one of them the class
    assert output.flow.tokens.shape == (4, 16, 16)
    assert_close(output.flow.tokens.sum(-1), torch.ones(4, 16))
    assert lf.Aligned(model).trace(images, box_mix(images).share)[1].map.shape == (4, 4, 4)


def test_layers_that_are_left_out_merge_all_the_same() -> None:
    model, images = build("merging, average"), images_for("merging, average")
    mix = box_mix(images)
    _, arrived = lf.Aligned(model, layers=[])(images, mix.share)
    assert_close(arrived, mix.lam)  # Σ s·Y is conserved
    _, last = lf.Aligned(model, layers=[-1])(images, torch.full_like(mix.share, 0.3))
    assert_close(last, torch.full((4,), 0.3))


def test_r_may_change_after_attaching() -> None:
    model, images = build("merging, average"), images_for("merging")
    share = box_mix(images).share
    aligned = lf.Aligned(model)
    lf.merge_tokens(model, (2, 1))
    _, arrived = aligned(images, share)
    assert torch.equal(arrived, lf.Aligned(model)(images, share)[1])
    plain = build("vit")
    attached = lf.Aligned(plain)
    with pytest.raises(ValueError, match=r"call merge_tokens before lf\.Aligned"):
        lf.merge_tokens(attached.model)


def test_from_the_command_line_to_a_prediction(tmp_path: Path) -> None:
    """A run says that its model merges, and is loaded so; its weights are a plain model's."""
    model = TINY["model"].replace("(", "(merge_tokens=(3, -1), ")
    run = lf.train("quickstart", data=WORLD, out=tmp_path / "run", quiet=True, **{**TINY, "model": model, "epochs": 1})
    classifier, images = lf.load(run.folder), images_for("merging")
    assert [block.match.r for block in classifier.model.blocks] == [6, 0]
    with torch.no_grad():
        plain = lf.load(f"{TINY['model']}={run.folder / 'model.safetensors'}", image_size=32).model
        assert not torch.allclose(plain(images), classifier.model(images))
        theirs = timm.create_model(f"local-dir:{run.folder}", pretrained=True).eval()  # timm knows no merging
        assert torch.equal(plain(images), theirs(images))
        lf.merge_tokens(plain, (3, -1))
        assert torch.equal(plain(images), classifier.model(images))
    with pytest.raises(ValueError, match="ratios layer by layer need a model that merges no tokens"):
        layer_ratios(plain, images, box_mix(images))
    with pytest.raises(ValueError, match=r"timm's format.* needs a model that merges no tokens: omit merge_tokens"):
        lf.export(run.folder, "timm")
    assert "merge_tokens" not in resolve(str(run.folder)).arguments  # maps need all tokens


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda: create("swin_tiny_patch4_window7_224(depths=(1, 1), merge_tokens=13)"),
            r"VisionTransformer .*not for SwinTransform",
        ),
        (lambda: create("vit_small_patch16_18x2_224(depth=1, merge_tokens=1)"), "with ParallelThingsBlock"),
        (lambda: create("vit_tiny_patch16_224(merge_tokens=-1)"), r"a number, 13, or \(13, inflect\) .* not -1"),
        (lambda: create("vit_tiny_patch16_224(merge_tokens=(13, 2))"), r"from -1 to 1, not \(13, 2\)"),
        (lambda: create("vit_tiny_patch16_224(merge_tokens='all')"), "not 'all'"),
        (
            lambda: presence(build("merging"), images_for("merging")),
            "presence needs a model that merges no tokens: omit merge_tokens, the weights are the same",
        ),
        (
            lambda: relevance(build("merging"), images_for("merging"), torch.zeros(4)),
            "relevance maps need a model that merges no",
        ),
        (lambda: make_levels("vit_tiny_patch16_224(merge_tokens=3)"), "segmenters and detectors need .* merges no"),
    ],
)
def test_refusals(use: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        use()
