"""What runs in the processes of test_distributed.py."""

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.ema import Ema
from labelflow.engine.run import Run
from labelflow.targets import TLAlign, TokenLabel, Truth
from targets.test_token_label import truth_for


def start(rank: int, works: Sequence[Callable[[int], object]], folder: Path, world: int) -> None:
    """Saves what each work returns, under its name."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{folder / 'rendezvous'}", rank=rank, world_size=world)
    try:
        torch.save({work.__name__: work(rank) for work in works}, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


def halves(family: str) -> list[tuple[Tensor, lf.Mix, Tensor]]:
    """Two batches, each mixed within itself."""
    images = images_for(family, batch=8)
    y = lf.soft_labels(torch.arange(8) % 5, 5, 0.1)
    return [(half, box_mix(half), labels) for half, labels in zip(images.chunk(2), y.chunk(2), strict=True)]


def step(aligned: nn.Module, images: Tensor, mix: lf.Mix, y: Tensor) -> tuple[Tensor, Tensor]:
    logits, share = aligned(mix.apply(images), mix.share)
    loss = F.cross_entropy(logits, mix.blend(y, share))
    loss.backward()
    return loss.detach(), share


def ddp(rank: int) -> dict[str, object]:
    results = {}
    for family in ("vit", "swin", "pvt"):
        model = build(family)
        loss, share = step(DistributedDataParallel(lf.Aligned(model)), *halves(family)[rank])
        results[family] = {"loss": loss, "share": share, "grad": [p.grad for p in model.parameters()]}
    return results


def dense_step(student: nn.Module, rank: int) -> dict[str, object]:
    images, _, _ = halves("vit")[rank]
    mix, truth = lf.MixToken(patch=8)(images, torch.Generator().manual_seed(rank)), truth_for(4, 16, rank)
    loss = lf.total(TokenLabel()(student(images, mix), truth, mix))
    loss.backward()
    return {"loss": loss.detach()}


def ddp_tokens(rank: int) -> dict[str, object]:
    """A token head beside a model, trained by two processes."""
    torch.manual_seed(0)
    student = TokenLabel().student(build("vit"))
    result = dense_step(DistributedDataParallel(student), rank)
    return {**result, "grad": {name: parameter.grad for name, parameter in student.named_parameters()}}


SHARDED = ("vit", "swin", "pvt", "pvt v2", "mixer", "convnext")


def fsdp(rank: int) -> dict[str, object]:
    """Blocks and root sharded over two processes, in float32 and in bfloat16."""
    mesh = init_device_mesh("cpu", (2,))
    results = {}
    for family in SHARDED:
        for precision in (torch.float32, torch.bfloat16):
            policy = MixedPrecisionPolicy(param_dtype=precision)
            model = build(family)
            aligned = lf.Aligned(model)
            late = precision == torch.float32 and family == "pvt v2"  # attached last, it works as well
            for module in model.modules():
                if getattr(module, "attn_mask", None) is not None:  # timm's Swin mixes its dtypes otherwise
                    module.attn_mask = module.attn_mask.to(precision)
                if type(module).__name__.endswith("Block"):
                    fully_shard(module, mesh=mesh, mp_policy=policy)
            if late:
                fully_shard(model, mesh=mesh, mp_policy=policy)
                aligned = lf.Aligned(model)
            else:
                fully_shard(aligned, mesh=mesh, mp_policy=policy)
            images, mix, y = halves(family)[rank]
            constant = torch.full_like(mix.share, 0.3)
            _, kept = aligned(images, constant)
            loss, share = step(aligned, images, mix, y)
            results[family, precision] = {"loss": loss.float(), "share": share, "kept": kept}
    return results


def sharded_run(rank: int) -> dict[str, object]:
    """A sharded student, its average and its optimiser, saved and loaded into another one."""
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in launched.items()})
    accelerator = Accelerator(cpu=True)
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    images, mix, y = halves("vit")[rank]

    def sharded(seed: int) -> tuple[lf.Student, Ema, torch.optim.Optimizer, Checkpoints]:
        torch.manual_seed(seed)
        model = build("vit")
        with torch.no_grad():
            model.head.weight.normal_()
        student = lf.Student(model, {"flow"})
        mesh = init_device_mesh("cpu", (2,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(student, mesh=mesh)
        optimizer, ema = torch.optim.AdamW(model.parameters(), lr=0.01), Ema(model, decay=0.5)
        return student, ema, optimizer, Checkpoints(Run(folder[0]), student, optimizer, ema, accelerator, keep=1)

    def update(student: lf.Student, ema: Ema, optimizer: torch.optim.Optimizer) -> Tensor:
        loss = lf.total(TLAlign()(student(mix.apply(images), mix), Truth(y), mix))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        ema.update()
        with ema.weights(), torch.no_grad():
            return student(images).logits

    student, ema, optimizer, checkpoints = sharded(0)
    update(student, ema, optimizer)
    checkpoints.save(State(update=1, best=0.5, best_update=1))
    expected = update(student, ema, optimizer)
    student, ema, optimizer, checkpoints = sharded(1)
    state = checkpoints.load()
    found = update(student, ema, optimizer)
    weights = load_file(f"{folder[0]}/model.safetensors")
    return {
        "expected": expected,
        "found": found,
        "update": state.update,
        "shapes": {k: v.shape for k, v in weights.items()},
    }
