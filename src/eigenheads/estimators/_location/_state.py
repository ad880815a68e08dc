"""State of a fit: coordinates, starts, coefficients and the penalised loss."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import OptimizeResult, minimize

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import HeadSettings, LocationData, rounded
from eigenheads.estimators._location._head import head_loss

# Rows of products that are computed together: a few hundred kB stay in the cache.
CHUNK = 1_024
# Pairs of steps and gradients that L-BFGS keeps.
_MEMORY = 20


@dataclass(frozen=True)
class Coordinates:
    r"""Affine map from features as given to the coordinates of the fit.

    A token :math:`x` is standardised, :math:`z = D^{-1} (x - m)`, and whitened,
    :math:`W z` with :math:`W = ((R + \delta I) / (1 + \delta))^{-1/2}`, where :math:`R`
    is the pooled correlation. So the squared norm of a coefficient is a mean of the
    variance of the scores of pooled tokens and of the squared length of the coefficient
    of standardised features.

    Parameters
    ----------
    mean, scale
        :math:`m` and the diagonal of :math:`D`.
    order
        Columns as given, in the order of the coordinates.
    shrinkage
        :math:`\delta`.
    whitening
        :math:`W`, or None for the identity.
    span, tokens
        If features are more than tokens, the fit is done in the span of the tokens:
        whitened coordinates are the standardised features times the transpose of
        ``span @ tokens``, a product that takes as long as all of the fit.
    """

    mean: FloatArray
    scale: FloatArray
    order: NDArray[np.int64]
    shrinkage: float = 0.0
    whitening: FloatArray | None = None
    span: FloatArray | None = None
    tokens: FloatArray | None = None

    def standardised(
        self, tokens: NDArray[Any], *, is_rounded: bool = True
    ) -> NDArray[Any]:
        """Return standardised tokens, their columns in the order of the coordinates."""
        rows = (
            rounded(tokens, self.mean, self.scale)
            if is_rounded
            else ((tokens - self.mean) / self.scale)
        )
        return np.ascontiguousarray(rows[:, self.order])

    def in_standardised(self, rows: FloatArray) -> FloatArray:
        """Return coefficients of standardised features."""
        if self.span is not None and self.tokens is not None:
            return np.asarray(rows @ self.span @ self.tokens)
        return rows if self.whitening is None else rows @ self.whitening

    def raw(self, rows: FloatArray) -> FloatArray:
        """Return coefficients of the features as given."""
        plain = self.in_standardised(rows)
        ordered = np.empty((len(plain), plain.shape[1]))
        width = len(self.order)
        ordered[:, self.order] = plain[:, :width] / self.scale[self.order]
        ordered[:, width:] = plain[:, width:]  # of the constant, if there is one
        return ordered

    def precision(self) -> FloatArray:
        """Return the metric of tokens in the features as given; one axis: diagonal."""
        if self.whitening is None:
            return np.asarray(self.scale**-2.0)
        root = self.raw(np.eye(len(self.whitening)))
        return np.asarray(root.T @ root)


_NO_COORDINATES = Coordinates(np.zeros(0), np.ones(0), np.arange(0))


def weighted_gram(tokens: NDArray[Any], weights: FloatArray) -> FloatArray:
    r"""Return :math:`\sum_l w_l x_l x_l^\top`, chunk by chunk."""
    d = tokens.shape[1]
    gram, weights = np.zeros((d, d)), weights.astype(tokens.dtype)
    for start in range(0, len(tokens), CHUNK):
        rows = tokens[start : start + CHUNK]
        gram += (rows * weights[start : start + CHUNK, None]).T @ rows
    return gram


def squared_radii(
    tokens: NDArray[Any], center: NDArray[Any], precision: NDArray[Any]
) -> NDArray[np.floating]:
    r"""Return :math:`(x - m)^\top P (x - m)` of each token, in its floating type.

    A `precision` with one axis is the diagonal of a diagonal matrix.

    Examples
    --------
    >>> squared_radii(np.array([[3.0, 0.0], [1.0, 2.0]]), np.ones(2), np.eye(2))
    array([5., 1.])
    """
    center, precision = center.astype(tokens.dtype), precision.astype(tokens.dtype)
    radii = np.empty(len(tokens), dtype=tokens.dtype)
    for start in range(0, len(tokens), CHUNK):
        rows = tokens[start : start + CHUNK] - center
        moved = rows * precision if precision.ndim == 1 else rows @ precision
        radii[start : start + CHUNK] = np.einsum("ij,ij->i", rows, moved)
    return radii


@dataclass(frozen=True)
class HeadStart:
    """Named key and values at which a fit may begin.

    `error` is that of the best values, `square` the squared length of the key.
    """

    name: str
    error: float
    square: float
    key: FloatArray
    values: FloatArray


@dataclass(frozen=True)
class FitState:
    """Everything that the stages of a fit know and learn.

    Parameters
    ----------
    data, settings
        What is fitted; tokens are in the coordinates of the stage.
    random_directions
        Keys to try beside those from moments, one per row.
    report
        Called with a sentence on progress.
    coordinates
        How tokens became what they are.
    radius
        Mean and scale of the last coordinate, the radius, for the radial head.
    metric, unwhitened
        Matrix of the penalty, if it is not the identity, and how tokens were changed
        for that.
    principal
        Direction of largest pooled variance.
    to_key
        Matrix from the mean attended token to the direction of the key.
    profiles
        Directions of the key with several lengths and the best values.
    attended
        Unit vectors of the mean attended token, one per head, or None before they are
        known.
    n_heads
        Number of heads so far.
    given
        Solutions to start from, of the same fit to other bags or with another penalty.
    minimum
        Solution before the stages that only finish a fit.
    flat
        Keys, values and intercepts as one vector.
    start, value, n_iter, converged
        Name of the start, penalised loss, iterations so far, success of the last stage.
    """

    data: LocationData
    settings: HeadSettings
    random_directions: FloatArray
    report: Callable[[str], None]
    coordinates: Coordinates = _NO_COORDINATES
    radius: tuple[float, float] | None = None
    metric: FloatArray | None = None
    unwhitened: Callable[[Bags], Bags] | None = None
    principal: FloatArray | None = None
    to_key: FloatArray | None = None
    profiles: list[HeadStart] = field(default_factory=list)
    attended: FloatArray | None = None
    n_heads: int = 1
    given: tuple[FloatArray, ...] = ()
    minimum: FloatArray = field(default_factory=lambda: np.zeros(0))
    flat: FloatArray = field(default_factory=lambda: np.zeros(0))
    start: str = ""
    value: float = np.inf
    n_iter: int = 0
    converged: bool = False

    @property
    def is_sparse(self) -> bool:
        """True if the penalty has an L1 part."""
        return self.settings.alpha * self.settings.l1_ratio > 0

    @property
    def is_held(self) -> bool:
        """True if the coherence penalty applies."""
        has_mean = self.settings.head not in ("sigmoid", "logsumexp")
        return self.settings.coherence > 0 and has_mean

    @property
    def n_columns(self) -> int:
        """Number of coordinates of a token, with that of the radius."""
        return self.data.n_features

    @property
    def rows(self) -> FloatArray:
        """Key and values of each head."""
        size = len(self.flat) - self.data.n_outputs
        return self.flat[:size].reshape(-1, self.n_columns)

    @property
    def intercepts(self) -> FloatArray:
        """Added constants, one per output."""
        return self.flat[-self.data.n_outputs :]

    def with_alpha(self, alpha: float) -> "FitState":
        """Return the state with another penalty."""
        return replace(self, settings=replace(self.settings, alpha=alpha))

    def after(self, result: OptimizeResult) -> "FitState":
        """Return the state after a run of the optimiser."""
        return replace(
            self,
            flat=result.x,
            value=float(result.fun),
            n_iter=self.n_iter + int(result.nit),
            converged=bool(result.success),
        )


Stage: TypeAlias = Callable[[FitState], FitState]


def run_stages(state: FitState, stages: tuple[Stage, ...]) -> FitState:
    """Apply stages in order."""
    for stage in stages:
        state = stage(state)
    return state


class PenalisedLoss:
    r"""Penalised loss as a function of one flat vector of coordinates.

    .. math::

        \text{mean loss} + \alpha \sum_{u \in \{k, v_1, \dots\}}
        \Bigl( \tfrac{1 - r}{2} \lVert u \rVert^2 + r \lVert D u \rVert_1 \Bigr)
        + \tfrac{(1 - r) c}{2} \bigl( \lVert k \rVert^2 - (k \cdot t)^2 \bigr)

    with :math:`D` the pooled scale of the features, norms and products in the metric,
    :math:`r` the `l1_ratio`, :math:`c` the `coherence` and :math:`t` the unit vector
    `attended` of each key, without which the last term is left out. The L1 norm is
    added by :func:`minimise_sparse`. For ``head="radial"`` the last coordinate is that
    of the radius: values do not read it, and the last term does not include it.
    """

    def __init__(self, state: FitState) -> None:
        self.data, self.settings, self.metric = state.data, state.settings, state.metric
        self.attended = state.attended
        per_head = 1 + state.data.n_outputs
        self.shape = (state.n_heads * per_head, state.n_columns)
        self.keys = np.arange(0, self.shape[0], per_head)
        self.values = np.flatnonzero(np.arange(self.shape[0]) % per_head)

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return keys and values as rows, and the intercepts."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    def loss(
        self, rows: FloatArray, intercepts: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the mean loss over all data and its gradients, in one pass."""
        value, settings = 0.0, self.settings
        by_rows, by_intercepts = np.zeros(rows.shape), np.zeros(intercepts.shape)
        for batch in self.data.read():
            shares = batch.weights / self.data.weight
            part, part_rows, part_intercepts = head_loss(
                batch.bags,
                batch.targets,
                shares,
                rows,
                intercepts,
                head=settings.head,
                kind=settings.kind,
            )
            value += part
            by_rows += part_rows
            by_intercepts += part_intercepts
        return value, by_rows, by_intercepts

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient."""
        settings = self.settings
        rows, intercepts = self.split(flat)
        value, by_rows, by_intercepts = self.loss(rows, intercepts)
        measured = rows if self.metric is None else rows @ self.metric
        ridge = settings.alpha * (1 - settings.l1_ratio)
        value += 0.5 * ridge * float((measured * rows).sum())
        by_rows += ridge * measured
        if self.attended is not None:
            coherence = settings.coherence * (1 - settings.l1_ratio)
            for key, mean in zip(self.keys, self.attended, strict=True):
                off = measured[key] - (rows[key] @ mean) * mean
                if settings.head == "radial":
                    off[-1] = 0.0
                value += 0.5 * coherence * float(rows[key] @ off)
                by_rows[key] += coherence * off
        if settings.head == "radial":
            by_rows[self.values, -1] = 0.0
        if settings.head == "logsumexp":
            by_rows[self.keys] = rows[self.keys]  # not read: they stay zero
        if not settings.has_intercept:
            by_intercepts[:] = 0.0
        return value, np.concatenate([by_rows.ravel(), by_intercepts])


def minimise(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS."""
    options = _options(max_iter, tol)
    return minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)


