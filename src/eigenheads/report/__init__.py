"""Self-contained HTML pages of probed models and of fits; bags and outliers, drawn."""

from eigenheads._plotting.bags import AttentionDisplay
from eigenheads._plotting.outliers import OutlierDisplay
from eigenheads.report._bags import write_bag_summary
from eigenheads.report._probe import write_probe

__all__ = [
    "AttentionDisplay",
    "OutlierDisplay",
    "write_bag_summary",
    "write_probe",
]
