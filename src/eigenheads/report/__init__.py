"""Reports: self-contained HTML pages of results and of probed models."""

from eigenheads.report._page import render_report, write_report
from eigenheads.report._probe import write_probe

__all__ = ["render_report", "write_probe", "write_report"]
