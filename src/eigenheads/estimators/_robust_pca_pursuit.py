r"""Principal component pursuit: the fit of robust PCA."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_splitting import (
    ErrorPenalty,
    RowFactors,
    SparseSplitting,
)

# --- The low-rank step ---------------------------------------------------------------

# Columns beyond the predicted rank, which speed up the convergence of the others.
_SPARE = 8
# The smaller Gram matrix is decomposed if its side is at most this, or at most this
# many times the block of a partial decomposition.
_SMALL_SIDE, _FULL_FROM = 96, 8
# Products of a cold start: each squares the separation of the singular values.
_COLD_STEPS = 4
# Columns (or rows) of the matrix that are converted to double precision at a time.
_BLOCK = 1024


class CentredNuclearNorm:
    r"""Proximal map of the nuclear norm of the centred matrix.

    The column means are not penalised and stay as they are; the singular values of the
    centred argument are shrunk. (The mean is orthogonal to the centred argument, which
    has the least nuclear norm of all matrices that differ from it by equal rows.) The
    right singular vectors of one matrix are the start for the next.

    Attributes
    ----------
    mean
        Column means of the last matrix.
    singular_values
        Of the result, largest first.
    left, right
        The centred result is ``left @ right``; the rows of `right` are orthonormal, the
        columns of `left` orthogonal and as long as the singular values.
    threshold
        What was subtracted from the singular values.
    """

    def __init__(self) -> None:
        self.singular_values: FloatArray = np.empty(0)
        self._basis: FloatArray | None = None  # right vectors of the last matrix
        self._random = random_source(0)

    def __call__(self, x: FloatArray, penalty: FloatArray) -> RowFactors:
        self.threshold = 1 / float(penalty[0, 0])
        n = len(x)
        self.mean = (np.ones(n, dtype=x.dtype) @ x).astype(np.float64) / n
        side = min(x.shape)
        block = min(len(self.singular_values) + _SPARE, side)
        if side <= _SMALL_SIDE or _FULL_FROM * block > side:
            left, sizes, right = self._full(x)
        else:
            left, sizes, right = self._partial(x, block)
        self.singular_values, self.right = sizes - self.threshold, right
        self.left = left * self.singular_values
        return RowFactors(
            np.concatenate([self.left, np.ones((n, 1))], axis=1),
            np.concatenate([right, self.mean[None]]),
        )

    def _full(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Decompose the smaller Gram matrix, formed in double precision."""
        n, d = x.shape
        is_tall = n >= d
        gram = np.zeros((min(n, d),) * 2)
        for start in range(0, max(n, d), _BLOCK):
            part = slice(start, start + _BLOCK)
            rows = x[part] - self.mean if is_tall else (x[:, part] - self.mean[part]).T
            gram += rows.T @ rows
        low, top = self.threshold**2, 2 * float(np.trace(gram))
        if low >= top:
            return np.empty((n, 0)), np.empty(0), np.empty((0, d))
        sizes, vectors = eigh(
            gram, subset_by_value=(low, top), overwrite_a=True, check_finite=False
        )
        sizes, vectors = np.sqrt(sizes[::-1]), vectors[:, ::-1]
        is_above = sizes > self.threshold
        sizes, vectors = sizes[is_above], vectors[:, is_above]
        if is_tall:
            left, right = self._times(x, vectors) / sizes, vectors.T
        else:
            left, right = vectors, (self._transposed_times(x, vectors) / sizes).T
        self._basis = right.T
        return left, sizes, right

    def _partial(
        self, x: FloatArray, block: int
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Iterate on a block of vectors that holds all above the threshold."""
        side = min(x.shape)
        n_steps = 1 if self._basis is not None else _COLD_STEPS
        while _FULL_FROM * block <= side:
            basis = self._padded(x.shape[1], block)
            for _ in range(n_steps):
                left = np.linalg.qr(self._times(x, basis))[0]
                image = self._transposed_times(x, left)  # (d, block)
                squares, turn = np.linalg.eigh(image.T @ image)
                squares, turn = squares[::-1], turn[:, ::-1]
                sizes = np.sqrt(np.maximum(squares, 0.0))
                floor = 1e-12 * max(float(sizes[0]), np.finfo(float).tiny)
                basis = (image @ turn) / np.maximum(sizes, floor)
            self._basis = basis
            if sizes[-1] <= self.threshold:
                is_above = sizes > self.threshold
                right = basis[:, is_above].T
                return left @ turn[:, is_above], sizes[is_above], right
            block, n_steps = min(2 * block, side), 2
        return self._full(x)

    def _padded(self, d: int, block: int) -> FloatArray:
        """Return a basis of `block` columns that begins with the last one."""
        columns = np.empty((d, 0)) if self._basis is None else self._basis[:, :block]
        fresh = self._random.standard_normal((d, block - columns.shape[1])) / np.sqrt(d)
        return np.concatenate([columns, fresh], axis=1)

    def _times(self, x: FloatArray, vectors: FloatArray) -> FloatArray:
        product: FloatArray = x @ vectors.astype(x.dtype)
        return product.astype(np.float64) - self.mean @ vectors

    def _transposed_times(self, x: FloatArray, vectors: FloatArray) -> FloatArray:
        product: FloatArray = x.T @ vectors.astype(x.dtype)
        return product.astype(np.float64) - np.outer(self.mean, vectors.sum(axis=0))


# --- The data ------------------------------------------------------------------------

# The median of so many rows is centre enough: the mean is free in the pursuit.
_CENTRE_ROWS = 1000
# Rows that are read together.
_SLICE_ROWS = 256
# For whole rows the price is 3 / (7 sqrt(share n)) with 2 % of outlying rows.
_ROW_PRICE = 3.0


class CentredRows:
    """Data about a centre, in units, zero where missing; computed row by row on demand.

    `data` has NaN where nothing is observed, and is not copied.
    """

    def __init__(
        self, data: NDArray[Any], centre: NDArray[Any], unit: float, has_gaps: bool
    ) -> None:
        self._data, self._centre, self._unit = data, centre, data.dtype.type(unit)
        self._has_gaps = has_gaps
        self.shape, self.size, self.dtype = data.shape, data.size, data.dtype

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, rows: Any) -> FloatArray:
        centred: FloatArray = self._data[rows] - self._centre
        if self._has_gaps:
            centred[np.isnan(centred)] = 0.0
        centred /= self._unit
        return centred


class PreparedData(NamedTuple):
    """Data about a centre, in units of the largest entry; zero where not observed.

    `x` is an array or :class:`CentredRows`.
    """

    x: Any
    observed: NDArray[np.bool_] | None
    centre: FloatArray
    unit: float

    @property
    def seen_share(self) -> float:
        """Share of observed entries."""
        return 1.0 if self.observed is None else float(self.observed.mean())

    def price(self, of_rows: bool = False) -> float:
        r"""Return :math:`\lambda` for a relative sparsity of 1."""
        length = len(self.x) if of_rows else max(self.x.shape)
        return (_ROW_PRICE if of_rows else 1.0) / float(self.seen_share * length) ** 0.5

    def noise_penalty(self, level: float) -> float:
        """Return the penalty of noise for which pure noise has no components."""
        # The largest singular value of n x d noise of unit variance.
        n, d = self.x.shape
        return level * float(self.seen_share**0.5 * (n**0.5 + d**0.5))


def prepare(data: NDArray[Any]) -> PreparedData:
    """Centre and scale a matrix with NaN where nothing is observed, without a copy."""
    observed = None
    if any(np.isnan(data[rows]).any() for rows in _slices(len(data))):
        observed = ~np.isnan(data)
    # The mean is free, so any centre gives the same minimum. With a robust one the
    # residuals are relative to the variation of the data.
    sample = data[:: max(1, len(data) // _CENTRE_ROWS)]
    if np.isnan(sample).all(axis=0).any():
        sample = data
    centre = np.nanmedian(sample, axis=0)
    plain = CentredRows(data, centre, 1.0, observed is not None)
    # Squares of the data must not overflow or underflow.
    largest = max(float(np.abs(plain[rows]).max()) for rows in _slices(len(data)))
    unit = largest if largest > 0 else 1.0
    x = CentredRows(data, centre, unit, observed is not None)
    return PreparedData(x, observed, centre.astype(np.float64), unit)


def _slices(n_rows: int) -> Iterator[slice]:
    for start in range(0, n_rows, _SLICE_ROWS):
        yield slice(start, start + _SLICE_ROWS)


# --- The pursuit ---------------------------------------------------------------------

# ``tol="auto"``: residuals of data that are low-rank up to their errors. Other data
# have settled if ten steps change the objective by less than the second number.
AUTO_TOL, SETTLED = 1e-6, 5e-4
_LOOK_BACK = 10


@dataclass(frozen=True)
class LowRankSplit:
    """Result of the pursuit; the low-rank part is ``left @ components + mean``.

    `distances` are the lengths of rows without the low-rank part.
    """

    left: FloatArray
    sparse: FloatArray
    distances: FloatArray
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

    `report` is called with lines of progress.
    """

    def __init__(
        self, data: PreparedData, errors: ErrorPenalty, report: Callable[[str], None]
    ) -> None:
        self.data, self._report = data, report
        self.prox = CentredNuclearNorm()
        self.splitting = SparseSplitting(
            data.x, data.observed, prox=self.prox, errors=errors, by_row=False
        )
        # Noise of the size of the data would have this largest singular value. A first
        # threshold above it begins with few singular values, which is cheaper.
        n, d = data.x.shape
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
        n, d = self.data.x.shape
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
        distances = np.empty(len(data.x))
        for rows in splitting.blocks():
            remainder = splitting.remainder(rows)
            if data.observed is not None:
                remainder *= data.observed[rows]
            distances[rows] = np.linalg.norm(remainder, axis=1)
            sparse = errors.sparse(remainder)
            sparse *= sparse.dtype.type(unit)
            splitting.driver[rows] = sparse
        # Signs of singular vectors are arbitrary; a convention makes fits comparable.
        signs = largest_signs(prox.right)
        return LowRankSplit(
            left=unit * prox.left * signs.T,
            sparse=splitting.driver,
            distances=unit * distances,
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
            excess = max(excess, float(errors.sizes(block).max()) / errors.sparsity)
            product += float(np.vdot(block, data.x[rows]))
            square += float(np.vdot(block, block))
        if data.observed is not None:
            excess = max(excess, float(np.linalg.norm(y, 2)))
        # Division by the excess makes the subgradient feasible.
        bound = product / excess - errors.noise * square / excess / excess / 2
        value = self.objective[-1]
        return (value - bound) / value if value > 0 else 0.0


def largest_signs(components: FloatArray) -> FloatArray:
    """Return a column of signs that make the largest entry of each row positive."""
    if not components.size:
        return np.ones((len(components), 1))
    places = np.abs(components).argmax(axis=1)
    return np.copysign(1.0, components[np.arange(len(components)), places])[:, None]
