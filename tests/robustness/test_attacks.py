"""Attacks: inside their ball, as strong as they can be where that is known, and the papers' rules one by one."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from labelflow.robustness.attacks import ATTACKS, Attack, Ball, Batch, Victim, auto_attack, run_attacks
from labelflow.robustness.attacks.apgd import APGD, TargetedAPGD, ascend, checkpoints, halve
from labelflow.robustness.attacks.ensemble import SURVIVES, most_passes
from labelflow.robustness.attacks.fab import TargetedFAB
from labelflow.robustness.attacks.gradient import FGSM, PGD
from labelflow.robustness.attacks.losses import dlr, dlr_targeted, margin, towards
from labelflow.robustness.attacks.plane import way_to_plane
from labelflow.robustness.attacks.square import Square, area, bumps, corner, shift, side, stripes, tiles
from labelflow.robustness.attacks.victim import Draws, target
from labelflow.spec import build
from robustness.attack_oracles import (
    naive_apgd,
    naive_bump,
    naive_dlr,
    naive_dlr_targeted,
    naive_shift,
    nearest_on_plane,
)

SHORT: dict[str, Attack] = {
    "fgsm": FGSM(),
    "pgd": PGD(steps=10, restarts=2),
    "apgd_ce": APGD("ce", steps=20),
    "apgd_dlr": APGD("dlr", steps=20),
    "apgd_t": TargetedAPGD(steps=15, targets=3),
    "fab_t": TargetedFAB(steps=10, targets=3, restarts=2),
    "square": Square(queries=150),
}
BALLS = [Ball("linf", 0.03), Ball("l2", 0.5)]
balls = pytest.mark.parametrize("ball", BALLS, ids=lambda ball: ball.norm)
attacks = pytest.mark.parametrize("name", SHORT)


@dataclass(frozen=True)
class Toy:
    model: nn.Module
    batch: Batch


@cache
def toy(classes: int, count: int = 24) -> Toy:
    """A small network trained on noisy patterns, in float64: no batch's rounding decides anything."""
    draw = torch.Generator().manual_seed(classes)
    patterns = torch.rand(classes, 3, 2, 2, generator=draw).repeat_interleave(3, 2).repeat_interleave(3, 3)
    labels = torch.arange(256) % classes
    images = (0.3 * patterns[labels] + 0.7 * torch.rand(256, 3, 6, 6, generator=draw)).double()
    with torch.random.fork_rng():
        torch.manual_seed(classes)
        conv = nn.Conv2d(3, 8, 3, padding=1)
        model = nn.Sequential(conv, nn.GELU(), nn.Flatten(), nn.Dropout(0.1), nn.Linear(8 * 36, classes)).double()
        optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
        for _ in range(60):
            loss = F.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    model.zero_grad()
    return Toy(model.eval(), Batch(images[:count], labels[:count], list(range(100, 100 + count)), seed=3))


def fallen(model: Callable[[Tensor], Tensor], attack: Attack, batch: Batch, ball: Ball) -> Tensor:
    """(B,) bool: those that the model gets wrong after the attack."""
    return run_attacks(model, [("one", attack)], batch, ball).fallen != -1


def linear(weights: Tensor, bias: Tensor | float = 0.0) -> Callable[[Tensor], Tensor]:
    return lambda images: images.flatten(1) @ weights.T + bias


# The ball


