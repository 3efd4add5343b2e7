"""Accuracies against counting one by one."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labelflow.data import Batch
from labelflow.tasks.accuracy import Accuracy

CLASSES = ["cat", "dog", "fox", "owl", "ant", "bee"]
Answers = list[tuple[int, int, bool]]  # the image's class, the model's answer, whether the image counts


def evaluated(accuracy: Accuracy, answers: Sequence[tuple[int, int, bool]], batch: int = 4) -> dict[str, float]:
    sums: dict[str, torch.Tensor] = {}
    for first in range(0, len(answers), batch):
        labels, found, counts = (torch.tensor(part) for part in zip(*answers[first : first + batch], strict=True))
        logits = torch.eye(len(CLASSES))[found]
        part = Batch(torch.zeros(len(labels), 3, 1, 1), labels, counts.float(), [])
        for name, value in accuracy.measure(logits, part).items():
            sums[name] = sums[name] + value if name in sums else value
    return accuracy.metrics(sums)


@given(
    answers=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans()), min_size=1, max_size=30).filter(
        lambda answers: any(counts for *_, counts in answers)
    )
)
def test_by_class_and_over_classes(answers: Answers) -> None:
    accuracy = Accuracy(CLASSES, headline="balanced")
    metrics, details = evaluated(accuracy, answers), accuracy.details()
    seen = [(label, found) for label, found, counts in answers if counts]
    assert metrics["top1"] == pytest.approx(100 * sum(label == found for label, found in seen) / len(seen))
    recalls = []
    for number, name in enumerate(CLASSES):
        own = [found for label, found in seen if label == number]
        taken = [label for label, found in seen if found == number]
        recall = 100 * own.count(number) / len(own) if own else None
        precision = 100 * taken.count(number) / len(taken) if taken else None
        assert details[name] == {"recall": recall, "precision": precision, "images": len(own)}
        recalls += [recall] if recall is not None else []
    assert metrics["balanced"] == pytest.approx(sum(recalls) / len(recalls))


def test_balanced_where_it_is_not_the_same_as_top_1() -> None:
    even = [(0, 0, True), (1, 0, True)]
    assert "balanced" not in evaluated(Accuracy(CLASSES), even)
    assert evaluated(Accuracy(CLASSES, "balanced"), even)["balanced"] == 50
    uneven = evaluated(Accuracy(CLASSES), [*even, (0, 0, True), (0, 0, True)])
    assert (uneven["top1"], uneven["balanced"]) == (75, 50)


def test_nothing_before_an_evaluation_and_no_samples() -> None:
    assert Accuracy(CLASSES).details() == {}
    with pytest.raises(ValueError, match="there are no samples to evaluate on"):
        evaluated(Accuracy(CLASSES), [(0, 0, False)])
