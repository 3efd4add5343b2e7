"""Several labels an image: metrics against definitions, what is refused, a run from its table to its predictions."""

import csv
import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from PIL import Image

from labelflow import api
from labelflow.classifier import load
from labelflow.data import Batch, Data
from labelflow.data.table import Table
from labelflow.engine import Run, Training
from labelflow.formats import FORMATS
from labelflow.formats.card import model_card
from labelflow.formats.exported import export
from labelflow.formats.metadata import metadata
from labelflow.predictions import LabelPredictions
from labelflow.study.measures import occlusion
from labelflow.tasks import Recipe, train_run
from labelflow.tasks.multilabel import MultiLabel, average_precision
from labelflow.tasks.recipe import headline_of
from labelflow.tasks.runs import evaluate_in_detail

COLOURS = {"red": 0, "green": 1, "blue": 2}
RECIPE = Recipe(
    model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=1, num_heads=3)",
    loss="bce",
    smoothing=0.0,
    data=Data(image_size=16, test_crop=1.0, workers=0, scale=(0.9, 1.0), auto_augment="", color_jitter=0, erasing=0),
    training=Training(epochs=2, batch=8, micro_batch=8, warmup_epochs=0, lr=1e-3, lr_batch=0, log_updates=1),
)


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


def write_table(folder: Path) -> Path:
    """Each colour is in a picture or not, some are in none."""
    rows = [("image", "labels", "split")]
    for number in range(24):
        shown = [name for name, channel in COLOURS.items() if number >> channel & 1]
        colour = tuple(255 if name in shown else 0 for name in COLOURS)
        Image.new("RGB", (16, 16), colour).save(folder / f"{number}.png")
        rows.append((f"{number}.png", ";".join(shown), "train" if number < 16 else "val"))
    with open(folder / "labels.csv", "w", newline="") as file:
        csv.writer(file).writerows(rows)
    return folder / "labels.csv"


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> api.TrainedRun:
    AcceleratorState._reset_state(reset_partial_state=True)
    recipe = RECIPE.change(source=str(table), epochs=20, lr=3e-3, mixer="0.5*cutmix + 0.5*none", batch=16)
    return api.train(recipe, out=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def naive_average_precision(scores: list[float], positive: list[bool]) -> float:
    """The mean over positives of: of all images that score at least as high, how many are positive."""
    precisions = []
    for score, is_positive in zip(scores, positive, strict=True):
        if is_positive:
            above = [other for value, other in zip(scores, positive, strict=True) if value >= score]
            precisions.append(sum(above) / len(above))
    return sum(precisions) / len(precisions)


def naive_loss(run: Path, table: Path) -> float:
    """Of the last weights on the table's val images: binary cross-entropy, of all classes of all images alike."""
    numbers, classifier = range(16, 24), load(run, "last")
    probabilities = classifier.probabilities([str(table.parent / f"{number}.png") for number in numbers]).tolist()
    costs = [
        -math.log(probability if number >> COLOURS[name] & 1 else 1 - probability)
        for number, own in zip(numbers, probabilities, strict=True)
        for name, probability in zip(classifier.classes, own, strict=True)
    ]
    return sum(costs) / len(costs)


SCORES = arrays(np.float32, st.integers(1, 20), elements=st.sampled_from([-2.0, -0.5, 0.0, 0.25, 1.0, 3.0]))


class TestAveragePrecision:
    @given(SCORES, st.data())
    def test_it_is_its_definition_whatever_the_order(self, scores: np.ndarray, data: st.DataObject) -> None:
        positive = data.draw(arrays(bool, len(scores)))
        found = average_precision(scores, positive)
        if not positive.any():
            assert np.isnan(found)
            return
        assert found == pytest.approx(naive_average_precision(scores.tolist(), positive.tolist()))
        order = np.array(data.draw(st.permutations(range(len(scores)))))
        assert average_precision(scores[order], positive[order]) == found

    def test_by_hand(self) -> None:
        assert average_precision(np.array([3.0, 2.0, 1.0]), np.array([True, False, True])) == pytest.approx(
            (1 + 2 / 3) / 2
        )
        assert average_precision(np.array([1.0, 1.0]), np.array([True, False])) == 0.5


def measured(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None, batch: int = 7) -> Any:
    """A metric that has seen everything in batches, and its metrics."""
    metric = MultiLabel([f"class {number}" for number in range(logits.shape[1])])
    weights = torch.ones(len(logits)) if weights is None else weights
    sums = {"loss": torch.zeros(()), "samples": torch.zeros(())}
    for part in zip(logits.split(batch), labels.split(batch), weights.split(batch), strict=True):
        seen = Batch(torch.empty(len(part[0]), 3, 1, 1), part[1], part[2], [])
        sums = {name: sums[name] + value for name, value in metric.measure(part[0], seen).items()}
    return metric, metric.metrics(sums)


class TestMetrics:
    def test_they_are_torchmetrics_s(self) -> None:
        reference = pytest.importorskip("torchmetrics.functional.classification")
        logits, labels = torch.randn(200, 12), (torch.rand(200, 12) < 0.15).float()
        metric, found = measured(logits, labels)
        scores, truth = logits.sigmoid(), labels.long()
        ap = reference.multilabel_average_precision(scores, truth, 12, average="none")
        f1 = reference.multilabel_f1_score(scores, truth, 12, average="none")
        assert found["map"] == pytest.approx(100 * ap.mean().item(), abs=1e-3)
        assert found["macro_f1"] == pytest.approx(100 * f1.mean().item(), abs=1e-3)
        micro = reference.multilabel_f1_score(scores, truth, 12, average="micro")
        assert found["micro_f1"] == pytest.approx(100 * micro.item(), abs=1e-3)
        bce = torch.nn.functional.binary_cross_entropy_with_logits(logits, labels)
        assert found["loss"] == pytest.approx(bce.item(), rel=1e-5)
        details = metric.details()
        precision = reference.multilabel_precision(scores, truth, 12, average="none")
        recall = reference.multilabel_recall(scores, truth, 12, average="none")
        for number, own in enumerate(details.values()):
            assert own["ap"] == pytest.approx(100 * ap[number].item(), abs=1e-3)
            assert own["precision"] == pytest.approx(100 * precision[number].item(), abs=1e-3)
            assert own["recall"] == pytest.approx(100 * recall[number].item(), abs=1e-3)
            assert own["f1"] == pytest.approx(100 * f1[number].item(), abs=1e-3)
            assert own["images"] == labels[:, number].sum()

    def test_a_class_that_no_image_shows_is_left_out(self) -> None:
        logits = torch.tensor([[2.0, 1.0, -1.0], [-1.0, 1.0, -1.0]])
        metric, found = measured(logits, torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]))
        assert (found["map"], found["macro_f1"]) == (100, 100)
        assert found["micro_f1"] == pytest.approx(100 * 2 / (2 + 2))  # the two false ones count here
        assert metric.details()["class 1"] == {"ap": None, "precision": 0, "recall": None, "f1": 0, "images": 0}
        assert metric.details()["class 2"] == {"ap": None, "precision": None, "recall": None, "f1": None, "images": 0}

    def test_samples_of_weight_0_do_not_count(self) -> None:
        logits, labels = torch.randn(20, 3), (torch.rand(20, 3) < 0.4).float()
        padded = [torch.cat([one, one[:5]]) for one in (logits, labels)]
        weights = torch.cat([torch.ones(20), torch.zeros(5)])
        assert measured(*padded, weights)[1] == pytest.approx(measured(logits, labels)[1])

    def test_nothing_stays_for_the_next_evaluation(self) -> None:
        metric, first = measured(torch.randn(9, 3), (torch.rand(9, 3) < 0.5).float())
        logits, labels = torch.randn(6, 3), (torch.rand(6, 3) < 0.5).float()
        sums = metric.measure(logits, Batch(torch.empty(6, 3, 1, 1), labels, torch.ones(6), []))
        assert metric.metrics(sums) == measured(logits, labels)[1] != first

    def test_no_label_at_all(self) -> None:
        with pytest.raises(ValueError, match="no label to evaluate on"):
            measured(torch.randn(4, 2), torch.zeros(4, 2))


