"""The page of a run: its result, curves, samples and recipe in one HTML file that needs nothing else."""

import base64
import io
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image

from labelflow.analysis.curves import line_chart, number
from labelflow.analysis.html import document
from labelflow.analysis.label_maps import label_picture
from labelflow.analysis.samples import Sample, mixed_samples, overlay, photo
from labelflow.analysis.subjects import Subject, of_run
from labelflow.data import Data, Stream, open_source
from labelflow.engine.run import Run, whole_file
from labelflow.labels import Store
from labelflow.mixers import NoMix, make_mixer
from labelflow.tasks.runs import Loaded, load_run

Values = dict[str, Any]  # a line of metrics.jsonl, or settings

CHARTS: list[tuple[str, str, dict[str, str]]] = [  # title, kind of line, {name in the chart: name in metrics.jsonl}
    ("Top-1 accuracy, %", "eval", {"model": "top1", "EMA": "ema_top1"}),
    ("Top-5 accuracy, %", "eval", {"model": "top5", "EMA": "ema_top5"}),
    ("Evaluation loss", "eval", {"model": "loss", "EMA": "ema_loss"}),
    ("Training loss", "train", {"loss": "loss"}),
    ("Learning rate", "train", {"rate": "lr"}),
    ("Images per second, in training", "train", {"images/s": "images_per_second"}),
]
FROM_ZERO = {"lr", "images_per_second"}
LOOKS = {  # figures of the papers, each with as many images or pairs as take a few seconds, and what is to be seen
    "ratio": (
        16,
        "How much of a mixed image is one’s own? Black is what the classifier’s token resembles (Eq. 13 of TL-Align), "
        "layer by layer; the others are what each method would train on. Resemblance never strays far from "
        "a half, so that a constant is near it: look at the correlations, and at the truth, the own part of the "
        "visible objects, where the data knows it.",
    ),
    "presence": (
        1,
        "How much each token counts in what a layer puts out (Eq. 2 of TL-Align): 1 is as much as "
        "any other. What attention makes of it is why labels have to follow.",
    ),
    "relevance": (
        3,
        "Where the model looks for its likeliest class (Chefer et al.). Where the data knows the object, the title "
        "says how much of the relevance lies on it.",
    ),
}


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run's folder, whether it is finished or not; returns its path."""
    run = Run(folder)
    loaded = None
    try:
        loaded = _load(run)
        samples = _samples(loaded, folder)
    except (ValueError, OSError) as error:  # no weights, no adapter, no data
        samples = f"<p>There are no samples to show: {escape(str(error))}.</p>"
    page = _page(run, loaded, samples)
    with whole_file(run / "report.html") as path:
        path.write_text(page, encoding="utf-8")
    return run / "report.html"


def _load(run: Run) -> Loaded:
    for weights in ("best", "last"):
        if (run / f"{weights}.safetensors").exists():
            return load_run(run.folder, weights)
    raise ValueError("the run has no weights yet, they come with its first checkpoint")


def _page(run: Run, loaded: Loaded | None, samples: str) -> str:
    recipe, environment, metrics = run.read("recipe.json"), run.read("environment.json"), run.metrics()
    name = recipe["name"] or run.folder.resolve().name
    parameters = sum(parameter.numel() for parameter in loaded.model.parameters()) if loaded else 0
    groups = {
        "model and method": {key: value for key, value in recipe.items() if not isinstance(value, dict)},
        "environment": environment,
        **{key: value for key, value in recipe.items() if isinstance(value, dict)},
    }
    tables = "".join(_table(group.capitalize(), values) for group, values in groups.items())
    body = f"""<header>
<h1>{escape(name)}</h1>
<p>{escape(" · ".join(str(recipe[key]) for key in ("model", "mixer", "target")))}</p>
<dl class="tiles">{"".join(_tile(*tile) for tile in _results(recipe["training"], metrics, parameters))}</dl>
</header>
<main>
<section><h2>Curves</h2><div class="charts">{_charts(metrics)}</div></section>
<section><h2>Labels that follow tokens</h2>{samples}</section>
{"".join(_look(name, of_run(loaded, run.folder)) for name in LOOKS) if loaded else ""}
{_dense_labels(loaded)}
<section><h2>Recipe and environment</h2><div class="tables">{tables}</div></section>
</main>"""
    return document(name, body)


def _look(name: str, subject: Subject) -> str:
    """A figure of the papers, or why there is none."""
    from labelflow.figures import FIGURES, Asked, styled  # which brings matplotlib

    count, about = LOOKS[name]
    try:
        data = FIGURES[name].compute(Asked((subject,), count=count))
    except (ValueError, OSError, RuntimeError) as error:  # no such attention, no data, no memory
        return (
            f"<section><h2>{name.capitalize()}</h2><p>There is none for this run: {escape(str(error))}.</p></section>"
        )
    with styled():
        drawn = io.BytesIO()
        FIGURES[name].draw(data).savefig(drawn, format="png", dpi=110)
    told = escape(FIGURES[name].told(data))
    return f"""<section><h2>{name.capitalize()}</h2><p>{about}</p>
<img src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}" alt="{told}" class="figure">
<pre>{told}</pre></section>"""


def _dense_labels(loaded: Loaded | None) -> str:
    """What the annotator saw in some training images."""
    if loaded is None or not loaded.recipe.data.labels:
        return ""
    data = loaded.recipe.data
    try:
        source = open_source(data, "train")
        assert not isinstance(source, Stream)  # whose samples can't have labels
        picture = label_picture(Store(data.labels), source)
    except (ValueError, OSError) as error:
        return f"<section><h2>Dense labels</h2><p>There are none to show: {escape(str(error))}.</p></section>"
    return f"""<section><h2>Dense labels</h2><p>Training images, and what the annotator saw in them: each cell has the
colour of its likeliest class, the stronger the surer.</p>
<img src="{_data_uri(picture, "JPEG")}" width="{picture.width}"
alt="Training images beside their label maps" style="max-width:100%"></section>"""


