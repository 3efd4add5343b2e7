"""The kernels for GPUs, in Triton's interpreter, against what `flow` says in PyTorch; and compiled for real GPUs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import timm
import torch
from torch import Tensor
from torch.testing import assert_close

import labelflow as lf
import pretend
from labelflow import flow
from labelflow.kernels import launch

HALF = (torch.bfloat16, torch.float16)


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `flow` does on GPUs it does on the CPU and on the pretend device, too."""
    monkeypatch.setattr(flow, "KERNEL_DEVICES", ("cpu", pretend.DEVICE))


def random_labels(*shape: int) -> Tensor:
    return flow.normalise(torch.rand(shape) + 1e-3)


def naive(query: Tensor, key: Tensor, labels: Tensor, bias: Tensor | None = None, scale: float | None = None) -> Tensor:
    """Eqs. 6, 7, 9 in float64, from what the model has: bf16 or fp16 numbers are what they are."""
    scores = query.double() @ key.double().mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + torch.stack([bias[sample % len(bias)] for sample in range(len(query))]).double()
    mixed = scores.softmax(-1).mean(1) @ labels.double()
    return (mixed / mixed.sum(-1, keepdim=True).clamp_min(1e-300)).float()


@pytest.mark.usefixtures("by_kernels")
class TestAttend:
    @pytest.mark.parametrize("dtype", [*HALF, torch.float32])
    @pytest.mark.parametrize(
        ("batch", "heads", "queries", "keys", "width", "sources"),
        [
            (2, 3, 65, 65, 64, 2),  # a ViT, with a class token
            (3, 2, 1, 50, 64, 2),  # its last layer: one query
            (2, 1, 70, 9, 64, 2),  # PVT: one head, few keys
            (2, 2, 17, 33, 24, 2),  # widths that are no powers of two
            (1, 2, 20, 20, 72, 2),
            (1, 1, 18, 18, 104, 2),
            (1, 2, 5, 6, 6, 2),
            (2, 2, 20, 40, 32, 3),  # dense labels
            (1, 2, 10, 37, 32, 70),
            (2, 2, 9, 9, 16, 1),
        ],
    )
    def test_it_is_the_mean_over_heads(
        self, batch: int, heads: int, queries: int, keys: int, width: int, sources: int, dtype: torch.dtype
    ) -> None:
        query, key = torch.randn(batch, heads, queries, width), 2 * torch.randn(batch, heads, keys, width)
        labels = random_labels(batch, keys, sources)
        mixed = flow.attend(query.to(dtype), key.to(dtype), labels)
        assert mixed.dtype == torch.float32
        tolerance = 2e-6 if dtype == torch.float32 else 1e-4
        assert_close(mixed, naive(query.to(dtype), key.to(dtype), labels), atol=tolerance, rtol=0)

    @pytest.mark.parametrize("dtype", HALF)
    @pytest.mark.parametrize("sharpness", [0.1, 1.0, 4.0, 30.0])
    @pytest.mark.parametrize("heads", [1, 3])
    def test_shares_keep_their_digits_through_all_layers(
        self, dtype: torch.dtype, sharpness: float, heads: int
    ) -> None:
        """Twelve layers of Y ← ½(Y + A·Y), labels of 0 and 1 at first, one key far above the others or none."""
        share = (torch.rand(1, 24) < 0.4).float()
        labels = exact = torch.stack([share, 1 - share], -1)
        for _ in range(12):
            query, key = (sharpness**0.5 * 2 * torch.randn(1, heads, 24, 16).to(dtype) for _ in range(2))
            exact = (exact + naive(query, key, exact)) / 2
            labels = flow.residual(labels, flow.attend(query, key, labels))
            assert_close(labels, exact, atol=1e-4, rtol=0)  # bf16 attention would be off by up to 8e-4

    def test_samples_share_the_biases_of_their_windows(self) -> None:
        query, key = torch.randn(6, 2, 9, 16).bfloat16(), torch.randn(6, 2, 9, 16).bfloat16()
        labels, bias = random_labels(6, 9, 2), torch.randn(3, 2, 9, 9)
        bias[1, :, :, :4] = -100.0
        bias[2, :, :, 5:] = -torch.inf
        assert_close(flow.attend(query, key, labels, bias), naive(query, key, labels, bias), atol=1e-4, rtol=0)
        shared = bias[:1, :1].bfloat16()  # one for all heads and samples, in the model's precision
        expected = naive(query, key, labels, shared.expand(-1, 2, -1, -1))
        assert_close(flow.attend(query, key, labels, shared), expected, atol=1e-4, rtol=0)

    @pytest.mark.parametrize("sources", [2, 5])
    def test_padding_holds_no_label(self, sources: int) -> None:
        query, key, labels = torch.randn(2, 2, 7, 16), torch.randn(2, 2, 20, 16), random_labels(2, 20, sources)
        labels[:, 11:] = 0
        assert_close(flow.attend(query, key, labels), naive(query, key, labels), atol=2e-6, rtol=0)
        assert_close(flow.attend(query, key, 0 * labels), torch.zeros(2, 7, sources))

    def test_views_are_read_as_they_are(self) -> None:
        """Of a projection to queries, keys and values; of maps with their channels first; of labels behind a prefix."""
        query, key, _ = torch.randn(2, 20, 3 * 2 * 16).bfloat16().view(2, 20, 3, 2, 16).permute(2, 0, 3, 1, 4)
        labels = random_labels(2, 24, 4)[:, 4:, 1:3]
        labels = flow.normalise(labels)[:, :, [1, 0]].mT.contiguous().mT
        mixed = flow.attend(query, key, labels, scale=0.3)
        assert_close(mixed, naive(query, key, labels, scale=0.3), atol=1e-4, rtol=0)
        mixed = flow.attend(query.mT.contiguous().mT[:, :, :3], key, labels)
        assert_close(mixed, naive(query[:, :, :3], key, labels), atol=1e-4, rtol=0)

    def test_scores_of_any_size(self) -> None:
        query, key = 1000 * torch.randint(-3, 4, (2, 2, 9, 8)).half(), torch.randint(-3, 4, (2, 2, 7, 8)).half()
        labels = random_labels(2, 7, 2)
        assert_close(flow.attend(query, key, labels), naive(query, key, labels), atol=1e-4, rtol=0)

    def test_many_small_weights_count(self) -> None:
        """One key far above two thousand others, each of which alone would vanish in fp16 beside it."""
        query, key = torch.ones(1, 1, 1, 16).bfloat16(), torch.zeros(1, 1, 2000, 16)
        key[:, :, 0] = 1.0
        labels = torch.zeros(1, 2000, 2)
        labels[:, 0, 0], labels[:, 1:, 1] = 1, 1
        mixed = flow.attend(query, key.bfloat16(), labels, scale=1.1)  # e^17.6 to 1
        assert_close(mixed, naive(query, key, labels, scale=1.1), atol=2e-6, rtol=0)

    def test_what_the_kernel_does_not_take_goes_to_pytorch(self) -> None:
        query, labels = torch.randn(2, 2, 5, 16), random_labels(2, 5, 2)
        assert_close(flow.attend(query, query, labels, scale=-0.3), naive(query, query, labels, scale=-0.3))
        mixed = flow.attend(query, query.bfloat16(), labels)
        assert_close(mixed, naive(query, query.bfloat16(), labels))
        wide = torch.randn(2, 2, 5, 260)
        assert_close(flow.attend(wide, wide, labels), naive(wide, wide, labels), atol=1e-5, rtol=0)


