"""The page of a run: its result, curves, samples and recipe in a single HTML file."""

from pathlib import Path

from labelflow.engine.run import Run
from labelflow.html import save
from labelflow.report.classifier import classifier_page
from labelflow.report.dense import detector_page, segmenter_page

PAGES = {"classify": classifier_page, "segment": segmenter_page, "detect": detector_page}


def write_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a run, finished or not; returns its path."""
    run = Run(folder)
    save(run / "report.html", PAGES[run.read("recipe.json").get("task", "classify")](run))
    return run / "report.html"


__all__ = ["write_report"]
