"""Searches for a direction: the head on all tokens, PCA, kurtosis, FastICA.

FastICA is written here because scikit-learn's has no single unit on whitened data of
full dimension; a test compares each unit with scikit-learn's first one.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import FloatArray

Tokens = NDArray[np.float32]
# E log cosh of a standard normal, to which FastICA's contrast is compared.
_GAUSSIAN_LOG_COSH = 0.374567207491438
# A direction has converged when 1 - |cos| of a pass is below this: 0.4 degrees.
_TOLERANCE = 2e-5


def search_with_head(
    tokens: Tokens, starts: Tokens, *, inverse_temperature: float, n_passes: int
) -> FloatArray:
    r"""Return the query with the largest mean squared output over all prompts.

    Projected ascent on all prompts at once, from every start, with the step
    :math:`1 / (q \cdot g)`, for which the update is
    :math:`q \leftarrow g / \lVert g \rVert`.

    Parameters
    ----------
    tokens
        Prompts, (n_prompts, n_tokens, d).
    starts
        Queries to start from, (d, n_starts).
    inverse_temperature
        Inverse temperature of the head.
    n_passes
        Updates at most, each of which reads all tokens.
    """
    queries, objective = starts, np.zeros(starts.shape[1])
    pooled = tokens.reshape(-1, tokens.shape[-1])
    for _ in range(n_passes):
        # This is the softmax over the tokens of each prompt, for all starts at once:
        # weights are (n_prompts, n_tokens, n_starts), outputs (n_prompts, n_starts, d).
        weights = np.matmul(tokens, queries)
        weights *= np.float32(inverse_temperature)
        weights -= weights.max(axis=1, keepdims=True)
        np.exp(weights, out=weights)
        weights /= weights.sum(axis=1, keepdims=True)
        outputs = np.matmul(weights.transpose(0, 2, 1), tokens)
        # With softmax weights w of tokens x and the output o, the gradient of the
        # squared length of o is, up to a constant, the sum of w (x·o − m) x over
        # tokens. Here m is the mean of x·o with the weights w. The constant does not
        # matter, since the update is normalised.
        meetings = np.matmul(tokens, outputs.transpose(0, 2, 1))
        meetings -= np.sum(weights * meetings, axis=1, keepdims=True)
        meetings *= weights
        gradient = pooled.T @ meetings.reshape(len(pooled), -1)
        before, queries = queries, _normalised(gradient)
        # This is the objective of the queries before the update; once they have
        # converged the two agree.
        objective = np.mean(np.sum(outputs**2, axis=-1), axis=0)
        if _has_converged(before, queries):
            break
    return np.asarray(queries[:, np.argmax(objective)], dtype=np.float64)


class Whitened:
    """Pooled tokens, uncentred, with the map that makes their covariance one."""

    def __init__(self, pooled: Tokens) -> None:
        covariance = (pooled.T @ pooled / len(pooled)).astype(np.float64)
        values, vectors = np.linalg.eigh(covariance)
        self.top: FloatArray = vectors[:, -1]
        # A component with direction a in token space has the direction C^(-1/2) a after
        # whitening, so C^(1/2) leads from whitened weights back to it.
        self._colour = (vectors * np.sqrt(values)) @ vectors.T
        whiten = (vectors / np.sqrt(values)) @ vectors.T
        self.tokens: Tokens = pooled @ whiten.astype(np.float32)

    def direction(self, weights: Any) -> FloatArray:
        """Return the direction in token space that these weights pick out."""
        mixed: FloatArray = self._colour @ np.asarray(weights, dtype=np.float64)
        return mixed / np.linalg.norm(mixed)


def pursue_kurtosis(tokens: Tokens, starts: Tokens, *, n_passes: int) -> Tokens:
    r"""Return the projection of whitened tokens with the largest \|kurtosis\|.

    Fixed-point steps :math:`w \leftarrow \mathbb E\, x (w \cdot x)^3 - 3 w`,
    normalised, from every start.
    """
    weights = starts
    for _ in range(n_passes):
        projected = tokens @ weights
        cubes = projected * projected
        # The array holds squares up to here. Their mean is one on whitened tokens up to
        # rounding; the measured mean accounts for that.
        mean = 3 * cubes.mean(axis=0)
        cubes *= projected
        before = weights
        weights = _normalised(tokens.T @ cubes / len(tokens) - weights * mean)
        if _has_converged(before, weights):
            break
    # The sign of the kurtosis depends on the share of informative tokens, so the
    # largest absolute value decides.
    kurtosis = np.mean((tokens @ weights) ** 4, axis=0) - 3
    return np.asarray(weights[:, np.argmax(np.abs(kurtosis))])


def pursue_negentropy(tokens: Tokens, starts: Tokens, *, n_passes: int) -> Tokens:
    r"""Return one unit of FastICA on whitened tokens, contrast log cosh.

    Fixed-point steps
    :math:`w \leftarrow \mathbb E\, x \tanh(w \cdot x)
    - w\, \mathbb E (1 - \tanh^2(w \cdot x))`, normalised, from every start.
    """
    weights = starts
    for _ in range(n_passes):
        slopes = np.tanh(tokens @ weights)
        mean = 1 - np.mean(slopes * slopes, axis=0)
        before = weights
        weights = _normalised(tokens.T @ slopes / len(tokens) - weights * mean)
        if _has_converged(before, weights):
            break
    projected = np.abs(tokens @ weights)
    # log cosh without overflow.
    contrast = projected + np.log1p(np.exp(-2 * projected)) - np.log(2.0)
    gap = np.abs(contrast.mean(axis=0) - _GAUSSIAN_LOG_COSH)
    return np.asarray(weights[:, np.argmax(gap)])


def random_starts(d: int, n: int, rng: np.random.Generator) -> Tokens:
    """Return n random directions, one per column."""
    return _normalised(rng.standard_normal((d, n), dtype=np.float32))


def _has_converged(before: Tokens, after: Tokens) -> bool:
    """Return whether no direction has moved, up to its sign."""
    return bool(np.all(np.abs(np.sum(before * after, axis=0)) > 1 - _TOLERANCE))


def _normalised(vectors: Tokens) -> Tokens:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=0))
