"""The page of a classifier's run: where labels go, and the figures of the papers."""

import io
from html import escape

from labelflow.analysis.images import evaluation_data, images_of
from labelflow.analysis.label_maps import label_picture
from labelflow.analysis.rmse import fluctuation
from labelflow.analysis.samples import Sample, mixed_samples, overlay, photo
from labelflow.classifier import Classifier, load
from labelflow.data import Data, open_map_style
from labelflow.engine.run import Run
from labelflow.html import data_uri
from labelflow.labels import Store
from labelflow.mixers import NoMix, make_mixer
from labelflow.predictions import THRESHOLD
from labelflow.report import classes
from labelflow.report.page import NO_WEIGHTS, Measured, has_weights, make_page, percent
from labelflow.tasks.classify import Recipe
from labelflow.tasks.recipe import headline_of, read_recipe

FIGURES_SHOWN = {  # figures of the papers: how many images or pairs (a few seconds each), and a caption
    "ratio": (
        16,
        "How much of a mixed image is one’s own? Black is what the classifier’s token resembles (Eq. 13 of TL-Align), "
        "layer by layer; the others are what each method would train on. Resemblance never strays far from "
        "a half, so a constant is close to it: look at the correlations, and at the truth (the own part of the "
        "visible objects) where the data has it.",
    ),
    "presence": (
        1,
        "How much each token contributes to the output of a layer (Eq. 2 of TL-Align); 1 is the "
        "average. Attention that has been trained makes it uneven, which is why labels have to follow.",
    ),
    "relevance": (
        3,
        "Where the model looks for its most likely class (Chefer et al.). Where the data has masks, the title says "
        "how much of the relevance lies on the object.",
    ),
}


INCH = 92  # pixels of the page: the figures' text is then as large as the page's
MOVED_IMAGES = 32  # that the fluctuation is measured on
LITTLE = 0.01  # a fluctuation as of a model that has hardly been trained


NAMES = {"top1": "top-1", "balanced": "balanced accuracy", "map": "mAP"}  # of headlines
CHARTS = {  # by what evaluations tell
    "top1": "Top-1 accuracy, %",
    "top5": "Top-5 accuracy, %",
    "balanced": "Balanced accuracy, %",
    "map": "Mean average precision, %",
    "macro_f1": "F1, mean over classes, %",
    "micro_f1": "F1 of all labels, %",
    "loss": "Evaluation loss",
}


def measured(run: Run) -> Measured:
    """Of a classifier: what its evaluations tell; top-5 says something only of more than five classes."""
    told = {name for line in run.metrics() if line["kind"] == "eval" for name in line}
    told -= {"top5"} if len(run.config()["label_names"]) <= 5 else set()
    headline = headline_of(run)
    shown = {title: name for name, title in CHARTS.items() if name in told or name in (headline, "loss")}
    return Measured(headline, NAMES[headline], shown)


def classifier_page(run: Run) -> str:
    """The page of a run, finished or not."""
    recipe, figures = read_recipe(run), ""
    if has_weights(run):
        classifier = load(run.folder)
        figures = "".join(_figure(name, classifier) for name in FIGURES_SHOWN) + _dense_labels(recipe.data)
        try:
            samples = _samples(classifier, recipe)
        except (ValueError, OSError) as error:  # no adapter, no data
            samples = f"<p>No samples: {escape(str(error))}.</p>"
    else:
        samples = NO_WEIGHTS
    followed = f"<section><h2>Labels that follow tokens</h2>{samples}</section>\n{figures}"
    return make_page(run, recipe.title, classes.section(run, only_worst=True) + followed, measured(run))


def _figure(name: str, classifier: Classifier) -> str:
    """A figure of the papers, or the reason why it is missing."""
    from labelflow.figures import FIGURES, FigureRequest, styled  # which brings matplotlib
    from labelflow.figures.base import DPI

    count, about = FIGURES_SHOWN[name]
    try:
        data = FIGURES[name].compute(FigureRequest((classifier,), count=count))
    except (ValueError, OSError, RuntimeError) as error:  # no such attention, no data, no memory
        return (
            f"<section><h2>{name.capitalize()}</h2><p>Not available for this run: {escape(str(error))}.</p></section>"
        )
    with styled():
        drawn = io.BytesIO()
        figure = FIGURES[name].draw(data)
        figure.savefig(drawn, format="png", dpi=DPI)
    width = round(INCH * figure.get_size_inches()[0])
    summary = escape(FIGURES[name].summary(data))
    return f"""<section><h2>{name.capitalize()}</h2><p>{about}</p>
<div class="scroll"><img src="{data_uri(drawn.getvalue())}" alt="{summary}" width="{width}" class="figure"></div>
<pre>{summary}</pre></section>"""


