"""How fast methods train, relative to the first one: updates of all of them in turn, in one run."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median

import torch

from labelflow.chance import Purpose, generator
from labelflow.data import Batch, on_device
from labelflow.engine import make_accelerator
from labelflow.engine.freezing import Freezing
from labelflow.engine.optim import make_optimizer
from labelflow.engine.setup import best_device, flags_restored
from labelflow.loss import total
from labelflow.mixers import make_mixer
from labelflow.spec import mixture
from labelflow.tasks import Classification, Recipe


@dataclass(frozen=True)
class Speed:
    ratio: float  # images/s relative to the first method: the median over rounds
    low: float  # quartiles
    high: float
    seconds: float  # of a micro-batch: the median


@flags_restored()
def measure_speeds(
    recipes: Mapping[str, Recipe], rounds: int, advance: Callable[[int], None] = lambda count: None
) -> dict[str, Speed]:
    """Each round takes one update of each method, on the same samples; the first round is discarded.

    Data loading is not included. On a CPU, it is the CPU time of one thread, which other programs affect less. In a
    mixture of mixers, each is measured and weighted by its probability.
    """
    threads = torch.get_num_threads()
    if best_device().type == "cpu":
        torch.set_num_threads(1)
    try:
        steps = {name: _Step(recipe) for name, recipe in recipes.items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(rounds + 1):
            for name, step in steps.items():
                times[name].append(step(number))
            advance(1)
    finally:
        torch.set_num_threads(threads)
    first = next(iter(times.values()))[1:]
    table = {}
    for name, seconds in times.items():
        ratios = sorted(one / other for one, other in zip(first, seconds[1:], strict=True))
        low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
        table[name] = Speed(median(ratios), low, high, median(seconds[1:]))
    return table


class _Step:
    """An update of one method: mixing, targets, backward, optimiser."""

    def __init__(self, recipe: Recipe) -> None:
        # one size, with mixing: a run given in updates has fewer epochs here
        self.recipe = recipe.change(batch=recipe.training.micro_batch, workers=0, sizes=(), mix_off_epoch=0)
        self.task = Classification(self.recipe, tell=lambda text: None)
        self.mixers = [(weight, make_mixer(mixer)) for weight, mixer in mixture(recipe.mixer)]
        self.accelerator = make_accelerator(self.recipe.training)
        freezing = Freezing(self.task.student.model, recipe.training, self.task.samples // recipe.training.batch or 1)
        optimizer = make_optimizer(self.task.student, self.recipe.training, self.accelerator.device.type)
        self.student, self.optimizer = self.accelerator.prepare(self.task.student, optimizer)
        self.student.train()
        freezing.begin(0)
        self.batch: Batch = next(on_device(self.task.train_batches(1, 0, 0, 1), self.accelerator.device))

    def __call__(self, number: int) -> float:
        """Seconds."""
        expected = 0.0
        for weight, mixer in self.mixers:
            self.task.mixer = mixer
            begun = self._now()
            chance = generator(self.recipe.training.seed, Purpose.MIX, number, 0)
            self.accelerator.backward(total(self.task.terms(self.student, self.batch, chance)))
            self.optimizer.step()
            self.optimizer.zero_grad()
            expected += weight * (self._now() - begun)
        return expected

    def _now(self) -> float:
        if self.accelerator.device.type == "cpu":
            return time.process_time()
        torch.accelerator.synchronize()
        return time.perf_counter()
