"""What the pages of all runs share: results, curves, recipe and environment."""

from html import escape
from statistics import median
from typing import Any, NamedTuple

from labelflow.engine.run import BEST, LAST, Run
from labelflow.html import document, line_chart, number, table
from labelflow.settings import flat

Values = dict[str, Any]  # a line of metrics.jsonl, or settings


class Measured(NamedTuple):
    """What a kind of run is measured by."""

    headline: str  # in metrics.jsonl
    name: str  # for people
    charts: dict[str, str]  # title of a chart, and the metric that it shows


TRAINING: list[tuple[str, dict[str, str]]] = [  # title, {name in the chart: name in metrics.jsonl}
    ("Training loss", {"loss": "loss"}),
    ("Learning rate", {"rate": "lr"}),
    ("Images per second, in training", {"images/s": "images_per_second"}),
]
FROM_ZERO = {"lr", "images_per_second"}
NO_WEIGHTS = "<p>There are no weights yet; they are written with the first checkpoint.</p>"


def has_weights(run: Run) -> bool:
    """Whether there are any yet; those that are damaged are an error."""
    return any(run.has(name) for name in (BEST, LAST))


def make_page(run: Run, title: str, sections: str, measured: Measured) -> str:
    """A complete page; `sections` go between the curves and the recipe."""
    recipe, environment, metrics = run.read("recipe.json"), run.read("environment.json"), run.metrics()
    name = recipe["name"] or run.folder.resolve().name
    groups = {
        "model and method": {key: value for key, value in recipe.items() if not isinstance(value, dict)},
        "environment": environment,
        **{key: value for key, value in recipe.items() if isinstance(value, dict)},
    }
    tables = "".join(_table(group.capitalize(), values) for group, values in groups.items())
    parameters = run.config().get("parameters", 0)
    body = f"""<header>
<h1>{escape(name)}</h1>
<p>{escape(title)}</p>
<dl class="tiles">{"".join(_tile(*tile) for tile in _results(recipe["training"], metrics, parameters, measured))}</dl>
</header>
<main>
<section><h2>Curves</h2><div class="charts">{_charts(metrics, measured)}</div></section>
{sections}
<section><h2>Recipe and environment</h2><div class="tables">{tables}</div></section>
</main>"""
    return document(name, body)


def _results(
    training: Values, metrics: list[Values], parameters: int, measured: Measured
) -> list[tuple[str, str, str]]:
    """The results of the run: heading, value, note."""
    results = []
    evaluations = [line for line in metrics if line["kind"] == "eval"]
    if evaluations:
        last = evaluations[-1]
        average = f"ema_{measured.headline}"
        key, kind = (average, "EMA, ") if average in last else (measured.headline, "")
        best = max(evaluations, key=lambda line: line[key])
        results.append((f"Best {measured.name}", percent(best[key]), f"{kind}epoch {number(best['epoch'])}"))
        results.append((f"Last {measured.name}", percent(last[key]), f"{kind}epoch {number(last['epoch'])}"))
    else:
        results.append((measured.name, "–", "not evaluated yet"))
    if training.get("updates"):
        results.append(("Updates", number(metrics[-1]["update"] if metrics else 0), f"of {training['updates']}"))
    else:
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


def _charts(metrics: list[Values], measured: Measured) -> str:
    terms = {key.removeprefix("loss_"): key for line in metrics for key in line if key.startswith("loss_")}
    evaluated = [(title, {"model": key, "EMA": f"ema_{key}"}) for title, key in measured.charts.items()]
    figures = []
    for kind, charts in (("eval", evaluated), ("train", TRAINING)):
        lines = [line for line in metrics if line["kind"] == kind]
        for title, names in charts:
            shown = names | terms if title == "Training loss" and len(terms) > 1 else names
            points = {
                name: [(line["epoch"], line[key]) for line in lines if key in line] for name, key in shown.items()
            }
            chart = line_chart(title, points, from_zero=not FROM_ZERO.isdisjoint(names.values()))
            figures.append(f"<figure><figcaption>{title}</figcaption>{chart}</figure>")
    return "".join(figures)


def _table(caption: str, values: Values) -> str:
    return table((), [(name.replace("_", " "), _shown(value)) for name, value in flat(values)], caption)


def _shown(value: Any) -> str:
    """A value of a recipe, for people."""
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) or "–"


def percent(value: float) -> str:
    return f"{value:.2f} %"