def _results(training: Values, metrics: list[Values], parameters: int) -> list[tuple[str, str, str]]:
    """What the run has come to: heading, value, note."""
    results = []
    evaluations = [line for line in metrics if line["kind"] == "eval"]
    if evaluations:
        last = evaluations[-1]
        top1, kind = ("ema_top1", "EMA, ") if "ema_top1" in last else ("top1", "")
        best = max(evaluations, key=lambda line: line[top1])
        results.append(("Best top-1", _percent(best[top1]), f"{kind}epoch {number(best['epoch'])}"))
        results.append(("Last top-1", _percent(last[top1]), f"{kind}epoch {number(last['epoch'])}"))
    else:
        results.append(("Top-1", "–", "not evaluated yet"))
    planned = training.get("epochs", 0) + training.get("cooldown_epochs", 0)
    results.append(("Epochs", number(metrics[-1]["epoch"] if metrics else 0), f"of {planned}"))
    speeds = [line["images_per_second"] for line in metrics if line["kind"] == "train"]
    if speeds:
        speed = median(speeds)
        results.append(("Training, per image", f"{number(1000 / speed)} ms", f"{number(speed)} images/s"))
    if parameters:
        results.append(("Parameters", f"{parameters / 1e6:.2f} M", "of the model"))
    return results


def _tile(heading: str, value: str, note: str) -> str:
    return f"<div><dt>{heading}</dt><dd><b>{value}</b> {note}</dd></div>"


def _charts(metrics: list[Values]) -> str:
    terms = {key.removeprefix("loss_"): key for line in metrics for key in line if key.startswith("loss_")}
    figures = []
    for title, kind, names in CHARTS:
        shown = names | terms if title == "Training loss" and len(terms) > 1 else names
        lines = [line for line in metrics if line["kind"] == kind]
        points = {name: [(line["epoch"], line[key]) for line in lines if key in line] for name, key in shown.items()}
        chart = line_chart(title, points, from_zero=not FROM_ZERO.isdisjoint(names.values()))
        figures.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    return "".join(figures)


def _samples(loaded: Loaded, folder: Path) -> str:
    mixer, note = loaded.recipe.mixer, ""
    if isinstance(make_mixer(mixer), NoMix):
        mixer, note = "cutmix", " (the recipe itself mixes nothing)"
    figures = "".join(_sample(sample, loaded.recipe.data) for sample in mixed_samples(of_run(loaded, folder), mixer))
    return f"""<p>Pairs of evaluation images, mixed by <code>{escape(mixer)}</code>{note}; draws that leave less than a
fifth of one are passed over. Before alignment, the label of a token says what is to be seen there:
<b class="own">one’s own image</b> or <b class="partner">the partner’s</b>. But attention moves information from token
to token. After alignment, the labels have moved along, through all blocks of the model, and the label that reaches the
classifier is the one that TL-Align trains on.</p>
<p class="scale"><span>own</span><i></i><span>partner’s</span></p>
{figures}"""


def _sample(sample: Sample, data: Data) -> str:
    own, partner = map(escape, sample.names)
    mixed = photo(sample.mixed, data)
    pictures = [  # with caption and alternative text
        (photo(sample.images[0], data), f"own: {own}", f"The own image, {own}"),
        (photo(sample.images[1], data), f"partner’s: {partner}", f"The partner’s image, {partner}"),
        (mixed, "mixed", "The two images mixed"),
        (overlay(sample.before, mixed), "labels before", "The mixed image under the labels that its tokens start with"),
        (overlay(sample.after, mixed), "labels after", "The mixed image under the labels after the last block"),
    ]
    strip = "".join(
        f'<div><img src="{_data_uri(picture)}" alt="{text}" width="{picture.width}" height="{picture.height}">'
        f"<small>{caption}</small></div>"
        for picture, caption, text in pictures
    )
    rows = "".join(
        f'<tr><th scope="row">{heading}</th><td>{_percent(100 * share)}</td><td>{_percent(100 - 100 * share)}</td>'
        f'<td class="bar"><i style="--share:{100 * share:.2f}%"></i></td></tr>'
        for heading, share in (("Before: area λ", sample.area), ("After: at the classifier", sample.arrived))
    )
    answers = " and ".join(f"{escape(name)} ({_percent(100 * chance)})" for name, chance in sample.answers)
    return f"""<figure class="sample"><div class="strip">{strip}</div>
<figcaption><table><thead><tr><th scope="col">Label</th><th scope="col" class="own">{own}</th>
<th scope="col" class="partner">{partner}</th><td></td></tr></thead><tbody>{rows}</tbody></table>
<p>In the mixed image, the model sees {answers}.</p></figcaption></figure>
"""


def _table(caption: str, values: Values) -> str:
    rows = "".join(
        f'<tr><th scope="row">{escape(name.replace("_", " "))}</th><td>{escape(_shown(value))}</td></tr>'
        for name, value in values.items()
    )
    return f"<table><caption>{escape(caption)}</caption><tbody>{rows}</tbody></table>"


def _shown(value: Any) -> str:
    """A value of a recipe as a person writes it."""
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) or "–"


def _percent(value: float) -> str:
    return f"{value:.2f} %"


def _data_uri(image: Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
