"""The results as robust.html, a page in one file, and robust.svg, its charts."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from PIL import Image

from labelflow.analysis.curves import HEIGHT, WIDTH, line_chart
from labelflow.analysis.html import document
from labelflow.classifier import Classifier
from labelflow.engine.run import whole_file
from labelflow.report.page import data_uri
from labelflow.robust.results import Chart, Metric, Section, Strip, format_value

STYLE = """
.wide { overflow-x: auto; padding: .75rem; margin-bottom: .75rem; } .wide table { border-collapse: collapse; }
.wide th, .wide td { padding: .2rem 1.5rem .2rem 0; text-align: right; font-weight: normal; }
.wide th:first-child { text-align: left; } .wide thead th { vertical-align: bottom; overflow-wrap: anywhere; }
.wide .part th { padding-top: .8rem; font-weight: 600; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; padding: 0; list-style: none; }
.legend li::before { content: "●"; margin-right: .35rem; } .note { color: var(--soft); font-size: .9rem; }
.sample figcaption { margin-bottom: .4rem; font-weight: 600; } summary { cursor: pointer; margin: .75rem 0; }
.reference { color: var(--soft); }
"""
STANDALONE = """text { fill: #5d646d; font: 11px system-ui, sans-serif; } circle { fill: currentColor; }
.title { font-weight: 600; fill: #1c1f23; font-size: 12px; } polyline { stroke-width: 1.8; stroke-linejoin: round; }
.rule { stroke: #e3e5e8; } .line-0 { color: #0b7f86; } .line-1 { color: #c2570c; } .line-2 { color: #7a4fc0; }
.line-3 { color: #5f7a13; } .line-4 { color: #b3267a; } .line-5 { color: #7d6a55; } .reference { color: #5d646d; }
"""
DASHES = """.line-1 polyline { stroke-dasharray: 8 3; } .line-2 polyline { stroke-dasharray: 4 3; }
.line-3 polyline { stroke-dasharray: 8 3 2 3; } .line-4 polyline { stroke-dasharray: 12 3; }
.line-5 polyline { stroke-dasharray: 2 2; } .reference { stroke-dasharray: 2 3; }
"""  # tell overlapping lines apart


def write_page(path: Path, models: Sequence[Classifier], sections: Sequence[Section], facts: Sequence[str]) -> None:
    """facts: lines below the title."""
    names = [model.name for model in models]
    legend = "".join(f'<li class="line-{at}">{escape(name)}</li>' for at, name in enumerate(names))
    body = f"""<header><h1>Robustness of {escape(", ".join(names))}</h1>
<p>{"<br>".join(map(escape, facts))}</p><ul class="legend">{legend}</ul></header>
<main><section><h2>Summary</h2>{_table(names, {section.title: section.metrics for section in sections})}</section>
{"".join(_section(names, section) for section in sections if section.charts or section.details or section.notes)}
</main>"""
    with whole_file(path) as draft:
        draft.write_text(document("Robustness", body, STYLE + DASHES), encoding="utf-8")


def _section(names: Sequence[str], section: Section) -> str:
    strips = "".join(_strip(strip) for strip in section.strips)
    table = _table(names, {"": section.details})
    details = f"<details><summary>All results</summary>{table}{_charts(section.more_charts)}</details>"
    notes = "".join(f'<p class="note">{escape(note)}</p>' for note in section.notes)
    return f"""<section><h2>{escape(section.title)}</h2>{notes}{_charts(section.charts)}{strips}
{details if section.details else ""}</section>"""


def _charts(charts: Sequence[Chart]) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{_svg(chart)}</figure>" for chart in charts
    )
    return f'<div class="charts">{figures}</div>'


def _table(names: Sequence[str], groups: dict[str, Sequence[Metric]]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    rows = ""
    for title, metrics in groups.items():
        rows += f'<tr class="part"><th scope="colgroup">{escape(title)}</th></tr>' if title else ""
        for metric in metrics:
            cells = "".join(f"<td>{format_value(value)}</td>" for value in metric.values)
            rows += f'<tr><th scope="row">{escape(metric.title)}</th>{cells}</tr>'
    return f'<figure class="wide"><table><thead><tr><th></th>{head}</tr></thead><tbody>{rows}</tbody></table></figure>'


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
    title, head = 28, 26
    rows = -(-len(charts) // columns)
    width, height = min(columns, len(charts)) * WIDTH, head + rows * (HEIGHT + title)
    parts, start = [], 10.0
    for at, name in enumerate(names):
        parts.append(f'<g class="line-{at}"><circle cx="{start}" cy="12" r="4"/></g>')
        parts.append(f'<text x="{start + 8}" y="16">{escape(name)}</text>')
        start += 34 + 6.5 * len(name)
    for at, chart in enumerate(charts):
        x, y = at % columns * WIDTH, head + at // columns * (HEIGHT + title)
        parts.append(f'<text class="title" x="{x + 10}" y="{y + 22}">{escape(chart.title)}</text>')
        place = f'<svg x="{x}" y="{y + title}" width="{WIDTH}" height="{HEIGHT}" '
        parts.append(_svg(chart).replace("<svg ", place, 1))
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    with whole_file(path) as draft:
        draft.write_text(
            f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STANDALONE}{DASHES}</style>'
            f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n',
            encoding="utf-8",
        )
