"""Hooks: what belongs to one thread stays there, and hooks go with their owner."""

import copy
import io
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import set_checkpoint_early_stop
from torch.utils.hooks import RemovableHandle

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.align import evaluating
from labelflow.flow import Labels
from labelflow.follow import PerThread

Result = TypeVar("Result")
Owner = lf.Aligned | lf.Student
FAMILIES = ("vit", "swin", "pvt")


def elsewhere(work: Callable[[], Result]) -> Result:
    """The result of another thread, which is waited for."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(work).result()


def interrupted(aligned: lf.Aligned, images: Tensor, share: Tensor, work: Callable[[], Result]) -> tuple:
    """The logits and labels of a forward pass, and what another thread returns in the middle of it, at every block."""
    results: list[Result] = []

    def leave(name: str, labels: Labels) -> None:
        results.append(elsewhere(work))

    logits, flow = aligned.follower.run(aligned.model, images, share, leave=leave)
    return logits, flow.heads[..., 0].mean(1), results


def hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_plain_model_in_another_thread(family: str) -> None:
    model, images = build(family), images_for(family)
    share, fewer = box_mix(images).share, images_for(family, batch=3).flip(0)
    plain, aligned = model(fewer), lf.Aligned(model)
    expected = aligned(images, share)
    logits, arrived, found = interrupted(aligned, images, share, lambda: model(fewer))
    assert len(found) >= 3
    assert all(torch.equal(result, plain) for result in found)
    assert torch.equal(logits, expected[0])
    assert torch.equal(arrived, expected[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_one_aligned_inside_the_other_threads_forward_pass(family: str) -> None:
    images, fewer = images_for(family), images_for(family, batch=3).flip(0)
    share, other = box_mix(images).share, box_mix(fewer).share
    aligned = lf.Aligned(build(family))
    expected, expected_other = aligned(images, share), aligned(fewer, other)
    logits, arrived, found = interrupted(aligned, images, share, lambda: aligned(fewer, other))
    for result in found:
        assert all(torch.equal(*pair) for pair in zip(result, expected_other, strict=True))
    assert torch.equal(logits, expected[0])
    assert torch.equal(arrived, expected[1])


def test_two_threads_in_step() -> None:
    """Both are in the same block before either goes on, so that whatever they share is overwritten."""
    model, images = build("vit"), images_for("vit")
    mixes = [box_mix(images), lf.MixToken(patch=8)(images, torch.Generator().manual_seed(0))]
    student = lf.Student(model, {"flow_tokens"})
    expected = [student(images, mix) for mix in mixes]
    both = threading.Barrier(2, timeout=60)
    for module in (model.patch_embed, *model.blocks):
        module.register_forward_pre_hook(lambda module, inputs: (both.wait(), None)[1])
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda mix: student(images, mix), mixes))
    for result, right in zip(found, expected, strict=True):
        assert torch.equal(result.logits, right.logits)
        assert torch.equal(result.flow.heads, right.flow.heads)
        assert torch.equal(result.flow.tokens, right.flow.tokens)
    assert not torch.equal(found[0].logits, found[1].logits)  # or nothing was mixed


def test_checkpointed_blocks_are_recomputed_in_another_thread() -> None:
    """As autograd does on a GPU, here even during the next forward pass."""
    model, images = build("vit").train(), images_for("vit")
    share, aligned = box_mix(images).share, lf.Aligned(model)
    F.cross_entropy(model(images), torch.arange(4)).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model.set_grad_checkpointing(True)
    with set_checkpoint_early_stop(False):  # so that whole blocks are run again, with all their hooks
        logits, expected = aligned(images, share)
    loss = [F.cross_entropy(logits, torch.arange(4))]
    _, arrived, _ = interrupted(aligned, images, share, lambda: loss.pop().backward() if loss else None)
    assert torch.equal(arrived, expected)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_compiled_ones_in_another_thread_are_not_compiled_again() -> None:
    model, images = build("vit"), images_for("vit")
    share, aligned = box_mix(images).share, lf.Aligned(model)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward

    torch.compiler.reset()
    compiled_model = torch.compile(model, fullgraph=True, backend=backend)
    compiled_aligned = torch.compile(aligned, fullgraph=True, backend=backend)
    plain, expected = compiled_model(images), compiled_aligned(images, share)
    assert len(graphs) == 2
    for work, right in (
        (lambda: (compiled_model(images),), (plain,)),
        (lambda: compiled_aligned(images, share), expected),
    ):
        for result in interrupted(aligned, images, share, work)[2]:
            assert all(torch.equal(*pair) for pair in zip(result, right, strict=True))
    assert len(graphs) == 2


def test_a_graph_break_does_not_lose_what_a_thread_holds() -> None:
    """What is set before a graph break, as gradient checkpointing makes one, is there after it."""
    held = PerThread()

    def inside_and_after(x: Tensor) -> tuple[Tensor, bool]:
        mine = held.value = [x]
        torch._dynamo.graph_break()
        kept = held.value is mine
        held.value = None
        return x + 1, kept

    torch.compiler.reset()
    assert torch.compile(inside_and_after, backend="eager")(torch.ones(2))[1]
    assert held.value is None


@pytest.fixture
def _busy_switching() -> Iterator[None]:
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("_busy_switching")
def test_many_threads_at_once() -> None:
    """Two that share an Aligned, one that knows nothing of it, and one that attaches others and deletes them."""
    model, images = build("vit"), images_for("vit")
    aligned = lf.Aligned(model)
    shares = [box_mix(images).share, box_mix(images).share.flip(0)]
    plain, expected = model(images), [aligned(images, share)[1] for share in shares]
    attached = hooks(model)

    def follow(number: int) -> bool:
        logits, arrived = aligned(images, shares[number])
        return torch.equal(logits, plain) and torch.equal(arrived, expected[number])

    work = (
        lambda: follow(0),
        lambda: follow(1),
        lambda: torch.equal(model(images), plain),
        lambda: torch.equal(lf.Aligned(model)(images, shares[0])[1], expected[0]),
    )
    with ThreadPoolExecutor(4) as pool:
        right = pool.map(lambda one: [one() for _ in range(30)], work)
        assert [sum(each) for each in right] == [30, 30, 30, 30]
    assert hooks(model) == attached


def test_a_hook_that_is_half_registered() -> None:
    """PyTorch adds and removes a hook, and that it takes keyword arguments, in two steps; threads come in between."""
    model, images = build("vit"), images_for("vit")
    before = model(images)
    aligned = lf.Aligned(model)
    assert hooks(aligned) > 0
    for module in model.modules():
        module._forward_hooks_with_kwargs.clear()
    assert torch.equal(model(images), before)


def test_eval_mode_for_a_moment_in_two_threads() -> None:
    model = build("vit").train()
    entered, left = threading.Event(), threading.Event()

    def work() -> None:
        with evaluating(model):
            entered.set()
            assert left.wait(60)

    with ThreadPoolExecutor(1) as pool:
        with evaluating(model):
            other = pool.submit(work)
            entered.wait(0.2)
        left.set()
        other.result()
    assert all(module.training for module in model.modules())


def saved(owner: Owner) -> Owner:
    file = io.BytesIO()
    torch.save(owner, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


COPIES: dict[str, Callable[[Owner], Owner]] = {
    "deepcopy": copy.deepcopy,
    "pickle": lambda owner: pickle.loads(pickle.dumps(owner)),
    "torch.save": saved,
    "copy of a copy": lambda owner: copy.deepcopy(copy.deepcopy(owner)),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("make", [lf.Aligned, lambda model: lf.Student(model, {"flow", "tokens"})])
def test_hooks_of_copies_go_with_them(make: Callable[[nn.Module], Owner], how: str) -> None:
    model = build("vit")
    owner = make(model)
    attached = hooks(model)
    twin = COPIES[how](owner)
    kept = twin.model
    assert hooks(kept) == attached > 0
    del twin
    assert hooks(kept) == 0
    assert hooks(model) == attached  # the original's stay
    del owner
    assert hooks(model) == 0


def test_a_shallow_copy_shares_the_hooks() -> None:
    model, images = build("vit"), images_for("vit")
    share, aligned = box_mix(images).share, lf.Aligned(model)
    expected = aligned(images, share)[1]
    twin = copy.copy(aligned)
    del aligned
    assert torch.equal(twin(images, share)[1], expected)
    del twin
    assert hooks(model) == 0


def test_a_new_process_does_not_replace_unpickled_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch numbers hooks, in every process from 0."""
    aligned, images = lf.Aligned(build("vit")), images_for("vit")
    share = box_mix(images).share
    expected, pickled = aligned(images, share)[1], pickle.dumps(aligned)
    monkeypatch.setattr(RemovableHandle, "next_id", min(aligned.model.blocks[0]._forward_hooks))
    twin = pickle.loads(pickled)
    for _ in range(20):
        twin.model.blocks[0].register_forward_hook(lambda module, inputs, output: None)
    assert torch.equal(twin(images, share)[1], expected)


def test_a_model_that_is_refused_keeps_no_hooks() -> None:
    model = build("vit")
    model.blocks[2].attn = nn.Identity()  # found out after the first blocks have their hooks
    with pytest.raises(ValueError, match="attention modules, not Identity"):
        lf.Aligned(model)
    assert hooks(model) == 0