@pytest.mark.usefixtures("by_kernels")
class TestAttention:
    @pytest.mark.parametrize("dtype", [*HALF, torch.float32])
    def test_weights_that_are_there(self, dtype: torch.dtype) -> None:
        weights = (3 * torch.randn(2, 3, 40, 70)).softmax(-1).to(dtype)
        labels = random_labels(2, 70, 2)
        labels[:, 60:] = 0
        mixed = weights.double().mean(1) @ labels.double()
        assert_close(flow.attention(weights, labels), (mixed / mixed.sum(-1, keepdim=True)).float())
        assert_close(flow.attention(weights[:, :, :1], labels), (mixed / mixed.sum(-1, keepdim=True)).float()[:, :1])


class TestWindows:
    """Against `flow`'s own code, which test_flow.py holds against the paper."""

    @pytest.mark.parametrize(
        ("side", "size", "stride", "padding", "ceil", "sources"),
        [
            ((8, 12), (4, 4), (4, 4), (0, 0), False, 2),  # patches
            ((9, 9), (3, 3), (2, 2), (1, 1), False, 2),  # PVT v2's
            ((10, 7), (7, 7), (4, 4), (3, 3), False, 3),
            ((7, 9), (2, 2), (2, 2), (0, 0), True, 2),
            ((5, 5), (2, 2), (1, 1), (1, 1), True, 7),
        ],
    )
    def test_aggregation(
        self,
        side: tuple[int, int],
        size: tuple[int, int],
        stride: tuple[int, int],
        padding: tuple[int, int],
        ceil: bool,
        sources: int,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        labels = random_labels(2, *side, sources)
        labels[:, -1] = 0  # padding
        expected = flow.aggregate(labels, size, stride, padding, ceil)
        monkeypatch.setattr(flow, "KERNEL_DEVICES", ("cpu",))
        assert_close(flow.aggregate(labels, size, stride, padding, ceil), expected)

    @pytest.mark.parametrize(
        ("side", "kernel", "stride", "padding", "dilation", "padded"),
        [
            ((9, 7), (40, 1, 3, 3), (1, 1), None, (1, 1), False),  # depth-wise
            ((2, 9), (5, 1, 5, 5), (1, 1), None, (1, 1), False),  # wider than the map
            ((14, 14), (4, 1, 7, 7), (1, 1), None, (1, 1), False),
            ((8, 9), (6, 3, 3, 3), (1, 1), None, (1, 1), False),  # dense
            *[
                (*case, padded)
                for case in [
                    ((9, 9), (6, 3, 3, 3), (2, 2), (1, 1), (1, 1)),
                    ((9, 8), (3, 2, 2, 2), (2, 2), (0, 0), (1, 1)),
                    ((11, 9), (3, 1, 3, 3), (1, 1), (2, 2), (2, 2)),
                    ((6, 6), (3, 8, 1, 1), (1, 1), (0, 0), (1, 1)),
                ]
                for padded in (False, True)
            ],
        ],
    )
    def test_convolution(
        self,
        side: tuple[int, int],
        kernel: tuple[int, int, int, int],
        stride: tuple[int, int],
        padding: tuple[int, int] | None,
        dilation: tuple[int, int],
        padded: bool,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        weight, labels = torch.randn(kernel), random_labels(2, *side, 2)
        weight[0] = 0  # a dead channel
        if padded:
            labels[:, :, -1] = 0
        expected = flow.convolve(weight, labels, stride, padding, dilation)
        expected_still = flow.convolve(0 * weight, labels, stride, padding, dilation)
        monkeypatch.setattr(flow, "KERNEL_DEVICES", ("cpu",))
        assert_close(flow.convolve(weight, labels, stride, padding, dilation), expected)
        assert_close(flow.convolve(0 * weight, labels, stride, padding, dilation), expected_still)


def small_model(name: str) -> torch.nn.Module:
    """For images of 64×64 pixels, in fewer layers: the first, the last, each stage's."""
    how = {
        "deit": {"img_size": 64, "depth": 3},
        "vit": {"img_size": 64, "depth": 3},
        "swin": {"img_size": 64, "window_size": 4, "depths": (2, 2, 2, 2)},
        "pvt": {"depths": (1, 1, 1, 1)},
    }
    return timm.create_model(name, num_classes=5, **how[name.split("_")[0]]).eval()


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b0"])
def test_models_carry_the_same_labels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, and under autocast, from the same bf16 queries and keys."""
    aligned, side = lf.Aligned(small_model(name)), 32 if name.startswith("pvt") else 64
    images, share = torch.rand(2, 3, side, side), torch.rand(2, 1, side, side).round()
    for half, tolerance in ((False, 2e-6), (True, 1e-4)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            _, found = aligned(images, share)
            with monkeypatch.context() as patch:
                patch.setattr(flow, "KERNEL_DEVICES", ())
                _, expected = aligned(images, share)
        assert_close(found, expected, atol=tolerance, rtol=0)


def test_products_that_a_device_may_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """TF32 keeps 11 bits of what is multiplied."""

    def rounded(values: Tensor) -> Tensor:
        return ((values.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    class Rounding(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(
            self, func: object, types: object, args: tuple = (), kwargs: dict | None = None
        ) -> object:
            if func in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default):
                args = tuple(rounded(arg.contiguous()) for arg in args)
            return func(*args, **(kwargs or {}))  # type: ignore[operator]

    weights, labels = (3 * torch.randn(2, 40, 60)).softmax(-1), random_labels(2, 60, 2)
    exact = (weights.double() @ labels.double()).float()
    with Rounding():
        assert (weights @ labels - exact).abs().max() > 3e-5
        with pretend.pretending():
            on_device = flow.product(weights.to(pretend.DEVICE), labels.to(pretend.DEVICE))
        assert_close(on_device.host, exact, atol=2e-6, rtol=0)


@pytest.mark.usefixtures("by_kernels")
@pytest.mark.parametrize("name", ["deit_tiny_patch16_224", "swin_tiny_patch4_window7_224", "pvt_v2_b0"])
def test_labels_add_few_launches(name: str) -> None:
    model, side = small_model(name), 32 if name.startswith("pvt") else 64
    images, share = torch.rand(1, 3, side, side), torch.rand(1, 1, side, side).round()
    aligned = lf.Aligned(model)

    def half(call: object) -> object:
        def run(*inputs: Tensor) -> None:
            with torch.autocast(pretend.DEVICE, dtype=torch.bfloat16):
                call(*inputs)  # type: ignore[operator]

        return run

    pretend.launches(model, images)  # which moves it to the device
    plain = pretend.launches(half(model), images)
    assert pretend.launches(half(aligned), images, share) <= 1.4 * plain


@pytest.mark.usefixtures("by_kernels")
def test_queries_and_keys_are_read_as_the_model_has_them() -> None:
    """Under autocast, nothing of their size is copied, least of all to float32; and attention runs once."""
    model = small_model("vit_tiny_patch16_224")
    aligned = lf.Aligned(model)
    with pretend.pretending() as log:
        model.to(pretend.DEVICE)
        images, share = (values.to(pretend.DEVICE) for values in (torch.rand(2, 3, 64, 64), torch.ones(2, 1, 64, 64)))
        with torch.autocast(pretend.DEVICE, dtype=torch.bfloat16):
            aligned(images, share)
    assert not log.large_casts(2 * 17 * 192)
    assert len(log.attention) == 3
    assert all(call.query.dtype == torch.bfloat16 for call in log.attention)
    assert log.launches["labelflow.attend.default"] == 3


def test_compiled_for_gpus() -> None:
    """Tensor cores are used, and nothing is spilled: the compiler says so, which needs no GPU."""
    script = Path(__file__).parents[1] / "benchmarks" / "kernels.py"
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run(
        [sys.executable, script, "--json"], env=environment, capture_output=True, text=True, check=True
    )
    rows = json.loads(run.stdout)
    instructions = {80: "f32.bf16.bf16.f32", 90: "wgmma", 100: "tcgen05.mma", 120: "f32.bf16.bf16.f32"}
    assert {row["capability"] for row in rows} == set(instructions)
    assert not [row for row in rows if row["spilled_bytes"]]
    for row in rows:
        if row["case"].startswith("attend:"):
            assert instructions[row["capability"]] in row["matrix_instructions"], row
            assert row["all"] < 20, row  # instructions for each score; a dozen, more with a bias


def test_export_sees_through_them() -> None:
    """With tensors that say they are on a GPU, and any batch: operators, which compilers take apart into kernels."""
    code = """
import torch
from torch._subclasses import FakeTensorMode
from labelflow import flow

class Everything(torch.nn.Module):
    def forward(self, query, weights, labels, kernel):
        mixed = flow.attend(query, query, labels)
        mixed = flow.attention(weights, mixed).unflatten(1, (7, 7))
        return flow.aggregate(flow.convolve(kernel, mixed), (3, 3), (2, 2))

with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
    query = torch.empty(4, 3, 49, 64, dtype=torch.bfloat16)
    inputs = query, torch.empty(4, 3, 49, 49), torch.empty(4, 49, 2), torch.empty(8, 1, 3, 3)
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(Everything(), inputs, dynamic_shapes=(batch, batch, batch, None))
    names = [str(node.target) for node in program.run_decompositions().graph.nodes if "labelflow" in str(node.target)]
print(*names)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    operators = ("attend", "attention", "window_weights", "average", "average")
    assert run.stdout.split() == [f"labelflow.{name}.default" for name in operators]


def test_they_are_launched_on_the_gpu_of_their_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which need not be the current one, where Triton would launch them."""
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "device", chosen.append)
    launch.on(torch.device("cuda", 1))
    launch.on(torch.device("cpu"))
    assert chosen == [torch.device("cuda", 1)]
