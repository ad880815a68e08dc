"""Choices of robust PCA from the data: price of errors, number of components, noise."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_pursuit import (
    SETTLED,
    PreparedData,
    Pursuit,
)
from eigenheads.estimators._robust_pca_splitting import ErrorPenalty
from eigenheads.estimators._row_weights import weighted_quantile

# Share of the known entries that are hidden, and predicted from the others.
HIDDEN = 0.1
# Candidates are powers of the square root of 2, from the first to the last exponent.
_FIRST, _LAST = -2, 8
# Hidden entries do not show how much of the noise of known ones is kept, which grows
# with the sparsity. So the smallest candidate wins that is within this share of the
# best. One below 1 must be better than 1, for which recovery is proved.
_SLACK = 0.02
# Fewer known entries than this decide nothing.
_FEWEST = 2000
# Candidates are fitted to at most so many entries, in at least so many rows.
_MOST_ENTRIES, _LEAST_ROWS = 1_000_000, 200
# Pursuits of candidates: residual, iterations.
_TOL, _MAX_ITER = 1e-3, 60
# Median absolute deviation of a standard normal.
_NORMAL_MAD = 0.6744897501960817
# Rows that the first fit for outlying rows uses, and the number of directions along
# which their outlyingness is measured.
_CORE, _N_DIRECTIONS = 0.75, 250
# A row is outlying if its errors exceed the median by this many deviations.
_CUTOFF = 4.0
# Steps of the noise level, and the change at which it stands still.
_NOISE_STEPS, _STILL = 8, 0.02


@dataclass(frozen=True)
class Selection:
    """Chosen relative sparsity, number of components, and errors of candidates."""

    sparsity: float
    n_components: int | None
    candidates: FloatArray


def noise_penalty(level: float, data: PreparedData) -> float:
    """Return the penalty of noise for which pure noise has no components."""
    # The largest singular value of n x d noise of unit variance.
    edge = np.sqrt(data.seen_share) * (data.n_rows**0.5 + data.x.shape[1] ** 0.5)
    return level * float(edge)


def select(
    data: PreparedData,
    *,
    sparsity: float | None,
    noise: float,
    of_rows: bool,
    report: Callable[[str], None],
) -> Selection:
    """Choose by the mean absolute error of hidden entries.

    Parameters
    ----------
    data
        Prepared data.
    sparsity
        Relative sparsity; None to choose it.
    noise
        Standard deviation of the noise in units of the prepared data.
    of_rows
        Whether errors are whole rows.
    report
        Called with a line of progress.
    """
    if data.seen_share * data.n_rows * data.x.shape[1] < _FEWEST:
        return Selection(1.0 if sparsity is None else sparsity, None, np.empty((0, 2)))
    part, wanted, hidden = _hide(data)
    # The price is that of all rows: the nuclear norm grows with the root of their
    # number, the sum of errors with the number.
    price = data.price(of_rows) * np.sqrt(data.n_rows / part.n_rows)
    nu = noise_penalty(noise, part)
    first = 1.0 if sparsity is None else sparsity
    pursuit = Pursuit(part, ErrorPenalty(first * price, nu, of_rows))
    tried: dict[float, tuple[float, FloatArray]] = {}

    def error(relative: float) -> float:
        pursuit.splitting.errors = ErrorPenalty(relative * price, nu, of_rows)
        pursuit.run(_TOL, _MAX_ITER, SETTLED)
        by_rank = _errors_by_rank(pursuit, wanted, hidden)
        tried[relative] = (float(by_rank[-1]), by_rank)
        found = data.unit * tried[relative][0]
        report(f"sparsity {relative:.3g}: error of hidden entries {found:.4g}")
        return tried[relative][0]

    if sparsity is None:
        _search(error)
    else:
        error(sparsity)
    least = min(found for found, _ in tried.values())
    near = [s for s, (found, _) in tried.items() if found <= (1 + _SLACK) * least]
    best = min(near)
    if 1.0 in near and tried[best][0] > (1 - _SLACK / 2) * tried[1.0][0]:
        best = 1.0
    n_components = int(np.argmin(tried[best][1]))
    table = np.array([[s, data.unit * tried[s][0]] for s in sorted(tried)])
    return Selection(best, max(1, n_components), table)


def _search(error: Callable[[float], float]) -> None:
    """Try candidates upwards from 1 while they improve, else downwards."""
    best, worse = error(1.0), 0
    for exponent in range(1, _LAST + 1):
        here = error(2 ** (exponent / 2))
        worse = 0 if here < best else worse + 1
        best = min(best, here)
        if worse == 2 or (exponent == 1 and worse):
            break
    if exponent > 1:
        return
    for exponent in range(-1, _FIRST - 1, -1):
        here = error(2 ** (exponent / 2))
        if here >= best:
            break
        best = here


def _hide(
    data: PreparedData,
) -> tuple[PreparedData, FloatArray, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return some rows with hidden entries, what is hidden, and where."""
    random = np.random.RandomState(0)
    n, d = data.x.shape
    n_rows = min(n, max(_LEAST_ROWS, _MOST_ENTRIES // d))
    chosen = np.arange(n)
    if n_rows < n:
        chosen = np.sort(random.permutation(n)[:n_rows])
    x = data.x[chosen]
    observed = np.ones(x.shape, dtype=bool)
    if data.observed is not None:
        observed = data.observed[chosen]
    is_hidden = (random.random_sample(x.shape) < HIDDEN) & observed
    rows, columns = np.nonzero(is_hidden)
    hidden = (rows.astype(np.int64), columns.astype(np.int64))
    wanted = x[hidden].astype(np.float64)
    x[hidden] = 0.0
    roots = None if data.roots is None else data.roots[chosen]
    part = PreparedData(x, observed & ~is_hidden, data.centre, data.unit, roots)
    return part, wanted, hidden


def _errors_by_rank(
    pursuit: Pursuit,
    wanted: FloatArray,
    hidden: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> FloatArray:
    """Return the mean absolute errors with 0, 1, ... components."""
    rows, columns = hidden
    roots = pursuit.data.roots
    scale = np.ones(len(rows)) if roots is None else roots[rows, 0]
    prox = pursuit.prox
    guess = scale * prox.mean[columns]
    errors = [np.mean(np.abs(guess - wanted) * scale)]
    for left, right in zip(prox.left.T, prox.right, strict=True):
        guess = guess + left[rows] * right[columns]
        errors.append(np.mean(np.abs(guess - wanted) * scale))
    return np.array(errors) / np.mean(scale**2)


def estimate_noise(data: PreparedData, *, sparsity: float, of_rows: bool) -> float:
    """Return the standard deviation of dense noise, in units of the prepared data.

    It begins with the spread of all entries. Each step takes the median absolute
    remainder of a pursuit with the last level, whose singular values are moved back by
    what the penalty took; entries that the components can fit by chance are
    discounted. Gross errors in fewer than half of the entries do not matter.
    """
    part = data
    if data.x.size > _MOST_ENTRIES:
        n_rows = max(_LEAST_ROWS, _MOST_ENTRIES // data.x.shape[1])
        chosen = np.linspace(0, len(data.x) - 1, min(n_rows, len(data.x))).astype(int)
        part = data._replace(
            x=data.x[chosen],
            observed=None if data.observed is None else data.observed[chosen],
            roots=None if data.roots is None else data.roots[chosen],
        )
    price = sparsity * data.price(of_rows) * np.sqrt(data.n_rows / part.n_rows)
    level = _spread(part.x, part)
    smallest = 1e-6 * level
    pursuit: Pursuit | None = None
    for _ in range(_NOISE_STEPS):
        if level <= smallest:
            return 0.0
        errors = ErrorPenalty(price, noise_penalty(level, part), of_rows)
        if pursuit is None:
            pursuit = Pursuit(part, errors)
        pursuit.splitting.errors = errors
        pursuit.run(_TOL, _MAX_ITER, SETTLED)
        before, level = level, _remaining(pursuit)
        if abs(before - level) <= _STILL * before:
            break
    return level


def _remaining(pursuit: Pursuit) -> float:
    prox, data = pursuit.prox, pursuit.data
    sizes = prox.singular_values
    back = 1 + pursuit.splitting.errors.noise / np.maximum(sizes, 1e-300)
    ones = np.ones(len(data.x)) if data.roots is None else data.roots[:, 0]
    low_rank = (prox.left * back) @ prox.right + np.outer(ones, prox.mean)
    n, d = data.n_rows, data.x.shape[1]
    rank = len(sizes) + 1
    n_known = data.seen_share * n * d
    free = max(1 - rank * (n + d - rank) / n_known, 0.05)
    return _spread(data.x - low_rank, data) / float(np.sqrt(free))


def _spread(x: FloatArray, data: PreparedData) -> float:
    """Return the robust standard deviation of the known entries of an array."""
    sizes = np.abs(x)
    if data.roots is None:
        known = sizes if data.observed is None else sizes[data.observed]
        return float(np.median(known)) / _NORMAL_MAD
    # Rows were multiplied by the roots of their weights.
    sizes /= data.roots
    weights = np.broadcast_to(data.roots**2, x.shape)
    if data.observed is not None:
        weights = weights * data.observed
    return weighted_quantile(sizes.ravel(), weights.ravel(), 0.5) / _NORMAL_MAD


def central_rows(
    data: NDArray[np.floating], weights: FloatArray | None = None
) -> NDArray[np.bool_]:
    """Return which rows are among the three quarters that are least outlying.

    Outlyingness is the largest robust distance from the median over directions through
    two rows (Stahel and Donoho). Missing values count as the median. With weights,
    rows are drawn and counted as often as they weigh.
    """
    random = np.random.RandomState(0)
    n = len(data)
    filled = data.astype(np.float64)
    medians = np.nanmedian(filled, axis=0)
    filled = np.where(np.isnan(filled), medians, filled) - medians
    if weights is None:
        first, second = random.randint(0, n, (2, _N_DIRECTIONS))
    else:
        share = weights / weights.sum()
        first, second = random.choice(n, (2, _N_DIRECTIONS), p=share)
    lines = filled[first] - filled[second]
    lengths = np.linalg.norm(lines, axis=1)
    if not lengths.any():
        return np.ones(n, dtype=bool)
    lines = lines[lengths > 0] / lengths[lengths > 0, None]
    places = filled @ lines.T
    places -= np.median(places, axis=0)
    np.abs(places, out=places)
    spreads = np.median(places, axis=0)
    spreads = np.where(spreads > 0, spreads, places.mean(axis=0))
    outlyingness = np.max(places / np.maximum(spreads, 1e-300), axis=1)
    if weights is None:
        return outlyingness <= np.quantile(outlyingness, _CORE)
    return outlyingness <= weighted_quantile(outlyingness, weights, _CORE)


def fitting_rows(
    lengths: FloatArray,
    core: NDArray[np.bool_],
    smallest: float,
    weights: FloatArray | None = None,
) -> NDArray[np.bool_]:
    """Return which rows have errors no longer than those of the core, nearly.

    Parameters
    ----------
    lengths
        Lengths of the errors of all rows.
    core
        Rows that were fitted.
    smallest
        Errors up to this length are rounding errors.
    weights
        Weights of the rows; None is ones.
    """
    inner = lengths[core]
    weights = None if weights is None else weights[core]
    middle = weighted_quantile(inner, weights, 0.5)
    apart = weighted_quantile(np.abs(inner - middle), weights, 0.5)
    fits: NDArray[np.bool_] = (
        lengths <= middle + _CUTOFF * apart / _NORMAL_MAD + smallest
    )
    return fits
