"""The report of reproductions: an HTML page, and tables in a terminal."""

from eigenheads_papers.report._page import render_report, write_report
from eigenheads_papers.report.terminal import ProgressDisplay

__all__ = ["ProgressDisplay", "render_report", "write_report"]
