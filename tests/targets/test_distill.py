"""Distillation against loops written from the definitions, and against timm's own tasks."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from timm.task import FeatureDistillationTask, LogitDistillationTask, TokenDistillationTask
from torch import Tensor, nn
from torch.testing import assert_close

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.align import Output
from labelflow.spec import build as build_spec
from labelflow.targets import TARGETS, Distill, Plain, Taught, TLAlign, TokenLabel, Truth
from targets.test_token_label import truth_for

CLASSES = torch.tensor([0, 3, 1, 3])
Y = lf.soft_labels(CLASSES, 5, smoothing=0.1)
VIT = {"img_size": 32, "patch_size": 8, "depth": 2, "num_heads": 3, "num_classes": 5}


def probabilities(logits: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in logits]
    return [power / sum(powers) for power in powers]


@given(
    logits=st.lists(
        st.tuples(*[st.lists(st.floats(-4, 4), min_size=3, max_size=3)] * 2),
        min_size=1,
        max_size=4,
    ),
    tau=st.floats(0.5, 8),
)
def test_soft_is_tau_squared_times_the_divergence_from_the_teacher(
    logits: list[tuple[list[float], list[float]]], tau: float
) -> None:
    expected = 0.0
    for ours, theirs in logits:
        p, q = probabilities(theirs, tau), probabilities(ours, tau)
        expected += tau**2 * sum(a * math.log(a / b) for a, b in zip(p, q, strict=True)) / len(logits)
    ours, theirs = (torch.tensor(part) for part in zip(*logits, strict=True))
    found = Distill(tau=tau).distance(Output(ours), Truth(ours, taught=Taught(theirs)))
    assert_close(found.item(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_of_several_labels_soft_is_binary_cross_entropy_with_the_teacher_s_sigmoids(tau: float) -> None:
    ours, theirs = torch.randn(3, 5), torch.randn(3, 5)
    expected = 0.0
    for own, other in zip(ours.flatten().tolist(), theirs.flatten().tolist(), strict=True):
        p, q = (1 / (1 + math.exp(-value / tau)) for value in (other, own))
        expected -= tau**2 * (p * math.log(q) + (1 - p) * math.log(1 - q)) / 15
    found = Distill(tau=tau).distance(Output(ours), Truth(ours, taught=Taught(theirs, several=True)))
    assert_close(found.item(), expected, atol=1e-5, rtol=1e-5)


def test_which_are_for_images_of_one_class() -> None:
    assert Distill(kind="hard").single_label
    assert Distill(target="token_label").single_label
    assert not Distill(target="token_label(image_label='given')").single_label
    assert not Distill(kind="features", target="tl_align").single_label
    assert Distill(kind="features", target="sm_mix").single_label


def test_hard_is_cross_entropy_with_the_teacher_s_choice_alone() -> None:
    ours, theirs = torch.randn(6, 5), torch.randn(6, 5)
    expected = 0.0
    for own, other in zip(ours.tolist(), theirs.tolist(), strict=True):
        expected -= math.log(probabilities(own, 1.0)[other.index(max(other))]) / 6
    found = Distill(kind="hard", tau=3.0).distance(Output(ours), Truth(ours, taught=Taught(theirs)))
    assert_close(found.item(), expected)


def test_features_are_compared_by_their_mean_squared_difference() -> None:
    ours, theirs = torch.randn(2, 3), torch.randn(2, 3)
    squares = [(a - b) ** 2 for a, b in zip(ours.flatten().tolist(), theirs.flatten().tolist(), strict=True)]
    truth = Truth(Y[:2], taught=Taught(features=theirs))
    found = Distill(kind="features").distance(Output(Y[:2], features=ours), truth)
    assert_close(found.item(), sum(squares) / 6)
    with pytest.raises(ValueError, match=r"features are 3 wide, the teacher's 7: student.project\(7\)"):
        Distill(kind="features").distance(
            Output(Y[:2], features=ours), truth._replace(taught=Taught(features=torch.randn(2, 7)))
        )


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_other_target_keeps_the_rest(alpha: float) -> None:
    model, images = build("vit"), images_for("vit")
    mix, taught = box_mix(images), Taught(torch.randn(4, 5))
    target = build_spec(f"distill(alpha={alpha}, tau=2, target='tl_align')", TARGETS, "target")
    output = target.student(model)(mix.apply(images), mix)
    (aligned,) = TLAlign()(output, Truth(Y), mix)
    terms = target(output, Truth(Y, taught=taught), mix)
    assert [term.name for term in terms] == ["class", "teacher"]
    distance = Distill(tau=2).distance(output, Truth(Y, taught=taught))
    assert_close(lf.total(terms), (1 - alpha) * aligned.value + alpha * distance)


def test_dense_labels_are_those_of_the_other_target() -> None:
    target = Distill(alpha=0.25, target="token_label(beta=2)")
    assert target.dense
    assert not Distill().dense
    model, images = build("vit"), images_for("vit")
    mix, truth = lf.MixToken(patch=8)(images, torch.Generator().manual_seed(0)), truth_for(4, 16)
    truth = truth._replace(taught=Taught(torch.randn(4, 5)))
    output = target.student(model)(images, mix)
    found = {term.name: term.weight for term in target(output, truth, mix)}
    assert found == {"class": 0.75, "tokens": 1.5, "teacher": 0.25}
    assert_close(target(output, truth, mix)[1].value, TokenLabel(beta=2)(output, truth, mix)[1].value)


class Answers(nn.Module):
    """A teacher for timm's tasks: it has its answers ready."""

    def __init__(self, logits: Tensor, features: Tensor) -> None:
        super().__init__()
        self.pretrained_cfg = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
        self.logits, self.features = logits, features
        self.num_features = self.head_hidden_size = features.shape[1]

    def forward(self, images: Tensor) -> Tensor:
        return self.logits

    def forward_features(self, images: Tensor) -> Tensor:
        return self.features

    def forward_head(self, features: Tensor, pre_logits: bool) -> Tensor:
        return features


