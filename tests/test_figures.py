"""The papers' figures: their numbers against direct computing, and what a user of the command sees."""

import json
import re
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from shutil import copytree
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

import labelflow as lf
from labelflow.analysis.images import evaluation_data, images_of, pairs_of
from labelflow.analysis.presence import presence
from labelflow.analysis.ratio import layer_ratios
from labelflow.analysis.rmse import alignment_rmse, fluctuation
from labelflow.chance import generator
from labelflow.classifier import load
from labelflow.cli import main
from labelflow.commands.figure import split
from labelflow.data import open_source
from labelflow.engine.run import Run
from labelflow.figures import (
    FIGURES,
    FigureRequest,
    accuracy,
    aligned,
    annotators,
    dense,
    flow,
    mixing,
    mixtoken,
    ratio,
    relevance,
    rmse,
)
from labelflow.figures.base import as_json, look, styled
from labelflow.figures.results import Result
from labelflow.labels import Store
from labelflow.recipes import find
from labelflow.tasks import Annotate, Recipe, annotate_data, train_run
from labelflow.tasks.recipe import read_recipe

MODEL = "vit_tiny_patch16_224(img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3, num_classes=10)=random"
WORLD = "world(train=16, val=24)"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of a tiny ViT, and of a tiny LV-ViT with the first one's labels."""
    folder = tmp_path_factory.mktemp("runs")
    tiny = find("quickstart").recipe.change(
        model="vit_tiny_patch16_224(patch_size=8, embed_dim=24, depth=2, num_heads=3)",
        image_size=32,
        source=WORLD,
        batch=8,
        micro_batch=8,
        epochs=2,
        warmup_epochs=0,
        workers=0,
        keep=9,
    )
    train_run(tiny, folder / "vit", resume=False)
    annotate_data(WORLD, Annotate(str(folder / "vit"), folder / "labels", workers=0))
    lvvit = tiny.change(
        model="lvvit_t(embed_dim=24, depth=2, num_heads=3, stem=((7, 3, 3, 4), (2, 1, 1, 4)), stem_width=8)",
        mixer="mixtoken(alpha=1.0, patch=8)",
        target="token_label(beta=0.5, participation=0.5)",
        labels=str(folder / "labels"),
    )
    train_run(lvvit, folder / "lvvit", resume=False)
    return folder


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("photos")
    for number, size in enumerate([(60, 40), (40, 60)]):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"photo{number}.png")
    return sorted(folder.iterdir())


ON_MODELS = ["rmse", "ratio", "presence", "aligned", "flow", "mixing", "dense", "mixtoken", "relevance"]


