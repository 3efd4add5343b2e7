"""What becomes of runs on images with several labels: dense labels, teachers, comparisons, robustness, pages."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.state import AcceleratorState
from PIL import Image
from torch.testing import assert_close

from labelflow import api
from labelflow.classifier import load
from labelflow.cli import main
from labelflow.comparison import Compare, Comparison, make_cells, markdown, rows, run_comparison, write_page
from labelflow.comparison.cells import run_cell, told
from labelflow.data import open_source
from labelflow.data.geometry import Geometry
from labelflow.engine import Run
from labelflow.labels import Annotation, Store
from labelflow.labels.annotation import annotator_preprocessing, place_logits
from labelflow.labels.sampling import label_view
from labelflow.labels.settings import Annotate
from labelflow.recipes.methods import METHODS
from labelflow.report.classifier import classifier_page, seen
from labelflow.robustness.cache import Predictions, PredictionWriter, read_arrays, summarise
from labelflow.robustness.run import Robust, prepare
from labelflow.robustness.settings import CorruptionSettings, OcclusionSettings, Settings
from labelflow.tasks import Classification, train_run
from labelflow.tasks.annotation import annotate_data
from tasks.test_multilabel import RECIPE, naive_average_precision, naive_loss, write_table

GIVEN = "token_label(image_label='given')"
ALIGNED = "token_label_aligned(image_label='given')"


@pytest.fixture(autouse=True)
def _new_accelerator() -> None:
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_table(tmp_path_factory.mktemp("colours"))


@pytest.fixture(scope="module")
def run(table: Path, tmp_path_factory: pytest.TempPathFactory) -> api.TrainedRun:
    AcceleratorState._reset_state(reset_partial_state=True)
    recipe = RECIPE.change(source=str(table), epochs=10, lr=3e-3, mixer="none", target="plain", batch=16)
    return api.train(recipe, out=tmp_path_factory.mktemp("runs") / "run", quiet=True)


def annotated(data: object, model: object, out: Path, **how: Any) -> Store:
    return annotate_data(str(data), Annotate(str(model), out, workers=0, how=Annotation(**how)), quiet=True)


@pytest.fixture(scope="module")
def store(table: Path, run: api.TrainedRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run annotates its own training images, with two of the three classes at each place."""
    AcceleratorState._reset_state(reset_partial_state=True)
    return annotated(table, run.folder, tmp_path_factory.mktemp("stores") / "dense", top=2).folder


