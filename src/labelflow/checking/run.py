"""A check of a folder of images, from its list of files to its report."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from labelflow.checking.files import examine_all
from labelflow.checking.listing import list_images
from labelflow.checking.page import make_page
from labelflow.checking.problems import Finding, find_problems
from labelflow.checking.summary import Summary, summarise
from labelflow.data.checked import CheckedFiles
from labelflow.data.folder import check_outside
from labelflow.files import atomic_write
from labelflow.html import Page, save
from labelflow.process import core_count

MOST_THREADS = 16  # more than these wait for each other


@dataclass(frozen=True, repr=False)
class DataCheck(Page):
    """What was found in a folder of images."""

    folder: Path  # of the report
    summary: Summary  # what check.json holds
    problems: list[Finding]
    new: int  # how many files were read; the others had not changed since an earlier check

    @property
    def passed(self) -> bool:
        """Whether there is nothing that would stop or spoil training."""
        return bool(self.summary["passed"])

    @property
    def page(self) -> Path:
        return self.folder / "report.html"

    @property
    def records(self) -> list[dict[str, Any]]:
        """The rows of problems.csv. Bytes of a file's name that are not UTF-8 become `\\udc80` to `\\udcff`."""
        return [
            {name: value.encode(errors="backslashreplace").decode() for name, value in problem._asdict().items()}
            for problem in self.problems
        ]


def check_data(
    root: Path | str,
    out: Path | str | None = None,
    *,
    min_side: int = 16,
    max_megapixels: float = 50.0,
    workers: int = -1,
    reread: bool = False,
    quiet: bool = False,
) -> DataCheck:
    """Read all images of a folder, but for those that an earlier check has read, and report what is wrong with them, as
    `labelflow data check` does.

    out: the folder of the report; checks/NAME by default, beside the images if it would lie within them.
    min_side: images with a shorter side are tiny. max_megapixels: larger images are huge.
    workers: threads that read images; -1: one for each core, at most 16.
    reread: read all files again, also those that have not changed since an earlier check.
    """
    if min_side < 0 or max_megapixels <= 0:
        raise ValueError(f"min_side must be ≥ 0 and max_megapixels > 0, not {min_side} and {max_megapixels}")
    if workers < 1 and workers != -1:
        raise ValueError(f"workers must be at least 1, or -1 for one on each core, not {workers}")
    folder = _report_folder(root, out)
    listing = list_images(root)
    threads = workers if workers > 0 else min(MOST_THREADS, core_count())
    files = examine_all(CheckedFiles(listing.root), listing.paths, threads, quiet, reread)
    problems = find_problems(listing, files, min_side, max_megapixels)
    found = DataCheck(folder, summarise(listing, files.rows, problems), problems, files.new)
    save(found.page, make_page(listing, files.rows, problems, found.summary))
    save(folder / "check.json", json.dumps(found.summary, indent=1) + "\n")
    with (
        atomic_write(folder / "problems.csv") as draft,
        open(draft, "w", encoding="utf-8", newline="") as file,
    ):
        writer = csv.DictWriter(file, Finding._fields, lineterminator="\n")
        writer.writeheader()
        writer.writerows(found.records)
    return found


def _report_folder(root: Path | str, out: Path | str | None) -> Path:
    images = Path(root).resolve()
    beside = images.parent / "checks" / images.name
    folder = Path(out or Path("checks") / images.name)
    if out:
        check_outside(folder, images, beside)
    elif folder.resolve().is_relative_to(images):
        folder = beside
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not a folder; choose another --out")
    return folder
