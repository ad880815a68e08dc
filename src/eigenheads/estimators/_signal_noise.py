"""Coordinates in which the nuisance tokens have unit noise in every direction."""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray


class Coordinates(NamedTuple):
    """``z = (x - mean) @ into``; a pattern in z is ``out @ pattern`` in x."""

    mean: FloatArray
    into: FloatArray
    out: FloatArray

    def read(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return z, in the tokens' dtype."""
        dtype = tokens.dtype
        z: NDArray[Any] = (tokens - self.mean.astype(dtype)) @ self.into.astype(dtype)
        return z


def noise_coordinates(
    tokens: NDArray[np.floating[Any]], *, whiten: bool
) -> Coordinates:
    """Return coordinates of unit noise: one scale for all directions, or whitened."""
    d = tokens.shape[1]
    mean = tokens.mean(axis=0, dtype=np.float64)
    centred = tokens - mean.astype(tokens.dtype)
    covariance = (centred.T @ centred).astype(np.float64) / len(tokens)
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, 0.0)
    kept = values > max(values[-1] * d * np.finfo(tokens.dtype).eps, 0.0)
    if not kept.any():  # all tokens are alike
        return Coordinates(mean, np.eye(d), np.eye(d))
    if not whiten:
        scale = math.sqrt(_noise_level(values[kept], len(tokens)))
        return Coordinates(mean, np.eye(d) / scale, np.eye(d) * scale)
    roots = np.sqrt(values[kept])
    basis = vectors[:, kept]
    return Coordinates(mean, basis / roots, basis * roots)


def _noise_level(values: FloatArray, n: int) -> float:
    """Return the variance of isotropic noise with this median eigenvalue.

    The median of the Marchenko–Pastur law of ratio γ <= 1 is 1 − γ/3 up to O(γ²).
    """
    gamma = min(len(values) / n, 1.0)
    return float(np.median(values)) / (1 - gamma / 3)
