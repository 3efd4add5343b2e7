"""Training and evaluation of any task: the loop, checkpoints, the run folder. No method's name, no task's name."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.engine.evaluation import evaluate
    from labelflow.engine.loop import Interrupted, train
    from labelflow.engine.run import Run
    from labelflow.engine.settings import Training
    from labelflow.engine.setup import make_accelerator
    from labelflow.engine.task import Details, Task
else:
    __getattr__, __dir__ = exports(__name__)

__all__ = ["Details", "Interrupted", "Run", "Task", "Training", "evaluate", "make_accelerator", "train"]