def _dense_labels(data: Data) -> str:
    """Label maps of some training images."""
    if not data.labels:
        return ""
    try:
        picture = label_picture(Store(data.labels), open_map_style(data, "train"))
    except (ValueError, OSError) as error:
        return f"<section><h2>Dense labels</h2><p>Not available: {escape(str(error))}.</p></section>"
    return f"""<section><h2>Dense labels</h2><p>Training images, and the annotator's label maps: each cell has
the colour of its most likely class, stronger where it is more certain. A class has the same colour everywhere.</p>
<div class="scroll"><img src="{data_uri(picture, "JPEG")}" width="{picture.width}" class="figure"
alt="Training images beside their label maps"></div></section>"""


def _samples(classifier: Classifier, recipe: Recipe) -> str:
    mixer, note = recipe.mixer, ""
    if isinstance(make_mixer(mixer), NoMix):
        mixer, note = "cutmix", " (the recipe itself mixes nothing)"
    figures = "".join(_sample(sample, classifier) for sample in mixed_samples(classifier, mixer))
    images = images_of(classifier, MOVED_IMAGES, (), evaluation_data(classifier))
    return f"""<p>Pairs of evaluation images, mixed by <code>{escape(mixer)}</code>{note}; draws that leave less than a
fifth of one are skipped. Before alignment, the label of a token says what its patch shows:
<b class="own">one’s own image</b> or <b class="partner">the partner’s</b>. But attention moves information from token
to token. After alignment, the labels have moved along, through all blocks of the model, and the label that reaches the
classifier is the one that TL-Align trains on.</p>
<p>{_moved(fluctuation(classifier, images), len(images))}</p>
<p class="scale"><span>own</span><i></i><span>partner’s</span></p>
{figures}"""


def _moved(rmse: float, images: int) -> str:
    """How far labels have moved, and what to expect of that."""
    said = (
        f"Over {images} images mixed by CutMix, what arrives differs from the area λ by {rmse:.3f} (root mean square)."
    )
    if rmse >= LITTLE:
        return said
    return (
        f"<b>Little has moved yet.</b> {said} That is to be expected early in training: attention is still even, so "
        "every token takes a little of all others, and before and after say nearly the same. Once attention has "
        "learned where to look, expect 0.05 to 0.1: the share that arrives then follows what is to be seen of the "
        "objects, not the area. The maps stay pale either way, since every block averages over many tokens."
    )


def seen(answers: list[tuple[str, float]], several: bool) -> str:
    """What the model sees, in words; of classes that do not exclude one another, those above a half."""
    found = [pair for pair in answers if pair[1] > THRESHOLD] if several else answers
    words = " and ".join(f"{escape(name)} ({percent(100 * chance)})" for name, chance in found or answers[:2])
    return words if found else f"none of its classes; the likeliest are {words}"


def _sample(sample: Sample, classifier: Classifier) -> str:
    colours = classifier.preprocessing
    own, partner = map(escape, sample.names)
    mixed = photo(sample.mixed, colours)
    pictures = [  # with caption and alternative text
        (photo(sample.images[0], colours), f"own: {own}", f"The own image, {own}"),
        (photo(sample.images[1], colours), f"partner’s: {partner}", f"The partner’s image, {partner}"),
        (mixed, "mixed", "The two images mixed"),
        (overlay(sample.before, mixed), "labels before", "The mixed image under the labels that its tokens start with"),
        (overlay(sample.after, mixed), "labels after", "The mixed image under the labels after the last block"),
    ]
    strip = "".join(
        f'<div><img src="{data_uri(picture)}" alt="{text}" width="{picture.width}" height="{picture.height}">'
        f"<small>{caption}</small></div>"
        for picture, caption, text in pictures
    )
    rows = "".join(
        f'<tr><th scope="row">{heading}</th><td>{percent(100 * share)}</td><td>{percent(100 - 100 * share)}</td>'
        f'<td class="bar"><i style="--share:{100 * share:.2f}%"></i></td></tr>'
        for heading, share in (("Before: area λ", sample.area), ("After: at the classifier", sample.arrived))
    )
    return f"""<figure class="sample"><div class="strip">{strip}</div>
<figcaption><table><thead><tr><th scope="col">Label</th><th scope="col" class="own">{own}</th>
<th scope="col" class="partner">{partner}</th><td></td></tr></thead><tbody>{rows}</tbody></table>
<p>In the mixed image, the model sees {seen(sample.answers, classifier.multi_label)}.</p></figcaption></figure>
"""
