"""Token labeling against its equations, done densely; MixToken; and a training step of the public program."""

import pytest
import timm
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from helpers import FAMILIES, box_mix, build, fill, images_for
from labelflow.loss import make_loss
from labelflow.sparse import TokenLabels
from labelflow.targets import ReLabel, TLAlign, TokenLabel, TokenLabelAligned, Truth
from labelflow.targets.token_label import mixed_cells
from test_golden import golden, load
from test_sparse import random_labels

C = 5


def truth_for(batch: int, tokens: int, seed: int = 0) -> Truth:
    """Labels over 4 of the 5 classes of each image, other ones for each token."""
    image = random_labels((batch,), 4, C, seed)
    generator = torch.Generator().manual_seed(seed)
    above = torch.rand(batch, tokens, 4, generator=generator) / 5
    rest = (1 - above.sum(-1)) / C
    classes = lf.soft_labels(torch.arange(batch) % C, C, smoothing=0.1)
    return Truth(classes, TokenLabels(image, above, rest))


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    return -(y * logits.log_softmax(-1)).sum(-1)


def blend(y: Tensor, share: Tensor, partner: Tensor) -> Tensor:
    share = share.reshape(*share.shape, *[1] * (y.ndim - share.ndim))
    return share * y + (1 - share) * y[partner]


