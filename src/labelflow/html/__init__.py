"""HTML pages and SVG charts, each a file that needs no other, in one style."""

from labelflow.html.chart import Interval, Point, bar_chart, dot_plot, line_chart, number, standalone
from labelflow.html.document import data_uri, document, legend, save, table
from labelflow.html.notebook import Page, frame

__all__ = [
    "Interval",
    "Page",
    "Point",
    "bar_chart",
    "data_uri",
    "document",
    "dot_plot",
    "frame",
    "legend",
    "line_chart",
    "number",
    "save",
    "standalone",
    "table",
]
