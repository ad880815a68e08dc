r"""Population risk of attention on single-location regression with unit noise.

Keys and values are independent, so that a head with weights :math:`a_i(\chi)` on the
values has the excess risk

.. math::  E\, (1 - a_\epsilon)^2 + \sum_{i \ne \epsilon} E\, a_i^2

for :math:`v = v^*`, with the deciding token :math:`\epsilon` first. Expectations are
means over common normals; nothing here uses a declared model.
"""

from collections.abc import Callable, Mapping

import numpy as np
from scipy.optimize import minimize
from scipy.special import erf, log_softmax, softmax

from eigenheads.extend import FloatArray

Weights = Callable[[FloatArray, FloatArray], FloatArray]


def linear_weights(scores: FloatArray, shape: FloatArray) -> FloatArray:
    """Return a (1 + b χ): `shape` is (a, b)."""
    return np.asarray(shape[0] * (1 + shape[1] * scores))


def erf_weights(scores: FloatArray, shape: FloatArray) -> FloatArray:
    """Return a (1 + erf(c + b χ)): `shape` is (a, b, c)."""
    return np.asarray(shape[0] * (1 + erf(shape[2] + shape[1] * scores)))


def softmax_shares(scores: FloatArray, shape: FloatArray) -> FloatArray:
    """Return a softmax(b χ): `shape` is (a, b)."""
    return np.asarray(shape[0] * softmax(shape[1] * scores, axis=-1))


def softplus_weights(scores: FloatArray, shape: FloatArray) -> FloatArray:
    """Return a softplus(b χ) over its sum: `shape` is (a, b)."""
    grown = np.logaddexp(0, shape[1] * scores)
    # All weights underflow for large negative scores.
    total = np.maximum(grown.sum(axis=-1, keepdims=True), np.finfo(float).tiny)
    return np.asarray(shape[0] * grown / total)


HEADS: Mapping[str, tuple[Weights, tuple[float, ...]]] = {
    "linear": (linear_weights, (0.3, 1.0)),
    "erf": (erf_weights, (0.5, 1.0, -1.0)),
    "softplus": (softplus_weights, (1.0, 2.0)),
    "softmax": (softmax_shares, (1.0, 2.0)),
}


def spiked_scores(normals: FloatArray, strength: float) -> FloatArray:
    """Return scores χ = X·k* of the spiked law: the first token is shifted by √ν."""
    scores = normals.copy()
    scores[:, 0] += np.sqrt(strength)
    return scores


def max_scores(
    normals: FloatArray, strength: float, rng: np.random.Generator
) -> FloatArray:
    """Return scores of the max law: a position with weights exp(ν χ) is put first."""
    # The largest of χ + Gumbel/ν is a draw with these weights, also for ν = ∞.
    noisy = normals + rng.gumbel(size=normals.shape) / strength
    chosen = noisy.argmax(axis=-1)
    rows = np.arange(len(normals))
    scores = normals.copy()
    scores[rows, 0], scores[rows, chosen] = normals[rows, chosen], normals[rows, 0]
    return scores


def excess_risk(weights: FloatArray) -> float:
    """Return the mean squared error above the noise, deciding token first."""
    decisive, distractors = weights[:, 0], weights[:, 1:]
    return float(((1 - decisive) ** 2 + (distractors**2).sum(axis=-1)).mean())


def bayes_risk(scores: FloatArray, slope: float) -> float:
    """Return 1 − E p_ε, p the posterior of the position: exp(slope · χ), normalised."""
    return float(1 - np.exp(log_softmax(slope * scores, axis=-1)[:, 0]).mean())


def best_head(head: str, groups: list[FloatArray]) -> tuple[float, FloatArray]:
    """Return the smallest mean risk over groups of scores, and the head's shape.

    One head serves all groups: sequences of several lengths, each equally likely.
    """
    weights, first = HEADS[head]

    def mean_risk(shape: FloatArray) -> float:
        return float(np.mean([excess_risk(weights(group, shape)) for group in groups]))

    best = minimize(mean_risk, np.array(first), method="Nelder-Mead")
    return float(best.fun), np.asarray(best.x)


def linear_risk(n_tokens: float, strength: float) -> float:
    r"""Return :math:`1 / (L/(L - 1) + \nu/L)`, the best linear risk, spiked law."""
    return 1 / (n_tokens / (n_tokens - 1) + strength / n_tokens)
