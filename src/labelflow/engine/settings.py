"""How a model is trained, whatever the task."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

from tyro.constructors import PrimitiveConstructorSpec

CUDA_GRAPHS = ("reduce-overhead", "max-autotune")  # modes of torch.compile that use them
COMPILE_MODES = ("default", *CUDA_GRAPHS, "max-autotune-no-cudagraphs")
_ALONE_OR_MODE = PrimitiveConstructorSpec(  # --compile, or --compile MODE
    nargs="*",
    metavar="[MODE]",
    instance_from_str=lambda given: " ".join(given) or "default",
    is_instance=lambda mode: isinstance(mode, str),
    str_from_instance=lambda mode: [mode] if mode else [],
)


class Frozen(NamedTuple):
    """A part of a model that is not trained."""

    part: str
    until: int | None = None  # the epoch after which it is; None: never

    @classmethod
    def parse(cls, text: str) -> "Frozen":
        """
        >>> Frozen.parse("stem"), Frozen.parse("blocks.0-5@10")
        (Frozen(part='stem', until=None), Frozen(part='blocks.0-5', until=10))
        """
        part, at, epoch = text.partition("@")
        if not part or (at and not (epoch.isdecimal() and int(epoch))):
            raise ValueError(f"--freeze takes parts, or PART@EPOCH with an epoch from 1 on, not {text!r}")
        return cls(part, int(epoch) if at else None)


@dataclass(frozen=True)
class Training:
    """Optimizer, schedule, precision, checkpoints."""

    epochs: int = 300
    """Passes over the training samples; 0 if `updates` is set."""
    cooldown_epochs: int = 0
    """Further epochs at the smallest learning rate."""
    updates: int = 0
    """Length of the run in updates; needs epochs 0."""
    batch: int = 1024
    """Samples per update, over all processes."""
    micro_batch: int = 128
    """Samples per forward pass, which fill a device's memory; fewer, if it does not divide the batch. A micro-batch is
    mixed within itself. A batch's micro-batches are divided among the processes; gradients are accumulated over the
    rest."""
    seed: int = 0
    """Determines all randomness."""

    optimizer: str = "adamw"
    """Name of a timm optimizer."""
    lr: float = 5e-4
    """Learning rate for a batch of lr_batch."""
    lr_batch: int = 512
    """The learning rate is lr × batch / lr_batch; 0: lr itself."""
    min_lr: float = 1e-5
    """Final learning rate of cosine and linear; not scaled."""
    warmup_epochs: int = 5
    """Epochs of linear warm-up, part of the schedule. One that is not shorter than the run becomes a quarter of it."""
    warmup_updates: int = 0
    """Updates of linear warm-up; needs warmup_epochs 0."""
    warmup_lr: float = 1e-6
    """Learning rate at the start of the warm-up; not scaled."""
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    """Schedule of the learning rate after the warm-up."""
    steps: tuple[float, ...] = (0.75, 11 / 12)
    """For steps: the fractions of the run after which the learning rate is multiplied by step_factor."""
    step_factor: float = 0.1
    """For steps: 0.1 divides by ten."""
    schedule_step: Literal["update", "epoch"] = "update"
    """How often the learning rate changes."""
    schedule_lag: int = 0
    """Epochs by which the schedule lags (1 in DeiT's own loop)."""
    weight_decay: float = 0.05
    """Weight decay."""
    exempt: Literal["vectors", "norms", "nothing"] = "vectors"
    """Parameters without weight decay: vectors (biases, norms) and those in the model's no_weight_decay, such as
    position embeddings; layer norms and those; or nothing."""
    momentum: float = 0.9
    """For optimizers that have it."""
    betas: tuple[float, ...] = ()
    """For optimizers that have them, such as 0.9 0.95; none: the optimizer's own."""
    layer_decay: float = 1.0
    """Learning rates fall by this factor from each layer to the one before it, counted as timm does: the classifier has
    the full one, the last block layer_decay of it, …; 1: all layers have the same."""
    layer_decay_min_scale: float = 0.0
    """No layer's learning rate falls below this part of the full one."""
    head_lr: float = 1.0
    """The learning rate of the classifier, and of heads that are trained beside the model, is multiplied by this."""
    freeze: tuple[str, ...] = ()
    """Parts of the model that are not trained: stem; backbone (all but the classifier); or names, such as blocks.0-5,
    layers.0 or blocks.*.attn. PART@EPOCH thaws after that epoch, such as backbone@5. What is frozen does not change at
    all, and is in eval mode: no drop-path, batch norms keep their statistics."""
    clip: float = 0.0
    """Gradient clipping by norm; 0: off."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights; 0: none. With it, the best weights are the average's."""

    precision: Literal["auto", "bf16", "fp16", "tf32", "no"] = "auto"
    """auto: bf16 where the device has it natively, otherwise no; on resume, what the run was started with. bf16, fp16:
    mixed precision, with TF32 for products in float32; tf32: float32, with TF32 for products; no: float32 alone."""
    compile: Annotated[str, _ALONE_OR_MODE] = ""
    """torch.compile the model: alone, or with a mode: default, reduce-overhead or max-autotune (with CUDA graphs),
    max-autotune-no-cudagraphs."""
    checkpointing: bool = False
    """Gradient checkpointing: recompute activations to save memory."""
    deterministic: bool = False
    """Use deterministic algorithms on a GPU (on a CPU they always are)."""

    eval_epochs: int = 1
    """Epochs between evaluations."""
    eval_batch: int = 0
    """Samples per forward pass in evaluation, for each process; 0: micro_batch."""
    save_updates: int = 1000
    """Updates between checkpoints; there is also one at each evaluation."""
    keep: int = 2
    """How many of the newest checkpoints to keep: one to go on from, and others in case it is damaged. The best weights
    are always kept."""
    log_updates: int = 10
    """Updates between lines of metrics.jsonl."""
    tracker: str = ""
    """An Accelerate tracker that also receives the metrics: tensorboard, wandb, …; '': none."""

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "eval_epochs", "save_updates", "keep", "log_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        lengths = ("epochs", "cooldown_epochs", "updates", "warmup_epochs", "warmup_updates", "schedule_lag")
        rates = ("lr", "lr_batch", "min_lr", "warmup_lr", "weight_decay", "momentum", "clip")
        for name in (*lengths, *rates, "eval_batch"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be ≥ 0 and finite, not {getattr(self, name)}")
        older: dict[object, str] = {True: "default", False: ""}  # in runs from before there were modes
        object.__setattr__(self, "compile", older.get(self.compile, self.compile))
        if self.compile and self.compile not in COMPILE_MODES:
            raise ValueError(f"--compile takes no mode or one of {', '.join(COMPILE_MODES)}, not {self.compile!r}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must be in [0, 1) (0: no average), not {self.ema}")
        if not all(0 < step < 1 for step in self.steps) or list(self.steps) != sorted(self.steps):
            raise ValueError(f"steps must be increasing fractions of the run, between 0 and 1, not {self.steps}")
        if not 0 < self.step_factor <= 1:
            raise ValueError(f"step_factor must lie in (0, 1], not {self.step_factor}")
        self._check_finetuning()
        if not self.updates and self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {self.epochs}")
        if self.updates and (self.epochs or self.cooldown_epochs):
            raise ValueError(
                f"a run's length is given in epochs or in updates, not as {self.epochs + self.cooldown_epochs} epochs "
                f"and {self.updates} updates; set --updates 0, or --epochs 0 and --cooldown-epochs 0"
            )
        if self.warmup_epochs and self.warmup_updates:
            raise ValueError(
                "a warm-up's length is given in epochs or in updates: set --warmup-epochs or --warmup-updates to 0"
            )
        if (self.updates or self.warmup_updates) and self.schedule_step == "epoch":
            raise ValueError("a schedule in updates needs --schedule-step update")

    def _check_finetuning(self) -> None:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must lie in [0, 1), not {self.betas}")
        if not 0 < self.layer_decay <= 1:
            raise ValueError(f"layer_decay must lie in (0, 1] (1: the same for all layers), not {self.layer_decay}")
        if not 0 <= self.layer_decay_min_scale <= 1:
            raise ValueError(f"layer_decay_min_scale must lie in [0, 1], not {self.layer_decay_min_scale}")
        if self.layer_decay_min_scale and self.layer_decay == 1:
            raise ValueError("layer_decay_min_scale is for --layer-decay, which is 1: all layers have the same rate")
        if not (self.head_lr > 0 and math.isfinite(self.head_lr)):
            raise ValueError(f"head_lr must be positive and finite, not {self.head_lr}")
        for text in self.freeze:
            Frozen.parse(text)

    def total_updates(self, per_epoch: int) -> int:
        """Of the run; per_epoch: updates in an epoch."""
        return self.updates or (self.epochs + self.cooldown_epochs) * per_epoch

    @property
    def frozen(self) -> list["Frozen"]:
        return [Frozen.parse(text) for text in self.freeze]

    @property
    def scaled_lr(self) -> float:
        return self.lr * self.batch / self.lr_batch if self.lr_batch else self.lr
