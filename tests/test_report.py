"""The page of a run: one file, with the run's own numbers, whatever state the run is in."""

import json
import re
from html import unescape
from math import inf, nan
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

import labelflow as lf
from labelflow.analysis import mixed_samples
from labelflow.analysis.images import evaluation_data, images_of
from labelflow.analysis.rmse import fluctuation
from labelflow.classifier import load
from labelflow.cli import main
from labelflow.data import Data, World
from labelflow.engine import Run, Training
from labelflow.figures import FigureRequest, ratio
from labelflow.html import line_chart
from labelflow.report import write_report
from labelflow.report.classes import section, worst
from labelflow.report.classifier import classifier_page
from labelflow.tasks import Recipe, evaluate_run, train_run
from labelflow.tasks.recipe import read_recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run on a folder of images, with its page."""
    root, world = tmp_path_factory.mktemp("report"), World("train", 24, 32)
    for index in range(len(world)):
        path = root / "images" / ("<b>&one", "two")[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        world.load(index)[0].save(path)
    model = "vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)"
    data = Data(source=str(root / "images"), val_fraction=0.5, image_size=32, auto_augment="", workers=0)
    training = Training(epochs=2, batch=6, micro_batch=6, warmup_epochs=0, ema=0.5, lr=0.01, lr_batch=0)
    train_run(Recipe(model=model, data=data, training=training), root / "run", resume=False, name="<i>&name")
    return write_report(root / "run").parent


def test_one_page_says_it_all(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert not re.search(r"https?:|@import|<link|<script|url\(", page)
    assert set(re.findall(r'(?:src|href)="([^,]*)', page)) == {"data:image/png;base64"}
    assert "own: &lt;b&gt;&amp;one" in page
    assert "<h1>&lt;i&gt;&amp;name</h1>" in page
    assert not re.search("<b>&|<i>&", page)
    top1 = [line["ema_top1"] for line in Run(folder).metrics() if line["kind"] == "eval"]
    tiles = dict(re.findall(r"<dt>(.*?)</dt><dd><b>(.*?)</b>", page))
    assert (tiles["Best top-1"], tiles["Last top-1"]) == (f"{max(top1):.2f} %", f"{top1[-1]:.2f} %")
    assert page.count('class="sample"') == 4


def test_the_worst_classes_come_first(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    details = Run(folder).read("classes.json")
    order = sorted(details, key=lambda name: details[name]["recall"])
    rows = re.findall(
        r'<th scope="row">([^<]*)</th><td>([\d.]*)</td><td>([\d.–]*)</td><td>(\d+)</td>', section(Run(folder), True)
    )
    assert [(unescape(name), float(recall), int(images)) for name, recall, _, images in rows] == [
        (name, round(details[name]["recall"], 1), details[name]["images"]) for name in order
    ]
    assert "2 of 2 classes, the worst first" in (folder / "report.html").read_text()
    many = {f"class {number}": {"recall": float(100 - number), "images": 1} for number in range(30)}
    assert list(worst(many)) == [f"class {number}" for number in range(29, 9, -1)]
    assert main(["eval", str(folder), "--weights", "last"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["class", "recall", "precision", "images"]
    assert any("the worst 2 of 2" in line for line in lines)


def test_top5_needs_more_than_five_classes(folder: Path, tmp_path: Path) -> None:
    """Also for a run that was evaluated when it was still counted."""
    evaluations = [line for line in Run(folder).metrics() if line["kind"] == "eval"]
    assert {name for line in evaluations for name in line if "top" in name} == {"top1", "ema_top1"}  # of two classes
    assert evaluate_run(folder).keys() == {"top1", "loss"}
    assert re.findall("<figcaption>(Top.*?|Eval.*?)</figcaption>", (folder / "report.html").read_text()) == [
        "Top-1 accuracy, %",
        "Evaluation loss",
    ]
    old = Run(copytree(folder, tmp_path / "old", ignore=ignore_patterns("*.safetensors", "checksums.json")))
    lines = [line | {"top5": 100.0} if line["kind"] == "eval" else line for line in old.metrics()]
    (old / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    assert "Top-5" not in write_report(old.folder).read_text()


def test_the_page_says_when_little_has_moved(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classifier = load(folder)
    images = images_of(classifier, 32, (), evaluation_data(classifier))
    moved = fluctuation(classifier, images)
    assert moved < 0.01
    said = f"Over {len(images)} images mixed by CutMix, what arrives differs from the area λ by {moved:.3f}"
    assert f"<b>Little has moved yet.</b> {said}" in (folder / "report.html").read_text()
    monkeypatch.setattr("labelflow.report.classifier.fluctuation", lambda classifier, images: 0.07)
    page = classifier_page(Run(folder))
    assert "by 0.070 (root mean square)" in page
    assert "Little has moved yet" not in page


def test_figures_are_as_large_as_the_page_s_text(folder: Path) -> None:
    """92 pixels an inch, so that 11 points are 14 pixels; they scroll where there is less room."""
    page = (folder / "report.html").read_text()
    widths = [int(width) for width in re.findall(r'<div class="scroll"><img [^>]*width="(\d+)" class="figure">', page)]
    assert len(widths) == 3
    assert max(widths) == 92 * 8


def test_the_figures_that_fit_are_there(folder: Path) -> None:
    page = (folder / "report.html").read_text()
    assert re.findall(r"<h2>(Ratio|Presence|Relevance)</h2>", page) == ["Ratio", "Presence", "Relevance"]
    data = ratio.compute(FigureRequest((str(folder),), count=16))
    assert f"{data.distance['TL-Align']:.3f}" in page.split("<h2>Ratio")[1].split("</pre>")[0]


def test_samples_show_what_reached_the_classifier(folder: Path) -> None:
    page, loaded = (folder / "report.html").read_text(), load(folder)
    aligned = lf.Aligned(loaded.model)
    for sample in mixed_samples(loaded, read_recipe(Run(folder)).mixer):
        assert sample.names[0] != sample.names[1]
        share = sample.mix.share[0, 0]
        mixed = sample.images[0] * share + sample.images[1] * (1 - share)
        logits, arrived = aligned(mixed[None], share[None, None])
        assert_close(sample.mixed, mixed)
        assert_close(sample.before, share.reshape(4, 8, 4, 8).mean((1, 3)))
        assert_close(sample.after, aligned.trace(mixed[None], share[None, None])[-1].map[0])
        assert_close(torch.tensor([sample.area, sample.arrived]), torch.stack([share.mean(), arrived[0]]))
        assert re.search(rf"<td>{100 * share.mean():.2f} %.*<td>{100 * arrived.item():.2f} %", page)
        assert sample.answers[0][0] == loaded.classes[int(logits.argmax())]


def test_runs_without_weights_mixing_or_adapter_get_a_page(folder: Path, tmp_path: Path) -> None:
    run = Run(
        copytree(folder, tmp_path / "run", ignore=ignore_patterns("*.safetensors", "metrics.jsonl", "checksums.json"))
    )
    page = write_report(run.folder).read_text()
    assert "not evaluated yet" in page
    assert "no weights yet" in page
    (run / "last.safetensors").write_bytes(b"torn")
    with pytest.raises(ValueError, match=r"last\.safetensors"):
        write_report(run.folder)
    run.write("recipe.json", run.read("recipe.json") | {"mixer": "none"})
    (run / "last.safetensors").write_bytes((folder / "last.safetensors").read_bytes())
    assert "<code>cutmix</code> (the recipe itself mixes nothing)" in write_report(run.folder).read_text()
    arguments = {"num_classes": 2, "global_pool": "max"}
    config = run.config()
    cfg = {**config["pretrained_cfg"], "fixed_input_size": False}
    run.write("config.json", config | {"architecture": "test_resnet", "model_args": arguments, "pretrained_cfg": cfg})
    save_file(timm.create_model("test_resnet", **arguments).state_dict(), run / "model.safetensors")
    assert "follows labels to an average, not to global_pool=" in write_report(run.folder).read_text()


@pytest.mark.parametrize("values", [[], [3.0], [0.0], [5.0, 5.0], [nan, 1.0, inf, 7.5], [n / 3 for n in range(9999)]])
def test_a_chart_goes_right_and_up(values: list[float]) -> None:
    svg = line_chart("title", {"<name": list(enumerate(values))})
    points = [[float(x) for x in point.split(",")] for point in " ".join(re.findall('points="(.*?)"', svg)).split()]
    across, down = [x for x, _ in points], [y for _, y in points]
    assert across == sorted(across)
    assert down == sorted(down, reverse=True)
    assert all(0 <= x <= 360 and 0 <= y <= 210 for x, y in points)
    assert min(len(values), 1) <= len(points) <= 401
    assert (f"&lt;name {values[-1]:.4g}" if values else "nothing yet") in svg
    assert not re.search("nan|inf|<name", svg)
