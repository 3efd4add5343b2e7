"""`labelflow report`: write a run's report.html again."""

from pathlib import Path

from tyro.conf import Positional


def report(run: Positional[Path]) -> None:
    """Write a run's report.html again.

    Args:
        run: The folder of a run.
    """
    from labelflow.report import write_report

    print(write_report(run))
