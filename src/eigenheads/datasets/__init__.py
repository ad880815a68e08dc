"""Laws: frozen dataclasses that draw synthetic data with a known solution."""

from eigenheads.datasets._bags import BagLaw, BagSample
from eigenheads.datasets._loaders import MuskBags, load_musk, load_passages
from eigenheads.datasets._location import SingleLocation, SingleLocationSample
from eigenheads.datasets._pca import (
    GaussianPrompts,
    SpikedWishartPrompts,
    SpikedWishartSample,
    random_covariance,
)
from eigenheads.datasets._signal import SignalSample, SignalTokens

__all__ = [
    "BagLaw",
    "BagSample",
    "GaussianPrompts",
    "MuskBags",
    "SignalSample",
    "SignalTokens",
    "SingleLocation",
    "SingleLocationSample",
    "SpikedWishartPrompts",
    "SpikedWishartSample",
    "load_musk",
    "load_passages",
    "random_covariance",
]
