r"""Principal component pursuit by Douglas-Rachford splitting.

The splitting minimises :math:`f(A) + \lambda \lVert S \rVert_1` subject to
:math:`A + S = X`, for any convex :math:`f` whose proximal map is known. The fit of
robust PCA takes the nuclear norm for :math:`f`, its transform a quadratic on a fixed
subspace. ``docs/theory/pursuit.md`` has the convergence theorem.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._numerics._thresholded_svd import ThresholdedSVD, thresholded_svd
from eigenheads._typing import FloatArray
from eigenheads.functional import soft_threshold

# Rows that `transform` works on together: a few arrays of this many entries.
_BLOCK_ENTRIES = 2_000_000
# (matrix, penalties mu as a column) -> argmin f(A) + mu/2 |A - matrix|^2
Prox: TypeAlias = Callable[[FloatArray, FloatArray], FloatArray]

# The first penalty is this many times entries / sum|X|. [Candès et al. 2011] take 1/4
# and keep it; a small one begins with few singular values, which is cheaper.
_FIRST_PENALTY = 1 / 20
# Residual balancing [Boyd et al. 2011, 3.4.1; the square root: Wohlberg 2017]: look
# every so many iterations, act if the residuals differ by this factor, change by at
# most this factor, and only so often: after the last change the theorem applies.
_LOOK_EVERY = 10
_IMBALANCE = 5.0
_LARGEST_CHANGE = 5.0
MAX_CHANGES = 50
# The low-rank part is the yardstick of the residual (errors may be a thousand times
# larger), unless it is smaller than this share of the data.
_FLOOR = 1e-3
_TINY = np.finfo(np.float64).tiny


class SparseSplitting:
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
        Whether each row is a separate problem with its own :math:`\mu`.
    is_balanced
        Whether :math:`\mu` is adapted to the residuals. With a fixed :math:`\mu` the
        residual never grows.
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
        # Entries that were not observed are free, so they cost nothing in S.
        self.weights = sparsity * observed
        self._prox = prox
        self._axis = 1 if by_row else None
        self._is_balanced = is_balanced
        self._size = self._norm(data)
        total = np.abs(data).sum(axis=self._axis, keepdims=True)
        count = data.size / total.size
        mean = total / count
        # Rows of zeros have no scale; any penalty solves them.
        self.penalty = _FIRST_PENALTY / np.where(mean > 1e-300, mean, 1.0)
        self.driver = np.zeros_like(data)
        self.sparse = np.zeros_like(data)
        self.structured = np.zeros_like(data)
        self.n_iter = 0
        self._n_changes = np.zeros(total.shape, dtype=np.int64)

    def step(self) -> None:
        """Make one step and measure its residuals."""
        # Reflect at the sparse part, project on the structured one, average.
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
        """Continue with these rows only."""
        # Arrays with one entry per row are found by their length.
        for name, value in vars(self).items():
            if isinstance(value, np.ndarray) and len(value) == len(rows):
                setattr(self, name, value[rows])

    @property
    def residual(self) -> Any:
        """The larger of the two relative residuals: a number, or one per row."""
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
        # The multiplier mu (v - S) does not change.
        self.driver = self.sparse + (self.driver - self.sparse) / change
        self.penalty = self.penalty * change

    def _norm(self, x: FloatArray) -> FloatArray:
        return np.sqrt(np.sum(np.square(x), axis=self._axis, keepdims=True))


@dataclass(frozen=True)
class LowRankSplit:
    """Result of the pursuit; ``low_rank`` includes the mean."""

    low_rank: FloatArray
    sparse: FloatArray
    mean: FloatArray
    components: FloatArray
    singular_values: FloatArray
    sparsity: float
    objective: FloatArray
    residual: FloatArray
    duality_gap: float

    def without_data(self) -> "LowRankSplit":
        """Return the part that further rows need."""
        nothing = np.empty((0, 0))
        return replace(self, low_rank=nothing, sparse=nothing)


@dataclass
class CentredNuclearNorm:
    r"""Proximal map of the nuclear norm of the centred matrix.

    The column means are not penalised and stay as they are; the singular values of the
    centred argument are shrunk. (The mean is orthogonal to the centred argument, which
    has the least nuclear norm of all matrices that differ from it by equal rows.)
    """

    mean: FloatArray = field(default_factory=lambda: np.empty(0))
    centred: ThresholdedSVD | None = None

    def __call__(self, x: FloatArray, penalty: FloatArray) -> FloatArray:
        self.mean = x.mean(axis=0)
        self.centred = thresholded_svd(x - self.mean, 1 / float(penalty[0, 0]))
        return self.centred.matrix() + self.mean


def principal_component_pursuit(
    data: FloatArray,
    *,
    relative_sparsity: float,
    tol: float,
    max_iter: int,
    report: Callable[[str], None],
) -> LowRankSplit:
    """Split a matrix with NaN where nothing is observed; see :class:`RobustPCA`."""
    observed = ~np.isnan(data)
    # Complete data and a relative sparsity of 1 give one over the root of the longer
    # side.
    sparsity = relative_sparsity / np.sqrt(observed.mean() * max(data.shape))
    # The mean is free, so any centre gives the same minimum. With a robust one the
    # residuals are relative to the variation of the data.
    centre = np.nanmedian(data, axis=0)
    # The Gram matrix squares: keep it away from overflow and underflow.
    largest = float(np.nanmax(np.abs(data - centre)))
    unit = largest if largest > 0 else 1.0
    x = np.where(observed, (data - centre) / unit, 0.0)
    prox = CentredNuclearNorm()
    splitting = SparseSplitting(x, observed, prox=prox, sparsity=sparsity, by_row=False)
    objective: list[float] = []
    residual: list[float] = []
    while splitting.n_iter < max_iter and (not residual or residual[-1] > tol):
        splitting.step()
        assert prox.centred is not None
        # The objective is that of a feasible pair, the structured part and the rest.
        errors = np.sum(splitting.weights * np.abs(x - splitting.structured))
        objective.append(float(prox.centred.singular_values.sum() + errors))
        residual.append(splitting.residual)
        if splitting.n_iter % 10 == 0:
            report(
                f"iteration {splitting.n_iter}, residual {residual[-1]:.2e}, "
                f"objective {unit * objective[-1]:.6g}, rank {prox.centred.rank}"
            )
    assert prox.centred is not None
    # Signs of singular vectors are arbitrary; a convention makes fits comparable.
    signs = _signs(prox.centred.right)
    return LowRankSplit(
        low_rank=unit * splitting.structured + centre,
        sparse=unit * np.where(observed, splitting.sparse, 0.0),
        mean=unit * prox.mean + centre,
        components=signs * prox.centred.right,
        singular_values=unit * prox.centred.singular_values,
        sparsity=float(sparsity),
        objective=unit * np.array(objective),
        residual=np.array(residual),
        duality_gap=_duality_gap(splitting, x, observed, objective[-1], sparsity),
    )


def pursue_rows(
    rows: FloatArray, pursuit: LowRankSplit, *, tol: float, max_iter: int
) -> tuple[FloatArray, int]:
    """Return the codes of rows (NaN: not observed) and the number not converged."""
    codes = np.zeros((len(rows), len(pursuit.components)))
    n_unfinished = 0
    size = max(1, _BLOCK_ENTRIES // rows.shape[1])
    # Without components there is nothing to compute.
    for start in range(0, len(rows) if codes.size else 0, size):
        block = slice(start, start + size)
        codes[block], left = _pursue_block(rows[block], pursuit, tol, max_iter)
        n_unfinished += left
    return codes, n_unfinished


def _pursue_block(
    rows: FloatArray, pursuit: LowRankSplit, tol: float, max_iter: int
) -> tuple[FloatArray, int]:
    observed = ~np.isnan(rows)
    w, sizes = pursuit.components, pursuit.singular_values

    def prox(x: FloatArray, penalty: FloatArray) -> FloatArray:
        """Of half the sum of squared codes over singular values, in the subspace."""
        shrunk = penalty * sizes / (1 + penalty * sizes)
        return (shrunk * (x @ w.T)) @ w

    splitting = SparseSplitting(
        np.where(observed, rows - pursuit.mean, 0.0),
        observed,
        prox=prox,
        sparsity=pursuit.sparsity,
        by_row=True,
    )
    codes = np.empty((len(rows), len(w)))
    going = np.arange(len(rows))
    while len(going) and splitting.n_iter < max_iter:
        splitting.step()
        # Rows that have converged leave the block, so that the others cost less.
        is_going = splitting.residual[:, 0] > tol
        if not is_going.all():
            codes[going[~is_going]] = splitting.structured[~is_going] @ w.T
            going = going[is_going]
            splitting.keep(is_going)
    codes[going] = splitting.structured @ w.T
    return codes, len(going)


def _duality_gap(
    splitting: SparseSplitting,
    x: FloatArray,
    observed: NDArray[np.bool_],
    objective: float,
    sparsity: float,
) -> float:
    r"""Return (objective - lower bound) / objective.

    Every :math:`Y` with zero column sums, zero where nothing is observed, spectral norm
    at most 1 and entries at most :math:`\lambda` bounds the minimum from below by
    :math:`\langle Y, X \rangle`. The subgradient of the low-rank step is scaled to be
    one; without missing values that is exact, with them its column sums are zero only
    up to the residual.
    """
    y = np.where(observed, splitting.subgradient, 0.0)
    # Division by the excess makes the subgradient feasible, so that the bound holds.
    excess = max(1.0, float(np.abs(y).max()) / sparsity)
    if not observed.all():
        excess = max(excess, float(np.linalg.norm(y, 2)))
    bound = float(np.sum(y * x)) / excess
    return (objective - bound) / objective if objective > 0 else 0.0


def _signs(components: FloatArray) -> FloatArray:
    """Return a column of signs that make the largest entry of each row positive."""
    if not components.size:
        return np.ones((len(components), 1))
    places = np.abs(components).argmax(axis=1)
    return np.sign(components[np.arange(len(components)), places])[:, None]
