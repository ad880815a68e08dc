"""Searches for the direction of a signal, and whether there is one."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import chdtri, ndtri

from eigenheads._arrays import stable_softmax
from eigenheads._typing import FloatArray
from eigenheads.functional._signal import unchecked_output

# --- The threshold -------------------------------------------------------------------


# Median absolute deviation of a standard normal.
_NORMAL_MAD = float(ndtri(0.75))
# Share of the tokens held out for a conformal threshold.
_HELD_OUT = 0.2


def hold_out(
    n: int, rate: float, random: np.random.RandomState
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return indices of tokens to fit, and of tokens for a threshold of this rate.

    At least as many are held out as a threshold needs, but no more than half.
    """
    count = min(max(int(_HELD_OUT * n), int(np.ceil(1 / rate))), n // 2)
    order = random.permutation(n)
    return np.sort(order[count:]), np.sort(order[:count])


def robust_scales(projected: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return medians, and median absolute deviations in units of a normal law."""
    centers = np.median(projected, axis=0)
    deviations = np.median(np.abs(projected - centers), axis=0) / _NORMAL_MAD
    # If half of the tokens coincide: the standard deviation, or any scale.
    deviations = np.where(deviations > 0, deviations, projected.std(axis=0))
    return centers, np.where(deviations > 0, deviations, 1.0)


def conformal_threshold(
    scores: NDArray[Any], rate: float, weights: FloatArray | None = None
) -> float:
    """Return the score that a further one exceeds with at most this probability.

    It is the order statistic of rank ``ceil((n + 1) (1 - rate))`` of `n` exchangeable
    scores, and infinite if there are too few. With weights, which are proportional to
    the ratio of the density of further tokens to that of the given ones, the further
    token counts as much as the heaviest given one [Tibshirani et al. 2019].
    """
    ones = np.ones(len(scores)) if weights is None else weights
    order = np.argsort(scores, kind="stable")
    mass = np.cumsum(ones[order])
    goal = (1 - rate) * (mass[-1] + ones.max())
    place = int(np.searchsorted(mass, goal * (1 - 1e-12)))
    return float(scores[order[place]]) if place < len(scores) else float("inf")


def gaussian_threshold(n_directions: int, rate: float) -> float:
    """Return the threshold for the largest of so many independent normal scores."""
    rate_per_direction = -np.expm1(np.log1p(-rate) / n_directions)
    return float(-ndtri(rate_per_direction / 2))


# --- The searches --------------------------------------------------------------------


Tokens = NDArray[np.floating[Any]]
# Largest number of directions that are searched by default.
_MOST_DIRECTIONS = 5
# Directions along which the objective is measured to know how it varies by chance.
_N_RANDOM = 16
# The longest tokens are looked for among this many per start.
_COPIES = 8
# Steps may become shorter every so many updates, and so often.
_LOOK_EVERY, _HALVINGS = 5, 5
# More features than tokens are reduced to one for so many tokens, and at least so many.
_TOKENS_PER_FEATURE, _LEAST_FEATURES = 8, 16
# Whitening is robust from this many tokens per feature on, in so many steps.
_ROBUST_RATIO, _ROBUST_STEPS = 5, 10


class FoundQuery(NamedTuple):
    """The best query of a search, and how it was found.

    `excess` is how far its objective exceeds the best one in Gaussian noise, in units
    of the spread over random queries; NaN if it was not measured.
    """

    query: FloatArray
    objective: float
    inverse_temperature: float
    n_iter: int
    converged: bool
    excess: float = math.nan


class SearchSettings(NamedTuple):
    """Starts per inverse temperature, largest number of updates, tolerance."""

    n_starts: int
    max_iter: int
    tol: float
    prompt_length: int
    measures_excess: bool = False


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
    if len(inverse_temperatures) == 1 and not how.measures_excess:
        climbed = _climb_all(prompts, starts, inverse_temperatures[0], how)
        return climbed._replace(query=back(climbed.query))
    noise = random.standard_normal(tokens.shape).astype(tokens.dtype)
    in_noise = cut_into_prompts(noise, how.prompt_length, random)
    from_noise = _starts(noise, min(2, how.n_starts), random)
    drawn = random.standard_normal((_N_RANDOM, noise.shape[1]))
    lines = _normalised(drawn)
    best = None
    for inverse_temperature in inverse_temperatures:
        climbed = _climb_all(prompts, starts, inverse_temperature, how)
        chance = _climb_all(in_noise, from_noise, inverse_temperature, how)
        squares = [mean_square(in_noise, line, inverse_temperature) for line in lines]
        spread = float(np.std(squares))
        excess = (climbed.objective - chance.objective) / max(spread, 1e-300)
        if best is None or excess > best.excess:
            best = climbed._replace(excess=excess)
    assert best is not None
    return best._replace(query=back(best.query))


def search_directions(
    z: Tokens,
    n_directions: int | None,
    inverse_temperatures: Sequence[float],
    how: SearchSettings,
    random: np.random.RandomState,
) -> tuple[FloatArray, list[FoundQuery]]:
    """Return unit queries as rows, each orthogonal to those before, and the searches.

    Parameters
    ----------
    z
        Tokens of unit noise.
    wanted
        Number of directions. None searches at most five, and stops if Gaussian noise
        has as good a direction.
    inverse_temperatures
        Candidates.
    how
        Settings of each search.
    random
        Source of prompts and starts.
    """
    queries: list[FloatArray] = []
    searches: list[FoundQuery] = []
    # Further queries than dimensions stay zero.
    for _ in range(min(n_directions or _MOST_DIRECTIONS, z.shape[1])):
        search = search_direction(z, inverse_temperatures, how, random)
        if (
            n_directions is None
            and queries
            and not (search.excess > 0 and search.converged)
        ):
            break
        query = search.query
        for before in queries:
            query = query - before * float(before @ query)
        queries.append(query / max(float(np.linalg.norm(query)), 1e-300))
        searches.append(search)
        narrow = queries[-1].astype(z.dtype)
        z = z - np.outer(z @ narrow, narrow)
    rows = np.zeros((n_directions or len(queries), z.shape[1]))
    rows[: len(queries)] = queries
    return rows, searches


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
    halvings, turns = np.zeros(len(queries)), np.full(len(queries), np.inf)
    moving = np.arange(len(queries))
    for iteration in range(1, how.max_iter + 1):
        gradients = _gradients(prompts, queries[moving], inverse_temperature)
        lengths = np.linalg.norm(gradients, axis=1, keepdims=True)
        n_iter[moving] = iteration
        # Without a gradient all tokens are equal along q: no direction is better.
        rises = lengths[:, 0] > 0
        before = queries[moving]
        targets = np.where(
            rises[:, None], gradients / np.maximum(lengths, 1e-300), before
        )
        turn = 1 - np.abs(np.einsum("ij,ij->i", before, targets))
        # A query that turns by more and more jumps between tokens. Shorter steps end
        # that; the convergence is still measured by the full one.
        if iteration % _LOOK_EVERY == 0:
            jumps = (turn >= turns[moving]) & (halvings[moving] < _HALVINGS)
            halvings[moving] += jumps
        turns[moving] = turn
        after = (2.0 ** halvings[moving] - 1)[:, None] * before + targets
        lengths = np.linalg.norm(after, axis=1, keepdims=True)
        queries[moving] = after / np.maximum(lengths, 1e-300)
        moving = moving[rises & ~(turn <= how.tol)]
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
    longest = np.argsort(-lengths, kind="stable")[: _COPIES * n]
    # Copies of one token, which have equal lengths, are one start.
    is_new = np.diff(lengths[longest], prepend=np.inf) != 0
    longest = longest[is_new & (lengths[longest] > 0)][: n // 2]
    drawn[: len(longest)] = tokens[longest]
    return _normalised(drawn)


def _normalised(rows: FloatArray) -> FloatArray:
    unit: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


class NoiseScaling(NamedTuple):
    """``z = (x - mean) @ into``; a pattern in z is ``out @ pattern`` in x.

    A number instead of a matrix multiplies all features.
    """

    mean: FloatArray
    into: FloatArray | float
    out: FloatArray | float

    def apply(self, tokens: NDArray[Any]) -> NDArray[Any]:
        """Return z, in the dtype of the tokens."""
        dtype = tokens.dtype
        centred = tokens - self.mean.astype(dtype)
        if isinstance(self.into, float):
            return centred * dtype.type(self.into)
        z: NDArray[Any] = centred @ self.into.astype(dtype)
        return z

    def components(self, queries: FloatArray) -> FloatArray:
        """Return rows w with ``z @ query == (x - mean) @ w``."""
        return (
            queries * self.into
            if isinstance(self.into, float)
            else (queries @ self.into.T)
        )

    def patterns(self, queries: FloatArray) -> FloatArray:
        """Return the queries as directions of tokens, of unit length."""
        patterns = queries if isinstance(self.out, float) else queries @ self.out.T
        lengths = np.linalg.norm(patterns, axis=1, keepdims=True)
        unit: FloatArray = patterns / np.where(lengths > 0, lengths, 1.0)
        return unit


def noise_scaling(
    tokens: NDArray[np.floating[Any]], *, whiten: bool, least: int = 1
) -> NoiseScaling:
    """Return coordinates of unit noise: one scale for all directions, or whitened.

    With more features than tokens, every single token has a direction of its own in
    which it stands out, and a search would find one of them. Then the coordinates are
    along the first principal components: one for every eight tokens, but at least 16
    and at least `least`.
    """
    n, d = tokens.shape
    mean = tokens.mean(axis=0, dtype=np.float64)
    is_wide = d > n
    if whiten and n >= _ROBUST_RATIO * d:
        mean, covariance = _robust_covariance(tokens.astype(np.float64))
        values, vectors = np.linalg.eigh(covariance)
    else:
        centred = tokens - mean.astype(tokens.dtype)
        # With fewer tokens than features, their Gram matrix is the smaller one of the
        # two with these eigenvalues.
        square = centred @ centred.T if is_wide else centred.T @ centred
        values, vectors = np.linalg.eigh(square.astype(np.float64) / n)
    values = np.maximum(values, 0.0)
    is_kept = values > max(values[-1] * d * np.finfo(tokens.dtype).eps, 0.0)
    if not is_kept.any():  # all tokens are equal
        return NoiseScaling(mean, 1.0, 1.0)
    if not (whiten or is_wide):
        scale = math.sqrt(_noise_level(values[is_kept], n))
        return NoiseScaling(mean, 1 / scale, scale)
    if is_wide:
        most = max(n // _TOKENS_PER_FEATURE, _LEAST_FEATURES, least)
        is_kept[: max(n - most, 0)] = False
    roots = np.sqrt(values[is_kept])
    basis = vectors[:, is_kept]
    if is_wide:
        # From eigenvectors of the Gram matrix to unit eigenvectors of the covariance.
        basis = centred.T @ basis / (roots * math.sqrt(n))
    if not whiten:
        roots = np.full(len(roots), float(np.median(roots)))
    return NoiseScaling(mean, basis / roots, basis * roots)


def _robust_covariance(tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return mean and covariance in which far tokens have small weights.

    Squared distances beyond the 0.9 quantile of the chi-squared law, in units of their
    median, are cut to it (an M-estimator after Huber). The covariance is scaled so that
    the median distance is that of Gaussian tokens.
    """
    d = tokens.shape[1]
    middle, most = chdtri(d, 0.5), chdtri(d, 0.1)
    mean = np.median(tokens, axis=0)
    covariance = np.cov(tokens.T).reshape(d, d)
    result = mean, covariance
    for _ in range(_ROBUST_STEPS):
        centred = tokens - mean
        inverse = np.linalg.pinv(covariance, hermitian=True)
        squares = np.einsum("ij,ij->i", centred @ inverse, centred)
        unit = float(np.median(squares)) / middle
        if not unit > 0:
            break
        weights = np.minimum(1.0, most * unit / np.maximum(squares, 1e-300))
        result = mean, covariance * unit
        mean = weights @ tokens / weights.sum()
        centred = tokens - mean
        covariance = (weights[:, None] * centred).T @ centred / weights.sum()
    return result


def _noise_level(values: FloatArray, n: int) -> float:
    """Return the variance of isotropic noise with this median eigenvalue.

    The median of the Marchenko–Pastur law of ratio γ <= 1 is 1 − γ/3 up to O(γ²).
    """
    gamma = min(len(values) / n, 1.0)
    return float(np.median(values)) / (1 - gamma / 3)
