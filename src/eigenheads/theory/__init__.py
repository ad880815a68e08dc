"""Closed forms and deterministic dynamics: risks, landscapes, flows, mean paths."""

from eigenheads.theory._head_certificate import HeadCertificate, head_certificate
from eigenheads.theory._location_baselines import (
    BayesRisk,
    LocationBaselines,
    location_baselines,
    location_bayes_risk,
)
from eigenheads.theory._location_dynamics import (
    location_band,
    location_descent,
    location_mean_dynamics,
)
from eigenheads.theory._location_landscape import (
    LocationFixedPoint,
    LocationLandscape,
)
from eigenheads.theory._pca_descent import PromptError, pca_prompt_error
from eigenheads.theory._pca_landscape import CriticalPoint, PCALandscape
from eigenheads.theory._signal_dynamics import (
    SignalSteps,
    pooled_pca_alignment,
    pooled_pca_threshold,
    random_alignment,
    signal_mean_dynamics,
    signal_steps,
)
from eigenheads.theory._signal_landscape import SignalFixedPoint, SignalLandscape

__all__ = [
    "BayesRisk",
    "CriticalPoint",
    "HeadCertificate",
    "LocationBaselines",
    "LocationFixedPoint",
    "LocationLandscape",
    "PCALandscape",
    "PromptError",
    "SignalFixedPoint",
    "SignalLandscape",
    "SignalSteps",
    "head_certificate",
    "location_band",
    "location_baselines",
    "location_bayes_risk",
    "location_descent",
    "location_mean_dynamics",
    "pca_prompt_error",
    "pooled_pca_alignment",
    "pooled_pca_threshold",
    "random_alignment",
    "signal_mean_dynamics",
    "signal_steps",
]