@pytest.mark.parametrize("name", ON_MODELS)
def test_each_figure_from_the_command(
    name: str,
    runs: Path,
    photos: list[Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a run, and of a model with one's own images: what was asked for is computed, drawn, saved and summed up. A
    figure is at most as wide as a page's text, 8 inches, and its letters have 10 points or more."""
    requests, results, figures = [], [], []
    compute, draw = FIGURES[name].compute, FIGURES[name].draw

    def recorded(request: FigureRequest) -> object:
        requests.append(request)
        results.append(compute(request))
        return results[-1]

    def kept(result: object) -> Figure:
        figures.append(draw(result))
        return figures[-1]

    monkeypatch.setattr(FIGURES[name], "compute", recorded)
    monkeypatch.setattr(FIGURES[name], "draw", kept)
    cases = {"model": [MODEL, *map(str, photos)], "run": [str(runs / "vit"), "--count", "2"]}
    if name == "mixing":  # which takes a while: once
        cases.pop("run")
    for stem, arguments in cases.items():
        assert main(["figure", name, *arguments, "--out", str(tmp_path / stem)]) == 0
        printed = capsys.readouterr().out
        assert printed.startswith(FIGURES[name].summary(results[-1]))
        assert f"look at it     {tmp_path / stem}.png" in printed
        with Image.open(tmp_path / f"{stem}.png") as picture:
            assert min(picture.size) > 200
            assert len(picture.convert("RGB").getcolors(2**24)) > 50  # not blank
        assert "<svg" in (tmp_path / f"{stem}.svg").read_text()
        assert json.loads((tmp_path / f"{stem}.json").read_text()) == as_json(results[-1])
        assert figures[-1].get_size_inches()[0] <= 8
        assert min(text.get_fontsize() for text in figures[-1].findobj(Text) if text.get_text()) >= 10
    shown = [(request.models, request.files, request.count) for request in requests]
    assert shown == [((MODEL,), tuple(photos), 0), ((str(runs / "vit"),), (), 2)][: len(cases)]


@pytest.mark.parametrize("name", ["accuracy", "participation", "annotators"])
def test_figures_of_several_runs(name: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What each run reached, over what the figure says."""
    chosen = ["lvvit"] if name != "accuracy" else ["vit", "lvvit"]
    assert main(["figure", name, *(str(runs / run) for run in chosen), "--out", str(tmp_path / name)]) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / f"{name}.json").read_text())["runs"]
    assert [row["run"] for row in rows] == chosen
    for row in rows:
        assert row["run"] in printed
        assert row["top1"] == pytest.approx(Run(runs / row["run"]).metrics()[-1]["top1"])
    recipe = read_recipe(Run(runs / "lvvit"))
    expected = {
        "accuracy": sum(weight.numel() for weight in load(runs / "lvvit").model.parameters()) / 1e6,
        "participation": 50.0,  # of the fixture's recipe
        "annotators": 100 * annotators.annotator_accuracy(Store(recipe.data.labels), recipe.data),
    }
    assert rows[-1]["value"] == pytest.approx(expected[name], abs=1e-4)


def write_run(folder: Path, recipe: Recipe, top1: float, parameters: int) -> str:
    folder.mkdir()
    run = Run(folder)
    run.write("recipe.json", {"task": "classify", **asdict(recipe)})
    run.write("config.json", {"parameters": parameters})
    (folder / "metrics.jsonl").write_text(json.dumps({"kind": "eval", "update": 1, "top1": top1}) + "\n")
    return str(folder)


def test_with_and_without_token_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figure 5: runs of one model are a pair, whatever their order, and the mean over seeds counts."""
    tops = {"lvvit_t": 71.0, "lvvit_t_standard": 70.0, "deit_tiny": 60.0, "deit_tiny_token_label": 64.0}
    folders = [
        write_run(tmp_path / name, find(name).recipe, top1, 8_000_000 if "lvvit" in name else 5_000_000)
        for name, top1 in tops.items()
    ]
    folders.append(write_run(tmp_path / "seed_1", find("lvvit_t").recipe.change(seed=1), 73.0, 8_000_000))
    assert main(["figure", "token_labels", *folders, "--out", str(tmp_path / "figure")]) == 0
    rows = json.loads((tmp_path / "figure.json").read_text())["pairs"]
    expected = [("lvvit_t", "lvvit", 8.0, [70.0], [71.0, 73.0]), ("deit_tiny_patch16_224", "deit", 5.0, [60.0], [64.0])]
    assert [tuple(row.values()) for row in rows] == expected
    printed = capsys.readouterr().out.splitlines()
    assert printed[1].split() == ["lvvit_t", "8", "70.0", "72.0", "+2.0", "1,", "2"]
    assert printed[2].split() == ["deit_tiny_patch16_224", "5", "60.0", "64.0", "+4.0", "1,", "1"]
    figure = drawn("token_labels", *folders)
    assert [panel.get_title() for panel in figure.axes] == ["lvvit", "deit"]
    points = [tuple(line.get_ydata()) for line in figure.axes[0].lines]
    assert {(70.0, 72.0), (70.0,), (72.0,), (71.0, 73.0)} <= set(points)  # the pair, its means, the seeds
    other = write_run(tmp_path / "relabel", find("lvvit_s_relabel").recipe, 1.0, 1)
    mixed = write_run(tmp_path / "mixed", find("lvvit_t").recipe.change(mixer="none"), 1.0, 1)
    for runs, message in (
        (folders[:1], "there is no run of lvvit_t with --target plain among these"),
        ([*folders, other], "relabel trains on relabel; this figure wants runs of --target plain and token_label"),
        ([*folders, mixed], "lvvit_t, seed_1, mixed are mixed differently"),
    ):
        assert main(["figure", "token_labels", *runs]) == 2
        assert message in capsys.readouterr().err


def test_equal_points_are_all_seen() -> None:
    runs = [Result(f"run {place}", "model", 50.0, 1.0) for place in range(4)] + [Result("other", "model", 60.0, 2.0)]
    with styled():
        figure = FIGURES["accuracy"].draw(accuracy.Data(runs))
    (panel,) = figure.axes
    sizes = [line.get_markersize() for line in panel.lines]
    assert len(set(sizes[:4])) == 4  # rings around one another
    assert [line.get_markerfacecolor() == "none" for line in panel.lines] == [False, True, True, True, False]
    places = {(text.get_position(), text.get_va()) for text in panel.texts[:4]}
    assert len(places) == 4  # of their names


def test_a_mixer_that_cannot_be_shown_is_named(monkeypatch: pytest.MonkeyPatch, photos: list[Path]) -> None:
    mixers = {"CutMix": "cutmix(alpha=1.0)", "Attentive-CutMix": "attentive_cutmix(model='none_such')"}
    monkeypatch.setattr(mixing, "strategies", lambda patch: mixers)
    data = mixing.compute(FigureRequest((MODEL,), tuple(photos)))
    assert list(data.area) == ["CutMix"]
    assert len(data.pictures) == 3
    assert "none_such" in data.skipped["Attentive-CutMix"]
    assert mixing.summary(data).splitlines()[-1] == f"skipped Attentive-CutMix: {data.skipped['Attentive-CutMix']}"


def drawn(name: str, *classifiers: str, **options: object) -> Figure:
    return FIGURES[name].draw(FIGURES[name].compute(FigureRequest(classifiers, **options)))


def test_everything_is_drawn(runs: Path) -> None:
    run = str(runs / "vit")
    maps = [1] * 4 + [1, 1, 0, 0]  # two pictures, mixed, before; two layers
    assert [len(panel.images) for panel in drawn("aligned", run, count=2).axes] == maps * 2
    assert sum(len(panel.images) for panel in drawn("mixing", run).axes) == 2 + 14
    assert [len(panel.images) for panel in drawn("dense", run, count=2).axes] == [1, 1, 2, 2]
    cut, mixed = drawn("mixtoken", run).axes[2:]
    assert len(cut.patches) == len(mixed.patches) == 16
    many = drawn("rmse", *[MODEL] * 10, count=2).axes
    assert len(many[0].patches) == 10  # more than there are colours
    curve, *bars = drawn("ratio", run, count=8).axes
    assert [len(line.get_xdata()) for line in curve.lines[:2]] == [2, 2]
    assert [len(panel.patches) for panel in bars] == [5, 4, 6, 5]
    maps = drawn("relevance", run, str(runs / "lvvit"), count=2, top=2).axes
    assert [len(panel.images) for panel in maps] == [1] * 2 * (1 + 2 * 2)


@pytest.mark.parametrize("model", ["vit", "mean"])
def test_places_flow_as_labels_do(model: str, runs: Path, photos: list[Path]) -> None:
    """What comes from each place, weighted by its own share, is the own share that is read; the last one arrives."""
    mean = MODEL.replace("=random", "").replace(")", ", class_token=False, global_pool='avg')=random")
    named = str(runs / "vit") if model == "vit" else mean
    data = FIGURES["flow"].compute(FigureRequest((named,), tuple(photos)))
    assert [step.number for step in data.steps] == list(range(1, data.layers + 1))
    assert data.start.shape == data.before.shape  # each token is a place of its own
    for step in data.steps:
        assert step.places.shape == data.start.shape
        assert float(step.places.sum()) == pytest.approx(1, abs=1e-5)
        assert float((step.places * data.start).sum()) == pytest.approx(step.read, abs=1e-5)
    assert data.steps[-1].read == pytest.approx(data.arrived, abs=1e-5)
    assert [picture.size for picture in data.pictures] == [(224, 224)] * 3


def test_places_of_several_tokens(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """8×8 places in a grid of 10×10 have one, two or four tokens each. Dots tell how much a token of theirs is read."""
    request = FigureRequest((MODEL.replace("img_size=32", "img_size=80"),), tuple(photos))
    coarse = FIGURES["flow"].compute(request)
    monkeypatch.setattr(flow, "CELLS", 10)
    fine = FIGURES["flow"].compute(request)
    lines = [[0], [1], [2, 3], [4], [5], [6], [7, 8], [9]]
    counts = torch.tensor([[float(len(rows) * len(columns)) for columns in lines] for rows in lines])
    for row, column in product(range(8), range(8)):
        tokens = torch.tensor(lines[row])[:, None], torch.tensor(lines[column])
        assert float(coarse.start[row, column]) == pytest.approx(float(fine.before[tokens].mean()), abs=1e-6)
        for one, other in zip(coarse.steps, fine.steps, strict=True):
            assert float(one.places[row, column]) == pytest.approx(float(other.places[tokens].sum()), abs=1e-6)
    alike = [replace(step, places=counts / 100) for step in coarse.steps]
    sizes = re.findall(r"--s\d+:([\d.]+)", FIGURES["flow"].animate(replace(coarse, steps=alike)))
    assert sizes == ["1.00"] * 64 * len(alike)


def test_a_film_is_one_file_that_stops_where_motion_is_not_wanted(runs: Path) -> None:
    data = FIGURES["flow"].compute(FigureRequest((str(runs / "vit"),)))
    film = FIGURES["flow"].animate(replace(data, names=("<own>", "abcdef & <ghi> jkl")))
    assert {element.tag.split("}")[1] for element in ElementTree.fromstring(film).iter()} == {
        *("svg", "title", "style", "rect", "g", "text", "image", "path", "circle")
    }
    assert all(link.startswith("data:image/webp;base64,") for link in re.findall(r'href="([^"]*)', film))
    still, moving = film.split("@media (prefers-reduced-motion: no-preference) {")
    assert "animation" not in still
    names = re.findall(r"@keyframes (\w+)", moving)
    assert len(names) == len(set(names)) == moving.count("animation-name: ")
    for name in [name for name in names if name not in ("share", "fly")]:
        assert re.search(rf'class="[^"]*\b{name}\b', film)
    assert ">abcdef &amp; &lt;…<" in film
    names = "&lt;own&gt; and abcdef &amp; &lt;ghi&gt; jkl"
    assert f"<title>{names}, mixed: λ says {data.area:.0%}, {data.arrived:.0%} of" in film
    assert len(film) < 150_000


def test_a_class_has_one_colour_in_a_figure_of_dense_labels(runs: Path) -> None:
    data = FIGURES["dense"].compute(FigureRequest((str(runs / "vit"),), count=4))
    panels = FIGURES["dense"].draw(data).axes[4:8]
    colours: dict[str, set[tuple[float, ...]]] = {}
    for row, panel in zip(data.rows, panels, strict=True):
        painted = panel.images[1].get_array()[..., :3].round(3)
        for line, cells in zip(row.classes, painted.tolist(), strict=True):
            for name, cell in zip(line, cells, strict=True):
                colours.setdefault(name, set()).add(tuple(cell))
    assert [len(own) for own in colours.values()] == [1] * len(colours)
    assert len(set.union(*colours.values())) == len(colours)


def test_models_look_different() -> None:
    assert len({tuple(look(place).values()) for place in range(12)}) == 12


def test_presence_quantiles(runs: Path) -> None:
    row = FIGURES["presence"].compute(FigureRequest((str(runs / "vit"),), count=2)).rows[0]
    classifier = load(runs / "vit")
    found = presence(classifier.model, torch.stack([seen.image for seen in images_of(classifier, 2)]))
    for layer, direct in zip(row.layers, found, strict=True):
        ordered = sorted(direct.values.flatten().tolist())
        assert ordered[1] <= layer.low <= ordered[2]  # of 34 tokens, a twentieth
        assert (ordered[16] + ordered[17]) / 2 == pytest.approx(layer.median)
        assert layer.deviation == pytest.approx(float(np.std(direct.map.numpy())), rel=1e-4)
        assert layer.inner is None


def test_an_annotator_is_right_as_often_as_it_says_the_class(runs: Path) -> None:
    recipe = read_recipe(Run(runs / "lvvit"))
    store, source = Store(recipe.data.labels), open_source(recipe.data, "train")
    right = 0
    for index in range(len(source)):
        label_map = store[source.key(index)]
        scores = np.zeros(10)  # the mean over cells, those that are not kept being 0
        for place in np.ndindex(label_map.classes.shape):
            scores[label_map.classes[place]] += label_map.scores[place]
        right += int(scores.argmax() == source.load(index)[1])
    assert annotators.annotator_accuracy(store, recipe.data) == right / len(source)


def test_the_average_is_followed_over_training(runs: Path, tmp_path: Path) -> None:
    recipe = read_recipe(Run(runs / "vit"))
    train_run(recipe.change(ema=0.5), tmp_path / "ema", resume=False)
    row = rmse.compute(FigureRequest((str(tmp_path / "ema"),), count=12, weights="last")).rows[0]
    assert row.training[-1][1] == pytest.approx(row.now.tl_align, abs=1e-6)


def test_several_models_see_the_same_images(runs: Path, tmp_path: Path) -> None:
    """Whatever their own evaluation data are."""
    own = read_recipe(Run(runs / "lvvit")).change(source="world(val=7, seed=3)")
    run = Run(copytree(runs / "lvvit", tmp_path / "lvvit"))
    run.write("recipe.json", run.read("recipe.json") | {"data": asdict(own.data)})
    data = relevance.compute(FigureRequest((str(runs / "vit"), str(run.folder)), count=3))
    alone = relevance.compute(FigureRequest((str(runs / "lvvit"),), count=3))
    for row, same in zip(data.rows, alone.rows, strict=True):
        torch.testing.assert_close(row.maps["lvvit"][0].values, same.maps["lvvit"][0].values)


def test_random_weights_are_said(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["figure", "rmse", MODEL, "--count", "4", "--out", str(tmp_path / "x")]) == 0
    assert f"{MODEL.removesuffix('=random')} (random weights)" in capsys.readouterr().out
    assert "random weights" in (tmp_path / "x.json").read_text()


def test_an_ending_is_not_written_twice(tmp_path: Path) -> None:
    assert main(["figure", "mixtoken", MODEL, "--out", str(tmp_path / "it.png")]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["it.json", "it.png", "it.svg"]
    assert main(["figure", "mixtoken", MODEL, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "mixtoken.png").exists()
    assert main(["figure", "mixtoken", MODEL, "--out", str(tmp_path / "light.webp")]) == 0
    with Image.open(tmp_path / "light.webp") as picture:
        assert picture.format == "WEBP"
    assert not (tmp_path / "light.png").exists()


def test_a_folder_of_images_is_cut_short(photos: list[Path]) -> None:
    request = FigureRequest((MODEL,), tuple(photos * 4), count=3)
    assert request.images(4) == (3, tuple(photos * 4)[:3])
    assert request.images(4, of_each=2) == (3, tuple(photos * 4)[:6])
    assert FigureRequest((MODEL,), tuple(photos)).images(4) == (2, tuple(photos))
    with pytest.raises(ValueError, match="600 images are too many"):
        FigureRequest((MODEL,), tuple(photos * 300)).images(4)


def test_every_figure_has_its_place_in_the_documentation() -> None:
    docs = Path(__file__).parents[1] / "docs"
    page = (docs / "figures.md").read_text()
    for name in FIGURES:
        assert f"labelflow figure {name} " in page
        assert re.search(rf"\]\(figures/{name}\.(png|webp)\)", page)
        assert (docs / "figures" / f"{name}.json").exists()


def test_rmse_is_that_of_the_targets(runs: Path) -> None:
    data = rmse.compute(FigureRequest((str(runs / "vit"),), count=12))
    classifier = load(runs / "vit")
    images = torch.stack([seen.image for seen in images_of(classifier, 12)])
    mix = lf.CutMix(alpha=1.0, per="sample")(images, generator=generator(0, 0))
    share = lf.Aligned(classifier.model)(mix.apply(images), mix.share)[1]
    assert data.rows[0].now.tl_align == pytest.approx(float((share - mix.lam).square().mean().sqrt()), rel=1e-4)
    assert fluctuation(classifier, images_of(classifier, 12)) == pytest.approx(data.rows[0].now.tl_align, rel=1e-4)
    assert alignment_rmse(classifier.model, [(images, lf.MixUp()(images))]).tl_align < 1e-6  # a fixed point
    epochs = [epoch for epoch, _ in data.rows[0].training]
    assert epochs == [0.0, 1.0, 2.0]
    assert data.rows[0].training[0][1] == pytest.approx(data.rows[0].random.tl_align)
    best = min(abs(value - data.rows[0].now.tl_align) for _, value in data.rows[0].training[1:])
    assert best < 1e-6  # the best weights are those of a checkpoint


def test_ratio_distances_by_hand(runs: Path) -> None:
    data = ratio.compute(FigureRequest((str(runs / "vit"),), count=3))
    classifier = load(runs / "vit")
    gaps: dict[str, list[float]] = {"CutMix": [], "TL-Align": [], "always 0.5": []}
    truths: list[float] = []
    for number, pair in enumerate(pairs_of(classifier, 3)):
        mixer = ratio.make_mixer("cutmix(alpha=1.0, per='sample')")
        mix = ratio.draw_mix(classifier, pair, mixer, number, draws=1)
        for layer in layer_ratios(classifier.model, torch.stack([seen.image for seen in pair]), mix):
            similarity = float(layer.similarity[0])
            gaps["CutMix"].append(float(mix.lam[0]) - similarity)
            gaps["TL-Align"].append(float(layer.aligned[0]) - similarity)
            gaps["always 0.5"].append(0.5 - similarity)
        share = mix.share[0, 0]
        own, partner = (seen.masks[seen.name].float() for seen in pair)
        seen_own, seen_partner = float((share * own).sum()), float(((1 - share) * partner).sum())
        assert seen_own + seen_partner > 0
        truths.append(float(mix.lam[0]) - seen_own / (seen_own + seen_partner))
    for name, values in gaps.items():
        assert data.distance[name] == pytest.approx(np.sqrt(np.mean(np.square(values))), rel=1e-4)
    assert data.truth_distance["CutMix"] == pytest.approx(np.sqrt(np.mean(np.square(truths))), rel=1e-4)


def test_photographs_have_no_truth(photos: list[Path]) -> None:
    assert ratio.compute(FigureRequest((MODEL,), tuple(photos))).truth_distance == {}


def test_the_world_knows_where_objects_are() -> None:
    classifier = load(MODEL)
    for seen in images_of(classifier, 6, data=evaluation_data(classifier, "world(val=6, objects=2)")):
        assert seen.image.shape[1:] == seen.masks[seen.name].shape
        assert 0 < seen.masks[seen.name].float().mean() < 0.6


def test_aligned_shows_every_layer(runs: Path) -> None:
    data = aligned.compute(FigureRequest((str(runs / "vit"),), count=2))
    for row in data.rows:
        assert list(row.layers) == ["blocks.0", "blocks.1"]
        assert row.before.mean() == pytest.approx(row.area, abs=1e-5)
        assert row.names[0] != row.names[1]


def test_dense_labels_are_the_likeliest_classes(runs: Path) -> None:
    row = dense.compute(FigureRequest((str(runs / "lvvit"),), count=1)).rows[0]
    classifier = load(runs / "lvvit")
    _, logits = classifier.model.dense_logits(images_of(classifier, 1)[0].image[None])
    assert row.classes[1][2] == classifier.classes[int(logits[0, 6].argmax())]
    assert sum(row.parts.values()) == pytest.approx(1)


def test_torn_patches() -> None:
    assert mixtoken.torn(torch.tensor([[0.0, 0.5], [1.0, 0.99]])).tolist() == [[False, True], [False, True]]
    data = mixtoken.compute(FigureRequest((MODEL,)))
    assert not mixtoken.torn(data.share["MixToken"]).any()
    assert mixtoken.torn(data.share["CutMix"]).any()


def test_relevance_says_how_much_lies_on_the_object(runs: Path) -> None:
    request = FigureRequest((str(runs / "vit"), str(runs / "lvvit")), count=1, top=10)
    data = relevance.compute(request)
    assert data.models == ["vit", "lvvit"]
    row = data.rows[0]
    assert [one.name for one in row.maps["vit"]] != sorted(one.name for one in row.maps["vit"])
    (known,) = [one for one in row.maps["vit"] if one.inside is not None]  # of ten classes, one is there
    assert known.name == row.name
    assert 0 <= known.inside <= 1
    values, mask = torch.tensor([[1.0, 3.0]]), torch.tensor([[True, True, False, True]])
    assert relevance._inside(values, mask) == pytest.approx((1 + 1.5) / 4)
    gradient = relevance.compute(replace(request, method="gradient", count=1))
    assert not torch.allclose(gradient.rows[0].maps["vit"][0].values, row.maps["vit"][0].values)


def test_data_as_json() -> None:
    data = aligned.Row(("a", "b"), 0.123456789, 0.5, [("a", 1.0)], torch.zeros(1, 2), {"x": torch.ones(1, 1)}, [])
    assert as_json(replace(data, pictures=[Image.new("RGB", (2, 2))])) == {
        "names": ["a", "b"],
        "area": 0.12346,
        "arrived": 0.5,
        "answers": [["a", 1.0]],
        "before": [[0.0, 0.0]],
        "layers": {"x": [[1.0]]},
    }


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure"]) == 0
    listed = capsys.readouterr().out
    assert all(f"  {name} " in listed for name in FIGURES)


def test_images_and_models_are_told_apart(runs: Path, photos: list[Path]) -> None:
    given = [str(runs / "vit"), "deit_tiny_patch16_224", str(photos[0].parent), "other.JPG"]
    assert split(given) == ((given[0], given[1]), (*photos, Path("other.JPG")))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["ratios"], "did you mean ratio"),
        (["ratio"], "needs one run or model, not 0"),
        (["rmse"], "needs 1 to 12 runs or models, not 0"),
        (["dense", MODEL, "--count", "-1"], "must be ≥ 0, not -1"),
        (["aligned", MODEL, "a.jpg", "b.jpg", "c.jpg"], "images come in pairs"),
        (["dense", "vit_tiny_patch16_224(img_size=(32, 64))=random"], "does not take square colour images"),
        (["dense", "vit_tiny_patch16_224(in_chans=1)=random"], "does not take square colour images"),
        (["ratio", "deit_tiny_patch16_224=random", "missing.jpg"], "a pair needs two images, not missing.jpg alone"),
        (["dense", MODEL, "missing.jpg"], "cannot read the image missing.jpg"),
        (["ratio", "runs/nowhere"], "runs/nowhere is not a run: there is no such folder"),
        (["ratio", MODEL, __file__], "is not an image"),
        (["dense", "deit_tinny"], "timm has no model 'deit_tinny'"),
        (["accuracy"], "name their folders"),
        (["accuracy", "deit_tiny_patch16_224"], "is not a run"),
        (["relevance", MODEL, "--top", "0"], "must be at least 1"),
        (["relevance", MODEL, MODEL], "models must not repeat"),
        (["relevance", "resnet18=random"], "a ViT, a DeiT or an LV-ViT"),
        (["rmse", MODEL, "--data", "world(val=1)"], "at least two images"),
        (["aligned", MODEL, "--mixer", "cutmixx"], "did you mean cutmix"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_runs_without_what_a_figure_compares(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["figure", "participation", str(runs / "vit")]) == 2
    assert "this figure wants runs of --target 'token_label(participation=0.2)'" in capsys.readouterr().err
    assert main(["figure", "annotators", str(runs / "vit")]) == 2
    assert "has no dense labels" in capsys.readouterr().err
