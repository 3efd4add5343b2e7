"""Accuracy on clean images; where they have several labels, mean average precision."""

from labelflow.robustness.datasets import ImageSet
from labelflow.robustness.evaluator import Evaluator
from labelflow.robustness.results import Metric, Section, uncertainty


class CleanSuite:
    """Top-1 and top-5."""

    def __init__(self, evaluator: Evaluator, dataset: ImageSet) -> None:
        self.evaluator, self.dataset = evaluator, dataset
        self.passes = evaluator.passes(dataset)

    def measure(self) -> Section:
        (predictions,) = self.evaluator.predict(self.dataset, title="clean images")
        metrics = [Metric(self.dataset.metric, [own.score[0] for own in predictions])]
        if len(self.dataset.classes) > 5 and not self.dataset.several:
            metrics.append(Metric("top-5", [own.top5[0] for own in predictions]))
        readable, unreadable = int(predictions[0].readable.sum()), int((~predictions[0].readable).sum())
        classes = len(self.dataset.classes)
        sure = "" if self.dataset.several else f"; {uncertainty(readable)}"
        notes = [f"{readable} images of {classes} classes: {self.dataset.name}{sure}."]
        if unreadable:
            notes.append(f"{unreadable} unreadable images are left out of every suite.")
        notes += [
            f"The predictions of {model.name} are restricted to the classes of the data."
            for model in self.evaluator.models
            if model.columns(self.dataset.classes) is not None
        ]
        return Section("clean", "Clean images", metrics, notes=notes)
