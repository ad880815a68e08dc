"""Reports: self-contained HTML pages of results, of probed models and of fits."""

from eigenheads._plotting.bags import AttentionDisplay
from eigenheads.report._bags import write_bag_summary
from eigenheads.report._page import render_report, write_report
from eigenheads.report._probe import write_probe
from eigenheads.report._terminal import ProgressDisplay

__all__ = [
    "AttentionDisplay",
    "ProgressDisplay",
    "render_report",
    "write_bag_summary",
    "write_probe",
    "write_report",
]
