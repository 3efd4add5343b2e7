"""Training and evaluation of any task: the loop, checkpoints, the run folder. No method's name, no task's name."""

from labelflow.engine.evaluate import evaluate
from labelflow.engine.loop import Interrupted, train
from labelflow.engine.run import Run
from labelflow.engine.settings import Training
from labelflow.engine.setup import make_accelerator
from labelflow.engine.task import Details, Task

__all__ = ["Details", "Interrupted", "Run", "Task", "Training", "evaluate", "make_accelerator", "train"]