@pytest.mark.parametrize("kind", ["logits", "token, soft", "token, hard", "features"])
def test_the_loss_is_timm_s(kind: str) -> None:
    name = "deit_tiny_distilled_patch16_224" if "token" in kind else "vit_tiny_patch16_224"
    model = timm.create_model(name, **VIT).train()
    images, answers = torch.randn(4, 3, 32, 32), Answers(torch.randn(4, 5), torch.randn(4, 7))
    how = {"teacher_model": answers, "criterion": nn.CrossEntropyLoss(), "task_loss_weight": 0.7, "verbose": False}
    mix = lf.NoMix()(images)
    taught = Taught(answers.logits, answers.features)
    if kind == "features":
        target = Distill(kind="features", alpha=0.3)
        student = target.student(model)
        student.project(7)
        task = FeatureDistillationTask(model, **how)
        task.trainable_module.projection.load_state_dict(student.projection.state_dict())
    elif kind == "logits":
        target = Distill(alpha=0.3, tau=3.0)
        student, task = target.student(model), LogitDistillationTask(model, temperature=3.0, **how)
    else:
        soft = kind.endswith("soft")
        target = Distill(kind="soft" if soft else "hard", alpha=0.3, tau=3.0)
        student = target.student(model)
        task = TokenDistillationTask(model, distill_type=kind.split()[1], temperature=3.0, **how)
    found = lf.total(target(student(images, mix), Truth(F.one_hot(CLASSES, 5).float(), taught=taught), mix))
    assert_close(found, task(images, CLASSES)["loss"])


def test_the_distillation_token_learns_from_the_teacher_and_the_class_token_from_labels() -> None:
    images = images_for("deit distilled")
    mix = box_mix(images)
    slopes = {}
    for alpha in (0.0, 0.5, 1.0):
        model = build("deit distilled").train()
        target = Distill(kind="hard", alpha=alpha, target="tl_align")
        output = target.student(model)(mix.apply(images), mix)
        lf.total(target(output, Truth(Y, taught=Taught(torch.eye(5)[:4])), mix)).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())  # or DDP would wait
        slopes[alpha] = [float(head.weight.grad.abs().max()) for head in (model.head, model.head_dist)]
    assert slopes[0.0][0] > slopes[0.5][0] > slopes[1.0][0] == 0
    assert slopes[1.0][1] > slopes[0.5][1] > slopes[0.0][1] == 0


