"""Laws: frozen dataclasses that draw synthetic data whose answer is known."""

from eigenheads.datasets._location import SingleLocation, SingleLocationSample
from eigenheads.datasets._pca import (
    GaussianPrompts,
    SpikedWishartPrompts,
    SpikedWishartSample,
    random_covariance,
)

__all__ = [
    "GaussianPrompts",
    "SingleLocation",
    "SingleLocationSample",
    "SpikedWishartPrompts",
    "SpikedWishartSample",
    "random_covariance",
]
