"""The report: a self-contained HTML page, and the same in a terminal."""

from eigenheads.report._page import (
    format_expected,
    format_number,
    newest_results,
    render_report,
    write_report,
)
from eigenheads.report._probe import (
    print_probe,
    render_probe,
    statistic_figure,
    write_probe,
)
from eigenheads.report._terminal import ProgressDisplay, print_claims, print_sweep

__all__ = [
    "ProgressDisplay",
    "format_expected",
    "format_number",
    "newest_results",
    "print_claims",
    "print_probe",
    "print_sweep",
    "render_probe",
    "render_report",
    "statistic_figure",
    "write_probe",
    "write_report",
]
