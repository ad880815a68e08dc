"""Self-contained HTML pages of probed models and of fits, and pictures of bags."""

from eigenheads._plotting.bags import AttentionDisplay
from eigenheads.report._bags import write_bag_summary
from eigenheads.report._probe import write_probe

__all__ = [
    "AttentionDisplay",
    "write_bag_summary",
    "write_probe",
]
