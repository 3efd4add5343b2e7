"""What runs in the processes of test_distributed.py."""

import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.state import PartialState
from accelerate.utils import DistributedType
from accelerate.utils.launch import prepare_multi_gpu_env
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

import labelflow as lf
from helpers import box_mix, build, images_for
from labelflow.data import Batch, Data
from labelflow.data.batches import EvalBatches
from labelflow.engine import Run, Training, loop
from labelflow.engine.checkpoint import Checkpoints, State
from labelflow.engine.optim import make_optimizer
from labelflow.targets import Distill, Taught, TokenLabel, Truth
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.multilabel import MultiLabel
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


def taught_step(student: nn.Module, rank: int) -> dict[str, object]:
    images, mix, y = halves("deit distilled")[rank]
    answers = torch.randn(8, 5, generator=torch.Generator().manual_seed(9)).chunk(2)[rank]
    target = Distill(kind="hard", target="tl_align")
    loss = lf.total(target(student(mix.apply(images), mix), Truth(y, taught=Taught(answers)), mix))
    loss.backward()
    return {"loss": loss.detach()}


def taught_student() -> lf.Student:
    return Distill(kind="hard", target="tl_align").student(build("deit distilled").train())


def ddp_taught(rank: int) -> dict[str, object]:
    """A distillation token, trained by two processes."""
    student = taught_student()
    result = taught_step(DistributedDataParallel(student), rank)
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


LVVIT = Recipe(
    model="lvvit_t(embed_dim=24, depth=2, num_heads=3)",  # whose stem has batch norms, which are not sharded
    data=Data(source="world(train=48, val=16)", image_size=32, test_crop=1.0, workers=0),
    training=Training(
        epochs=2,
        batch=16,
        micro_batch=8,
        warmup_epochs=0,
        lr=1e-3,
        lr_batch=0,
        ema=0.5,
        clip=1.0,
        log_updates=1,
        layer_decay=0.8,
        freeze=("blocks.0.norm1", "blocks.0@1"),
    ),
)


RECURSIVE = LVVIT.change(mixer="recursivemix", target="recursive_mix", epochs=1, save_updates=2, freeze=())
MEMORY = "checkpoints/00000002/memory.safetensors"


def fsdp_runs(rank: int) -> dict[str, object]:
    """Runs that Accelerate shards as it does on GPUs: left alone, interrupted between two evaluations; and one in bf16,
    with a fused optimizer, which are a GPU's defaults."""
    folder = [tempfile.mkdtemp()]
    dist.broadcast_object_list(folder)
    os.environ.update(launch_settings())
    launch(rank)

    def train(name: str, recipe: Recipe) -> Path:
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU  # Accelerate shards on devices only
        train_run(recipe, Path(folder[0]) / name, resume=True, quiet=True, last=False)
        return Path(folder[0]) / name

    def save_and_fail(checkpoints: Checkpoints, state: State) -> None:
        save(checkpoints, state)
        if state.update == 2:  # what thaws has not yet
            raise InterruptedError

    alone, save = train("alone", LVVIT.change(save_updates=2)), Checkpoints.save
    with patch.object(Checkpoints, "save", save_and_fail), suppress(InterruptedError):
        train("resumed", LVVIT.change(save_updates=2))
    resumed = train("resumed", LVVIT)
    with patch.object(
        loop, "make_optimizer", lambda student, training, device: make_optimizer(student, training, "cuda")
    ):
        rounded = train("rounded", LVVIT.change(precision="bf16", epochs=1, freeze=("blocks.0",)))
    remembering = train("remembering", RECURSIVE)
    with pytest.raises(ValueError, match="CUDA graphs, which do not go with sharded weights"):
        train("graphs", LVVIT.change(compile="reduce-overhead"))
    names = ("last.safetensors", "checkpoints/00000006/model.safetensors", "checkpoints/00000006/ema.safetensors")
    return {
        "alone": {name: load_file(alone / name) for name in names},
        "resumed": {name: load_file(resumed / name) for name in names},
        "metrics": [Run(one).metrics() for one in (alone, resumed, rounded)],
        "memory": load_file(remembering / MEMORY),
    }


def launch(rank: int) -> None:
    """What Accelerate knows of the processes."""
    launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1"}
    os.environ.update({name: str(value) for name, value in launched.items()})
    PartialState(cpu=True)


def multi_label(rank: int) -> dict[str, object]:
    """Each process evaluates every other batch; the last one is filled up with samples of weight 0."""
    launch(rank)
    logits, labels = scores()
    metric, sums = MultiLabel("abc"), {"loss": torch.zeros(()), "samples": torch.zeros(())}
    for draws in EvalBatches(len(logits), batch=4, rank=rank, processes=2):
        chosen, weights = [draw.sample for draw in draws], torch.tensor([draw.weight for draw in draws])
        seen = Batch(torch.empty(4, 3, 1, 1), labels[chosen], weights, [])
        sums = {name: sums[name] + value for name, value in metric.measure(logits[chosen], seen).items()}
    for value in sums.values():
        dist.all_reduce(value)
    return {"metrics": metric.metrics(sums), "details": metric.details()}


def scores() -> tuple[Tensor, Tensor]:
    """Logits and labels of 19 images, with ties."""
    chance = torch.Generator().manual_seed(0)
    logits = torch.randn(19, 3, generator=chance).round(decimals=1)
    return logits, (torch.rand(19, 3, generator=chance) < 0.4).float()


def launch_settings() -> dict[str, str]:
    """What `accelerate launch` with examples/cluster/fsdp.yaml tells the processes that it starts."""
    file = Path(__file__).parent.parent / "examples" / "cluster" / "fsdp.yaml"
    words = ["--config_file", str(file), "--machine_rank", "1", "-m", "labelflow"]
    options, _, _ = _validate_launch_command(launch_command_parser().parse_args(words))
    options.num_cpu_threads_per_process = 1
    set_by_it = prepare_multi_gpu_env(options).items() - os.environ.items()
    return dict(set_by_it)