def test_labels_flow_to_the_class_token_where_it_learns_alone() -> None:
    images, model = images_for("deit distilled"), build("deit distilled")
    mix = box_mix(images)
    both = TLAlign().student(model)(mix.apply(images), mix)
    assert both.flow.heads.shape[1] == 2
    target = Distill(alpha=0.0, target="tl_align")
    student = target.student(model.train())
    output = student(mix.apply(images), mix)
    assert_close(output.flow.heads[:, 0], both.flow.heads[:, 0], atol=1e-5, rtol=0)
    share = both.flow.heads[:, 0, 0]
    expected = -(mix.blend(Y, share) * output.logits.log_softmax(1)).sum(1).mean()
    assert_close(target(output, Truth(Y, taught=Taught(Y)), mix)[0].value, expected, atol=1e-5, rtol=0)
    assert_close((output.logits + output.distilled) / 2, both.logits, atol=1e-5, rtol=0)
    assert_close(student.eval()(images).logits, model(images))  # evaluation is timm's: the mean


@pytest.mark.parametrize("family", ["vit", "levit", "lvvit"])
def test_any_other_model_learns_both_by_the_same_logits(family: str) -> None:
    images, model = images_for(family), build(family)
    mix = box_mix(images)
    target = Distill(alpha=1.0)
    output = target.student(model)(mix.apply(images), mix)
    assert output.distilled is None
    taught = torch.randn(4, output.logits.shape[1])
    found = lf.total(target(output, Truth(lf.soft_labels(CLASSES, len(taught[0])), taught=Taught(taught)), mix))
    theirs = taught.softmax(1)
    assert_close(found, (theirs * (theirs.log() - output.logits.log_softmax(1))).sum(1).mean())


@pytest.mark.parametrize("target", ["plain", "tl_align", "token_label"])
@pytest.mark.parametrize("family", ["vit", "lvvit", "swin", "pvt"])
def test_features_are_what_the_classifier_sees(family: str, target: str) -> None:
    images, model = images_for(family), build(family)
    mix = box_mix(images)
    student = Distill(kind="features", target=target).student(model)
    output = student(mix.apply(images), mix)
    classifier = model.get_classifier()
    if family != "lvvit" or target == "token_label":  # whose logits, otherwise, are not the class token's alone
        assert_close(classifier(output.features), output.logits, atol=1e-5, rtol=1e-5)
    student.project(7)
    assert student(mix.apply(images), mix).features.shape == (4, 7)
    assert [name for name in student.state_dict() if name.startswith("projection")] == [
        "projection.weight",
        "projection.bias",
    ]
    assert not [name for name in model.state_dict() if "projection" in name]
    assert torch.equal(student(images).logits, model(images))
    student.project(output.features.shape[1])
    assert student.projection is None  # as wide already: timm has none, either


@pytest.mark.parametrize("kind", ["soft", "features"])
def test_compiled_without_a_graph_break(kind: str) -> None:
    torch.compiler.reset()
    family = "deit distilled" if kind == "soft" else "vit"
    model, images = build(family).train(), images_for(family)
    mix = box_mix(images)
    target = Distill(kind=kind, target="tl_align")
    student = target.student(model)
    if kind == "features":
        student.project(7)
    truth = Truth(Y, taught=Taught(torch.randn(4, 5), torch.randn(4, 7)))
    slopes = []
    for one in (student, torch.compile(student, fullgraph=True, backend="aot_eager")):
        student.zero_grad()
        lf.total(target(one(mix.apply(images), mix), truth, mix)).backward()
        slopes.append([parameter.grad.clone() for parameter in student.parameters()])
    assert_close(slopes[1], slopes[0], atol=1e-5, rtol=1e-4)
    torch.compiler.reset()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("distill(kind='warm')", "kind must be 'soft', 'hard' or 'features', not 'warm'"),
        ("distill(alpha=1.5)", r"alpha, the teacher's part of the loss, must lie in \[0, 1\], not 1.5"),
        ("distill(tau=0)", "tau, a temperature, must be positive, not 0"),
        ("distill(target='tl_aling')", "there is no target 'tl_aling'; did you mean tl_align"),
        ("distill(target='distill')", "has a teacher already"),
        ("distill(beta=1)", "its settings are: kind, alpha, tau, target"),
    ],
)
def test_bad_settings(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_spec(text, TARGETS, "target")


def test_others_need_no_teacher() -> None:
    assert [name for name, target in TARGETS.items() if target.teacher] == ["distill", "stl"]
    assert (Distill().teacher, Distill(kind="features").teacher, Plain().teacher) == ("logits", "features", "")