class TestRefusals:
    """In one line, before anything is written."""

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"loss": "ce"}, r"have several labels, but cross-entropy .*: --loss bce, or --loss asl"),
            ({"target": "sm_mix", "mixer": "smmix"}, r"the target sm_mix is defined for images of one class"),
            ({"labels_column": "tags"}, r"no column tags \(--labels-column\), but image, labels, split"),
            ({"label_column": "breed"}, r"no column breed \(--label-column\), but image, labels, split"),
            ({"split_column": "foldd"}, r"no column foldd \(--split-column\), but image, labels, split"),
        ],
    )
    def test_settings(self, table: Path, tmp_path: Path, settings: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train_run(RECIPE.change(source=str(table), **settings), tmp_path / "run", resume=False, quiet=True)
        assert not (tmp_path / "run").exists()

    def test_a_missing_image(self, table: Path, tmp_path: Path) -> None:
        (tmp_path / "labels.csv").write_text(table.read_text())
        with pytest.raises(ValueError, match=r"cannot read 24 images: .*0\.png.*; paths in .*\.csv are seen from"):
            train_run(RECIPE.change(source=str(tmp_path / "labels.csv")), tmp_path / "run", resume=False, quiet=True)
        assert not (tmp_path / "run").exists()


class TestRun:
    def test_it_learns_and_says_so(self, run: api.TrainedRun) -> None:
        assert run.metrics.keys() == {"map", "macro_f1", "micro_f1", "loss"}
        assert run.unit == "% mAP"
        assert headline_of(Run(run.folder)) == "map"
        assert run.reached(run.best) == max(line["map"] for line in run.records if line["kind"] == "eval") > 95

    def test_a_study_measures_its_map(self, run: api.TrainedRun, tmp_path: Path) -> None:
        shutil.copytree(run.folder, tmp_path / "run")
        measured = occlusion(tmp_path / "run")
        assert measured.keys() == {"occluded_map"}
        assert 0 < measured["occluded_map"] <= 100

    def test_predictions_are_labels_above_a_threshold(self, run: api.TrainedRun, table: Path, tmp_path: Path) -> None:
        classifier = load(run.folder)
        assert classifier.multi_label
        files = [str(table.parent / f"{number}.png") for number in (23, 16)]
        probabilities = classifier.probabilities(files)
        torch.testing.assert_close(probabilities, classifier.logits(files).sigmoid())
        found = classifier.predict(files, quiet=True)
        assert isinstance(found, LabelPredictions)
        for row, own in zip(found, probabilities, strict=True):
            above = {name: own[column].item() for column, name in enumerate(classifier.classes) if own[column] > 0.5}
            assert dict(row.top) == pytest.approx(above)
        assert (probabilities[0] > probabilities[1]).all()  # white has every colour, black none
        assert [row.top for row in classifier.predict(files, threshold=1, quiet=True)] == [[], []]
        found = classifier.predict(files, top=1, threshold=0, quiet=True)
        found.save(tmp_path / "found.csv")
        rows = list(csv.DictReader((tmp_path / "found.csv").read_text().splitlines()))
        assert rows[0].keys() == {"file", "labels", "probabilities"}
        assert set(rows[0]["labels"].split(";")) == {"red", "green", "blue"}
        again = Table(tmp_path / "found.csv", "val", val_fraction=1)  # absolute paths are seen from any folder
        assert (list(again.files()), again.labels.all()) == (files, True)
        line = json.loads(found.to_jsonl().splitlines()[0])
        assert {one["label"] for one in line["labels"]} == {"red", "green", "blue"}
        with pytest.raises(ValueError, match=r"threshold, a probability, must lie in \[0, 1\]"):
            classifier.predict(files, threshold=2)

    def test_exports_say_so(self, run: api.TrainedRun, tmp_path: Path) -> None:
        export(run.folder, "timm", tmp_path / "timm")
        card = (tmp_path / "timm" / "README.md").read_text()
        assert "any number of labels an image: the sigmoid of each logit" in card
        assert "softmax" not in card
        assert "argmax" not in card
        assert f"mAP: {run.reached(run.best):.2f} %" in card
        for way in FORMATS:
            usage = model_card(load(run.folder), FORMATS[way].USAGE, way)["usage"]
            assert "if logit > 0])  # a probability above 0.5" in usage
            assert "argmax" not in usage
        assert load(tmp_path / "timm").multi_label
        assert metadata(load(run.folder))["multi_label"] == "true"

    def test_other_tables_may_lack_classes(self, run: api.TrainedRun, table: Path) -> None:
        other = table.with_name("other.csv")
        other.write_text("file,labels\n1.png,red\n0.png,\n9.png,red\n")
        metrics, classes, images = evaluate_in_detail(run.folder, source=str(other))
        assert images == 3
        assert {name: own["images"] for name, own in classes.items()} == {"blue": 0, "green": 0, "red": 2}
        assert metrics["map"] == pytest.approx(classes["red"]["ap"])
        other.write_text("file,labels\n1.png,purple\n")
        with pytest.raises(ValueError, match="classes that are none of the class names: purple"):
            evaluate_in_detail(run.folder, source=str(other))

    @pytest.mark.parametrize(
        "settings",
        [
            {"loss": "asl", "target": "transmix"},
            {"target": "plain", "mixer": "mixup"},
            {"target": "tl_align", "mixer": "puzzlemix"},
            {"target": "plain", "mixer": "smmix"},
        ],
        ids=lambda settings: "-".join(map(str, settings.values())),
    )
    def test_methods(self, table: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
        recipe = RECIPE.change(source=str(table), epochs=1, **settings)
        found = train_run(recipe, tmp_path / "run", resume=False, quiet=True)["loss"]
        assert found == pytest.approx(naive_loss(tmp_path / "run", table), rel=1e-4)

    def test_one_label_with_binary_cross_entropy(self, tmp_path: Path) -> None:
        recipe = RECIPE.change(source="world(train=16, val=8)", image_size=32, epochs=1)
        assert "top1" in train_run(recipe, tmp_path / "run", resume=False, quiet=True)
        assert not load(tmp_path / "run").multi_label
