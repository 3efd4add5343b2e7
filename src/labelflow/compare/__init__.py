"""The same training under several methods and seeds: one table, with statistics."""

from labelflow.compare.cells import Cell, make_cells
from labelflow.compare.page import markdown, write_page
from labelflow.compare.runner import run_cells
from labelflow.compare.speed import Speed, measure_speeds
from labelflow.compare.statistics import Difference, Row, rows

__all__ = [
    "Cell",
    "Difference",
    "Row",
    "Speed",
    "make_cells",
    "markdown",
    "measure_speeds",
    "rows",
    "run_cells",
    "write_page",
]
