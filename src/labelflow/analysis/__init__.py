"""What a run has learnt, and what its labels do."""

from labelflow.analysis.curves import line_chart
from labelflow.analysis.report import write_report
from labelflow.analysis.samples import Sample, mixed_samples

__all__ = ["Sample", "line_chart", "mixed_samples", "write_report"]
