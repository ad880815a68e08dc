r"""Principal component pursuit: the fit of robust PCA, and the codes of new rows."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_splitting import (
    ErrorPenalty,
    RowFactors,
    SparseSplitting,
)
from eigenheads.estimators._robust_pca_svd import WarmThresholdedSVD

# Rows that `transform` works on together: a few arrays of this many entries.
_BLOCK_ENTRIES = 2_000_000
# ``tol="auto"``: residuals of data that are low-rank up to their errors. Other data
# have settled if ten steps change the objective by less than the second number.
AUTO_TOL, SETTLED = 1e-6, 5e-4
_LOOK_BACK = 10
_ROW_PRICE = 3.0
# The median of so many rows is centre enough: the mean is free in the pursuit.
_CENTRE_ROWS = 1000
# Rows that are read together.
_SLICE_ROWS = 256


class CentredNuclearNorm:
    r"""Proximal map of the nuclear norm of the centred matrix.

    The column means are not penalised and stay as they are; the singular values of the
    centred argument are shrunk. (The mean is orthogonal to the centred argument, which
    has the least nuclear norm of all matrices that differ from it by equal rows.)

    Parameters
    ----------
    roots
        Square roots of the weights of rows, as a column, by which the matrix was
        multiplied; None is ones.
    """

    def __init__(self, roots: FloatArray | None = None) -> None:
        self._svd = WarmThresholdedSVD(roots)
        self._roots = roots
        self.singular_values: FloatArray = np.empty(0)

    def __call__(self, x: FloatArray, penalty: FloatArray) -> RowFactors:
        self.threshold = 1 / float(penalty[0, 0])
        factors = self._svd(x, self.threshold)
        self.singular_values = factors.singular_values
        self.mean, self.right = self._svd.mean, factors.right
        self.left = factors.left * factors.singular_values
        ones = np.ones((len(x), 1)) if self._roots is None else self._roots
        return RowFactors(
            np.concatenate([self.left, ones], axis=1),
            np.concatenate([factors.right, self.mean[None]]),
        )


class CentredRows:
    """Data about a centre, in units, zero where missing; computed row by row on demand.

    Parameters
    ----------
    data
        Matrix with NaN where nothing is observed; it is not copied.
    centre
        Row that is subtracted.
    unit
        Number by which entries are divided.
    roots
        Column by which rows are multiplied; None is ones.
    has_gaps
        Whether some values are missing.
    """

    def __init__(
        self,
        data: NDArray[Any],
        centre: NDArray[Any],
        unit: float,
        roots: FloatArray | None,
        has_gaps: bool,
    ) -> None:
        self._data, self._centre, self._unit = data, centre, data.dtype.type(unit)
        self._roots = None if roots is None else roots.astype(data.dtype)
        self._has_gaps = has_gaps
        self.shape, self.size, self.dtype = data.shape, data.size, data.dtype

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, rows: Any) -> FloatArray:
        centred: FloatArray = self._data[rows] - self._centre
        if self._has_gaps:
            centred[np.isnan(centred)] = 0.0
        centred /= self._unit
        if self._roots is not None:
            centred *= self._roots[rows]
        return centred


class PreparedData(NamedTuple):
    """Data about a centre, in units of the largest entry; zero where not observed.

    `x` is an array or :class:`CentredRows`.
    """

    x: Any
    observed: NDArray[np.bool_] | None
    centre: FloatArray
    unit: float
    roots: FloatArray | None = None

    @property
    def n_rows(self) -> float:
        """Number of rows, counted with their weights."""
        return len(self.x) if self.roots is None else float(np.sum(self.roots**2))

    @property
    def seen_share(self) -> float:
        """Share of observed entries."""
        if self.observed is None:
            return 1.0
        shares = self.observed.mean(axis=1)
        weights = None if self.roots is None else self.roots[:, 0] ** 2
        return float(np.average(shares, weights=weights))

    def price(self, of_rows: bool) -> float:
        r"""Return :math:`\lambda` for a relative sparsity of 1."""
        # Complete data give one over the root of the longer side. For whole rows the
        # number is 3 / (7 sqrt(share n)) with a share of 2 % of outlying rows.
        if of_rows:
            return _ROW_PRICE / float(np.sqrt(self.seen_share * self.n_rows))
        longer = max(self.n_rows, self.x.shape[1])
        return 1 / float(np.sqrt(self.seen_share * longer))


def prepare(data: NDArray[Any], weights: FloatArray | None = None) -> PreparedData:
    """Centre and scale a matrix with NaN where nothing is observed, without a copy."""
    observed = None
    if any(np.isnan(data[rows]).any() for rows in _slices(len(data))):
        observed = ~np.isnan(data)
    # The mean is free, so any centre gives the same minimum. With a robust one the
    # residuals are relative to the variation of the data.
    if weights is None:
        sample = data[:: max(1, len(data) // _CENTRE_ROWS)]
        is_seen = ~np.isnan(sample).all(axis=0)
        centre = np.empty(data.shape[1], dtype=data.dtype)
        median = np.median if observed is None else np.nanmedian
        centre[is_seen] = median(sample[:, is_seen], axis=0)
        if not is_seen.all():
            centre[~is_seen] = np.nanmedian(data[:, ~is_seen], axis=0)
    else:
        centre = _weighted_medians(data, weights)
    roots = None if weights is None else np.sqrt(weights)[:, None]
    plain = CentredRows(data, centre, 1.0, None, observed is not None)
    # Squares of the data must not overflow or underflow.
    largest = max(float(np.abs(plain[rows]).max()) for rows in _slices(len(data)))
    unit = largest if largest > 0 else 1.0
    x = CentredRows(data, centre, unit, roots, observed is not None)
    return PreparedData(x, observed, centre.astype(np.float64), unit, roots)


def _slices(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, _SLICE_ROWS):
        yield slice(start, start + _SLICE_ROWS)


def _weighted_medians(data: FloatArray, weights: FloatArray) -> FloatArray:
    """Return medians of columns, as if rows were repeated as often as they weigh."""
    centre = np.empty(data.shape[1], dtype=data.dtype)
    for index, column in enumerate(data.T):
        is_known = ~np.isnan(column)
        order = np.argsort(column[is_known], kind="stable")
        values, mass = column[is_known][order], np.cumsum(weights[is_known][order])
        half = mass[-1] / 2
        lower = values[np.searchsorted(mass, half * (1 - 1e-12))]
        place = np.searchsorted(mass, half * (1 + 1e-12))
        centre[index] = (lower + values[min(place, len(values) - 1)]) / 2
    return centre


@dataclass(frozen=True)
class LowRankSplit:
    """Result of the pursuit; the low-rank part is ``left @ components + mean``."""

    left: FloatArray
    sparse: FloatArray
    mean: FloatArray
    components: FloatArray
    singular_values: FloatArray
    errors: ErrorPenalty
    objective: FloatArray
    residual: FloatArray
    duality_gap: float
    has_converged: bool


class Pursuit:
    """A pursuit of prepared data, which can go on with another penalty of errors.

    Parameters
    ----------
    data
        Prepared data.
    errors
        Penalty in the units of the prepared data.
    report
        Called with a line of progress.
    """

    def __init__(
        self,
        data: PreparedData,
        errors: ErrorPenalty,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.data, self._report = data, report
        self.prox = CentredNuclearNorm(data.roots)
        self.splitting = SparseSplitting(
            data.x,
            data.observed,
            prox=self.prox,
            errors=errors,
            by_row=False,
            roots=data.roots,
        )
        # Noise of the size of the data would have this largest singular value. A first
        # threshold above it begins with few singular values, which is cheaper.
        n, d = data.n_rows, data.x.shape[1]
        largest = (n**0.5 + d**0.5) * self.splitting.size / (n * d) ** 0.5
        if largest > 0:
            self.splitting.penalty = np.full((1, 1), 1 / largest)
        self.objective: list[float] = []
        self.residual: list[float] = []

    def run(self, tol: float, max_iter: int, settled: float | None = None) -> bool:
        """Step until both residuals are at most `tol`; return whether they are.

        With `settled`, data that are not low-rank up to their errors are done when ten
        steps change the objective by less than this share.
        """
        splitting, reported = self.splitting, time.monotonic()
        first = splitting.n_iter
        while splitting.n_iter < first + max_iter:
            splitting.step()
            nuclear = float(self.prox.singular_values.sum())
            # The objective is that of a feasible pair, the low-rank part and the rest.
            self.objective.append(nuclear + float(splitting.error_value[0, 0]))
            self.residual.append(splitting.residual)
            count = splitting.n_iter
            if count == 1 or count % 10 == 0 or time.monotonic() > reported + 1:
                reported = time.monotonic()
                self._say()
            if self.residual[-1] <= max(tol, float(splitting.rounding[0, 0])):
                return True
            is_due = (count - first) % 5 == 0 and count - first >= _LOOK_BACK
            if settled and is_due and self._has_settled(settled):
                return True
        return False

    def _has_settled(self, settled: float) -> bool:
        before = self.objective[-min(_LOOK_BACK + 1, len(self.objective))]
        now = self.objective[-1]
        if abs(before - now) > settled * now or self.splitting.primal[0, 0] > 0.1:
            return False
        return not self.is_exact

    @property
    def is_exact(self) -> bool:
        """Return whether the data seem to be low-rank up to errors, without noise."""
        if self.splitting.errors.noise or self.splitting.errors.of_rows:
            return False
        # Low-rank matrices of this rank can fit as many entries as they have degrees of
        # freedom. More entries without errors mean that the data are low-rank, and
        # that the exact solution is worth the remaining steps.
        n, d = self.data.n_rows, self.data.x.shape[1]
        rank = len(self.prox.singular_values) + 1
        return self.splitting.count_zeros() >= 2 * rank * (n + d - rank)

    def _say(self) -> None:
        self._report(
            f"iteration {self.splitting.n_iter}, residual {self.residual[-1]:.2e}, "
            f"objective {self.data.unit * self.objective[-1]:.6g}, "
            f"rank {len(self.prox.singular_values)}"
        )

    def result(self, has_converged: bool) -> LowRankSplit:
        """Return the split in the units of the data; the pursuit ends."""
        data, splitting, prox = self.data, self.splitting, self.prox
        gap = self._duality_gap()
        unit, errors = data.unit, splitting.errors
        for rows in splitting.blocks():
            sparse = splitting.remainder(rows)
            if data.roots is not None:
                sparse /= data.roots[rows]
            sparse = errors.sparse(sparse)
            sparse *= sparse.dtype.type(unit)
            if data.observed is not None:
                sparse *= data.observed[rows]
            splitting.driver[rows] = sparse
        # Signs of singular vectors are arbitrary; a convention makes fits comparable.
        signs = largest_signs(prox.right)
        left_factors = prox.left if data.roots is None else prox.left / data.roots
        return LowRankSplit(
            left=unit * left_factors * signs.T,
            sparse=splitting.driver,
            mean=unit * prox.mean + data.centre,
            components=signs * prox.right,
            singular_values=unit * prox.singular_values,
            errors=ErrorPenalty(errors.sparsity, unit * errors.noise, errors.of_rows),
            objective=unit * np.array(self.objective),
            residual=np.array(self.residual),
            duality_gap=gap,
            has_converged=has_converged,
        )

    def _duality_gap(self) -> float:
        r"""Return (objective - lower bound) / objective.

        Every :math:`Y` with zero column sums, zero where nothing is observed, spectral
        norm at most 1 and entries (or rows) at most :math:`\lambda` bounds the minimum
        from below by :math:`\langle Y, X \rangle - \nu \lVert Y \rVert_F^2 / 2`. The
        subgradient of the low-rank step is scaled to be one; without missing values
        that is exact, with them its column sums are zero only up to the residual.
        """
        splitting, data = self.splitting, self.data
        errors, penalty = splitting.errors, 1 / self.prox.threshold
        excess, product, square = 1.0, 0.0, 0.0
        y = splitting.argument
        for rows in splitting.blocks():
            block = y[rows]
            block -= splitting.low_rank.block(rows)
            block *= block.dtype.type(penalty)
            if data.observed is not None:
                block *= data.observed[rows]
            sizes = np.linalg.norm(block, axis=1) if errors.of_rows else np.abs(block)
            if data.roots is not None:
                roots = data.roots[rows]
                sizes = sizes / (roots[:, 0] if errors.of_rows else roots)
            excess = max(excess, float(sizes.max()) / errors.sparsity)
            product += float(np.vdot(block, data.x[rows]))
            square += float(np.vdot(block, block))
        if data.observed is not None:
            excess = max(excess, float(np.linalg.norm(y, 2)))
        # Division by the excess makes the subgradient feasible.
        bound = product / excess - errors.noise * square / excess / excess / 2
        value = self.objective[-1]
        return (value - bound) / value if value > 0 else 0.0


def pursue_rows(
    rows: NDArray[Any], split: LowRankSplit, *, tol: float, max_iter: int
) -> tuple[FloatArray, FloatArray, int]:
    """Return codes and sparse parts of rows, and the number not converged.

    NaN is an entry that was not observed.
    """
    codes = np.zeros((len(rows), len(split.components)))
    sparse = np.empty(rows.shape)
    n_unfinished = 0
    size = max(1, _BLOCK_ENTRIES // rows.shape[1])
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        block = rows[part].astype(np.float64)
        codes[part], sparse[part], n_open = _pursue_block(block, split, tol, max_iter)
        n_unfinished += n_open
    return codes, sparse, n_unfinished


def _pursue_block(
    rows: FloatArray, split: LowRankSplit, tol: float, max_iter: int
) -> tuple[FloatArray, FloatArray, int]:
    observed = ~np.isnan(rows)
    w, sizes = split.components, split.singular_values
    centred = np.where(observed, rows - split.mean, 0.0)
    codes, remainder = np.zeros((len(rows), len(w))), centred.copy()
    if not len(w):  # without components all that differs from the mean is an error
        return codes, split.errors.sparse(remainder), 0

    def prox(x: FloatArray, penalty: FloatArray) -> RowFactors:
        """Of half the sum of squared codes over singular values, in the subspace."""
        shrunk = penalty * sizes / (1 + penalty * sizes)
        return RowFactors(shrunk * (x @ w.T), w)

    splitting = SparseSplitting(
        centred,
        None if observed.all() else observed,
        prox=prox,
        errors=split.errors,
        by_row=True,
    )
    going, n_left = np.arange(len(rows)), 0
    while len(going):
        splitting.step()
        is_open = splitting.residual[:, 0] > tol
        is_going = is_open & (splitting.n_iter < max_iter)
        # Rows that have converged leave the block, so that the others cost less.
        if not is_going.all():
            n_left = int(np.count_nonzero(is_open & ~is_going))
            done = going[~is_going]
            codes[done] = splitting.low_rank.left[~is_going]
            remainder[done] = splitting.remainder(slice(None))[~is_going]
            going = going[is_going]
            splitting.keep(is_going)
    return codes, split.errors.sparse(remainder * observed), n_left


def largest_signs(components: FloatArray) -> FloatArray:
    """Return a column of signs that make the largest entry of each row positive."""
    if not components.size:
        return np.ones((len(components), 1))
    places = np.abs(components).argmax(axis=1)
    return np.copysign(1.0, components[np.arange(len(components)), places])[:, None]
