r"""Douglas-Rachford splitting into a structured part and errors, in place.

The splitting minimises :math:`f(L) + h(X - L)` for any convex :math:`f` whose proximal
map is known and a penalty :math:`h` of errors. Beside the data it holds two arrays of
their size, and works on blocks of rows. ``docs/theory/pursuit.md`` has the convergence
theorem.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray

# Entries of a block of rows: its temporaries stay in the processor's cache.
_BLOCK_ENTRIES = 32_768
# The first penalty is this many times entries / sum|X|. [Candès et al. 2011] take 1/4
# and keep it; a small one begins with few singular values, which is cheaper.
_FIRST_PENALTY = 1 / 20
# Over-relaxation: every step is this many times as long.
RELAXATION = 1.6
# Residual balancing [Boyd et al. 2011, 3.4.1; the square root: Wohlberg 2017]: look
# every so many iterations, act if the residuals differ by this factor, change by at
# most this factor, and only so often: after the last change the theorem applies. (Of a
# single row fewer, so that rounding errors do not decide between changes.)
_LOOK_EVERY, _IMBALANCE, _LARGEST_CHANGE = 5, 2.0, 3.0
_MAX_CHANGES, _MAX_ROW_CHANGES = 50, 20
# The structured part is the yardstick of the residual (errors may be a thousand times
# larger), unless it is smaller than this share of the data.
_FLOOR = 1e-3
_TINY = np.finfo(np.float64).tiny


class RowFactors(NamedTuple):
    """The matrix ``left @ right``."""

    left: FloatArray
    right: FloatArray

    def block(self, rows: slice) -> FloatArray:
        """Return some rows of the matrix."""
        product: FloatArray = self.left[rows] @ self.right
        return product


# (matrix, penalties mu as a column) -> argmin f(A) + mu/2 |A - matrix|^2
Prox: TypeAlias = Callable[[FloatArray, FloatArray], RowFactors]


@dataclass(frozen=True)
class ErrorPenalty:
    r"""Penalty :math:`h` of errors, in entries or in whole rows.

    :math:`h(R) = \min_S \lambda \lVert S \rVert + \lVert R - S \rVert_F^2 / (2 \nu)`
    with the sum of absolute entries, or of lengths of rows; without noise
    (:math:`\nu = 0`) it is :math:`\lambda \lVert R \rVert`. With :math:`\lambda =
    \infty` there are no errors: :math:`S = 0`.
    """

    sparsity: float
    noise: float = 0.0
    of_rows: bool = False

    def sizes(self, remainder: FloatArray) -> FloatArray:
        """Return the sizes that are penalised: of entries, or of rows as a column."""
        return np.sqrt(squares(remainder)) if self.of_rows else np.abs(remainder)

    def dual(self, driver: FloatArray, penalty: Any, observed: Any) -> FloatArray:
        r"""Return :math:`v - \operatorname{prox}_{h/\mu}(v)`; zero if not observed."""
        limit = self.sparsity / penalty
        scaled = driver * (1 / (1 + penalty * self.noise)) if self.noise else driver
        if self.of_rows:
            if observed is not None:
                scaled = scaled * observed
            longest = np.maximum(self.sizes(scaled), np.maximum(limit, _TINY))
            dual: FloatArray = scaled * (limit / longest)
            return dual.astype(driver.dtype, copy=False)
        dual = np.clip(scaled, -limit, limit).astype(driver.dtype, copy=False)
        if observed is not None:
            dual *= observed
        return dual

    def value(self, remainder: FloatArray, observed: Any) -> FloatArray:
        """Return the penalty of each row, as a column."""
        if observed is not None:
            remainder = remainder * observed
        sizes = self.sizes(remainder)
        if self.noise:
            inner = np.minimum(sizes, self.sparsity * self.noise)
            sizes = inner * (sizes - inner / 2) / self.noise
        else:  # at an infinite price there are no errors but rounding
            sizes = sizes * (self.sparsity if np.isfinite(self.sparsity) else 0.0)
        total: FloatArray = sizes.sum(axis=1, keepdims=True, dtype=np.float64)
        return total

    def sparse(self, remainder: FloatArray) -> FloatArray:
        """Return the sparse part of a remainder that may also hold noise."""
        if np.isinf(self.sparsity):
            return np.zeros_like(remainder)
        if not self.noise:
            return remainder
        sizes = self.sizes(remainder)
        edge = self.sparsity * self.noise
        share = np.maximum(sizes - edge, 0) / np.maximum(sizes, _TINY)
        sparse: FloatArray = (remainder * share).astype(remainder.dtype, copy=False)
        return sparse


class SparseSplitting:
    r"""Iterates of the splitting; :meth:`step` makes one.

    With :math:`R = \operatorname{prox}_{h/\mu}(v)` and the relaxation :math:`\alpha`
    one step is

    .. math::

        L = \operatorname{prox}_{f/\mu}(X + v - 2R), \qquad
        v \leftarrow v + \alpha (X - L - R).

    Parameters
    ----------
    data
        :math:`X`, anything finite where nothing was observed: an array, or anything
        with its shape and type of which slices of rows can be taken.
    observed
        Where `data` was observed; None is everywhere.
    prox
        Of :math:`f/\mu`.
    errors
        :math:`h`.
    by_row
        Whether each row is a separate problem with its own :math:`\mu`.
    is_balanced
        Whether :math:`\mu` is adapted to the residuals. With a fixed :math:`\mu` the
        length of :math:`X - L - R` never grows.
    """

    def __init__(
        self,
        data: Any,
        observed: NDArray[np.bool_] | None,
        *,
        prox: Prox,
        errors: ErrorPenalty,
        by_row: bool,
        is_balanced: bool = True,
    ) -> None:
        self.data, self.observed, self.errors = data, observed, errors
        self._prox, self._by_row, self._is_balanced = prox, by_row, is_balanced
        self._block_rows = max(1, _BLOCK_ENTRIES // max(data.shape[1], 1))
        lengths, total = self._sums(2)
        for rows in self.blocks():
            block = data[rows]
            self._add(lengths, rows, squares(block))
            sums = np.abs(block).sum(axis=1, keepdims=True, dtype=np.float64)
            self._add(total, rows, sums)
        self._size = np.sqrt(lengths)
        mean = total / (data.size / total.size)
        # Rows of zeros have no scale; any penalty solves them.
        self.penalty = _FIRST_PENALTY / np.where(mean > 1e-300, mean, 1.0)
        self.driver = np.zeros(data.shape, dtype=data.dtype)
        self.argument = np.empty(data.shape, dtype=data.dtype)
        self.low_rank = RowFactors(np.empty((0, 0)), np.empty((0, 0)))
        self.n_iter = 0
        self._n_changes = np.zeros(total.shape, dtype=np.int64)

    def step(self) -> None:
        """Make one step and measure its residuals."""
        # Reflect at the errors, project on the structured part, average.
        for rows in self.blocks():
            driver = self.driver[rows]
            block = self._dual(driver, rows)
            block *= 2
            block -= driver
            np.add(block, self.data[rows], out=self.argument[rows])
        factors = self._prox(self.argument, self.penalty)
        dtype = self.data.dtype
        self.low_rank = RowFactors(
            factors.left.astype(dtype, copy=False),
            factors.right.astype(dtype, copy=False),
        )
        sums = self._sums(6)
        for rows in self.blocks():
            for total, here in zip(sums, self._update(rows), strict=True):
                self._add(total, rows, here)
        primal, moved, multiplier, structured, move, value = sums
        yardstick = np.maximum(np.sqrt(structured), _FLOOR * self._size)
        self.primal = np.sqrt(primal) / np.maximum(yardstick, _TINY)
        self.dual = np.sqrt(moved) / np.maximum(np.sqrt(multiplier), _TINY)
        #: Length of X - L - R, which never grows while the penalty is fixed.
        self.move = np.sqrt(move)
        #: h(X - L), the second half of the objective.
        self.error_value = value
        eps = np.finfo(dtype).eps
        #: Residuals below this are rounding errors.
        self.rounding = 2 * eps * self._size / np.maximum(yardstick, _TINY)
        self.n_iter += 1
        if self._is_balanced and self.n_iter % _LOOK_EVERY == 0:
            self._balance()

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Continue with these rows only."""
        names = ("data", "observed", "driver", "argument", "penalty", "_n_changes")
        for name in (*names, "_size", "primal", "dual"):
            value = getattr(self, name)
            if value is not None:
                setattr(self, name, value[rows])

    def blocks(self) -> Iterator[slice]:
        """Yield slices of rows that together are all."""
        for start in range(0, len(self.data), self._block_rows):
            yield slice(start, min(start + self._block_rows, len(self.data)))

    @property
    def size(self) -> float:
        """Frobenius norm of the data."""
        return float(np.linalg.norm(self._size))

    @property
    def residual(self) -> Any:
        """The larger of the two relative residuals: a number, or one per row."""
        larger = np.maximum(self.primal, self.dual)
        return larger if self._by_row else float(larger[0, 0])

    def remainder(self, rows: slice) -> FloatArray:
        """Return R of some rows: the errors, with the noise."""
        driver = self.driver[rows]
        remainder: FloatArray = driver - self._dual(driver, rows)
        return remainder

    def count_zeros(self) -> int:
        """Return the number of observed entries without an error."""
        count = 0
        for rows in self.blocks():
            is_zero = self.remainder(rows) == 0
            if self.observed is not None:
                is_zero &= self.observed[rows]
            count += int(np.count_nonzero(is_zero))
        return count

    def _dual(self, driver: FloatArray, rows: slice) -> FloatArray:
        penalty = self.penalty[rows] if self._by_row else float(self.penalty[0, 0])
        observed = None if self.observed is None else self.observed[rows]
        return self.errors.dual(driver, penalty, observed)

    def _update(self, rows: slice) -> tuple[FloatArray, ...]:
        """Update the driver of some rows; return sums of squares per row."""
        driver = self.driver[rows]
        before = self._dual(driver, rows)
        low = self.low_rank.block(rows)
        remainder = self.data[rows] - low
        move = remainder - driver
        move += before
        length = squares(move)
        move *= RELAXATION
        driver += move
        after = self._dual(driver, rows)
        observed = None if self.observed is None else self.observed[rows]
        value = self.errors.value(remainder, observed)
        remainder -= driver
        remainder += after
        multiplier = squares(after)
        before -= after
        before += move  # the change of R
        primal, moved = squares(remainder), squares(before)
        return primal, moved, multiplier, squares(low), length, value

    def _balance(self) -> None:
        ratio = np.maximum(self.primal, _TINY) / np.maximum(self.dual, _TINY)
        change = np.clip(np.sqrt(ratio), 1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        is_off = np.maximum(ratio, 1 / ratio) > _IMBALANCE
        most = _MAX_ROW_CHANGES if self._by_row else _MAX_CHANGES
        change = np.where(is_off & (self._n_changes < most), change, 1.0)
        if np.all(change == 1.0):
            return
        self._n_changes += change != 1.0
        # The multiplier mu (v - R) stays what it is.
        factor = 1 / change - 1
        for rows in self.blocks():
            driver = self.driver[rows]
            dual = self._dual(driver, rows)
            dual *= factor[rows] if self._by_row else float(factor[0, 0])
            driver += dual
        self.penalty = self.penalty * change

    def _sums(self, count: int) -> list[FloatArray]:
        shape = (len(self.data), 1) if self._by_row else (1, 1)
        return [np.zeros(shape) for _ in range(count)]

    def _add(self, total: FloatArray, rows: slice, here: FloatArray) -> None:
        if self._by_row:
            total[rows] = here
        else:
            total += here.sum()


def squares(x: FloatArray) -> FloatArray:
    """Return the sums of squares of rows as a column, in double precision."""
    sums = np.einsum("ij,ij->i", x, x)
    return sums.astype(np.float64)[:, None]
