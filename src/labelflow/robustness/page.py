"""The results as robust.html, a page in one file, and robust.svg, its charts."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from labelflow.classifier import Classifier
from labelflow.html import data_uri, document, legend, line_chart, save, standalone, table
from labelflow.html.chart import HEIGHT, LINE, WIDTH, keys
from labelflow.robustness.results import Chart, Metric, Section, Strip, format_value


def write_page(path: Path, models: Sequence[Classifier], sections: Sequence[Section], facts: Sequence[str]) -> None:
    """facts: lines below the title."""
    names = [model.name for model in models]
    body = f"""<header><h1>Robustness of {escape(", ".join(names))}</h1>
<p>{"<br>".join(map(escape, facts))}</p>{legend(names)}</header>
<main><section><h2>Summary</h2>{_table(names, {section.title: section.metrics for section in sections})}</section>
{"".join(_section(names, section) for section in sections if section.charts or section.details or section.notes)}
</main>"""
    save(path, document("Robustness", body))


def _section(names: Sequence[str], section: Section) -> str:
    strips = "".join(_strip(strip) for strip in section.strips)
    results = _table(names, {"": section.details})
    details = f"<details><summary>All results</summary>{results}{_charts(section.more_charts)}</details>"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in section.notes)
    return f"""<section><h2>{escape(section.title)}</h2>{notes}{_charts(section.charts)}{strips}
{details if section.details else ""}</section>"""


def _charts(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{_svg(chart)}</figure>" for chart in charts
    )
    return f'<div class="charts">{figures}</div>'


def _table(names: Sequence[str], groups: dict[str, Sequence[Metric]]) -> str:
    rows: list[list[str]] = []
    for title, metrics in groups.items():
        rows += [[title]] if title else []
        rows += [[metric.title, *map(format_value, metric.values)] for metric in metrics]
    return f'<figure class="wide numbers">{table(["", *names], rows)}</figure>'


def _strip(strip: Strip) -> str:
    images = "".join(
        f'<div><img alt="" src="{data_uri(Image.fromarray(image))}"><small>{escape(caption)}</small></div>'
        for caption, image in strip.images.items()
    )
    title = f"<figcaption>{escape(strip.title)}</figcaption>"
    return f'<figure class="sample">{title}<div class="strip">{images}</div></figure>'


def _svg(chart: Chart) -> str:
    return line_chart(
        chart.title,
        chart.lines,
        from_zero=True,
        across=chart.x_label,
        legend=False,
        reach=chart.y_max,
        reference=chart.reference,
    )


def write_svg(path: Path, names: Sequence[str], charts: Sequence[Chart], columns: int = 3) -> None:
    """All charts in one file."""
    title, rows = 28, -(-len(charts) // columns)
    width = min(columns, len(charts)) * WIDTH
    parts, lines = keys(names, width, left=10)
    head = 6 + LINE * lines
    height = head + rows * (HEIGHT + title)
    for at, chart in enumerate(charts):
        x, y = at % columns * WIDTH, head + at // columns * (HEIGHT + title)
        parts.append(f'<text class="title" x="{x + 10}" y="{y + 22}">{escape(chart.title)}</text>')
        place = f'<svg x="{x}" y="{y + title}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(_svg(chart).replace("<svg ", place, 1))
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    save(path, standalone(f"<svg {size}>{background}{''.join(parts)}</svg>\n"))
