"""`labelflow report`: a run's report.html anew."""

from pathlib import Path

from tyro.conf import Positional


def report(run: Positional[Path]) -> None:
    """Write a run's report.html anew.

    Args:
        run: The folder of a run.
    """
    from labelflow.report import write_report

    print(write_report(run))
