"""`labelflow data check`: what is wrong with a folder of images."""

import json
import sys
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional

if TYPE_CHECKING:
    from labelflow.checking.run import DataCheck

SHOWN = 3  # files of a problem


def check(
    folder: Positional[Path],
    out: Path | None = None,
    min_side: int = 16,
    max_megapixels: float = 50.0,
    workers: int = -1,
    reread: bool = False,
    as_json: bool = False,
) -> None:
    """Read all images of a folder, and report what is wrong with them. The exit code is 1 if something would stop or
    spoil training.

    Args:
        folder: The images: train/ and val/ with a folder for each class, or just these, or images only.
        out: The folder of the report; checks/NAME by default, beside the images if it would lie within them.
        min_side: Images with a shorter side are reported as tiny.
        max_megapixels: Larger images are reported as huge.
        workers: Threads that read images; -1: one for each core, at most 16.
        reread: Read all files again, also those that have not changed since an earlier check.
        as_json: Print JSON instead of a table.
    """
    from labelflow.checking.run import check_data

    try:
        found = check_data(
            folder,
            out,
            min_side=min_side,
            max_megapixels=max_megapixels,
            workers=workers,
            reread=reread,
            quiet=as_json,
        )
    except KeyboardInterrupt:
        print(
            f"labelflow: interrupted. Run the same command again to {'start over' if reread else 'resume'}",
            file=sys.stderr,
        )
        raise SystemExit(130) from None
    if as_json:
        print(json.dumps(found.summary))
    else:
        _print(found)
    if not found.passed:
        raise SystemExit(1)


def _print(found: "DataCheck") -> None:
    from rich.table import Table

    from labelflow.checking.page import size_text
    from labelflow.data.scan import below
    from labelflow.engine.progress import table_console
    from labelflow.spec import printable

    summary = found.summary
    parts = "".join(f", {count:,} in {part}" for part, count in summary["splits"].items())
    classes = f" of {len(summary['classes']):,} classes" if summary["classes"] else ""
    print(f"{summary['images']:,} images{classes}{parts}, {size_text(summary['bytes'])}")
    if sides := summary["shorter_side"]:
        least, median, most = (round(side) for side in sides.values())
        print(
            f"shorter side {least} pixels"
            if least == most
            else f"shorter sides of {least} to {most} pixels, median {median}"
        )
        counts = {key: _counts(summary[key]) for key in ("formats", "colours", "special")}
        print("; ".join(f"{key}: {text}" for key, text in counts.items() if text))
    if sizes := list(summary["classes"].values()):
        print(f"classes of {min(sizes):,} to {max(sizes):,} images")
    if found.problems:
        shown = Table("", "problem", "count", "first of them", box=None)
        for kind, group in groupby(found.problems, key=lambda problem: problem.problem):
            first = [printable(f"{below(one.file, summary['folder'])}: {one.detail}") for one in islice(group, SHOWN)]
            level, count = summary["problems"][kind].values()
            shown.add_row(level, kind, f"{count:,}", "\n".join(first))
        table_console().print(shown)
    else:
        print("no problems found")
    print(f"  look at it     {found.page}")


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
