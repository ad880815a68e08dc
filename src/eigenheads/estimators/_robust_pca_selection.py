"""Choices of robust PCA from the data: price of errors, number of components, noise."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._parameters import weighted_quantile
from eigenheads.estimators._robust_pca_pursuit import (
    SETTLED,
    PreparedData,
    Pursuit,
)
from eigenheads.estimators._robust_pca_splitting import ErrorPenalty

# Share of the known entries that are hidden, and predicted from the others.
HIDDEN = 0.1
# Candidates are powers of the square root of 2, from the first to the last exponent.
_FIRST, _LAST = -2, 8
# Recovery is proved for 1, so another value must be better by this share.
_SLACK = 0.02
# Errors below this share of the data are equal: pursuits of candidates end earlier.
_EQUAL = 2e-3
# Sets of errors are the same if they share this part of their union.
_SAME = 0.95
# The best candidate is the next reference, but only once: each finds fewer errors.
_N_REFERENCES = 2
# Fewer known entries than this decide nothing.
_FEWEST = 2000
# Candidates are fitted to at most so many entries, in at least so many rows, columns.
_MOST_ENTRIES, _LEAST_ROWS = 400_000, 200
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
    needs_rank: bool,
    report: Callable[[str], None],
) -> Selection:
    """Choose the sparsity by planted errors, the components by hidden entries.

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
    needs_rank
        Whether to choose the number of components.
    report
        Called with a line of progress.
    """
    table = np.empty((0, 2))
    if data.seen_share * data.n_rows * data.x.shape[1] < _FEWEST:
        return Selection(1.0 if sparsity is None else sparsity, None, table)
    part = _some_entries(data)
    n, d = part.x.shape
    report(f"choosing with {n} rows and {d} columns")
    # The price is that of all entries: the nuclear norm grows with the roots of the
    # numbers of rows and columns, the sum of errors with the numbers.
    price = data.price(of_rows) * np.sqrt(data.n_rows / part.n_rows)
    if not of_rows:
        price *= np.sqrt(data.x.shape[1] / part.x.shape[1])
    nu = noise_penalty(noise, part)

    def penalty(relative: float) -> ErrorPenalty:
        return ErrorPenalty(relative * price, nu, of_rows)

    if sparsity is None:
        sparsity, table = _by_planted_errors(part, penalty, report)
        table[:, 1] *= data.unit
    n_components = None
    if needs_rank:
        hidden_part, truth, hidden = _hide(part)
        pursuit = Pursuit(hidden_part, penalty(sparsity), report)
        pursuit.run(_TOL, _MAX_ITER, SETTLED)
        by_rank = _errors_by_rank(pursuit, truth, hidden)
        n_components = max(1, int(np.argmin(by_rank)))
        error = data.unit * by_rank[n_components]
        report(f"{n_components} components: error of hidden entries {error:.4g}")
    return Selection(sparsity, n_components, table)


def _by_planted_errors(
    data: PreparedData,
    penalty: Callable[[float], ErrorPenalty],
    report: Callable[[str], None],
) -> tuple[float, FloatArray]:
    """Return the sparsity that removes errors like those of the data, and candidates.

    The large errors that a reference finds are hidden and planted into other rows, at
    the same columns. What the low-rank part of a candidate differs by from the data
    before planting is its error. The best candidate is the next reference.
    """
    references = Pursuit(data, penalty(1.0), report)

    def large(exponent: int) -> NDArray[np.bool_]:
        relative = 2 ** (exponent / 2)
        report(f"sparsity {relative:.3g}: looking for errors")
        references.splitting.errors = penalty(relative)
        references.run(_TOL, _MAX_ITER, SETTLED)
        return _large_errors(references)

    reference, errors = 0, large(0)
    if references.is_exact or not errors.any():
        return 1.0, np.empty((0, 2))
    # Errors apart from everything else are the same for many prices. If they are not
    # at 1 but at smaller ones, the low-rank part of 1 has taken some of them.
    below = large(-1)
    if not _are_same(below, errors):
        lowest = large(-2)
        if _are_same(lowest, below) and len(references.prox.singular_values):
            reference, errors = -1, below
        else:
            # Parts of the structure cease to be errors if these cost more.
            further = large(1)
            if 2 * np.count_nonzero(further) <= np.count_nonzero(errors):
                reference, errors = 1, further
    for _ in range(_N_REFERENCES):
        tried = _search(_planted(data, errors, penalty, report), reference)
        table = np.array([[2 ** (k / 2), tried[k] ** 0.5] for k in sorted(tried)])
        best = min(tried, key=tried.__getitem__)
        if best <= reference:
            break
        reference, errors = best, large(best)
    if tried.get(0, np.inf) <= (1 + _SLACK) ** 2 * tried[best]:
        return 1.0, table
    return 2 ** (_vertex(tried, best) / 2), table


def _large_errors(pursuit: Pursuit) -> NDArray[np.bool_]:
    """Return the larger class of the two into which sizes of errors split best."""
    splitting, data = pursuit.splitting, pursuit.data
    sizes = np.abs(data.x - splitting.low_rank.block(slice(None)))
    if data.roots is not None:
        sizes /= data.roots
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


def _are_same(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> bool:
    """Return whether two sets of entries share nearly all."""
    shared, either = np.count_nonzero(first & second), np.count_nonzero(first | second)
    return bool(shared >= _SAME * either > 0)


def _size(data: PreparedData) -> float:
    """Return the root mean square of the prepared data."""
    return float(np.linalg.norm(data.x)) / (data.n_rows * data.x.shape[1]) ** 0.5


def _planted(
    data: PreparedData,
    errors: NDArray[np.bool_],
    penalty: Callable[[float], ErrorPenalty],
    report: Callable[[str], None],
) -> Callable[[int], float]:
    """Return the mean squared error of a candidate, given by its exponent."""
    order = random_source(0).permutation(len(data.x))
    donors = np.empty_like(order)
    donors[order] = np.roll(order, 1)
    observed = ~errors if data.observed is None else data.observed & ~errors
    planted = errors[donors] & observed
    moved = data.x[donors]
    if data.roots is not None:
        moved *= data.roots / data.roots[donors]
    x = np.where(planted, moved, data.x)
    x *= observed
    part = data._replace(x=x.astype(data.x.dtype), observed=observed)
    pursuit = Pursuit(part, penalty(1.0), report)
    floor = (_EQUAL * _size(data)) ** 2
    n_known = part.seen_share * part.n_rows * x.shape[1]

    def error(exponent: int) -> float:
        relative = 2 ** (exponent / 2)
        pursuit.splitting.errors = penalty(relative)
        pursuit.run(_TOL, _MAX_ITER, SETTLED)
        difference = pursuit.splitting.low_rank.block(slice(None)) - data.x
        difference *= observed
        mean = float(np.vdot(difference, difference)) / max(n_known, 1.0)
        report(
            f"sparsity {relative:.3g}: error with planted errors "
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
    x = np.concatenate([data.x[part][:, columns] for part in np.array_split(rows, 20)])
    return data._replace(
        x=x,
        observed=None if data.observed is None else data.observed[rows][:, columns],
        roots=None if data.roots is None else data.roots[rows],
    )


def _hide(
    data: PreparedData,
) -> tuple[PreparedData, FloatArray, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the data with hidden entries, what is hidden, and where."""
    observed = data.observed
    if observed is None:
        observed = np.ones(data.x.shape, dtype=bool)
    is_hidden = random_source(0).random_sample(data.x.shape) < HIDDEN
    is_hidden &= observed
    rows, columns = np.nonzero(is_hidden)
    hidden = (rows.astype(np.int64), columns.astype(np.int64))
    truth = data.x[hidden].astype(np.float64)
    observed = observed & ~is_hidden
    part = data._replace(x=data.x * observed, observed=observed)
    return part, truth, hidden


def _errors_by_rank(
    pursuit: Pursuit,
    truth: FloatArray,
    hidden: tuple[NDArray[np.int64], NDArray[np.int64]],
) -> FloatArray:
    """Return the mean absolute errors with 0, 1, ... components."""
    rows, columns = hidden
    roots = pursuit.data.roots
    scale = np.ones(len(rows)) if roots is None else roots[rows, 0]
    prox = pursuit.prox
    guess = scale * prox.mean[columns]
    errors = [np.mean(np.abs(guess - truth) * scale)]
    for left, right in zip(prox.left.T, prox.right, strict=True):
        guess = guess + left[rows] * right[columns]
        errors.append(np.mean(np.abs(guess - truth) * scale))
    return np.array(errors) / np.mean(scale**2)


def estimate_noise(
    data: PreparedData,
    *,
    sparsity: float,
    of_rows: bool,
    report: Callable[[str], None],
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
        observed_sizes = sizes if data.observed is None else sizes[data.observed]
        return float(np.median(observed_sizes)) / _NORMAL_MAD
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
    random = random_source(0)
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
