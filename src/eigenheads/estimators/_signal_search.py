"""Search for a direction that few tokens carry: ascent of a query on the sphere."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.functional._arrays import stable_softmax
from eigenheads.functional._signal import unchecked_output

Tokens = NDArray[np.floating[Any]]
# Directions along which the objective is measured to know how it varies by chance.
_N_RANDOM = 16


class FoundQuery(NamedTuple):
    """The best query of a search, and how it was found."""

    query: FloatArray
    objective: float
    inverse_temperature: float
    n_iter: int
    converged: bool


class SearchSettings(NamedTuple):
    """Starts per inverse temperature, largest number of updates, tolerance."""

    n_starts: int
    max_iter: int
    tol: float
    prompt_length: int


def cut_into_prompts(
    tokens: Tokens, length: int, random: np.random.RandomState
) -> Tokens:
    """Return prompts (n_prompts, n_tokens, d) of about `length` random tokens.

    Prompts have equal lengths; the remainder, fewer tokens than prompts, is left out.
    """
    n_prompts = max(1, len(tokens) // length)
    n_tokens = len(tokens) // n_prompts
    chosen = random.permutation(len(tokens))[: n_prompts * n_tokens]
    return tokens[chosen].reshape(n_prompts, n_tokens, tokens.shape[1])


def search_direction(
    tokens: Tokens,
    inverse_temperatures: Sequence[float],
    how: SearchSettings,
    random: np.random.RandomState,
) -> FoundQuery:
    """Return the query that stands out most, over all inverse temperatures.

    An inverse temperature is judged by how far its objective exceeds the best one on
    Gaussian tokens of the same number and width, in units of its spread over random
    queries: a larger one also finds more in pure noise.
    """
    prompts = cut_into_prompts(tokens, how.prompt_length, random)
    starts = _starts(tokens, how.n_starts, random)
    prompts, (starts,), back = _within_span(prompts, starts)
    if len(inverse_temperatures) == 1:
        found = _climb_all(prompts, starts, inverse_temperatures[0], how)
        return found._replace(query=back(found.query))
    noise = random.standard_normal(tokens.shape).astype(tokens.dtype)
    in_noise = cut_into_prompts(noise, how.prompt_length, random)
    from_noise = _starts(noise, min(2, how.n_starts), random)
    lines = _normalised(random.standard_normal((_N_RANDOM, tokens.shape[1])))
    in_noise, (from_noise, lines), _ = _within_span(in_noise, from_noise, lines)
    best, most = None, -np.inf
    for inverse_temperature in inverse_temperatures:
        found = _climb_all(prompts, starts, inverse_temperature, how)
        chance = _climb_all(in_noise, from_noise, inverse_temperature, how)
        squares = [mean_square(in_noise, line, inverse_temperature) for line in lines]
        spread = float(np.std(squares))
        excess = (found.objective - chance.objective) / max(spread, 1e-300)
        if best is None or excess > most:
            best, most = found, excess
    assert best is not None
    return best._replace(query=back(best.query))


def _within_span(
    prompts: Tokens, *queries: FloatArray
) -> tuple[Tokens, list[FloatArray], Callable[[FloatArray], FloatArray]]:
    """Return prompts and queries in coordinates of the span of the tokens.

    Scores are inner products with tokens and gradients are sums of tokens, so that
    nothing changes but the cost, if there are fewer tokens than features. The last
    value maps a query back.
    """
    d = prompts.shape[-1]
    if prompts.size // d >= d:
        return prompts, list(queries), lambda query: query
    basis = np.linalg.qr(prompts.reshape(-1, d).T)[0]
    wide = basis.astype(np.float64)
    return prompts @ basis, [q @ wide for q in queries], lambda query: wide @ query


def mean_square(
    prompts: Tokens, query: FloatArray, inverse_temperature: float
) -> float:
    """Return the mean squared length of the attention output."""
    outputs = unchecked_output(
        np, prompts, query.astype(prompts.dtype), inverse_temperature
    )
    return float(np.mean(np.sum(outputs**2, axis=-1, dtype=np.float64)))


def _climb_all(
    prompts: Tokens, starts: FloatArray, inverse_temperature: float, how: SearchSettings
) -> FoundQuery:
    r"""Ascend from all starts, and return the best query.

    The step is :math:`1 / (q \cdot g)`, for which the projected update
    :math:`q + a (I - q q^\top) g` is along the gradient :math:`g` itself. Queries that
    still move share each pass over the tokens.
    """
    queries = np.array(starts, dtype=np.float64)
    n_iter = np.zeros(len(queries), dtype=np.int64)
    moving = np.arange(len(queries))
    for iteration in range(1, how.max_iter + 1):
        gradients = _gradients(prompts, queries[moving], inverse_temperature)
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        n_iter[moving] = iteration
        # Without a gradient all tokens are equal along q: no direction is better.
        rises = lengths[:, 0] > 0
        before = queries[moving]
        after = np.where(
            rises[:, None], gradients / np.maximum(lengths, 1e-300), before
        )
        queries[moving] = after
        cosines = np.abs(np.einsum("ij,ij->i", before, after))
        moving = moving[rises & ~(1 - cosines <= how.tol)]
        if not len(moving):
            break
    values = [mean_square(prompts, query, inverse_temperature) for query in queries]
    best = int(np.argmax(values))
    return FoundQuery(
        queries[best],
        values[best],
        inverse_temperature,
        int(n_iter[best]),
        best not in moving,
    )


def _gradients(
    prompts: Tokens, queries: FloatArray, inverse_temperature: float
) -> FloatArray:
    """Return the mean over prompts of the gradient of the squared output, per query.

    The formula is that of :func:`eigenheads.functional.signal_output_gradient`.
    """
    rows = queries.astype(prompts.dtype)
    across = prompts.swapaxes(-1, -2)
    weights = stable_softmax(inverse_temperature * (rows @ across))
    meeting = (weights @ prompts) @ across
    excess = meeting - np.sum(weights * meeting, axis=-1, keepdims=True)
    gradients = 2 * inverse_temperature * ((weights * excess) @ prompts)
    mean: FloatArray = gradients.mean(axis=0, dtype=np.float64)
    return mean


def _starts(tokens: Tokens, n: int, random: np.random.RandomState) -> FloatArray:
    """Return the longest tokens and random directions, half each, as unit rows.

    A rare token with a strong signal is long, and points along it.
    """
    drawn = random.standard_normal((n, tokens.shape[1]))
    lengths = np.einsum("ij,ij->i", tokens, tokens)
    longest = np.argsort(-lengths, kind="stable")[: n // 2]
    longest = longest[lengths[longest] > 0]
    drawn[: len(longest)] = tokens[longest]
    return _normalised(drawn)


def _normalised(rows: FloatArray) -> FloatArray:
    unit: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


class NoiseScaling(NamedTuple):
    """``z = (x - mean) @ into``; a pattern in z is ``out @ pattern`` in x.

    `into` and `out` are numbers if all directions have one scale.
    """

    mean: FloatArray
    into: FloatArray
    out: FloatArray

    def apply(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return z, in the tokens' dtype."""
        dtype = tokens.dtype
        return _times(tokens - self.mean.astype(dtype), self.into.astype(dtype))

    def components(self, queries: FloatArray) -> FloatArray:
        """Return weights of x that give the coordinates of z along queries."""
        return _times(queries, self.into.T)

    def patterns(self, queries: FloatArray) -> FloatArray:
        """Return the directions of x that queries of z stand for."""
        return _times(queries, self.out.T)


