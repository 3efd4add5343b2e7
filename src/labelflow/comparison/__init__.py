"""The same training under several methods and seeds: one table, with statistics."""

from typing import TYPE_CHECKING

from labelflow.lazy import exports

if TYPE_CHECKING:
    from labelflow.comparison.cells import Cell, make_cells
    from labelflow.comparison.page import markdown, write_page
    from labelflow.comparison.run import Comparison, run_comparison
    from labelflow.comparison.runner import run_cells
    from labelflow.comparison.settings import Compare
    from labelflow.comparison.speed import Speed, measure_speeds
    from labelflow.comparison.statistics import Difference, Row, rows
else:
    __getattr__, __dir__ = exports(__name__)

__all__ = [
    "Cell",
    "Compare",
    "Comparison",
    "Difference",
    "Row",
    "Speed",
    "make_cells",
    "markdown",
    "measure_speeds",
    "rows",
    "run_cells",
    "run_comparison",
    "write_page",
]