class TestDenseLabels:
    def test_they_are_the_annotator_s_probabilities(self, table: Path, run: api.TrainedRun, store: Path) -> None:
        found, classifier = Store(store), load(run.folder)
        assert (found.manifest.scores, found.manifest.several, found.manifest.k) == ("sigmoid", True, 2)
        source = open_source(RECIPE.change(source=str(table)).data, "train")
        transform = annotator_preprocessing(classifier.preprocessing, "whole").transform()
        for index in (1, 7):
            with torch.no_grad():
                logits, grid = place_logits(classifier.model, transform(source.load(index)[0])[None])
            expected = logits.sigmoid()[0]
            expected = expected.where(expected >= expected.topk(2).values[:, -1:], 0)  # of the other class, nothing
            labels = label_view(found[source.key(index)], Geometry((16, 16)), grid, 3, scores="sigmoid")
            assert_close(labels.tokens.dense(3)[0], expected, atol=1e-3, rtol=0)

    def test_they_are_looked_at_and_not_exported(
        self, table: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["labels", "inspect", str(store)]) == main(["labels", "verify", str(store)]) == 0
        assert re.search(r"scores +sigmoid", capsys.readouterr().out)
        assert main(["labels", "draw", str(store), str(table), "--out", str(tmp_path / "maps.png")]) == 0
        with Image.open(tmp_path / "maps.png") as picture:
            assert picture.width > 200
        assert main(["labels", "export", str(store), str(tmp_path / "tree")]) == 2
        assert "holds probabilities of several labels" in capsys.readouterr().err

    def test_scores_that_are_no_probabilities_are_damage(self, store: Path) -> None:
        from labelflow.labels.files import label_problem

        manifest, classes = Store(store).manifest, np.zeros((1, 2, 2, 2), np.uint8)
        assert not label_problem(np.full((1, 2, 2, 2), 0.5, np.float16), classes, manifest)
        assert "do not lie in [0, 1]" in label_problem(np.full((1, 2, 2, 2), 1.5, np.float16), classes, manifest)
        assert not label_problem(np.full((1, 2, 2, 2), 1.5), classes, replace(manifest, scores="rest"))

    @pytest.mark.parametrize("target", [GIVEN, ALIGNED, f"distill(target={GIVEN!r})"])
    @pytest.mark.parametrize("loss", ["bce", "asl"])
    def test_a_model_learns_from_them_and_online_from_their_annotator(
        self, table: Path, run: api.TrainedRun, store: Path, tmp_path: Path, target: str, loss: str
    ) -> None:
        recipe = RECIPE.change(source=str(table), target=target, loss=loss, epochs=1, mixer="mixtoken(patch=8)")
        teacher = str(run.folder)
        stored = recipe.change(labels=str(store), teacher=teacher if "distill" in target else "")
        loss_of_val = train_run(stored, tmp_path / "stored", resume=False, quiet=True)["loss"]
        assert loss_of_val == pytest.approx(naive_loss(tmp_path / "stored", table), rel=1e-4)
        online = Classification(recipe.change(teacher=teacher), tell=lambda line: None)
        batch = torch.rand(2, 3, 16, 16)
        labels = online.teacher.labels(batch, online.student)  # all three classes, as teacher_top has it
        logits, grid = place_logits(online.teacher.model, batch)
        assert grid == (2, 2)
        assert_close(labels.tokens.dense(3), logits.sigmoid(), atol=1e-3, rtol=0)  # in half precision


class TestRefusals:
    """In one line, before anything is written."""

    @pytest.mark.parametrize("target", ["token_label", "token_label_aligned", "relabel", "token_mix"])
    def test_targets_that_need_one_class(self, table: Path, store: Path, target: str) -> None:
        with pytest.raises(ValueError, match=r"defined for images of one class, .*token_label\(image_label='given'\)"):
            Classification(RECIPE.change(source=str(table), labels=str(store), target=target))

    def test_hard_distillation(self, table: Path, run: api.TrainedRun) -> None:
        with pytest.raises(ValueError, match=r"distill\(kind='hard'\) is defined for images of one class"):
            Classification(RECIPE.change(source=str(table), teacher=str(run.folder), target="distill(kind='hard')"))

    def test_annotators_and_teachers_of_the_other_kind(
        self, table: Path, run: api.TrainedRun, store: Path, tmp_path: Path
    ) -> None:
        for number in range(4):  # the same classes, one an image
            for name in ("blue", "green", "red"):
                path = tmp_path / "one" / name / f"{number}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                Image.new("RGB", (16, 16), name).save(path)
        one = RECIPE.change(source=str(tmp_path / "one"), val_fraction=0.5, batch=4, micro_batch=4, epochs=1)
        train_run(one, tmp_path / "single", resume=False, quiet=True)
        several = RECIPE.change(source=str(table))
        single, multi = (
            "images with one class, but those of .* have several",
            "several labels, but those of .* have one",
        )
        for data, model, message in ((table, tmp_path / "single", single), (one.data.source, run.folder, multi)):
            with pytest.raises(ValueError, match=message):
                annotated(data, model, tmp_path / "labels")
        assert not (tmp_path / "labels").exists()
        with pytest.raises(ValueError, match="--scores logits is for images of one class"):
            annotated(table, run.folder, tmp_path / "labels", scores="logits")
        for recipe, teacher, message in ((several, tmp_path / "single", single), (one, run.folder, multi)):
            with pytest.raises(ValueError, match=message):
                Classification(recipe.change(target="distill", teacher=str(teacher)))
            features = recipe.change(target="distill(kind='features')", teacher=str(teacher))
            assert Classification(features).teacher.columns is None  # which are of any classes
        with pytest.raises(ValueError, match="are of images with several labels, but these have one class each"):
            Classification(one.change(target=GIVEN, labels=str(store)))
        stored = annotated(one.data.source, tmp_path / "single", tmp_path / "labels").folder
        with pytest.raises(ValueError, match="say which one class is where, but the images have several"):
            Classification(several.change(target=GIVEN, labels=str(stored)))
        with pytest.raises(ValueError, match=single):
            prepare(Robust((str(tmp_path / "single"),), data=str(table), out=tmp_path / "robust"))


