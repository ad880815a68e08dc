r"""Split a matrix into a structured and a sparse part: Douglas-Rachford splitting.

Minimise :math:`f(A) + \lambda \lVert S \rVert_1` subject to :math:`A + S = X`, for any
convex :math:`f` whose proximal map is known. The fit of robust PCA takes the nuclear
norm for :math:`f`, its transform a quadratic on a fixed subspace. ``docs/theory/
pursuit.md`` has the convergence theorem.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.functional import soft_threshold

# (matrix, penalties mu as a column) -> argmin f(A) + mu/2 |A - matrix|^2
Prox: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]

# The first penalty is this many times entries / sum|X|. [Candès et al. 2011] take 1/4
# and keep it; a small one begins with few singular values, which is cheaper.
_FIRST_PENALTY = 1 / 20
# Residual balancing [Boyd et al. 2011, 3.4.1; the square root: Wohlberg 2017]: look
# every so many iterations, act if the residuals differ by so much, change by at most
# so much, and only so often: from the last change on the theorem applies.
_LOOK_EVERY = 10
_IMBALANCE = 5.0
_LARGEST_CHANGE = 5.0
MAX_CHANGES = 50
# The low-rank part is the yardstick of the residual (errors may be a thousand times
# larger), unless it is smaller than this share of the data.
_FLOOR = 1e-3
_TINY = np.finfo(np.float64).tiny


class Splitting:
    r"""Iterates of the splitting; :meth:`step` makes one.

    With :math:`S = \operatorname{shrink}(v, \lambda/\mu)` one step is

    .. math::

        A = \operatorname{prox}_{f/\mu}(X + v - 2S), \qquad v \leftarrow v + X - A - S.

    Parameters
    ----------
    data
        :math:`X`, anything finite where nothing was observed.
    observed
        Where `data` was observed.
    prox
        Of :math:`f/\mu`.
    sparsity
        :math:`\lambda`.
    by_row
        Whether each row is a problem of its own, with its own :math:`\mu`.
    is_balanced
        Whether :math:`\mu` follows the residuals; a fixed one gives a residual that
        never grows.
    """

    def __init__(
        self,
        data: FloatArray,
        observed: NDArray[np.bool_],
        *,
        prox: Prox,
        sparsity: float,
        by_row: bool,
        is_balanced: bool = True,
    ) -> None:
        self.data = data
        # What was not observed may be anything, so it costs nothing in S.
        self.weights = sparsity * observed
        self._prox = prox
        self._axis = 1 if by_row else None
        self._is_balanced = is_balanced
        self._size = self._norm(data)
        total = np.abs(data).sum(axis=self._axis, keepdims=True)
        count = data.size / total.size
        mean = total / count
        # Rows of zeros have no scale, and need none.
        self.penalty = _FIRST_PENALTY / np.where(mean > 1e-300, mean, 1.0)
        self.driver = np.zeros_like(data)
        self.sparse = np.zeros_like(data)
        self.structured = np.zeros_like(data)
        self.n_iter = 0
        self._n_changes = np.zeros(total.shape, dtype=np.int64)

    def step(self) -> None:
        """Make one step and measure its residuals."""
        argument = self.data + self.driver - 2 * self.sparse
        self.structured = self._prox(argument, self.penalty)
        self.subgradient = self.penalty * (argument - self.structured)
        #: X - A - S of the theorem, whose norm never grows while the penalty is fixed.
        self.move = self.data - self.structured - self.sparse
        self.driver = self.driver + self.move
        before = self.sparse
        self.sparse = soft_threshold(self.driver, self.weights / self.penalty)
        self._measure(before)
        self.n_iter += 1
        if self._is_balanced and self.n_iter % _LOOK_EVERY == 0:
            self._balance()

    def keep(self, rows: NDArray[np.bool_]) -> None:
        """Go on with these rows only."""
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and len(value) == len(rows):
                setattr(self, name, value[rows])

    @property
    def residual(self) -> Any:
        """The larger of the two relative residuals; one, or a column with one a row."""
        larger = np.maximum(self.primal, self.dual)
        return larger if self._axis else float(larger[0, 0])

    def _measure(self, before: FloatArray) -> None:
        yardstick = np.maximum(self._norm(self.structured), _FLOOR * self._size)
        left = self._norm(self.data - self.structured - self.sparse)
        self.primal = left / np.maximum(yardstick, _TINY)
        moved = self._norm(self.sparse - before)
        multiplier = self._norm(self.driver - self.sparse)
        self.dual = moved / np.maximum(multiplier, _TINY)

    def _balance(self) -> None:
        ratio = np.maximum(self.primal, _TINY) / np.maximum(self.dual, _TINY)
        change = np.clip(np.sqrt(ratio), 1 / _LARGEST_CHANGE, _LARGEST_CHANGE)
        is_off = np.maximum(ratio, 1 / ratio) > _IMBALANCE
        change = np.where(is_off & (self._n_changes < MAX_CHANGES), change, 1.0)
        self._n_changes += change != 1.0
        # The multiplier mu (v - S) stays what it is.
        self.driver = self.sparse + (self.driver - self.sparse) / change
        self.penalty = self.penalty * change

    def _norm(self, x: FloatArray) -> FloatArray:
        return np.sqrt(np.sum(np.square(x), axis=self._axis, keepdims=True))