def token_shares(mix: lf.Mix, grid: tuple[int, int]) -> Tensor:
    """(B, N), by hand: the mean over each token's pixels."""
    batch, _, height, width = mix.share.shape
    h, w = grid
    return mix.share.reshape(batch, h, height // h, w, width // w).mean((2, 4)).flatten(1)


@pytest.mark.parametrize("image_label", ["pooled", "given"])
@pytest.mark.parametrize("mixer", [lf.CutMix(per="sample"), lf.MixUp(0.8), lf.MixToken(patch=8), lf.NoMix()])
def test_equation_4(mixer: object, image_label: str) -> None:
    model, images = build("vit"), images_for("vit")
    target = TokenLabel(image_label=image_label)
    student = target.student(model)
    mix = mixer(images, torch.Generator().manual_seed(4))
    truth = truth_for(4, 16)
    output = student(mix.apply(images), mix)
    y = truth.dense.image.dense(C) if image_label == "pooled" else truth.classes
    tokens = blend(truth.dense.tokens.dense(C), token_shares(mix, (4, 4)), mix.partner)  # Eq. 6
    expected = cross_entropy(output.logits, blend(y, mix.lam, mix.partner)).mean()  # Eq. 7
    expected = expected + 0.5 * cross_entropy(output.tokens, tokens).mean()
    assert_close(lf.total(target(output, truth, mix)), expected)


@pytest.mark.parametrize("family", ["vit", "deit distilled", "swin", "pvt", "lvvit", "t2t performer"])
def test_token_logits_of_any_model(family: str) -> None:
    """A linear classifier on each token that the model ends with; the model's own logits are untouched."""
    model, images = build(family), images_for(family)
    student = TokenLabel().student(model)
    mix = lf.NoMix()(images)
    output = student(images, mix)
    features = model.forward_features(images)
    if family == "swin":
        features = features.flatten(1, 2)
    places = features[:, getattr(model, "num_prefix_tokens", 0) :]
    head = model.aux_head if family == "lvvit" else student.token_head
    assert_close(output.tokens, head(places))
    if family == "lvvit":
        assert_close(output.logits, model.head(features[:, 0]))
    else:
        assert_close(output.logits, model(images))
    grid = student.token_grid(FAMILIES[family][2])
    assert grid[0] * grid[1] == places.shape[1]
    assert student(images).tokens is None
    assert_close(student(images).logits, model(images))


@pytest.mark.parametrize(
    ("name", "arguments", "grid"),
    [
        ("mixer_s16_224", {"img_size": 64}, (4, 4)),
        ("resnest14d", {}, (2, 2)),
        ("convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 8, 8, 8)}, (2, 2)),
        ("lvvit_t", {"img_size": 64, "depth": 1, "embed_dim": 16, "num_heads": 2, "aux_head": False}, (4, 4)),
    ],
)
def test_token_logits_of_models_without_an_adapter(name: str, arguments: dict, grid: tuple[int, int]) -> None:
    model = timm.create_model(name, num_classes=C, **arguments)
    images = torch.randn(2, 3, 64, 64)
    target = TokenLabel()
    student = target.student(model)
    assert student.token_grid((64, 64)) == grid
    mix = lf.CutMix()(images)
    output = student(mix.apply(images), mix)
    assert output.tokens.shape == (2, grid[0] * grid[1], C)
    lf.total(target(output, truth_for(2, grid[0] * grid[1]), mix)).backward()
    assert all(parameter.grad is not None for parameter in student.parameters())
    assert set(model.state_dict()) == set(timm.create_model(name, num_classes=C, **arguments).state_dict())


@pytest.mark.parametrize("family", ["vit", "vit, oblong", "vit, any size", "swin", "pvt", "lvvit", "t2t transformer"])
def test_mixtoken_mixes_what_the_patch_embedding_returns(family: str) -> None:
    """Eq. 5: the same as a model whose embedding is replaced by the mixed tokens."""
    model, images = build(family), images_for(family)
    height, width = images.shape[2:]
    embedding = next(
        module for name, module in model.named_children() if name in ("patch_embed", "patch_embed1", "tokens_to_token")
    )
    tokens = embedding(images)
    if tokens.ndim == 4:
        tokens = tokens.flatten(1, 2)
    grid = lf.tokens.token_grid(tokens.shape[1], height, width)
    share = torch.ones(4, 1, height, width)
    share[:, :, : height // grid[0], : 2 * width // grid[1]] = 0  # the first two tokens
    mix = lf.Mix(torch.tensor([2, 3, 0, 1]), share, at="tokens")
    assert torch.equal(mix.apply(images), images)
    own = torch.nn.functional.adaptive_avg_pool2d(share, grid).flatten(1).unsqueeze(-1)
    expected = own * tokens + (1 - own) * tokens[mix.partner]

    seen: list[Tensor] = []
    student = lf.Student(model)
    embedding.register_forward_hook(lambda module, inputs, output: seen.append(output))
    output = student(images, mix)
    assert_close(seen[-1].reshape(expected.shape), expected)
    assert not torch.allclose(output.logits, model(images))


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("resnest14d", 64, "no patch embedding"),
        ("crossvit_tiny_240", 240, "no patch embedding"),  # it has two
        ("xcit_nano_12_p16_224", 64, "does not return plain tokens"),
    ],
)
def test_mixtoken_needs_a_patch_embedding(name: str, size: int, message: str) -> None:
    images = torch.randn(2, 3, size, size)
    with pytest.raises(ValueError, match=message):
        lf.Student(timm.create_model(name))(images, lf.MixToken()(images))


def test_mixtoken_finds_the_channels() -> None:
    """VOLO's embedding returns (B, D, h, w), and does not say so."""
    model, images = timm.create_model("volo_d1_224", img_size=64).eval(), torch.randn(2, 3, 64, 64)
    share = torch.ones(2, 1, 64, 64)
    share[..., 32:] = 0
    seen: list[Tensor] = []
    student = lf.Student(model)
    model.patch_embed.register_forward_hook(lambda module, inputs, output: seen.append(output))
    with torch.no_grad():
        student(images, lf.Mix(torch.tensor([1, 0]), share, at="tokens"))
        own, other = model.patch_embed(images)
    assert_close(seen[0][0], torch.cat([own[..., :4], other[..., 4:]], -1))


def test_tokens_must_not_be_cut() -> None:
    images = images_for("vit")
    with pytest.raises(ValueError, match=r"mixtoken\(patch=8\)"):
        lf.Student(build("vit"))(images, lf.MixToken(patch=4)(images, torch.Generator().manual_seed(1)))


@pytest.mark.parametrize(
    ("name", "grid"), [("cait_xxs24_224", (14, 14)), ("convit_tiny", (14, 14)), ("beit_base_patch16_224", (14, 14))]
)
def test_grids_leave_class_tokens_out(name: str, grid: tuple[int, int]) -> None:
    assert lf.Student(timm.create_model(name), {"tokens"}).token_grid((224, 224)) == grid


def test_a_model_that_does_not_say_where_its_tokens_are() -> None:
    with pytest.raises(ValueError, match="does not say where its tokens lie"):
        lf.Student(timm.create_model("pit_ti_224"), {"tokens"}).token_grid((224, 224))


def test_token_heads_see_what_the_classifier_sees() -> None:
    """ConvNeXt normalises after pooling: so does the head for tokens, at each place."""
    model, images = timm.create_model("convnext_atto", num_classes=C).eval(), torch.randn(2, 3, 64, 64)
    student = TokenLabel().student(model)
    features = model.forward_features(images)
    expected = model.forward_head(features[:, :, 1:2, 0:1], pre_logits=True)
    output = student(images, lf.NoMix()(images))
    assert_close(output.tokens[:, 2], student.token_head(expected))


@pytest.mark.parametrize("family", ["t2t performer", "lvvit", "vit"])
def test_mixtoken_with_gradient_checkpointing(family: str) -> None:
    """Activations are computed twice, from the same mixed tokens."""
    slopes = []
    for checkpointing in (False, True):
        model, images = build(family), images_for(family)  # without dropout
        model.set_grad_checkpointing(checkpointing)
        share = torch.ones(4, 1, *images.shape[2:])
        share[..., : images.shape[3] // 2] = 0
        output = lf.Student(model)(images, lf.Mix(torch.arange(4).flip(0), share, at="tokens"))
        output.logits.square().sum().backward()
        slopes.append([parameter.grad for parameter in model.parameters() if parameter.requires_grad])
    assert_close(slopes[1], slopes[0])


@pytest.mark.parametrize("family", ["vit", "lvvit", "t2t performer"])
def test_labels_of_mixed_tokens_flow_from_the_embedding(family: str) -> None:
    """TL-Align with MixToken: labels start as the tokens' shares, whatever the embedding saw of its neighbours."""
    model, images = build(family), images_for(family)
    grid = lf.Student(model, {"tokens"}).token_grid(FAMILIES[family][2])
    height, width = images.shape[2:]
    share = torch.ones(4, 1, height, width)
    share[:, :, : height // grid[0], :] = 0  # a row of tokens
    mix = lf.Mix(torch.arange(4).flip(0), share, at="tokens")
    flow = lf.Student(model, {"flow_tokens"}, layers=[])(images, mix).flow
    assert_close(flow.tokens[..., 0], token_shares(mix, grid))


@pytest.mark.parametrize("family", ["vit", "swin", "pvt v2", "lvvit"])
def test_labels_of_cells_flow_as_the_cells_do(family: str) -> None:
    """Flow is linear: what arrives of (own, partner) is the cells' flow applied to their shares."""
    model, images = build(family), images_for(family)
    grid = lf.Student(model, {"tokens"}).token_grid(FAMILIES[family][2])
    height, width = images.shape[2:]
    share = torch.ones(4, 1, height, width)
    share[:, :, : height // grid[0], : width // grid[1]] = 0  # a whole cell
    mix = lf.Mix(torch.arange(4).flip(0), share, at="tokens")  # so that both start behind the embedding
    pairs = lf.Student(model, {"flow_tokens"})(images, mix).flow
    cells = lf.Student(model, {"cells"})(images, mix).flow
    own = token_shares(mix, grid).unsqueeze(-1)
    assert cells.tokens.shape == (4, grid[0] * grid[1], grid[0] * grid[1])
    assert_close((cells.tokens @ own)[..., 0], pairs.tokens[..., 0], atol=1e-5, rtol=0)
    assert_close((cells.heads @ own)[..., 0], pairs.heads[..., 0], atol=1e-5, rtol=0)


def test_aligned_token_labels_are_what_flowed_in() -> None:
    model, images = build("vit"), images_for("vit")
    mix, truth = box_mix(images), truth_for(4, 16)
    target = TokenLabelAligned(beta=0.7)
    student = target.student(model)
    output = student(mix.apply(images), mix)
    cells = blend(truth.dense.tokens.dense(C), token_shares(mix, (4, 4)), mix.partner)
    flow = lf.Student(model, {"cells"})(mix.apply(images), mix).flow
    expected = cross_entropy(output.logits, (flow.heads @ cells)[:, 0]).mean()
    expected = expected + 0.7 * cross_entropy(output.tokens, flow.tokens @ cells).mean()
    assert_close(lf.total(target(output, truth, mix)), expected)


@pytest.mark.parametrize("target", [TokenLabel(), TokenLabelAligned()])
def test_beta_is_a_half(target: TokenLabel | TokenLabelAligned) -> None:
    """The weight of the tokens' term in Token Labeling (Eq. 4)."""
    images = images_for("vit")
    mix, truth = box_mix(images), truth_for(4, 16)
    terms = target(target.student(build("vit"))(mix.apply(images), mix), truth, mix)
    assert [(term.name, term.weight) for term in terms] == [("class", 1.0), ("tokens", 0.5)]


def test_labels_that_are_the_same_everywhere_flow_unchanged() -> None:
    """The law: with one label for all cells of all images, alignment makes no difference."""
    model, images = build("vit"), images_for("vit")
    one = truth_for(1, 1).dense
    everywhere = TokenLabels(
        lf.Sparse(*(part.expand(4, *part.shape[1:]) for part in one.image)),
        *(part.expand(4, 16, *part.shape[2:]) for part in one[1:]),
    )
    mix, truth = box_mix(images), Truth(truth_for(4, 16).classes, everywhere)
    aligned, plain = TokenLabelAligned(), TokenLabel()
    output = aligned.student(model)(mix.apply(images), mix)
    assert_close(aligned(output, truth, mix)[1].value, plain(output, truth, mix)[1].value)


def test_relabel_is_the_pooled_label_mixed_by_area() -> None:
    model, images = build("vit"), images_for("vit")
    mix, truth = box_mix(images), truth_for(4, 16)
    output = ReLabel().student(model)(mix.apply(images), mix)
    y = blend(truth.dense.image.dense(C), mix.share.mean((1, 2, 3)), mix.partner)
    assert_close(lf.total(ReLabel()(output, truth, mix)), cross_entropy(output.logits, y).mean())


def test_a_part_of_the_tokens_takes_part() -> None:
    """With a loss that is the token's number, the mean over half of the tokens tells how many, and which, count."""
    target = TokenLabel(participation=0.25)
    losses = torch.arange(16.0).expand(400, 16)
    torch.manual_seed(0)
    chosen = target._taking_part(losses)
    assert chosen.shape == (400, 4)
    assert all(len(set(row.tolist())) == 4 for row in chosen)
    assert abs(chosen.mean() - 7.5) < 0.5
    assert TokenLabel()._taking_part(losses) is losses


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"beta": -1}, "beta"), ({"participation": 0}, "participation"), ({"image_label": "map"}, "image_label")],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TokenLabel(**arguments)


@pytest.fixture(scope="module")
def lvvit() -> nn.Module:
    facts, _ = load("lvvit_t_train")
    return fill(timm.create_model("lvvit_t", num_classes=facts["num_classes"])).train()


def test_a_training_step_of_the_public_program(lvvit: nn.Module) -> None:
    """LV-ViT-T with MixToken: logits, BatchNorm's statistics, losses and gradients."""
    facts, arrays = load("lvvit_t_train")
    images = torch.from_numpy(golden.images(4, 3, 224, 224))
    top, left, bottom, right = (16 * edge for edge in facts["bbox_r0_c0_r1_c1"])
    share = torch.ones(4, 1, 224, 224)
    share[:, :, top:bottom, left:right] = 0
    mix = lf.Mix(torch.arange(4).flip(0), share, at="tokens")
    assert_close(mix.lam, torch.full((4,), facts["lam_own"]))

    values = 3 * golden.base("lv_targets", 4 * 10 * 198).reshape(4, 10, 198)
    targets = torch.from_numpy(golden.softmax(values, 1)).float().transpose(1, 2)  # (B, 2 + N, C)
    rest = targets.min(-1).values
    above = targets - rest[..., None]
    image = lf.Sparse(torch.arange(10).expand(4, 10), above[:, 1], rest[:, 1])
    truth = Truth(torch.empty(0), TokenLabels(image, above[:, 2:], rest[:, 2:]))

    target = TokenLabel(beta=0.5)
    output = target.student(lvvit)(mix.apply(images), mix)
    assert_close(output.logits, arrays["cls"], atol=1e-4, rtol=0)
    own = mix.tokens((14, 14)).flatten(1).unsqueeze(-1)
    unmixed = own * output.tokens + (1 - own) * output.tokens[mix.partner]  # as that program gives them
    assert_close(unmixed, arrays["aux"], atol=1e-4, rtol=0)
    for name, buffer in lvvit.named_buffers():
        if f"bn.{name}" in arrays:
            assert_close(buffer, arrays[f"bn.{name}"], atol=1e-5, rtol=1e-5)
    loss = lf.total(target(output, truth, mix))
    assert_close(loss.item(), facts["loss_dense_weight_0.5"], atol=1e-5, rtol=0)
    loss.backward()
    for name, parameter in lvvit.named_parameters():
        assert_close(
            parameter.grad.norm().item(), facts["grad_norm_dense_weight_0.5"][name], atol=0, rtol=1e-3, msg=name
        )


def test_labels_move_with_the_cells_that_a_mixer_moves() -> None:
    """Each cell of the mixed image has the label of the cell that it shows: a loop over all of them."""
    chance = torch.Generator().manual_seed(0)
    batch, rows, columns, classes = 3, 4, 6, 5
    dense = torch.rand(batch, rows * columns, classes, generator=chance)
    every = torch.arange(classes).expand(batch, rows * columns, classes)
    labels = lf.Sparse(every, dense, torch.zeros(batch, rows * columns))
    share = torch.rand(batch, 1, 2, 3, generator=chance).repeat_interleave(16, 2).repeat_interleave(16, 3)
    sources = torch.randint(0, 6, (batch, 2, 2, 3), generator=chance)
    mix = lf.Mix(torch.tensor([2, 0, 1]), share, sources=sources)
    found = mixed_cells(labels, mix).dense(classes)
    maps = dense.reshape(batch, rows, columns, classes)
    for image in range(batch):
        for row in range(rows):
            for column in range(columns):
                shown = []
                for which, whose in ((0, image), (1, int(mix.partner[image]))):
                    cell = int(sources[image, which, row // 2, column // 2])
                    shown.append(maps[whose, 2 * (cell // 3) + row % 2, 2 * (cell % 3) + column % 2])
                own = share[image, 0, 8 * row, 8 * column]
                expected = own * shown[0] + (1 - own) * shown[1]
                assert_close(found[image, columns * row + column], expected)
    images = torch.rand(batch, 3, 32, 48, generator=chance)
    pixel = mix.apply(images)[0, :, 17, 5]
    down, across = 16 + 1, 5  # block row 1, column 0
    places = [int(sources[0, which, 1, 0]) for which in (0, 1)]
    own, other = (
        images[whose, :, 16 * (place // 3) + down % 16, 16 * (place % 3) + across]
        for whose, place in zip((0, 2), places, strict=True)
    )
    assert_close(pixel, torch.lerp(other, own, share[0, 0, 17, 5]))


@pytest.mark.parametrize("name", ["bce", "asl"])
def test_labels_that_do_not_exclude_one_another(name: str) -> None:
    """Token Labeling, Eq. 4, with each class for itself: the image's label is the given one, mixed by area."""
    model, images, loss = build("vit"), images_for("vit"), make_loss(name)
    target = TokenLabel(image_label="given", beta=0.25)
    mix = box_mix(images)
    classes = torch.tensor([[1.0, 0, 1, 0, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [1, 1, 0, 0, 0]])
    dense = truth_for(4, 16).dense
    dense = dense._replace(above=4 * dense.above, rest=0 * dense.rest)  # probabilities, of classes that are named
    output = target.student(model)(mix.apply(images), mix)
    tokens = blend(dense.tokens.dense(C), token_shares(mix, (4, 4)), mix.partner)
    expected = (
        loss(output.logits, blend(classes, mix.lam, mix.partner)).mean() + 0.25 * loss(output.tokens, tokens).mean()
    )
    assert_close(lf.total(target(output, Truth(classes, dense, loss=loss), mix)), expected)


@pytest.mark.parametrize("mixer", [lf.CutMix(per="sample"), lf.MixUp(0.8), lf.NoMix()])
def test_given_labels_flow_as_in_tl_align(mixer: object) -> None:
    """What of the cells of both images reaches the classifier is TL-Align's share."""
    model, images, truth = build("vit"), images_for("vit"), truth_for(4, 16)
    target, other = TokenLabelAligned(image_label="given"), TLAlign()
    mix = mixer(images, torch.Generator().manual_seed(4))
    output = target.student(model)(mix.apply(images), mix)
    found, pooled = target(output, truth, mix), TokenLabelAligned()(output, truth, mix)
    (expected,) = other(other.student(model)(mix.apply(images), mix), truth, mix)
    assert_close(found[0].value, expected.value)
    assert_close(found[1].value, pooled[1].value)  # tokens as ever
    with pytest.raises(ValueError, match="image_label must be 'pooled'"):
        TokenLabelAligned(image_label="mean")