class TestComparison:
    def test_map_is_what_is_compared(self, table: Path, tmp_path: Path) -> None:
        recipe = RECIPE.change(source=str(table), epochs=1)
        cells = make_cells(recipe, [METHODS["cutmix"], METHODS["tl_align"]], (0,))
        results = [run_cell(cell, tmp_path, quiet=True) for cell in cells]
        assert told(results[0]) == f"{results[0]['metrics']['map']:.1f} % mAP"
        precisions = [own["ap"] for own in Run(cells[0].run(tmp_path)).read("classes.json").values()]
        assert results[0]["class_scores"] == precisions
        table_rows = rows(results, {}, ["cutmix", "tl_align"])
        assert Comparison(tmp_path, table_rows, results, 0).records[0]["map"] == results[0]["metrics"]["map"]
        assert table_rows[0].worst == min(precisions)  # a fifth of three classes
        write_page(tmp_path / "compare.html", "title", [], table_rows)
        page = (tmp_path / "compare.html").read_text()
        assert "Mean average precision after the last epoch" in page
        assert "mean average precision, %" in page  # of the plot
        assert "top-1" not in page.lower()
        assert markdown(table_rows).startswith("| method | mAP, % | worst fifth, % | difference")

    @pytest.mark.parametrize("method", ["smmix", "mixpro", "recursivemix", "tokenmix", "relabel", "token_label"])
    def test_methods_for_one_class_are_refused_first(
        self, table: Path, store: Path, tmp_path: Path, method: str
    ) -> None:
        recipe = RECIPE.change(source=str(table), labels=str(store))
        with pytest.raises(ValueError, match="is defined for images of one class"):
            run_comparison("several", Compare(("cutmix", method), recipe, tmp_path / "out", speed_rounds=0), quiet=True)
        assert not list(tmp_path.rglob("runs"))


def robust(*models: object, out: Path, suite: str = "", **options: Any) -> Any:
    settings = Settings(corruption=CorruptionSettings(("gaussian_noise",)), occlusion=OcclusionSettings(4))
    if suite and "corruptions" not in suite:
        settings = Settings(occlusion=OcclusionSettings(4))
    found = prepare(
        Robust(tuple(map(str, models)), suite, out=out, workers=0, settings=settings, **options), quiet=True
    )
    found.measure()
    return found.as_json()["suites"]


