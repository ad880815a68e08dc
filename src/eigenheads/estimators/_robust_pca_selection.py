"""Choices of robust PCA from the data: price of errors, noise, central rows."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_pursuit import (
    SETTLED,
    PreparedData,
    Pursuit,
)
from eigenheads.estimators._robust_pca_splitting import ErrorPenalty

Report = Callable[[str], None]
# Candidates are fitted to at most so many entries, in at least so many rows, columns.
_MOST_ENTRIES, _LEAST_ROWS = 400_000, 200
# Pursuits of candidates: residual, iterations.
_TOL, _MAX_ITER = 1e-3, 60


# --- The price of errors -------------------------------------------------------------

# Candidates are powers of the square root of 2, from the first to the last exponent.
_FIRST, _LAST = -2, 8
# Recovery is proved for 1, so another value must be better by this share.
_SLACK = 0.02
# Errors below this share of the data are equal: pursuits of candidates end earlier.
_EQUAL = 2e-3
# The best candidate is the next reference, but only once: each finds fewer errors.
_N_REFERENCES = 2
# Fewer known entries than this decide nothing.
_FEWEST = 2000


def choose_sparsity(
    data: PreparedData, noise: float, report: Report
) -> tuple[float, FloatArray]:
    """Return the relative sparsity that removes planted errors best, and candidates.

    The large errors that a reference finds are hidden and planted into other rows, at
    the same columns. What the low-rank part of a candidate differs by from the data
    before planting is its error. The best candidate is the next reference. `noise` is
    its standard deviation in units of the prepared data.
    """
    table = np.empty((0, 2))
    if data.seen_share * data.x.size < _FEWEST:
        return 1.0, table
    part = _some_entries(data)
    report(f"choosing with {part.x.shape[0]} rows and {part.x.shape[1]} columns")
    # The price is that of all entries: the nuclear norm grows with the roots of the
    # numbers of rows and columns, the sum of errors with the numbers.
    price = data.price() * np.sqrt(data.x.size / part.x.size)
    nu = part.noise_penalty(noise)

    def penalty(exponent: int) -> ErrorPenalty:
        return ErrorPenalty(2 ** (exponent / 2) * price, nu)

    references = Pursuit(part, penalty(0), report)

    def large(exponent: int) -> NDArray[np.bool_]:
        report(f"sparsity {2 ** (exponent / 2):.3g}: looking for errors")
        references.splitting.errors = penalty(exponent)
        references.run(_TOL, _MAX_ITER, SETTLED)
        return _large_errors(references)

    reference, errors = 0, large(0)
    if references.is_exact or not errors.any():
        return 1.0, table
    for _ in range(_N_REFERENCES):
        tried = _search(_planted(part, errors, penalty, report), reference)
        best = min(tried, key=tried.__getitem__)
        if best <= reference:
            break
        reference, errors = best, large(best)
    table = np.array(
        [[2 ** (k / 2), data.unit * tried[k] ** 0.5] for k in sorted(tried)]
    )
    if tried.get(0, np.inf) <= (1 + _SLACK) ** 2 * tried[best]:
        return 1.0, table
    return 2 ** (_vertex(tried, best) / 2), table


def _some_entries(data: PreparedData) -> PreparedData:
    """Return few enough rows and columns for the pursuits of candidates."""
    random = random_source(0)
    n, d = data.x.shape
    # Nearly as many rows as columns: the shorter side limits the rank that is found.
    n_rows = min(n, max(int(_MOST_ENTRIES**0.5), _MOST_ENTRIES // d))
    n_columns = min(d, max(_LEAST_ROWS, _MOST_ENTRIES // n_rows))
    rows, columns = np.arange(n), np.arange(d)
    if n_rows < n:
        rows = np.sort(random.permutation(n)[:n_rows])
    if n_columns < d:
        columns = np.sort(random.permutation(d)[:n_columns])
    observed = None if data.observed is None else data.observed[rows][:, columns]
    x = np.concatenate([data.x[part][:, columns] for part in np.array_split(rows, 20)])
    return data._replace(x=x, observed=observed)


def _large_errors(pursuit: Pursuit) -> NDArray[np.bool_]:
    """Return the larger class of the two into which sizes of errors split best."""
    splitting, data = pursuit.splitting, pursuit.data
    sizes = np.abs(data.x - splitting.low_rank.block(slice(None)))
    if data.observed is not None:
        sizes *= data.observed
    order = np.sort(sizes, axis=None)[::-1].astype(np.float64)
    count = np.arange(1, order.size)
    sums = np.cumsum(order)
    upper = sums[:-1] / count
    lower = (sums[-1] - sums[:-1]) / (order.size - count)
    # The split has the largest variance between its classes (Otsu).
    between = count * (order.size - count) * (upper - lower) ** 2
    edge = order[int(np.argmax(between))]
    is_large: NDArray[np.bool_] = sizes >= max(edge, _EQUAL * _size(data))
    return is_large


def _size(data: PreparedData) -> float:
    """Return the root mean square of the prepared data."""
    return float(np.linalg.norm(data.x) / data.x.size**0.5)


def _planted(
    data: PreparedData,
    errors: NDArray[np.bool_],
    penalty: Callable[[int], ErrorPenalty],
    report: Report,
) -> Callable[[int], float]:
    """Return the mean squared error of a candidate, given by its exponent."""
    order = random_source(0).permutation(len(data.x))
    donors = np.empty_like(order)
    donors[order] = np.roll(order, 1)
    observed = ~errors if data.observed is None else data.observed & ~errors
    planted = errors[donors] & observed
    x = np.where(planted, data.x[donors], data.x) * observed
    part = data._replace(x=x, observed=observed)
    pursuit = Pursuit(part, penalty(0), report)
    floor = (_EQUAL * _size(data)) ** 2

    def error(exponent: int) -> float:
        pursuit.splitting.errors = penalty(exponent)
        pursuit.run(_TOL, _MAX_ITER, SETTLED)
        difference = pursuit.splitting.low_rank.block(slice(None)) - data.x
        difference *= observed
        n_known = max(float(np.count_nonzero(observed)), 1.0)
        mean = float(np.vdot(difference, difference)) / n_known
        report(
            f"sparsity {2 ** (exponent / 2):.3g}: error with planted errors "
            f"{data.unit * mean**0.5:.4g}"
        )
        return mean + floor

    return error


def _search(error: Callable[[int], float], start: int) -> dict[int, float]:
    """Return errors of candidates from `start` to both sides of the least."""
    tried = {start: error(start)}
    best = start
    while best < _LAST and (best == max(tried) or best == min(tried)):
        step = 1 if best == max(tried) else -1
        if not _FIRST <= best + step <= _LAST:
            break
        tried[best + step] = error(best + step)
        best = min(tried, key=tried.__getitem__)
    return tried


def _vertex(tried: dict[int, float], best: int) -> float:
    """Return where a parabola through the logarithms of three errors is least."""
    if best - 1 not in tried or best + 1 not in tried:
        return float(best)
    left, middle, right = (float(np.log(tried[best + k])) for k in (-1, 0, 1))
    bend = left + right - 2 * middle
    return best + (left - right) / (2 * bend) if bend > 0 else float(best)


# --- The noise -----------------------------------------------------------------------

# Median absolute deviation of a standard normal.
_NORMAL_MAD = 0.6744897501960817
# Steps of the noise level, and the change at which it stands still.
_NOISE_STEPS, _STILL = 8, 0.02


def estimate_noise(
    data: PreparedData, sparsity: float, of_rows: bool, report: Report
) -> float:
    """Return the standard deviation of dense noise, in units of the prepared data.

    It begins with the spread of all entries. Each step takes the median absolute
    remainder of a pursuit with the last level, whose singular values are moved back by
    what the penalty took; entries that the components can fit by chance are
    discounted. Gross errors in fewer than half of the entries do not matter.
    """
    chosen: Any = slice(None)
    if data.x.size > _MOST_ENTRIES:
        n_rows = max(_LEAST_ROWS, _MOST_ENTRIES // data.x.shape[1])
        chosen = np.linspace(0, len(data.x) - 1, min(n_rows, len(data.x))).astype(int)
    observed = None if data.observed is None else data.observed[chosen]
    part = data._replace(x=data.x[chosen], observed=observed)
    price = sparsity * data.price(of_rows) * np.sqrt(len(data.x) / len(part.x))
    level = _spread(part.x, part)
    smallest = 1e-6 * level
    pursuit: Pursuit | None = None
    for _ in range(_NOISE_STEPS):
        if level <= smallest:
            return 0.0
        errors = ErrorPenalty(price, part.noise_penalty(level), of_rows)
        if pursuit is None:
            pursuit = Pursuit(part, errors, report)
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
    low_rank = (prox.left * back) @ prox.right + prox.mean
    n, d = data.x.shape
    rank = len(sizes) + 1
    free = max(1 - rank * (n + d - rank) / (data.seen_share * n * d), 0.05)
    return _spread(data.x - low_rank, data) / float(np.sqrt(free))


def _spread(x: FloatArray, data: PreparedData) -> float:
    """Return the robust standard deviation of the known entries of an array."""
    sizes = np.abs(x if data.observed is None else x[data.observed])
    return float(np.median(sizes)) / _NORMAL_MAD


# --- Outlying rows -------------------------------------------------------------------

# Rows that the first fit for outlying rows uses, and the number of directions along
# which their outlyingness is measured.
_CORE, _N_DIRECTIONS = 0.75, 250
# A row is outlying if its errors exceed the median by this many deviations.
_CUTOFF = 4.0


def central_rows(data: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Return which rows are among the three quarters that are least outlying.

    Outlyingness is the largest robust distance from the median over directions through
    two rows (Stahel and Donoho). Missing values count as the median.
    """
    n = len(data)
    filled = data.astype(np.float64)
    medians = np.nanmedian(filled, axis=0)
    filled = np.where(np.isnan(filled), medians, filled) - medians
    first, second = random_source(0).randint(0, n, (2, _N_DIRECTIONS))
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
    is_central: NDArray[np.bool_] = outlyingness <= np.quantile(outlyingness, _CORE)
    return is_central


def fitting_rows(lengths: FloatArray, core: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return which errors of rows are hardly longer than those of the fitted core."""
    inner = lengths[core]
    middle = np.median(inner)
    apart = np.median(np.abs(inner - middle)) / _NORMAL_MAD
    rounding = 1e-5 * np.median(lengths)
    fits: NDArray[np.bool_] = lengths <= middle + _CUTOFF * apart + rounding
    return fits