def _times(rows: NDArray[Any], factor: NDArray[Any]) -> NDArray[Any]:
    product: NDArray[Any] = rows @ factor if factor.ndim else rows * factor
    return product


def noise_scaling(tokens: NDArray[np.floating[Any]], *, whiten: bool) -> NoiseScaling:
    """Return coordinates of unit noise: one scale for all directions, or whitened."""
    d = tokens.shape[1]
    mean = tokens.mean(axis=0, dtype=np.float64)
    centred = tokens - mean.astype(tokens.dtype)
    # With fewer tokens than features, their Gram matrix is the smaller one of the two
    # with these eigenvalues.
    is_wide = d > len(tokens)
    square = centred @ centred.T if is_wide else centred.T @ centred
    values, vectors = np.linalg.eigh(square.astype(np.float64) / len(tokens))
    values = np.maximum(values, 0.0)
    kept = values > max(values[-1] * d * np.finfo(tokens.dtype).eps, 0.0)
    if not kept.any():  # all tokens are equal
        return NoiseScaling(mean, np.ones(()), np.ones(()))
    if not whiten:
        scale = math.sqrt(_noise_level(values[kept], len(tokens)))
        return NoiseScaling(mean, np.array(1 / scale), np.array(scale))
    roots = np.sqrt(values[kept])
    basis = vectors[:, kept]
    if is_wide:
        # From eigenvectors of the Gram matrix to unit eigenvectors of the covariance.
        basis = centred.T @ basis / (roots * math.sqrt(len(tokens)))
    return NoiseScaling(mean, basis / roots, basis * roots)


def _noise_level(values: FloatArray, n: int) -> float:
    """Return the variance of isotropic noise with this median eigenvalue.

    The median of the Marchenko–Pastur law of ratio γ <= 1 is 1 − γ/3 up to O(γ²).
    """
    gamma = min(len(values) / n, 1.0)
    return float(np.median(values)) / (1 - gamma / 3)
