"""The two declared models: attention with positions, and a network on a sequence."""

import math
from functools import lru_cache
from typing import Any

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.models import Model, Token, softmax

_SIGNS = np.array([1.0, -1.0])
# Keeps the derivative of a norm finite where the norm vanishes.
_TINY = 1e-30


def _error(X: Any, w: Any, u: Any, p: Any) -> Any:
    r"""Return :math:`\|A - (1 - \omega) Y - \omega P\|^2` of two tokens."""
    z, t = X @ w.w, X @ u.teacher
    attention = softmax(z[:, None] * z[None, :])
    target = softmax(t[:, None] * t[None, :])
    positions = 0.5 + p.excess * np.outer(_SIGNS, _SIGNS)
    return np.sum((attention - (1 - p.omega) * target - p.omega * positions) ** 2)


def half_square(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Half the squared Frobenius distance to the target: the landscape's loss."""
    return _error(X, w, u, p) / 2


def frobenius(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Frobenius distance to the target: the loss of the authors' training."""
    return np.sqrt(_error(X, w, u, p) + _TINY)


@lru_cache(maxsize=2)
def attention_model(loss: str) -> Model:
    """Return softmax(z zᵀ) on two tokens with positions ±P, for one of the losses."""
    return Model(
        {"half_square": half_square, "frobenius": frobenius}[loss],
        weights={"w": "sphere"},
        planted=("teacher", "position"),
        tokens=[Token(mean={"position": 1.0}), Token(mean={"position": -1.0})],
        parameters={"omega": 0.5, "excess": positional_excess(1.0)},
    )


def positional_excess(a: float) -> float:
    """Return the diagonal of softmax([[a², −a²], [−a², a²]]), less one half."""
    return 1 / (1 + math.exp(-2 * a**2)) - 0.5


def recovered(run: FloatArray, steps: FloatArray, threshold: float) -> FloatArray:
    """Return the step at which each run first exceeds a threshold, interpolated.

    Infinite for runs that never do. `run` has shape (runs, records).
    """
    above = run >= threshold
    first = above.argmax(axis=1)
    rows = np.arange(len(run))
    before = np.maximum(first - 1, 0)
    low, high = run[rows, before], run[rows, first]
    share = np.where(
        high > low, (threshold - low) / np.where(high > low, high - low, 1), 1
    )
    crossing = steps[before] + np.clip(share, 0, 1) * (steps[first] - steps[before])
    return np.where(above.any(axis=1), crossing, np.inf)


def _hermite_sum(t: Any) -> Any:
    """Return the target: the sum of the normalised second Hermite polynomials."""
    return np.sum((t**2 - 1) / math.sqrt(2))


def tied_network(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of a ReLU of the tokens' sum, with one weight for all tokens."""
    z = X @ w.w
    return (
        np.maximum(np.sum(z) / math.sqrt(len(z)), 0) - _hermite_sum(X @ u.teacher)
    ) ** 2


def untied_network(X: Any, w: Any, u: Any, g: Any, p: Any) -> Any:
    """Squared error of the same network with a weight per token."""
    t = X @ u.teacher
    n = len(t)
    z = sum(X[i] @ getattr(w, f"w{i}") for i in range(n)) / math.sqrt(n)
    return (np.maximum(z, 0) - _hermite_sum(t)) ** 2


@lru_cache(maxsize=32)
def network_model(n_tokens: int, tied: bool) -> Model:
    """Return the network with tied or untied weights on a sequence of tokens."""
    names = ["w"] if tied else [f"w{i}" for i in range(n_tokens)]
    return Model(
        tied_network if tied else untied_network,
        weights=dict.fromkeys(names, "sphere"),
        planted=("teacher",),
        tokens=Token(n_tokens),
    )
