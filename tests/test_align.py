"""Aligned: the laws that every adapter obeys, equality with naive oracles, and a model left alone."""

import copy
import gc
import itertools
import pickle
import weakref
from typing import NamedTuple

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

import labelflow as lf
from families import SOME, dense_label
from helpers import FAMILIES, box_mix, build, images_for, sharpen


class _Reversed(timm.models.vision_transformer.Block):
    """A block that labelflow cannot know."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens).flip(1)


class Attached(NamedTuple):
    """A small model of a family, what it was before labels followed it, and an `Aligned` of it."""

    family: str
    model: nn.Module
    images: torch.Tensor
    state: dict[str, torch.Tensor]
    logits: torch.Tensor
    aligned: lf.Aligned


@pytest.fixture(scope="module", params=FAMILIES)
def attached(request: pytest.FixtureRequest) -> Attached:
    """Built once for the three tests that leave it alone."""
    torch.manual_seed(0)
    model, images = build(request.param), images_for(request.param)
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    return Attached(request.param, model, images, state, model(images), lf.Aligned(model))


def test_a_constant_share_flows_through_unchanged(attached: Attached) -> None:
    """Another one in each sample, so that samples are known to be apart, too."""
    share = torch.tensor([0.0, 0.3, 1.0, 0.7])
    _, arrived = attached.aligned(attached.images, share[:, None, None, None].expand_as(attached.images[:, :1]))
    assert_close(arrived, share, atol=1e-6, rtol=0)


def test_leaves_logits_and_state_dict_alone(attached: Attached) -> None:
    _, model, images, state, before, aligned = attached
    logits, _ = aligned(images, box_mix(images).share)
    for result in (model(images), logits):
        assert torch.equal(result, before)
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())


def test_equals_the_dense_oracle(attached: Attached) -> None:
    """Two sources and fused kernels give what C classes and full matrices give."""
    model, images = attached.model, attached.images
    mix = box_mix(images)
    onehot = F.one_hot(torch.tensor([1, 4, 3, 2]), 5).float()
    output = lf.Student(model, {"flow"})(mix.apply(images), mix)
    expected = dense_label(model, mix.apply(images), mix, onehot)
    assert output.flow is not None
    for head, label in zip(output.flow.heads.unbind(1), expected.unbind(1), strict=True):
        assert_close(mix.blend(onehot, head[:, 0]), label, atol=2e-6, rtol=0)
        assert (head[:, 0] - mix.lam).abs().max() > 3e-3  # or there would be nothing to see


@pytest.mark.parametrize("family", [family for family in FAMILIES if "fused" in family])
def test_fused_equals_unfused(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    for module in model.modules():
        if hasattr(module, "fused_attn"):
            module.fused_attn = not module.fused_attn
    _, expected = lf.Aligned(build(family))(images, share)
    _, arrived = lf.Aligned(model)(images, share)
    assert_close(arrived, expected, atol=1e-6, rtol=0)


def test_a_trace_shows_labels_at_their_places() -> None:
    """Hiera's tokens do not lie row by row; what a trace shows does. Its windows do not reach the other half."""
    model, images = build("hiera"), images_for("hiera")
    share = torch.zeros_like(images[:, :1])
    share[..., : images.shape[3] // 2] = 1
    first = lf.Aligned(model).trace(images, share)[0].map
    side = first.shape[2]
    assert first[:, :, : side // 2 - 1].min() > 0.6
    assert first[:, :, side // 2 + 1 :].max() < 0.4


def test_a_distilled_model_has_a_label_for_each_head() -> None:
    model, images = build("deit distilled"), images_for("deit distilled")
    mix = box_mix(images)
    output = lf.Student(model, {"flow"})(images, mix)
    assert output.flow is not None
    own = output.flow.heads[..., 0]
    assert own.shape == (4, 2)
    assert not torch.allclose(own[:, 0], own[:, 1])
    _, arrived = lf.Aligned(model)(images, mix.share)
    assert_close(arrived, own.mean(1))  # its logits are the mean of both heads', and so is the label


@pytest.mark.parametrize("family", SOME)
def test_gradients_do_not_flow_through_labels(family: str) -> None:
    """Eq. 12: the gradient is that of a fixed target."""
    model, images = build(family), images_for(family)
    mix = box_mix(images)
    y = lf.soft_labels(torch.tensor([0, 1, 2, 3]), 5, 0.1)
    logits, share = lf.Aligned(model)(mix.apply(images), mix.share)
    assert not share.requires_grad
    F.cross_entropy(logits, mix.blend(y, share)).backward()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = [parameter.grad.clone() for parameter in trained]
    model.zero_grad()
    F.cross_entropy(model(mix.apply(images)), mix.blend(y, share)).backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(trained, gradients, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_randomness_of_the_model_is_its_own(family: str) -> None:
    """Dropout and drop-path draw the same with and without labels."""
    model, images = build(family).train(), images_for(family)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
        elif hasattr(module, "drop_prob"):
            module.drop_prob = 0.3
    torch.manual_seed(7)
    expected = model(images)
    torch.manual_seed(7)
    logits, _ = lf.Aligned(model)(images, box_mix(images).share)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    "family", ["vit", "swin", "pvt", "pvt v2", "lvvit", "t2t performer", "t2t transformer", "cait", "convnext"]
)
def test_drop_path_draws_the_same(family: str) -> None:
    """timm makes these modules only where there is something to drop."""
    name, arguments, _ = FAMILIES[family]
    model = sharpen(timm.create_model(name, **arguments, drop_path_rate=0.5)).train()
    images = images_for(family)
    torch.manual_seed(7)
    expected = model(images)
    torch.manual_seed(7)
    logits, _ = lf.Aligned(model)(images, box_mix(images).share)
    assert torch.equal(logits, expected)
    assert not torch.equal(model(images), expected)  # or nothing was drawn


@pytest.mark.parametrize("family", ["vit", "vit, unfused", "swin", "swin, fused", "pvt", "pvt, unfused"])
def test_dropout_and_drop_path_do_not_touch_labels(family: str) -> None:
    """In the first block, that is: later ones see tokens that dropout has changed."""
    name, arguments, _ = FAMILIES[family]
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    expected = lf.Aligned(model, layers=[0])(images, share)[1]
    dropping = timm.create_model(name, **arguments, attn_drop_rate=0.9, drop_path_rate=0.9).train()
    dropping.load_state_dict(model.state_dict())
    for ours, theirs in zip(dropping.modules(), model.modules(), strict=False):
        if hasattr(theirs, "fused_attn"):
            ours.fused_attn = theirs.fused_attn
    aligned = lf.Aligned(dropping, layers=[0])
    for _ in range(2):
        assert_close(aligned(images, share)[1], expected, atol=1e-6, rtol=0)


def test_trace_shows_every_layer_and_agrees_with_forward() -> None:
    for family, blocks, grid in [("vit", 3, (4, 4)), ("swin", 4, (4, 4)), ("pvt", 6, (2, 2))]:
        model, images = build(family), images_for(family)
        share = box_mix(images).share
        aligned = lf.Aligned(model)
        trace = aligned.trace(images, share)
        assert len(trace) == blocks
        assert trace[-1].grid == grid
        assert trace[-1].map.shape == (4, *grid)
        _, arrived = aligned(images, share)
        last = trace[-1].share
        assert_close(last.mean(1) if family == "swin" else last[:, 0], arrived)


@pytest.mark.parametrize(
    "family", ["vit", "vit, average", "swin", "pvt"]
)  # in PVT v2, whose patches overlap, it doesn't
def test_without_layers_the_area_arrives(family: str) -> None:
    images = images_for(family)
    mix = box_mix(images)
    _, arrived = lf.Aligned(build(family), layers=[])(images, mix.share)
    assert_close(arrived, mix.lam)


def test_layers_left_out_are_the_identity() -> None:
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    _, every = lf.Aligned(model, layers=range(3))(images, mix.share)
    assert torch.equal(every, lf.Aligned(model)(images, mix.share)[1])
    _, last = lf.Aligned(model, layers=[-1])(images, mix.share)
    weights = torch.empty(0)

    def keep(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        nonlocal weights
        weights = inputs[0].mean(1)[:, 0]  # (B, N): the class token's row

    model.blocks[2].attn.fused_attn = False
    model.blocks[2].attn.attn_drop.register_forward_pre_hook(keep)
    model(images)
    start = torch.cat([mix.lam.unsqueeze(1), mix.tokens((4, 4)).flatten(1)], 1)
    assert_close(last, (mix.lam + (weights * start).sum(1)) / 2)


def test_normalising_at_the_end_is_the_same_and_no_residual_is_not() -> None:
    """Table 8's "Normalization Disabled": summing Y + A·Y and dividing once at the end gives the same class label, so
    the reading that differs is the one without a residual."""
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    attentions: list[torch.Tensor] = []
    for block in model.blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(lambda module, inputs: attentions.append(inputs[0].mean(1)))
    model(images)
    own = torch.cat([mix.lam.unsqueeze(1), mix.tokens((4, 4)).flatten(1)], 1).unsqueeze(2)
    summed = bare = torch.cat([own, 1 - own], 2)
    for attention in attentions:
        summed, bare = summed + attention @ summed, attention @ bare
    _, arrived = lf.Aligned(model)(images, mix.share)
    assert_close(lf.flow.normalise(summed)[:, 0, 0], arrived)
    _, without = lf.Aligned(model, residual=False)(images, mix.share)
    assert_close(bare[:, 0, 0], without)
    assert (arrived - without).abs().max() > 1e-3


@pytest.mark.parametrize("family", SOME)
def test_an_exception_leaves_nothing_behind(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    before = model(images)
    aligned = lf.Aligned(model)
    expected = aligned(images, share)[1]
    last = list(model.modules())[-1]
    bomb = last.register_forward_pre_hook(lambda module, inputs: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        aligned(images, share)
    bomb.remove()
    assert torch.equal(model(images), before)
    assert torch.equal(aligned(images, share)[1], expected)


@pytest.mark.parametrize("family", SOME)
def test_copies_are_independent(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    aligned = lf.Aligned(model)
    expected = aligned(images, share)
    ema, twin = copy.deepcopy(model), copy.deepcopy(aligned)
    gone = weakref.ref(aligned)
    del aligned
    assert gone() is None  # at once: no cycle holds it
    assert torch.equal(ema(images), expected[0])
    for parameter in model.parameters():
        parameter.data.zero_()
    logits, arrived = twin(images, share)
    assert torch.equal(logits, expected[0])
    assert torch.equal(arrived, expected[1])
    assert torch.equal(lf.Aligned(ema)(images, share)[1], expected[1])


@pytest.mark.parametrize("family", SOME)
def test_two_on_one_model(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    before = model(images)
    whole, part = lf.Aligned(model), lf.Aligned(model, layers=[0])
    expected = whole(images, share)[1], part(images, share)[1]
    assert not torch.equal(*expected)
    assert torch.equal(whole(images, share)[1], expected[0])
    assert torch.equal(model(images), before)


@pytest.mark.parametrize("family", SOME)
def test_a_pickle_is_wired_alike(family: str) -> None:
    """As when a model goes to a spawned process."""
    aligned, images = lf.Aligned(build(family)), images_for(family)
    share = box_mix(images).share
    twin = pickle.loads(pickle.dumps(aligned))
    assert torch.equal(twin(images, share)[1], aligned(images, share)[1])


def test_attention_may_be_fused_or_not_after_attaching() -> None:
    for family in SOME:
        model, images = build(family), images_for(family)
        share = box_mix(images).share
        aligned = lf.Aligned(model)
        expected = aligned(images, share)[1]
        for module in model.modules():
            if hasattr(module, "fused_attn"):
                module.fused_attn = not module.fused_attn
        assert_close(aligned(images, share)[1], expected, atol=1e-6, rtol=0)


def test_hooks_go_with_their_owner() -> None:
    model = build("vit")

    def hooks() -> int:
        return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())

    aligned = lf.Aligned(model)
    assert hooks() > 0
    del aligned
    gc.collect()
    assert hooks() == 0


def test_a_hook_that_never_fires_is_an_error() -> None:
    model, images = build("vit"), images_for("vit")
    aligned = lf.Aligned(model)
    share = box_mix(images).share
    model.blocks = model.blocks[:2]
    with pytest.raises(RuntimeError, match=r"3 of 4 modules: VisionTransformer did not run blocks\.2$"):
        aligned(images, share)
    model = build("vit")
    aligned = lf.Aligned(model)
    model.blocks = model.blocks[::-1]
    with pytest.raises(RuntimeError, match="in order"):
        aligned(images, share)
    model = build("vit")
    aligned = lf.Aligned(model)
    model.blocks[1].attn.k_norm = nn.Identity()
    with pytest.raises(RuntimeError, match=r"watches as 'key' ran.*observed were \['query'\]"):
        aligned(images, share)


def test_a_subclass_with_its_own_forward_is_not_trusted() -> None:
    model = build("vit")

    class Other(type(model)):  # type: ignore[misc]
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return super().forward(images).flip(0)

    class Pooled(type(model)):  # type: ignore[misc]
        def pool(self, tokens: torch.Tensor, pool_type: str | None = None) -> torch.Tensor:
            return tokens.amax(1)

    class Same(type(model)):  # type: ignore[misc]
        def shout(self) -> str:
            return "!"

    class Inherited(type(build("deit distilled"))):  # type: ignore[misc]
        def forward_features(self, images: torch.Tensor) -> torch.Tensor:  # its grandparent's
            return super().forward_features(images.flip(3))

    distilled = build("deit distilled")
    distilled.__class__ = Inherited
    with pytest.raises(ValueError, match=r"no adapter for .*Inherited"):
        lf.Aligned(distilled)
    model.__class__ = Same
    lf.Aligned(model)
    for other in (Other, Pooled):
        model.__class__ = other
        with pytest.raises(ValueError, match=rf"no adapter for .*{other.__name__}"):
            lf.Aligned(model)


def test_another_pooling_after_attaching() -> None:
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    aligned = lf.Aligned(model)
    model.reset_classifier(5, "avg")
    assert_close(aligned(images, mix.share)[1], lf.Aligned(model)(images, mix.share)[1])
    model.reset_classifier(5, "max")
    with pytest.raises(ValueError, match="global_pool='max'"):
        aligned(images, mix.share)
    assert aligned.follower.current.value is None  # idle again


@pytest.mark.parametrize("family", ["swin", "pvt v2"])
def test_a_pooling_that_cannot_be_followed_is_refused_at_once(family: str) -> None:
    model = build(family)
    model.reset_classifier(0, "")
    with pytest.raises(ValueError, match="global_pool=''"):
        lf.Aligned(model)


def test_an_assertion_inside_the_model_is_not_blamed_on_the_image_size() -> None:
    model, images = build("vit"), images_for("vit")
    aligned = lf.Aligned(model)

    def broken(module: nn.Module, inputs: tuple[torch.Tensor]) -> None:
        raise AssertionError("my own bug")

    model.head.register_forward_pre_hook(broken)
    with pytest.raises(AssertionError, match="my own bug"):
        aligned(images, box_mix(images).share)


@pytest.mark.parametrize("family", SOME)
def test_gradient_checkpointing_moves_labels_once(family: str) -> None:
    model, images = build(family).train(), images_for(family)
    mix = box_mix(images)
    y = lf.soft_labels(torch.tensor([0, 1, 2, 3]), 5)

    def step() -> tuple[torch.Tensor, list[torch.Tensor]]:
        model.zero_grad()
        torch.manual_seed(7)  # for drop-path
        logits, share = lf.Aligned(model)(mix.apply(images), mix.share)
        F.cross_entropy(logits, mix.blend(y, share)).backward()
        return share, [parameter.grad.clone() for parameter in model.parameters() if parameter.requires_grad]

    if not hasattr(model, "set_grad_checkpointing"):
        pytest.skip("not one of timm's: it has no set_grad_checkpointing")
    share, gradients = step()
    try:
        model.set_grad_checkpointing(True)
    except AssertionError as refused:
        pytest.skip(f"timm: {refused}")
    again, recomputed = step()
    assert torch.equal(again, share)
    assert all(torch.equal(a, b) for a, b in itertools.zip_longest(gradients, recomputed))


@pytest.mark.parametrize("family", SOME)
def test_under_autocast_labels_stay_float32(family: str) -> None:
    model, images = build(family), images_for(family)
    with torch.autocast("cpu", torch.bfloat16):
        logits, arrived = lf.Aligned(model)(images, torch.full_like(images[:, :1], 0.3))
        assert logits.dtype == torch.bfloat16
        assert arrived.dtype == torch.float32
    assert_close(arrived, torch.full((4,), 0.3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("family", SOME)
def test_layouts_and_modes(family: str) -> None:
    model, images = build(family), images_for(family)
    share = box_mix(images).share
    _, expected = lf.Aligned(model)(images, share)
    with torch.no_grad():
        _, quiet = lf.Aligned(model)(images, share)
    assert_close(quiet, expected)
    model = model.to(memory_format=torch.channels_last)
    images = images.to(memory_format=torch.channels_last)
    _, last = lf.Aligned(model)(images, share.to(memory_format=torch.channels_last))
    assert_close(last, expected, atol=1e-6, rtol=0)


def test_a_student_computes_only_what_it_needs() -> None:
    model, images = build("vit"), images_for("vit")
    mix = box_mix(images)
    hooks = sum(len(module._forward_hooks) for module in model.modules())
    plain = lf.Student(model)
    assert sum(len(module._forward_hooks) for module in model.modules()) == hooks + 1  # for MixToken, idle
    assert plain(images, mix).flow is None
    flow = lf.Student(model, {"flow"})(images, mix).flow
    assert flow is not None
    assert flow.tokens is None
    tokens = lf.Student(model, {"flow_tokens"})(images, mix).flow
    assert tokens is not None
    assert tokens.tokens is not None
    assert_close(tokens.heads, flow.heads)
    trace = lf.Aligned(model).trace(images, mix.share)
    assert_close(tokens.tokens[..., 0].unflatten(1, (4, 4)), trace[-1].map)
    assert_close(tokens.tokens.sum(-1), torch.ones(4, 16))


class TestBadInput:
    def test_an_unknown_model(self) -> None:
        with pytest.raises(ValueError, match=r"no adapter for .*Flatten; write one with .*register.* SwinTransformer"):
            lf.Aligned(nn.Flatten())

    def test_a_wrapped_model(self) -> None:
        with pytest.raises(ValueError, match=r"torch\.compile\(Aligned\(model\)\)"):
            lf.Aligned(torch.compile(build("vit")))
        with pytest.raises(ValueError, match="before it is wrapped"):
            lf.Aligned(nn.DataParallel(build("vit")))
        with pytest.raises(ValueError, match="not 'deit_tiny'"):
            lf.Aligned("deit_tiny")  # type: ignore[arg-type]

    def test_a_mix_where_its_share_belongs_and_the_other_way_round(self) -> None:
        images = images_for("vit")
        mix = box_mix(images)
        with pytest.raises(ValueError, match=r"mix\.share"):
            lf.Aligned(build("vit"))(images, mix)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="takes a Mix"):
            lf.Student(build("vit"), {"flow"})(images, mix.share)  # type: ignore[arg-type]

    def test_an_adapter_that_returns_something_else(self) -> None:
        class Odd(type(build("vit").blocks[0])):  # type: ignore[misc]
            pass

        lf.adapters.register(Odd)(lambda module, observed, labels: labels.values)  # type: ignore[arg-type,return-value]
        model, images = build("vit"), images_for("vit")
        model.blocks[1].__class__ = Odd
        with pytest.raises(RuntimeError, match=r"adapter of blocks\.1 returned a Tensor, not Labels"):
            lf.Aligned(model)(images, box_mix(images).share)

    def test_an_empty_batch(self) -> None:
        with pytest.raises(ValueError, match="images must have the shape"):
            lf.Aligned(build("vit"))(torch.empty(0, 3, 32, 32), torch.empty(0, 1, 32, 32))

    def test_images_too_small_for_pvt(self) -> None:
        with pytest.raises(ValueError, match="at least 32×32 pixels, not 16×16"):
            lf.Aligned(build("pvt"))(torch.rand(2, 3, 16, 16), torch.ones(2, 1, 16, 16))

    @pytest.mark.parametrize("shape", [(4, 1, 16, 16), (4, 32, 32), (2, 1, 32, 32), (4, 3, 32, 32), (4,)])
    def test_a_share_of_the_wrong_shape(self, shape: tuple[int, ...]) -> None:
        with pytest.raises(ValueError, match=r"share must have the shape \(B, 1, H, W\) = \(4, 1, 32, 32\)"):
            lf.Aligned(build("vit"))(images_for("vit"), torch.ones(shape))

    @pytest.mark.parametrize("value", [-0.1, 1.1, float("nan")])
    def test_a_share_outside_its_range(self, value: float) -> None:
        images = images_for("vit")
        with pytest.raises(ValueError, match=r"share must lie in \[0, 1\]"):
            lf.Aligned(build("vit"))(images, torch.full_like(images[:, :1], value))

    def test_an_image_size_that_the_model_refuses(self) -> None:
        with pytest.raises(ValueError, match=r"VisionTransformer refused images of 48×48 pixels: .*32"):
            lf.Aligned(build("vit"))(torch.rand(2, 3, 48, 48), torch.ones(2, 1, 48, 48))

    def test_layers_that_are_not_there(self) -> None:
        with pytest.raises(ValueError, match=r"0 to 2, not \[3\]"):
            lf.Aligned(build("vit"), layers=[0, 3])

    def test_needs_that_are_not_known(self) -> None:
        with pytest.raises(ValueError, match="cannot give"):
            lf.Student(build("vit"), {"labels"})

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"patch_drop_rate": 0.5}, "patch dropout"),
            ({"global_pool": "max"}, "global_pool='max'"),
            ({"block_fn": _Reversed}, "_Reversed"),
        ],
    )
    def test_variants_that_cannot_be_followed(self, arguments: dict, message: str) -> None:
        name, known, _ = FAMILIES["vit"]
        with pytest.raises(ValueError, match=message):
            lf.Aligned(timm.create_model(name, **{**known, **arguments}))
