"""Laws: frozen dataclasses that draw synthetic data whose answer is known."""

from eigenheads.datasets._location import SingleLocation, SingleLocationSample

__all__ = ["SingleLocation", "SingleLocationSample"]