def minimise_sparse(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS-B on positive and negative parts, so that zeros are exact."""
    size = objective.shape[0] * objective.shape[1]
    lasso = objective.settings.alpha * objective.settings.l1_ratio

    def from_parts(parts: FloatArray) -> FloatArray:
        return np.concatenate(
            [parts[:size] - parts[size : 2 * size], parts[2 * size :]]
        )

    def value_and_gradient(parts: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(from_parts(parts))
        value += lasso * float(parts[: 2 * size].sum())
        by = gradient[:size]
        return value, np.concatenate([by + lasso, lasso - by, gradient[size:]])

    signed = [np.maximum(flat[:size], 0), np.maximum(-flat[:size], 0), flat[size:]]
    result = minimize(
        value_and_gradient,
        np.concatenate(signed),
        jac=True,
        method="L-BFGS-B",
        bounds=[(0.0, None)] * (2 * size) + [(None, None)] * (len(flat) - size),
        options=_options(max_iter, tol),
    )
    result.x = from_parts(result.x)
    return result


def _options(max_iter: int, tol: float) -> dict[str, float]:
    return {
        "maxiter": max_iter,
        "maxfun": 4 * max_iter + 20,
        "maxcor": _MEMORY,
        "gtol": tol,
        "ftol": tol * 1e-3,
    }
