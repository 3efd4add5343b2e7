"""How a model is trained, whatever the task."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Training:
    """Optimiser, schedule, precision, and how a run is kept."""

    epochs: int = 300
    """Passes through the training samples; 0 where updates are counted."""
    cooldown_epochs: int = 0
    """Further epochs at the smallest learning rate."""
    updates: int = 0
    """Updates of the whole run, where epochs is 0."""
    batch: int = 1024
    """Samples of an update, over all processes."""
    micro_batch: int = 128
    """Samples that pass through the model at once: what fills a device's memory. A micro-batch is mixed within itself.
    Those of a batch are shared by the processes, and accumulated where there are more of them."""
    seed: int = 0
    """All chance is a function of it."""

    optimizer: str = "adamw"
    """timm's name of the optimiser."""
    lr: float = 5e-4
    """Learning rate, for lr_batch samples."""
    lr_batch: int = 512
    """The batch that lr is meant for: the learning rate grows with batch / lr_batch. 0: lr as it is."""
    min_lr: float = 1e-5
    """Where the cosine or the line ends; not scaled."""
    warmup_epochs: int = 5
    """Epochs in which the learning rate climbs, within the schedule."""
    warmup_updates: int = 0
    """Updates in which it climbs, where warmup_epochs is 0."""
    warmup_lr: float = 1e-6
    """Where it climbs from; not scaled."""
    schedule: Literal["cosine", "linear", "steps", "constant"] = "cosine"
    """How the learning rate goes on after its warm-up."""
    steps: tuple[float, ...] = (0.75, 11 / 12)
    """For steps: after which parts of the run it is divided by ten."""
    schedule_step: Literal["update", "epoch"] = "update"
    """How often the learning rate changes."""
    schedule_lag: int = 0
    """Epochs that the schedule runs behind (DeiT's own loop: 1)."""
    weight_decay: float = 0.05
    """How much weights shrink."""
    exempt: Literal["vectors", "norms", "nothing"] = "vectors"
    """What does not shrink: vectors (biases, norms) and what the model names, such as positions; layer norms and what
    the model names; or nothing."""
    momentum: float = 0.9
    """For optimisers that have it."""
    clip: float = 0.0
    """Largest norm of the gradient; 0: any."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights; 0: none. With one, it is what is kept as best."""

    precision: Literal["no", "bf16", "fp16"] = "no"
    """Mixed precision; no: float32."""
    compile: bool = False
    """torch.compile the model."""
    checkpointing: bool = False
    """Compute activations twice instead of keeping them: less memory, more time."""
    deterministic: bool = False
    """Only algorithms that repeat to the bit, on a GPU too (a CPU's do)."""

    eval_epochs: int = 1
    """Epochs between two evaluations."""
    eval_batch: int = 0
    """Samples that are evaluated at once, in a process; 0: as many as a micro-batch."""
    save_updates: int = 1000
    """Updates between two checkpoints, beside those at the end of an epoch."""
    keep: int = 1
    """How many of the newest checkpoints are kept; the best one is kept anyway."""
    log_updates: int = 10
    """Updates between two lines of metrics.jsonl."""
    tracker: str = ""
    """Where Accelerate sends the metrics, too: tensorboard, wandb, …; '' for nowhere."""

    def __post_init__(self) -> None:
        for name in ("batch", "micro_batch", "eval_epochs", "save_updates", "keep", "log_updates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("lr", "min_lr", "warmup_lr", "weight_decay", "clip", "epochs", "updates", "warmup_updates"):
            if not (getattr(self, name) >= 0 and math.isfinite(getattr(self, name))):
                raise ValueError(f"{name} must be a number from 0 on, not {getattr(self, name)}")
        if not 0 <= self.ema < 1:
            raise ValueError(f"ema must lie in [0, 1), 0 for none, not {self.ema}")
        if not all(0 < step < 1 for step in self.steps) or list(self.steps) != sorted(self.steps):
            raise ValueError(f"steps are parts of a run, each greater than the last, not {self.steps}")
        if not self.updates and self.epochs < 1:
            raise ValueError(f"epochs must be at least 1, not {self.epochs}")
        if self.updates and (self.epochs or self.cooldown_epochs):
            raise ValueError(
                f"a run is counted in epochs or in updates, not in {self.epochs + self.cooldown_epochs} epochs and "
                f"{self.updates} updates; set --updates 0, or --epochs 0 and --cooldown-epochs 0"
            )
        if self.warmup_epochs and self.warmup_updates:
            raise ValueError(
                "a warm-up is counted in epochs or in updates: set --warmup-epochs or --warmup-updates to 0"
            )
        if (self.updates or self.warmup_updates) and self.schedule_step == "epoch":
            raise ValueError("a schedule that is counted in updates changes with every update: --schedule-step update")
        counted = self.updates or self.warmup_updates  # against what, is known with the data
        if self.warmup_epochs >= self.epochs and self.warmup_epochs and not counted:
            raise ValueError(
                f"warmup_epochs ({self.warmup_epochs}) must be less than epochs ({self.epochs}); "
                f"choose --warmup-epochs {self.epochs // 4}"
            )

    @property
    def scaled_lr(self) -> float:
        return self.lr * self.batch / self.lr_batch if self.lr_batch else self.lr
