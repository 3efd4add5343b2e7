"""Labels along a module's graph: each rule, on modules made for it."""

import copy
import pickle
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from timm import layers
from torch import Tensor, nn
from torch.testing import assert_close

from labelflow.adapters import graph
from labelflow.adapters.registry import MODULES, Observed, Tap, register
from labelflow.flow import Labels
from oracles import convolved, window_labels


class Made(nn.Module):
    """A module whose forward pass is a function of itself and its input, with some layers at hand."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.function = function
        self.a = nn.Conv2d(4, 4, 3, padding=1)
        self.b = nn.Conv2d(4, 12, 5, padding=2, groups=4)
        self.narrow = nn.Conv2d(16, 4, 1)
        self.part = nn.Conv2d(2, 2, 3, padding=1)
        self.down = nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.skip = nn.Conv2d(4, 4, 1, stride=2)
        self.norm, self.act, self.drop_path, self.last = (
            nn.BatchNorm2d(4),
            nn.ReLU(),
            layers.DropPath(0.5),
            nn.Linear(4, 4),
        )
        self.gate = layers.SqueezeExcite(4)
        self.pool, self.shrink = nn.AdaptiveAvgPool2d(1), nn.MaxPool2d(3, 2, 1)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def start(side: int = 8) -> Tensor:
    share = torch.rand(2, side, side, generator=torch.Generator().manual_seed(4))
    return torch.stack([share, 1 - share], -1)


def moved(module: nn.Module, labels: Tensor, residual: bool = True, idle: bool = False) -> Tensor:
    """(B, h, w, K) -> (B, i, j, K), with a look at whether the module itself gives such a map"""
    observed = Observed({}, slice(None), residual, labels.mean((1, 2)), graph.trace(module))
    given = Labels(labels.flatten(1, 2), (labels.shape[1], labels.shape[2]))
    result = (graph.idle if idle else graph.move)(module, observed, given).map
    assert_close(result.sum(-1), torch.ones(result.shape[:3]))
    return result


# What a module does to its input: what that does to labels.
RULES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor]]] = {
    "point-wise": (lambda m, x: F.gelu(m.act(m.norm(x))) * 2 + 1, lambda m, y: y),
    "convolution": (lambda m, x: m.a(x), lambda m, y: convolved(y, m.a)),
    "grouped": (lambda m, x: m.b(x), lambda m, y: convolved(y, m.b)),
    "residual": (lambda m, x: x + m.drop_path(m.a(x)), lambda m, y: (y + convolved(y, m.a)) / 2),
    "in place": (lambda m, x: m.a(x).add_(x), lambda m, y: (y + convolved(y, m.a)) / 2),
    "shortcut": (lambda m, x: m.down(x) + m.skip(x), lambda m, y: (convolved(y, m.down) + y[:, ::2, ::2]) / 2),
    "three in a sum": (
        lambda m, x: m.drop_path(m.a(x) + m.norm(x)) + m.b(x)[:, :4],
        lambda m, y: (convolved(y, m.a) + y + convolved(y, m.b)) / 3,
    ),
    "a sum that is read twice": (
        lambda m, x: (lambda z: m.a(z) + z)(m.a(x) + x),
        lambda m, y: (lambda z: (convolved(z, m.a) + z) / 2)((convolved(y, m.a) + y) / 2),
    ),
    "a sum behind an activation": (
        lambda m, x: m.act(m.a(x) + x) + m.shrink(F.interpolate(x, scale_factor=2.0)),
        lambda m, y: (
            (convolved(y, m.a) + y) / 2
            + window_labels(y.repeat_interleave(2, 1).repeat_interleave(2, 2), 3, 2, 1)
        ) / 2,
    ),
    "a gate": (lambda m, x: m.a(x) * m.last(x.mean((2, 3)))[:, :, None, None], lambda m, y: convolved(y, m.a)),
    "a gate, pooled": (lambda m, x: x * m.pool(m.a(x)), lambda m, y: y),
    "squeeze and excitation": (lambda m, x: m.gate(m.a(x)), lambda m, y: convolved(y, m.a)),
    "a map of gates": (
        lambda m, x: x * m.a(x).mean(1, keepdim=True).sigmoid(),
        lambda m, y: (y + convolved(y, m.a)) / 2,
    ),
    "a coarse map of gates": (
        lambda m, x: x * F.interpolate(m.down(x).sigmoid(), size=x.shape[-2:], mode="nearest"),
        lambda m, y: (y + convolved(y, m.down).repeat_interleave(2, 1).repeat_interleave(2, 2)) / 2,
    ),
    "concatenation, by channels": (
        lambda m, x: m.narrow(torch.cat((x, m.b(x)), dim=1)),
        lambda m, y: (4 * y + 12 * convolved(y, m.b)) / 16,
    ),
    "half of the channels": (
        lambda m, x: (lambda parts: torch.cat([m.part(parts[0]), parts[1]], 1))(m.norm(x).chunk(2, 1)),
        lambda m, y: (convolved(y, m.part) + y) / 2,
    ),
    "a slice of the channels": (
        lambda m, x: torch.cat([m.b(x)[:, :3], m.a(x)[:, 3:]], 1),
        lambda m, y: (3 * convolved(y, m.b) + convolved(y, m.a)) / 4,
    ),
    "channels last": (
        lambda m, x: m.last(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) + m.a(x),
        lambda m, y: (y + convolved(y, m.a)) / 2,
    ),
    "pools": (
        lambda m, x: F.avg_pool2d(m.shrink(x), 2, ceil_mode=True),
        lambda m, y: window_labels(window_labels(y, 3, 2, 1), 2, 2, 0),
    ),
    "padded and cropped": (
        lambda m, x: F.max_pool2d(F.pad(x, (2, 0, 2, 0)), 2)[:, :, 1:, 1:],
        lambda m, y: window_labels(y, 2, 2, 0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES)
def test_a_rule(rule: str) -> None:
    function, expected = RULES[rule]
    module, labels = Made(function).eval(), start()
    result = moved(module, labels)
    assert result.shape[1:3] == module(torch.randn(2, 4, 8, 8)).shape[2:]
    assert_close(result, expected(module, labels))


@pytest.mark.parametrize("rule", RULES)
def test_left_out_a_module_keeps_what_changes_the_grid(rule: str) -> None:
    module, labels = Made(RULES[rule][0]), start()
    still = moved(module, labels, idle=True)
    if still.shape == labels.shape:
        assert_close(still, labels)
    constant = torch.tensor([0.3, 0.7]).expand(2, 8, 8, 2)
    assert_close(moved(module, constant, idle=True), constant[:, : still.shape[1], : still.shape[2]])


def test_without_a_residual_the_shortcut_does_not_count() -> None:
    """It is the way of a sum that is shorter than any other; concatenations and products have none."""
    labels = start()
    module = Made(RULES["residual"][0])
    assert_close(moved(module, labels, residual=False), convolved(labels, module.a))
    module = Made(lambda m, x: m.skip(x) + m.norm(m.down(m.act(x))))
    assert_close(moved(module, labels, residual=False), convolved(labels, module.down))
    for rule in ("shortcut", "concatenation, by channels", "a map of gates"):
        module = Made(RULES[rule][0])
        assert_close(moved(module, labels, residual=False), moved(module, labels))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda m, x: x.roll(1, 2), "'roll' in Made"),
        (lambda m, x: x.transpose(2, 3), "'transpose' in Made"),
        (lambda m, x: x.flip(3), "'flip' in Made"),
        (lambda m, x: x.permute(0, 1, 3, 2), r"permute\(0, 1, 3, 2\) in Made"),
        (lambda m, x: x - x.mean(2, keepdim=True), "'mean' over 2 in Made"),
        (lambda m, x: torch.cat([x, m.a(x)], 2), "'cat' along 2 in Made"),
        (lambda m, x: x.chunk(2, 3)[0], "'chunk' along 3 in Made"),
        (lambda m, x: m.last(m.a(x)), "a linear layer along columns, 'last', in Made"),
        (lambda m, x: x[:, :, 0], "which places"),
        (lambda m, x: x[:, :, : x.shape[2] // 2], "'crop' with numbers that are only known when it runs"),
        (lambda m, x: F.interpolate(x, size=x.shape[2] * 2), "'resize' with numbers"),
        (lambda m, x: m.a(x) if x.sum() > 0 else x, "cannot read the graph of Made: TraceError"),
        (lambda m, x: (x, m.a(x)), "to one map, but Made returns 2"),
        (lambda m, x: (lambda z: (z.add_(m.a(x)), z)[1])(x * 2), "changes a map in place"),
    ],
)
def test_what_is_not_known_is_refused_by_name(function: Callable[..., Tensor], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        graph.trace(Made(function))


def test_an_unknown_module_is_refused_by_name() -> None:
    module = Made(lambda m, x: m.unknown(x))
    module.unknown = nn.PixelShuffle(2)
    with pytest.raises(ValueError, match=r"no adapter for .*PixelShuffle"):
        graph.trace(module)


class Turn(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.flip(2)


@pytest.fixture
def _turns_labels() -> Iterator[None]:
    register(Turn, taps=lambda module: {"map": Tap(module)})(
        lambda _, observed, labels: labels.with_map(labels.map.flip(1))
    )
    yield
    del MODULES[Turn]


@pytest.mark.usefixtures("_turns_labels")
def test_a_module_with_an_adapter_moves_labels_inside_a_graph() -> None:
    module, labels = Made(lambda m, x: x + m.turn(m.a(x))), start()
    module.turn = Turn()
    assert graph.taps(module) == {"turn/map": Tap(module.turn)}
    assert_close(moved(module, labels), (labels + convolved(labels, module.a).flip(1)) / 2)


class Chain(nn.Module):
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.stem, self.pool, self.straight = nn.Conv2d(3, 4, 3, 2, 1), nn.MaxPool2d(2), straight

    def forward_features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.pool(x.relu()) if self.straight else self.pool(x) + F.avg_pool2d(x, 2)


def test_a_chain_of_modules_is_a_path() -> None:
    model = Chain(straight=True)
    assert graph.path(model) == [model.stem, model.pool]
    with pytest.raises(ValueError, match="modules of Chain do not form a chain"):
        graph.path(Chain(straight=False))


def test_a_plan_is_plain_data() -> None:
    plan = graph.trace(Made(RULES["a coarse map of gates"][0]))
    assert pickle.loads(pickle.dumps(plan)) == copy.deepcopy(plan) == plan


def test_tracing_leaves_hooks_and_checkpointing_alone() -> None:
    module = nn.Sequential(Made(RULES["residual"][0]))
    module[0].register_forward_hook(lambda *_: pytest.fail("ran"))
    module.grad_checkpointing = True
    graph.trace(module)
    assert module.grad_checkpointing


class _Divided(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x / (1 + self.conv(x).abs())


class _Softmax(_Divided):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.conv(x).softmax(-1)


class _Reflected(_Divided):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(F.pad(x, (1, 1, 1, 1), mode="reflect"))


class _OwnConv(nn.Conv2d):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.flip(3))


def test_a_quotient_of_maps_counts_both() -> None:
    assert [step.operation for step in graph.trace(_Divided())] == ["input", "convolve", "combine"]


def test_what_looks_like_a_rule_but_is_not() -> None:
    with pytest.raises(ValueError, match="'softmax' along -1"):
        graph.trace(_Softmax())
    with pytest.raises(ValueError, match="padding"):
        graph.trace(_Reflected())
    block = _Divided()
    block.conv = _OwnConv(4, 4, 3, padding=1)
    with pytest.raises(ValueError, match=r"no adapter for .*_OwnConv"):
        graph.trace(block)