@given(
    norm=st.sampled_from(["linf", "l2"]),
    radius=st.floats(1e-4, 3.0),
    size=st.tuples(*[st.integers(1, 9)] * 3),
    seed=st.integers(0, 999),
)
def test_projection_ends_in_the_ball_and_the_box_and_is_the_nearest_point_of_the_ball(
    norm: str, radius: float, size: tuple[int, int, int], seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    clean, far = torch.rand(4, *size, generator=draw), torch.randn(4, *size, generator=draw) * 3
    ball = Ball(norm, radius)
    near = ball.project(far, clean)
    move = (near.double() - clean.double()).flatten(1)
    assert (move.abs().amax(1) if norm == "linf" else move.norm(dim=1)).max() <= radius + 1e-6
    assert near.min() >= 0
    assert near.max() <= 1
    assert_close(ball.project(near, clean), near)
    assert (ball.distance(ball.sample(clean, [draw] * 4), clean) <= radius + 1e-6).all()


def test_a_point_of_the_ball_is_drawn_uniformly() -> None:
    clean = torch.full((4000, 1, 1, 2), 0.5)
    draw = torch.Generator().manual_seed(0)
    for norm, volume in (("linf", 1 / 4), ("l2", 1 / 4)):  # of half the radius, in two dimensions
        ball = Ball(norm, 0.4)
        inner = (ball.distance(ball.sample(clean, [draw] * 4000), clean) < 0.2).double().mean()
        assert abs(inner - volume) < 0.03


@balls
def test_no_move_of_length_one_rises_more_than_the_steepest(ball: Ball) -> None:
    gradient = torch.randn(1, 3, 4, 4).double()
    rise = (ball.steepest(gradient) * gradient).sum()
    others = torch.randn(500, 3, 4, 4).double()
    others = others / ball.length(others)[:, None, None, None]
    assert ball.length(ball.steepest(gradient)) == pytest.approx(1)
    assert ((others * gradient).sum((1, 2, 3)) <= rise).all()
    assert_close(ball.steepest(gradient * 1e-200), ball.steepest(gradient))
    assert not ball.steepest(torch.zeros(1, 3, 4, 4)).any()


# What every attack promises


@attacks
@given(
    norm=st.sampled_from(["linf", "l2"]),
    radius=st.floats(1e-3, 0.6),
    size=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    classes=st.integers(2, 5),
    seed=st.integers(0, 99),
)
def test_it_stays_in_its_ball_and_in_the_box(
    name: str, norm: str, radius: float, size: tuple[int, int, int], classes: int, seed: int
) -> None:
    if name == "apgd_dlr" and classes == 2:
        classes = 3
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(3, *size, generator=draw).round(decimals=1)  # some pixels at the box's sides
    model = linear(torch.randn(classes, math.prod(size), generator=draw))
    attack = {**SHORT, "square": Square(queries=15), "fab_t": TargetedFAB(steps=5, restarts=2)}[name]
    moved = attack(Victim(model), Batch(images, model(images).argmax(1), [0, 1, 2], seed), Ball(norm, radius))
    move = (moved.double() - images.double()).flatten(1)
    assert (move.abs().amax(1) if norm == "linf" else move.norm(dim=1)).max() <= radius + 1e-6
    assert moved.min() >= 0
    assert moved.max() <= 1
    assert moved.dtype == images.dtype


@balls
@attacks
@pytest.mark.parametrize("classes", [2, 3, 4, 10])
def test_it_lowers_the_accuracy_of_a_trained_model(name: str, classes: int, ball: Ball) -> None:
    if name == "apgd_dlr" and classes == 2:
        pytest.skip("DLR needs three classes")
    model, batch = toy(classes).model, toy(classes).batch
    before = (model(batch.images).argmax(1) != batch.labels).double().mean()
    wide_ball = Ball(ball.norm, 3.5 * ball.radius)
    outcome = run_attacks(model, [(name, SHORT[name])], batch, wide_ball)
    assert before < 0.2
    assert (outcome.fallen != -1).double().mean() > before + 0.4
    assert (outcome.images[outcome.fallen == 0] == batch.images[outcome.fallen == 0]).all()
    assert ((model(outcome.images).argmax(1) == batch.labels) == (outcome.fallen == -1)).all()


@balls
@attacks
def test_what_happens_to_an_image_depends_on_its_key_and_the_seed_only(name: str, ball: Ball) -> None:
    model, batch = toy(4).model, toy(4).batch
    attack = SHORT[name]
    whole = attack(Victim(model), batch, ball)
    assert_close(attack(Victim(model), batch, ball), whole, rtol=0, atol=0)
    rows = torch.tensor([17, 3, 11, 4])
    assert_close(attack(Victim(model), batch.at(rows), ball), whole[rows], rtol=0, atol=1e-9)


def test_draws_differ_by_seed_key_attack_and_number() -> None:
    batch = Batch(torch.rand(2, 3, 4, 4), torch.zeros(2).long(), [5, 6])
    ball = Ball("linf", 0.1)
    keys = [(seed, draws, number) for seed in (0, 1) for draws in Draws for number in (0, 1)]
    starts = [ball.sample(batch.images, batch._replace(seed=seed).generators(*more)) for seed, *more in keys]
    moves = torch.cat([start - batch.images for start in starts]).flatten(1)
    assert len(moves.unique(dim=0)) == len(moves) == 2 * len(keys)
    again = Batch(batch.images.flip(0), batch.labels, [6, 5])
    assert_close(ball.sample(again.images, again.generators(Draws.PGD, 0)).flip(0), starts[0])


@balls
def test_together_they_find_exactly_what_each_finds_alone(ball: Ball) -> None:
    model, batch = toy(10).model, toy(10).batch
    ball = Ball(ball.norm, ball.radius * 0.8)
    parts = list(SHORT.items())
    outcome = run_attacks(model, parts, batch, ball)
    alone = torch.stack([fallen(model, attack, batch, ball) for _, attack in parts])  # (attacks, B)
    wrong = model(batch.images).argmax(1) != batch.labels
    first = [0 if wrong[row] else next((i + 1 for i, a in enumerate(alone) if a[row]), -1) for row in range(len(wrong))]
    assert outcome.fallen.tolist() == first
    assert 0 < (outcome.fallen == -1).sum() < (~alone).sum(1).max()  # there is something to find


def test_the_model_is_left_as_it_was() -> None:
    model, batch = toy(3).model, toy(3).batch
    model[3].train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    images = batch.images.clone()
    seen = []
    handle = model[3].register_forward_hook(lambda module, *_: seen.append(module.training))
    first = run_attacks(model, [("pgd", SHORT["pgd"])], batch, BALLS[0])
    second = run_attacks(model, [("pgd", SHORT["pgd"])], batch, BALLS[0])
    handle.remove()
    assert_close(first.images, second.images, rtol=0, atol=0)
    assert not any(seen)
    assert model[3].training
    model.eval()
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(images, batch.images)


@attacks
def test_costs_stay_below_what_was_said(name: str) -> None:
    calm = linear(torch.zeros(4, 108), torch.tensor([1.0, 0.5, 0.2, 0.1]))
    model = lambda images: calm(images) + 1e-9 * images.flatten(1)[:, :4]  # noqa: E731
    batch = Batch(torch.rand(2, 3, 6, 6), torch.zeros(2, dtype=torch.long), [0, 1])
    costs: list[int] = []
    SHORT[name](Victim(model, costs.append), batch, Ball("linf", 0.1))
    assert sum(costs) <= 2 * SHORT[name].passes(classes=4) <= 1.2 * sum(costs) + 2
    passes: list[int] = []
    both = [(name, SHORT[name]), ("fgsm", FGSM())]
    assert (run_attacks(model, both, batch, Ball("linf", 0.1), passes.append).fallen == SURVIVES).all()
    assert sum(costs) < sum(passes) <= 2 * most_passes(both, classes=4) <= 1.2 * sum(passes) + 2


@pytest.mark.parametrize("radius", [0.0001, 0.05, 0.3])
def test_fallen_images_save_the_rest(radius: float) -> None:
    """Passes that are made and passes that are saved are all that was planned; the wrong ones are saved at once."""
    model = linear(torch.randn(3, 108, generator=torch.Generator().manual_seed(0)), torch.zeros(3))
    images = torch.rand(8, 3, 6, 6, generator=torch.Generator().manual_seed(1))
    labels = model(images).argmax(1)
    labels[:2] = (labels[:2] + 1) % 3  # wrong before any attack
    parts = [("fgsm", FGSM()), ("pgd", SHORT["pgd"])]
    told: list[tuple[str, int]] = []
    batch = Batch(images, labels, list(range(8)))
    made, saved = (lambda count: told.append(("made", count))), (lambda count: told.append(("saved", count)))
    run_attacks(model, parts, batch, Ball("linf", radius), made, saved)
    assert sum(count for _, count in told) == 8 * most_passes(parts, classes=3)
    assert told[:2] == [("made", 8), ("saved", 2 * (most_passes(parts, classes=3) - 1))]
    assert min(count for _, count in told) >= 0


# Where the answer is known


@pytest.mark.parametrize("name", ["pgd", "apgd_ce", "apgd_t", "fab_t"])
@pytest.mark.parametrize("classes", [2, 5])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_a_linear_model_falls_exactly_where_it_has_to(name: str, classes: int, norm: str) -> None:
    draw = torch.Generator().manual_seed(classes)
    weights = torch.randn(classes, 75, generator=draw).double()
    images = (0.5 + 0.2 * (torch.rand(200, 3, 5, 5, generator=draw) - 0.5)).double()
    logits = linear(weights)(images)
    labels = logits.argmax(1)
    differences = weights[labels][:, None] - weights  # (B, C, D): to each class
    dual = differences.abs().sum(2) if norm == "linf" else differences.norm(dim=2)
    gaps = logits.amax(1, keepdim=True) - logits
    distance = (gaps / dual).masked_fill(F.one_hot(labels, classes).bool(), torch.inf).amin(1)  # (B,)
    radius = float(distance.median())
    attack = {"pgd": PGD(steps=40), "apgd_ce": APGD(), "apgd_t": TargetedAPGD(), "fab_t": TargetedFAB(steps=30)}[name]
    near = (distance / radius - 1).abs() < 0.012
    if name in ("pgd", "apgd_ce") and classes > 2:  # the cross-entropy rises most towards another class, perhaps
        near |= distance < radius
    found = fallen(linear(weights), attack, Batch(images, labels, range(200)), Ball(norm, radius))
    assert (found == (distance <= radius))[~near].all()
    assert (~near).sum() > 90


def test_fgsm_is_the_sign_of_the_gradient() -> None:
    model, batch = toy(4).model, toy(4).batch
    images = batch.images.clone().requires_grad_()
    logits = model(images)
    gradient = torch.autograd.grad(F.cross_entropy(logits, batch.labels, reduction="sum"), images)[0]
    right = logits.argmax(1) == batch.labels
    for ball in BALLS:
        unit = (
            gradient.sign() if ball.norm == "linf" else gradient / gradient.flatten(1).norm(dim=1)[:, None, None, None]
        )
        expected = (batch.images + ball.radius * unit).clamp(0, 1)
        moved = FGSM()(Victim(model), batch, ball)
        assert_close(moved[right], expected[right])
        assert_close(moved[~right], batch.images[~right])


def test_masked_gradients_stop_the_simple_attacks_and_not_the_others() -> None:
    model, batch = toy(10).model, toy(10).batch
    ball = Ball("linf", 0.06)
    clean = (model(batch.images).argmax(1) != batch.labels).sum()

    def rounded(images: Tensor) -> Tensor:
        return model((images * 32).round() / 32)  # its gradient is zero

    loud: Callable[[Tensor], Tensor] = lambda images: model(images) * 1e4  # noqa: E731
    assert fallen(rounded, FGSM(), batch, ball).sum() <= clean + 1
    assert fallen(rounded, PGD(), batch, ball).sum() <= clean + 3
    assert fallen(rounded, Square(queries=300), batch, ball).sum() >= clean + 12
    assert fallen(lambda images: loud(images).float(), PGD(), batch, Ball("linf", 0.02)).sum() <= clean + 3
    assert fallen(loud, TargetedAPGD(steps=20), batch, Ball("linf", 0.02)).sum() >= clean + 6
    assert torch.equal(
        fallen(loud, TargetedFAB(steps=20), batch, Ball("linf", 0.02)),
        fallen(model, TargetedFAB(steps=20), batch, Ball("linf", 0.02)),
    )


# The papers' rules


@given(st.lists(st.lists(st.integers(-9, 9), min_size=5, max_size=5, unique=True), min_size=1, max_size=6))
def test_dlr_against_its_definition(rows: list[list[int]]) -> None:
    logits = torch.tensor(rows).double()
    labels = torch.arange(len(rows)) % 5
    targets = (labels + 2) % 5
    cases = list(zip(rows, labels.tolist(), targets.tolist(), strict=True))
    expected = torch.tensor([naive_dlr(row, label) for row, label, _ in cases]).double()
    assert_close(dlr(logits, labels, targets), expected, rtol=1e-6, atol=1e-6)
    assert_close(dlr(logits * 100 + 7, labels, targets), expected, rtol=1e-6, atol=1e-6)
    expected = torch.tensor([naive_dlr_targeted(row, label, other) for row, label, other in cases]).double()
    assert_close(dlr_targeted(logits, labels, targets), expected, rtol=1e-6, atol=1e-6)
    assert ((margin(logits, labels) > 0) == (logits.argmax(1) != labels)).all()


def test_targets_are_the_likeliest_wrong_classes() -> None:
    logits, labels = torch.randn(20, 6), torch.randint(6, (20,))
    ranked = torch.stack([target(logits, labels, rank) for rank in range(5)], 1)
    for row, label, found in zip(logits.tolist(), labels.tolist(), ranked.tolist(), strict=True):
        assert found == sorted(set(range(6)) - {label}, key=lambda other: -row[other])


def test_checkpoints() -> None:
    assert checkpoints(100) == [22, 41, 57, 70, 80, 87, 93, 99]
    assert checkpoints(10) == [3, 5, 6, 7, 8, 9, 10]


@given(
    st.lists(
        st.tuples(st.integers(0, 20), st.booleans(), st.sampled_from([1.0, 2.0]), st.sampled_from([0.5, 1.0])),
        min_size=1,
    ),
    st.integers(1, 20),
)
def test_when_steps_are_halved(images: Sequence[tuple[int, bool, float, float]], period: int) -> None:
    expected = []
    for rose, halved_before, new, old in images:
        if rose / period <= 0.75:
            expected.append(True)
        else:
            expected.append(not halved_before and not new > old)
    rises, halved, best, before = map(torch.tensor, zip(*images, strict=True))
    assert halve(rises, period, halved, best, before).tolist() == expected


@pytest.mark.parametrize("ball", [Ball("linf", 0.3), Ball("l2", 0.8)], ids=lambda ball: ball.norm)
def test_apgd_against_a_naive_loop_over_images(ball: Ball) -> None:
    images, weights = torch.rand(8, 3, 2, 2).double(), torch.randn(12, 5).double()
    labels = torch.zeros(8).long()

    def hilly(images: Tensor) -> Tensor:
        """The height of hills as the second class, which never wins."""
        height = (images.flatten(1) @ weights * 4).sin().sum(1)
        return torch.stack([torch.full_like(height, 99), height], 1)

    start = ball.sample(images, Batch(images, labels, range(8)).generators(Draws.APGD, 0))
    found = ascend(Victim(hilly), Batch(images, labels, range(8)), ball, towards, labels + 1, start, steps=40)
    assert not found.fooled.any()
    sizes = set()
    for row in range(8):
        one = slice(row, row + 1)
        point, best, steps = naive_apgd(lambda image: hilly(image)[0, 1], images[one], start[one], ball, 40)
        assert hilly(found.images[one])[0, 1].item() == pytest.approx(best, abs=1e-7)
        assert_close(found.images[one], point, rtol=0, atol=1e-7)
        sizes.add(tuple(steps))
    assert len(sizes) > 1  # images differ in when their steps are halved


@given(
    pixels=st.lists(st.tuples(st.floats(0, 1), st.floats(-3, 3)), min_size=1, max_size=6),
    offset=st.floats(-4, 4),
    norm=st.sampled_from(["linf", "l2"]),
)
def test_the_way_to_a_plane_is_the_shortest_in_the_box(
    pixels: list[tuple[float, float]], offset: float, norm: str
) -> None:
    point, normal = np.array(pixels).round(2).T
    offset = round(offset, 2)
    found = way_to_plane(*(torch.tensor(array[None]) for array in (point, normal, np.array(offset))), norm)[0].numpy()
    assert (point + found).min() >= -1e-9
    assert (point + found).max() <= 1 + 1e-9
    shortest = nearest_on_plane(point, normal, offset, norm)
    if shortest is None:  # out of reach: nothing in the box is nearer to the plane
        corners = np.array(np.meshgrid(*[[0, 1]] * len(point))).reshape(len(point), -1).T
        left = np.abs((corners - point) @ normal + offset).min()
        assert abs(normal @ found + offset) == pytest.approx(left, abs=1e-9)
    else:
        assert normal @ found + offset == pytest.approx(0, abs=1e-9)
        length = np.abs(found).max() if norm == "linf" else np.linalg.norm(found)
        assert length == pytest.approx(shortest, abs=1e-5)


@balls
@pytest.mark.parametrize("gone", [0.001, 0.02], ids=["near the clean image", "far from it"])
def test_a_step_of_fab_on_a_plane(ball: Ball, gone: float) -> None:
    """x' = (1 - α)(x + 1.05 δ) + α(x_clean + 1.05 δ_clean), α = min(|δ| / (|δ| + |δ_clean|), 0.1), far from the box."""
    random = torch.Generator().manual_seed(3)
    weights = torch.randn(2, 12, generator=random, dtype=torch.float64)
    clean = torch.full((1, 3, 2, 2), 0.5, dtype=torch.float64)
    point = clean + gone * torch.randn(1, 3, 2, 2, generator=random, dtype=torch.float64)
    normal = (weights[1] - weights[0]).view(1, 3, 2, 2)
    bias = torch.tensor([float((normal * clean).sum()) + 0.1, 0.0], dtype=torch.float64)  # 0.1 away from the plane

    def way(start: Tensor) -> Tensor:
        offset = (normal * start).sum() - bias[0]
        return -offset * (normal.sign() / normal.abs().sum() if ball.norm == "linf" else normal / normal.square().sum())

    def length(move: Tensor) -> Tensor:
        return move.abs().max() if ball.norm == "linf" else move.norm()

    ahead, from_clean = way(point), way(clean)
    share = min(float(length(ahead) / (length(ahead) + length(from_clean))), 0.1)
    expected = (1 - share) * (point + 1.05 * ahead) + share * (clean + 1.05 * from_clean)
    victim = Victim(lambda images: images.flatten(1) @ weights.T + bias)
    label, aim = torch.tensor([0]), torch.tensor([1])
    assert_close(TargetedFAB()._step(victim, point, clean, label, aim, ball), expected)
    assert share == 0.1  # the most
    half = TargetedFAB(bias=0.9)._step(victim, point, clean, label, aim, ball)
    assert not torch.allclose(half, expected, atol=1e-6)


def test_planes_of_many_pixels_are_reached_in_single_precision() -> None:
    point, normal = torch.rand(2, 150_000), torch.randn(2, 150_000) * 1e-3
    offset = torch.tensor([0.5, -20.0])
    for norm in ("linf", "l2"):
        move = way_to_plane(point, normal, offset, norm)
        assert_close((normal.double() * move.double()).sum(1), -offset.double(), rtol=1e-4, atol=0)


# Square


def test_how_large_squares_are() -> None:
    limits = [
        (10, 0.8),
        (50, 0.4),
        (200, 0.2),
        (500, 0.1),
        (1000, 0.05),
        (2000, 0.025),
        (4000, 0.0125),
        (6000, 0.00625),
    ]
    for query in range(1, 5000):
        expected = next(part for limit, part in limits if query <= limit)
        assert area(0.8, query) == pytest.approx(expected)
    assert side(0.8, 224, 224, least=1) == round(math.sqrt(0.8) * 224)
    assert side(1e-9, 32, 32, least=3) == 3
    assert side(0.8, 4, 100, least=3) == 4


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_bumps_against_their_definition(size: int) -> None:
    short = size // 2
    expected = torch.cat([torch.tensor(naive_bump(size, short)), -torch.tensor(naive_bump(size, size - short))], 1)
    assert_close(bumps(size), expected.T)


def test_shifts_against_the_algorithm_and_the_budget_is_used_up() -> None:
    ball, size = Ball("l2", 0.8), 4
    clean = torch.full((8, 3, 9, 11), 0.5).double()
    draws = torch.rand(8, 8).double()
    point = tiles(clean, ball, [torch.Generator().manual_seed(seed) for seed in range(8)]) * 0.9 + clean * 0.1
    found = shift(point, clean, ball, size, draws)
    first, second = corner(draws[:, :2], size, point), corner(draws[:, 2:4], size, point)
    for row in range(8):
        shape = bumps(size).double()
        expected = naive_shift(
            (point - clean)[row],
            ball.radius,
            shape if draws[row, 4] < 0.5 else shape.T,
            (int(first[0][row]), int(first[1][row])),
            (int(second[0][row]), int(second[1][row])),
            [-1 if number < 0.5 else 1 for number in draws[row, 5:]],
        )
        assert_close(found[row] - clean[row], expected)
    assert_close(ball.distance(found, clean), torch.full((8,), 0.8).double())
    assert (first[0] <= 5).all()
    assert (first[1] <= 7).all()


def test_where_square_starts() -> None:
    clean = torch.full((2, 3, 10, 12), 0.5)
    generators = [torch.Generator().manual_seed(seed) for seed in range(2)]
    striped = stripes(clean, Ball("linf", 0.1), generators) - clean
    assert_close(striped.abs(), torch.full_like(striped, 0.1))
    assert (striped == striped[:, :, :1]).all()
    assert_close(Ball("l2", 0.3).distance(tiles(clean, Ball("l2", 0.3), generators), clean), torch.full((2,), 0.3))


# AutoAttack


def test_auto_attack_adapts_to_few_classes() -> None:
    def names(classes: int) -> list[str]:
        return [name for name, _ in auto_attack(classes).attacks]

    assert names(1000) == names(10) == names(4) == names(3) == ["apgd_ce", "apgd_t", "fab_t", "square"]
    assert names(2) == ["apgd_ce", "fab_t", "square"]
    assert dict(auto_attack(10).attacks) == {name: ATTACKS[name]() for name in names(10)}  # the standard's defaults
    assert auto_attack(10).notes == []
    assert "3 wrong classes" in auto_attack(4).notes[0]
    assert "targeted cross-entropy" in auto_attack(3).notes[1]
    assert "without apgd_t" in auto_attack(2).notes[1]
    assert TargetedAPGD().passes(5) == 1 + 4 * 101 * 3
    with pytest.raises(ValueError, match="at least two classes"):
        auto_attack(1)


def test_attacks_are_built_from_text() -> None:
    assert build("pgd(steps=20)", ATTACKS, "attack") == PGD(steps=20)
    assert build("apgd_ce(restarts=5)", ATTACKS, "attack") == APGD("ce", restarts=5)
    assert build("square", ATTACKS, "attack") == Square(queries=5000, part=0.8)
    for text in (
        "pgd(steps=0)",
        "apgd_t(targets=-1)",
        "square(part=2.0)",
        "square(queries=1.5)",
        "fab_t(depth=3)",
        "cw",
    ):
        with pytest.raises(ValueError, match=r"must be an integer|part, a fraction|depth|no attack"):
            build(text, ATTACKS, "attack")
    with pytest.raises(ValueError, match="did you mean"):
        APGD("cee")


def test_bad_input_is_told() -> None:
    model, (images, labels, keys, _) = toy(3).model, toy(3).batch
    broken = {
        "in \\[0, 1\\]": (model, Batch(images * 255, labels, keys)),
        "from 0 to 2": (model, Batch(images, labels + 1, keys)),
        "as many labels": (model, Batch(images, labels, keys[1:])),
        "floats": (model, Batch((images * 255).byte(), labels, keys)),
        "two classes": (lambda images: model(images)[:, :1], Batch(images, labels * 0, keys)),
        "not finite": (lambda images: model(images) / 0, Batch(images, labels, keys)),
        "no gradient": (lambda images: model(images).detach(), Batch(images, labels, keys)),
    }
    for message, (asked, batch) in broken.items():
        with pytest.raises(ValueError, match=message):
            run_attacks(asked, [("fgsm", FGSM())], batch, BALLS[0])
    with pytest.raises(ValueError, match="at least 3 classes"):
        run_attacks(toy(2).model, [("apgd_dlr", APGD("dlr"))], toy(2).batch, BALLS[0])
    with pytest.raises(ValueError, match="no norm 'l1'"):
        Ball("l1", 1.0)
    for radius in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="radius"):
            Ball("l2", radius)
