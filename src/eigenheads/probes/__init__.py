"""Statistics of attention heads given as plain arrays, with null distributions."""

from eigenheads.probes._calibration import calibrate, planted_heads
from eigenheads.probes._covariance import covariance_probe
from eigenheads.probes._head_probe import head_probe
from eigenheads.probes._heads import Head, NotAttentionWarning
from eigenheads.probes._kernel import kernel_pca_probe
from eigenheads.probes._model_probe import ModelProbe
from eigenheads.probes._nulls import Null
from eigenheads.probes._result import ProbeResult, Statistic, q_values
from eigenheads.probes._statistics import HeadStatistic

__all__ = [
    "Head",
    "HeadStatistic",
    "ModelProbe",
    "NotAttentionWarning",
    "Null",
    "ProbeResult",
    "Statistic",
    "calibrate",
    "covariance_probe",
    "head_probe",
    "kernel_pca_probe",
    "planted_heads",
    "q_values",
]