class TestRobustness:
    def test_how_right_logits_are(self) -> None:
        """mAP of all levels against its definition, whatever the order in which classes are kept."""
        random = np.random.default_rng(0)
        logits = torch.from_numpy(random.normal(size=(3, 30, 14))).float()
        labels = (random.random((30, 14)) < 0.2).astype(np.int32)
        labels[:, 4] = 0  # a class that no image shows does not count
        readable = random.random(30) < 0.8
        kept = [np.stack(part) for part in zip(*(summarise(level, several=True) for level in logits), strict=True)]
        found = Predictions(*kept, labels, readable).score
        for own, level in zip(found, logits.tolist(), strict=True):
            rows = [(row, label) for row, label, read in zip(level, labels.tolist(), readable, strict=True) if read]
            columns = [[(row[column], bool(label[column])) for row, label in rows] for column in range(14)]
            shown = [list(zip(*column, strict=True)) for column in columns if any(there for _, there in column)]
            expected = [naive_average_precision(*map(list, pair)) for pair in shown]
            assert own == pytest.approx(100 * sum(expected) / len(expected))

    def test_all_classes_are_kept(self, tmp_path: Path) -> None:
        """Of one class, the ten best."""
        logits = torch.randn(4, 14)
        for labels, kept in ((torch.zeros(4, 14), 14), (torch.zeros(4, dtype=torch.long), 10)):
            path = tmp_path / f"{kept}.safetensors"
            with PredictionWriter({"model": path}, levels=1) as writer:
                writer.add({"model": logits}, labels, torch.ones(4, dtype=torch.bool))
                writer.finish()
            assert read_arrays(path)["classes"].shape == (1, 4, kept)

    def test_suites_measure_map(self, run: api.TrainedRun, tmp_path: Path) -> None:
        found = robust(run.folder, out=tmp_path, image_size=32)
        assert list(found) == ["clean", "corruptions", "occlusion", "shuffle"]  # those for one class are left out
        named = {name: list(suite["metrics"]) for name, suite in found.items()}
        assert named == {
            "clean": ["mAP"],
            "corruptions": ["mean mAP over 1 corruption", "mean relative to clean mAP"],
            "occlusion": ["mAP, 50 % occluded", "mean mAP, 10 to 90 % occluded"],
            "shuffle": ["mean mAP over grids"],
        }
        assert "top-1" not in json.dumps(found).lower()
        again = robust(run.folder, out=tmp_path, image_size=32)
        assert again == found  # from the cache

    def test_clean_is_what_the_run_says(self, run: api.TrainedRun, table: Path, tmp_path: Path) -> None:
        (line,) = robust(run.folder, out=tmp_path, suite="clean")["clean"]["metrics"].values()
        assert list(line.values()) == pytest.approx([run.best["map"]])
        other = table.with_name("some.csv")
        other.write_text("file,labels\n1.png,red\n0.png,\n9.png,red\n2.png,green\nlost.png,green\n")
        found = robust(run.folder, out=tmp_path, suite="clean", data=str(other), skip_unreadable=1)["clean"]
        assert found["notes"] == [f"4 images of 2 classes: {other}.", *found["notes"][1:]]
        probabilities = run.classifier.probabilities([str(table.parent / f"{name}.png") for name in (1, 0, 9, 2)])
        truth = {"red": [True, False, True, False], "green": [False, False, False, True]}
        columns = {name: probabilities[:, run.classifier.classes.index(name)].tolist() for name in truth}
        precisions = [naive_average_precision(columns[name], truth[name]) for name in truth]
        assert list(found["metrics"]["mAP"].values()) == pytest.approx([100 * sum(precisions) / 2])

    @pytest.mark.parametrize("suite", ["calibration", "clean,attack"])
    def test_suites_for_one_class_are_refused(self, run: api.TrainedRun, tmp_path: Path, suite: str) -> None:
        with pytest.raises(ValueError, match=r"suite is defined for images of one class, .*--suite clean,corruptions"):
            robust(run.folder, out=tmp_path / "out", suite=suite)
        assert not (tmp_path / "out").exists()


class TestReport:
    def test_the_page(self, run: api.TrainedRun) -> None:
        page = classifier_page(Run(run.folder))
        tiles = dict(re.findall(r"<dt>(.*?)</dt><dd><b>(.*?)</b>", page))
        assert tiles["Best mAP"] == f"{run.best['map']:.2f} %"
        for title in ("Mean average precision, %", "F1, mean over classes, %", "F1 of all labels, %"):
            assert f"<figcaption>{title}</figcaption>" in page
        heads = ["class", "AP, %", "precision, %", "recall, %", "F1, %", "images"]
        assert re.search(".*".join(map(re.escape, heads)), page, re.DOTALL)
        assert page.count("the model sees") == 4
        assert "Not available" not in page

    def test_what_the_model_sees_in_words(self) -> None:
        answers = [("cat", 0.9), ("dog", 0.6), ("<fox>", 0.2)]
        assert seen(answers, several=True) == "cat (90.00 %) and dog (60.00 %)"
        unsure = "none of its classes; the likeliest are &lt;fox&gt; (20.00 %) and owl (10.00 %)"
        assert seen([("<fox>", 0.2), ("owl", 0.1), ("elk", 0.0)], several=True) == unsure
        assert seen([("<fox>", 0.2), ("owl", 0.1)], several=False) == "&lt;fox&gt; (20.00 %) and owl (10.00 %)"
