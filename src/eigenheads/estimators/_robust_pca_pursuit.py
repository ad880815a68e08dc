"""Principal component pursuit of a matrix, and of further rows."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from eigenheads._numerics._thresholded_svd import ThresholdedSVD, thresholded_svd
from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_splitting import Splitting

# Rows that `transform` works on together: a few arrays of this many entries.
_BLOCK_ENTRIES = 2_000_000


@dataclass(frozen=True)
class Pursuit:
    """What the pursuit found; ``low_rank`` includes the mean."""

    low_rank: FloatArray
    sparse: FloatArray
    mean: FloatArray
    components: FloatArray
    singular_values: FloatArray
    sparsity: float
    objective: FloatArray
    residual: FloatArray
    duality_gap: float

    def without_data(self) -> "Pursuit":
        """Return what is needed for further rows."""
        nothing = np.empty((0, 0))
        return replace(self, low_rank=nothing, sparse=nothing)


@dataclass
class CentredNuclearNorm:
    r"""Proximal map of the nuclear norm of the centred matrix.

    The column means are not penalised, so they stay, and what is left of the argument
    has its singular values shrunk. (The mean is orthogonal to what is left, and the
    centred matrix has the least nuclear norm of all that differ by equal rows.)
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
) -> Pursuit:
    """Split a matrix with NaN where nothing is observed; see :class:`RobustPCA`."""
    observed = ~np.isnan(data)
    sparsity = relative_sparsity / np.sqrt(observed.mean() * max(data.shape))
    # The mean is free, so any centre gives the same minimum; a robust one gives
    # residuals that are relative to what varies.
    centre = np.nanmedian(data, axis=0)
    # The Gram matrix squares: keep it away from overflow and underflow.
    largest = float(np.nanmax(np.abs(data - centre)))
    unit = largest if largest > 0 else 1.0
    x = np.where(observed, (data - centre) / unit, 0.0)
    prox = CentredNuclearNorm()
    splitting = Splitting(x, observed, prox=prox, sparsity=sparsity, by_row=False)
    objective: list[float] = []
    residual: list[float] = []
    while splitting.n_iter < max_iter and (not residual or residual[-1] > tol):
        splitting.step()
        assert prox.centred is not None
        errors = np.sum(splitting.weights * np.abs(x - splitting.structured))
        objective.append(float(prox.centred.singular_values.sum() + errors))
        residual.append(splitting.residual)
        if splitting.n_iter % 10 == 0:
            report(
                f"iteration {splitting.n_iter}, residual {residual[-1]:.2e}, "
                f"objective {unit * objective[-1]:.6g}, rank {prox.centred.rank}"
            )
    assert prox.centred is not None
    signs = _signs(prox.centred.right)
    return Pursuit(
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
    rows: FloatArray, pursuit: Pursuit, *, tol: float, max_iter: int
) -> tuple[FloatArray, int]:
    """Return the codes of rows, NaN where nothing is observed; how many unfinished."""
    codes = np.zeros((len(rows), len(pursuit.components)))
    n_unfinished = 0
    size = max(1, _BLOCK_ENTRIES // rows.shape[1])
    for start in range(0, len(rows) if codes.size else 0, size):
        block = slice(start, start + size)
        codes[block], left = _pursue_block(rows[block], pursuit, tol, max_iter)
        n_unfinished += left
    return codes, n_unfinished


def _pursue_block(
    rows: FloatArray, pursuit: Pursuit, tol: float, max_iter: int
) -> tuple[FloatArray, int]:
    observed = ~np.isnan(rows)
    w, sizes = pursuit.components, pursuit.singular_values

    def prox(x: FloatArray, penalty: FloatArray) -> FloatArray:
        """Of half the sum of squared codes over singular values, in the subspace."""
        shrunk = penalty * sizes / (1 + penalty * sizes)
        return (shrunk * (x @ w.T)) @ w

    splitting = Splitting(
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
        is_going = splitting.residual[:, 0] > tol
        if not is_going.all():
            codes[going[~is_going]] = splitting.structured[~is_going] @ w.T
            going = going[is_going]
            splitting.keep(is_going)
    codes[going] = splitting.structured @ w.T
    return codes, len(going)


def _duality_gap(
    splitting: Splitting,
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
    excess = max(1.0, float(np.abs(y).max()) / sparsity)
    if not observed.all():
        excess = max(excess, float(np.linalg.norm(y, 2)))
    bound = float(np.sum(y * x)) / excess
    return (objective - bound) / objective if objective > 0 else 0.0


def _signs(components: FloatArray) -> FloatArray:
    """Return a column of signs that make each row's largest entry positive."""
    if not components.size:
        return np.ones((len(components), 1))
    places = np.abs(components).argmax(axis=1)
    return np.sign(components[np.arange(len(components)), places])[:, None]
