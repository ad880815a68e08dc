"""Fit one head: coordinates, starts, and the list of stages that every fit runs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.linalg.lapack import dposv
from scipy.optimize import OptimizeResult, minimize
from scipy.sparse.linalg import LinearOperator, eigsh

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import (
    MANY_NUMBERS,
    HeadSettings,
    LabelledBags,
    LocationData,
    column_order,
    data_in_memory,
    in_standard_order,
    rounded,
)
from eigenheads.estimators._location._head import (
    RELATIVE,
    SQUARED,
    attention_weights,
    columns,
    head_loss,
    head_outputs,
    log_mean_exp,
    token_products,
)

# Weight of the identity beside the pooled correlation. The correlation contains what
# decides, so that whitening by it alone would penalise the key along itself.
_SHRINKAGE = 3.0
# Above this width an eigendecomposition costs more than it saves.
_WIDEST = 2_000
# Above this width a full eigendecomposition costs more than two eigenvectors.
_WIDE = 200
# Rows of products that are computed together: a few hundred kB stay in the cache.
_CHUNK = 1_024
# Pairs of steps and gradients that L-BFGS keeps.
_MEMORY = 20
# Standard deviations of the scores that a start may have.
_INVERSE_TEMPERATURES = (1.5, 5.0)
# Shares of tokens that a sigmoid start leaves out.
_LEVELS = (0.5, 0.8, 0.95)
# Screening: all starts get the first number of iterations, the best two the second.
_SCREEN_ITERATIONS = (5, 10)
# A weight below the tolerance divided by the exponential of this does not count.
_MARGIN = 3.0
# Scores this far below the largest of a bag do not matter for a rough minimum: 100 such
# tokens together have a tenth of its weight.
_ROUGH_MARGIN = 7.0
# Number of times that attended tokens are gathered before all tokens are read, and
# numbers below which gathering takes longer than reading all.
_ROUNDS, _FEW_NUMBERS = 3, 100_000
# Lengths of the key to try, as multiples of the one that the optimiser reached.
_LENGTHS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# `alpha` at which the prior variance of the scores is one.
_UNIT_ALPHA = 3e-5
_TINY = np.finfo(float).tiny


# --- Coordinates --------------------------------------------------------------------


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
        :math:`W`, or None for one.
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


def weighted_gram(tokens: NDArray[Any], weights: FloatArray) -> FloatArray:
    r"""Return :math:`\sum_l w_l x_l x_l^\top`, chunk by chunk."""
    d = tokens.shape[1]
    gram, weights = np.zeros((d, d)), weights.astype(tokens.dtype)
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK]
        gram += (rows * weights[start : start + _CHUNK, None]).T @ rows
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
    for start in range(0, len(tokens), _CHUNK):
        rows = tokens[start : start + _CHUNK] - center
        moved = rows * precision if precision.ndim == 1 else rows @ precision
        radii[start : start + _CHUNK] = np.einsum("ij,ij->i", rows, moved)
    return radii


# --- State --------------------------------------------------------------------------


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


_NO_COORDINATES = Coordinates(np.zeros(0), np.ones(0), np.arange(0))


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
        Matrix of the penalty, if it is not one, and how tokens were changed for that.
    principal
        Direction of largest pooled variance.
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


# --- Stages that do not depend on the penalty ---------------------------------------


def standardise(state: FitState) -> FitState:
    """Standardise the features, and sort them so that only content decides."""
    data, settings = state.data, state.settings
    center = settings.head in RELATIVE and settings.has_intercept
    mean, scale = _moments(data, center=center)
    coordinates = Coordinates(mean, scale, np.arange(len(mean)))

    def standardised(bags: Bags) -> Bags:
        return replace(bags, tokens=coordinates.standardised(bags.tokens))

    if not data.is_stream:
        (batch,) = data.read()
        order = column_order(rounded(batch.bags.tokens, mean, scale))
        coordinates = replace(coordinates, order=order)
    return replace(state, data=data.mapped(standardised), coordinates=coordinates)


def sort_bags(data: LocationData) -> LocationData:
    """Return bags in memory in an order that only their content decides."""
    if data.is_stream:
        return data
    (batch,) = data.read()
    batch = in_standard_order(batch, *_moments(data, center=True))
    return replace(data, read=lambda: [batch])


def _moments(data: LocationData, *, center: bool) -> tuple[FloatArray, FloatArray]:
    """Return mean and scale of pooled tokens; a token has the weight of its bag.

    Without `center`, moments are taken about zero: the erf head depends on the origin.
    """
    total, first, second = 0.0, np.zeros(data.n_features), np.zeros(data.n_features)
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        total += float(weights.sum())
        for start in range(0, len(weights), _CHUNK):
            rows = batch.bags.tokens[start : start + _CHUNK].astype(np.float64)
            first += weights[start : start + _CHUNK] @ rows
    mean = first / total if center else first * 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        for start in range(0, len(weights), _CHUNK):
            rows = batch.bags.tokens[start : start + _CHUNK] - mean
            second += weights[start : start + _CHUNK] @ rows**2
    variance = second / total
    # A column that is constant up to rounding keeps scale 1: its coefficient is 0.
    rounding = 1e-14 * (variance + mean**2)
    return mean, np.where(variance > rounding, np.sqrt(variance), 1.0)


def add_constant(state: FitState) -> FitState:
    """Sigmoid head: give every token a feature that is one.

    Its coefficient in the key is the threshold of the weights, that in the value lets
    the head count tokens.
    """
    if state.settings.head != "sigmoid":
        return state
    return _with_column(state, lambda bags: np.ones(len(bags.tokens)))


def _with_column(state: FitState, column: Callable[[Bags], FloatArray]) -> FitState:
    def widened(bags: Bags) -> Bags:
        added = column(bags).astype(bags.tokens.dtype)[:, None]
        return replace(bags, tokens=np.hstack([bags.tokens, added]))

    directions = np.pad(state.random_directions, ((0, 0), (0, 1)))
    data = replace(state.data.mapped(widened), n_features=state.data.n_features + 1)
    return replace(state, data=data, random_directions=directions)


def whiten(state: FitState) -> FitState:
    """Whiten the tokens, so that the loss is well conditioned.

    With more features than tokens, the whitened tokens are coordinates in their span.
    """
    data, settings, coordinates = state.data, state.settings, state.coordinates
    if _is_reducible(state):
        return _in_span(state)
    shrinkage = _SHRINKAGE if settings.shrinkage is None else settings.shrinkage
    coordinates = replace(coordinates, shrinkage=shrinkage)
    root = np.ones(data.n_features)
    principal = None
    if data.n_features <= _WIDEST:
        eigenvalues, vectors = np.linalg.eigh(_correlation(data))
        shrunk = (np.maximum(eigenvalues, 0.0) + shrinkage) / (1 + shrinkage)
        root = (vectors / np.sqrt(shrunk)) @ vectors.T
        coordinates, principal = replace(coordinates, whitening=root), vectors[:, -1]
    is_large = data.n_tokens * data.n_features > MANY_NUMBERS
    dtype = np.float32 if is_large else np.float64

    def whitened(bags: Bags) -> Bags:
        if coordinates.whitening is None:
            return replace(bags, tokens=bags.tokens.astype(dtype))
        tokens = bags.tokens.astype(dtype, copy=False)
        return replace(bags, tokens=tokens @ root.astype(dtype))

    data = data.mapped(whitened)
    return replace(state, data=data, coordinates=coordinates, principal=principal)


def _is_reducible(state: FitState) -> bool:
    """Return whether all that counts is in the span of the tokens.

    The radius has a part outside, and an L1 penalty is one on the features as given.
    """
    data, settings = state.data, state.settings
    is_wide = not data.is_stream and data.n_features > data.n_tokens
    is_linear = settings.head not in ("radial", "sigmoid") and settings.l1_ratio == 0
    return is_wide and is_linear


def _correlation(data: LocationData) -> FloatArray:
    gram, total = np.zeros((data.n_features, data.n_features)), 0.0
    for batch in data.read():
        weights = np.repeat(batch.weights, batch.bags.lengths)
        gram += weighted_gram(batch.bags.tokens, weights)
        total += float(weights.sum())
    return gram / total


def _in_span(state: FitState) -> FitState:
    """Whiten in the span of the tokens, from a matrix with one row per token.

    Key and values that minimise the penalised loss lie in this span: components outside
    change no score and no readout, but the penalty.
    """
    (batch,) = state.data.read()
    weights = np.repeat(batch.weights, batch.bags.lengths)
    roots = np.sqrt(weights / weights.sum())[:, None]
    tokens = batch.bags.tokens
    eigenvalues, vectors = np.linalg.eigh((roots * tokens) @ (roots * tokens).T)
    resolved = eigenvalues > 1e-10 * max(float(eigenvalues[-1]), 1e-300)
    if not resolved.any():  # no feature varies
        resolved[-1] = True
    variances, vectors = eigenvalues[resolved][::-1], vectors[:, resolved][:, ::-1]
    variances = np.maximum(variances, 1e-300)
    shrinkage = state.settings.shrinkage
    shrinkage = _SHRINKAGE if shrinkage is None else shrinkage
    scale = np.sqrt((variances + shrinkage) / (1 + shrinkage))
    # Coordinates z·q / scale, with axes q = (roots z)ᵀ vectors / √variances.
    span = (vectors * roots / (np.sqrt(variances) * scale)).T
    whitened = vectors * (np.sqrt(variances) / scale) / roots
    bags = replace(batch.bags, tokens=np.ascontiguousarray(whitened))
    kept = replace(batch, bags=bags)
    width = len(scale)
    data = replace(state.data, read=lambda: [kept], n_features=width)
    coordinates = replace(
        state.coordinates, shrinkage=shrinkage, span=span, tokens=tokens
    )
    return replace(
        state,
        data=data,
        coordinates=coordinates,
        principal=np.eye(1, width).ravel(),
        random_directions=state.random_directions[:, :width],
    )


def add_radius(state: FitState) -> FitState:
    """Radial head: give every token minus half its squared radius, for scores only."""
    if state.settings.head != "radial":
        return state

    def radii(bags: Bags) -> FloatArray:
        tokens = bags.tokens
        return np.asarray(-0.5 * np.einsum("ij,ij->i", tokens, tokens))

    total = mean = square = 0.0
    for batch in state.data.read():
        weights, column = (
            np.repeat(batch.weights, batch.bags.lengths),
            radii(batch.bags),
        )
        total += float(weights.sum())
        mean += float(weights @ column)
        square += float(weights @ column**2)
    mean /= total
    variance = square / total - mean**2
    has_spread = variance > 1e-14 * square / total
    scale = np.sqrt(variance) if has_spread else 1.0
    state = _with_column(state, lambda bags: (radii(bags) - mean) / scale)
    principal = None if state.principal is None else np.append(state.principal, 0.0)
    return replace(state, radius=(mean, float(scale)), principal=principal)


# --- Starts -------------------------------------------------------------------------


def find_starts(state: FitState) -> FitState:
    r"""Compute candidate keys from moments, and the best values for each.

    With whitened tokens :math:`x` and centred responses :math:`y`, ``moments`` is the
    mean of :math:`y \, (x \cdot v) \, x` where :math:`v` is the regression of
    :math:`y` on the sum of a bag; ``spectral`` are sum and difference of the extreme
    eigenvectors of the mean of :math:`y \, x x^\top`, which under single-location
    regression is proportional to :math:`k v^\top + v k^\top`; ``principal`` is the
    direction of largest pooled variance; ``value`` is :math:`v` itself, because the
    deciding token may be the one with the largest readout; ``radius`` is the radius
    alone.
    """
    if state.given or state.profiles:
        return state
    directions = _directions(state)
    for index, direction in enumerate(state.random_directions):
        directions[f"random {index}"] = [direction]
    if state.radius is not None:
        for candidates in directions.values():
            for direction in candidates:
                direction[-1] = 0.0
        last = np.eye(1, state.n_columns, state.n_columns - 1)[0]
        directions["radius"] = [last]
    return replace(state, profiles=_profiles(state, directions))


def _directions(state: FitState) -> dict[str, list[FloatArray]]:
    data, d = state.data, state.n_columns
    is_wide = d > _WIDE and not data.is_stream
    equations, matrices = Equations(data.n_outputs), list[Any]()
    for part in data.read():
        bags = part.bags
        sums = bags.sums(bags.tokens).astype(np.float64)
        equations.add(sums, part.responses, part.weights)
    values = equations.ridge(equations.mean_square()).T
    moment = np.zeros(d)
    if not is_wide:
        matrices = [np.zeros((d, d)) for _ in range(data.n_outputs)]
    for part in data.read():
        tokens = part.bags.tokens
        pulls = part.bags.spread(part.weights[:, None] * part.responses)
        pull = (pulls * token_products(part.bags, values)).sum(axis=1)
        moment += pull.astype(tokens.dtype) @ tokens
        if is_wide:
            matrices = [_moment_product(tokens, pull) for pull in pulls.T]
        else:
            for matrix, pull in zip(matrices, pulls.T, strict=True):
                matrix += weighted_gram(tokens, pull)
    directions = {"moments": [moment], "spectral": list(_spectral(matrices))}
    if state.principal is not None:
        directions["principal"] = [state.principal.copy()]
    directions["value"] = list(values)
    return directions


def _moment_product(tokens: NDArray[Any], pull: FloatArray) -> LinearOperator:
    """Return the moment matrix as products with a vector: two passes each."""
    d = tokens.shape[1]

    def product(vector: FloatArray) -> FloatArray:
        pulled = pull * (tokens @ vector.ravel().astype(tokens.dtype))
        return np.asarray(pulled.astype(tokens.dtype) @ tokens, dtype=np.float64)

    return LinearOperator((d, d), matvec=product, dtype=np.float64)


def _spectral(matrices: list[Any]) -> Iterator[FloatArray]:
    for matrix in matrices:
        if matrix.shape[0] > _WIDE:  # only the two extreme eigenvectors are needed
            start = np.ones(matrix.shape[0])
            _, vectors = eigsh(matrix, k=2, which="BE", v0=start, tol=1e-3)
        else:
            _, vectors = np.linalg.eigh(matrix)
        yield vectors[:, -1] + vectors[:, 0]
        yield vectors[:, -1] - vectors[:, 0]


class Equations:
    """Normal equations of ridge regressions whose rows come batch by batch.

    Few rows are kept as they are, and solved by a matrix with one row per bag.
    """

    def __init__(self, n_outputs: int) -> None:
        self._rows: list[FloatArray] = []
        self._aims: list[FloatArray] = []
        self._gram: Any = None
        self._cross: Any = np.zeros((0, n_outputs))
        self._weight = 0.0

    def add(self, rows: FloatArray, aims: FloatArray, weights: FloatArray) -> None:
        """Add some rows."""
        roots = np.sqrt(weights)[:, None]
        self._rows.append(roots * rows)
        self._aims.append(roots * aims)
        self._weight += float(weights.sum())
        if sum(map(len, self._rows)) > rows.shape[1]:
            self._fold()

    def _fold(self) -> None:
        table, aims = np.concatenate(self._rows), np.concatenate(self._aims)
        gram, cross = table.T @ table, table.T @ aims
        self._gram = gram if self._gram is None else self._gram + gram
        self._cross = cross if not len(self._cross) else self._cross + cross
        self._rows, self._aims = [], []

    def mean_square(self) -> float:
        """Return the sum of squares per unit of weight; 1 if all are zero."""
        total = sum(float((rows**2).sum()) for rows in self._rows)
        if self._gram is not None:
            total += float(np.trace(self._gram))
        return total / self._weight or 1.0

    def ridge(self, amount: float) -> FloatArray:
        """Return the coefficients, one column per aim."""
        if self._gram is None:
            table, aims = np.concatenate(self._rows), np.concatenate(self._aims)
            gram = table @ table.T
            gram.flat[:: len(gram) + 1] += amount
            return np.asarray(table.T @ solve_positive(gram, aims))
        if self._rows:
            self._fold()
        gram = self._gram.copy()
        gram.flat[:: len(gram) + 1] += amount
        return solve_positive(gram, self._cross)


def solve_positive(matrix: FloatArray, aims: FloatArray) -> FloatArray:
    """Solve with a positive definite matrix, without the checks of SciPy.

    For a small matrix they take ten times as long as the solution.
    """
    _, solution, info = dposv(matrix, aims)
    if info:
        return np.asarray(solve(matrix, aims, assume_a="sym"))
    return np.asarray(solution).reshape(aims.shape)


def _profiles(
    state: FitState, directions: dict[str, list[FloatArray]]
) -> list[HeadStart]:
    """Return every direction, sign and length of the key, with its best values.

    Given a key the values are a ridge regression on the attended tokens.
    """
    screen, head, profiles = state.data.screen(), state.settings.head, list[HeadStart]()
    for name, candidates in directions.items():
        for direction in candidates:
            length = float(np.linalg.norm(direction))
            unit = direction / length if length > 0 else direction
            scores = token_products(screen.bags, unit[None])[:, 0]
            if head == "logsumexp":
                profiles += _tied_profiles(name, screen, unit, scores)
                continue
            for factor, shift in _lengths(name, scores, head):
                key = factor * unit
                if shift:  # the last feature of a sigmoid head is constant
                    key = key - factor * shift * _constant_direction(state)
                moved = factor * (scores - shift)
                weights = attention_weights(screen.bags, moved, head=head)
                attended = screen.bags.pooled(weights)
                if state.radius is not None:
                    attended[:, -1] = 0.0
                values, error = _best_values(attended, screen)
                profiles.append(HeadStart(name, error, factor**2, key, values))
    return profiles


def _best_values(
    attended: FloatArray, screen: LabelledBags
) -> tuple[FloatArray, float]:
    equations = Equations(screen.responses.shape[1])
    equations.add(attended, screen.responses, screen.weights)
    values = equations.ridge(equations.mean_square())
    squares = ((screen.responses - attended @ values) ** 2).sum(axis=1)
    return values.T, 0.5 * float(np.average(squares, weights=screen.weights))


def _lengths(name: str, scores: FloatArray, head: str) -> list[tuple[float, float]]:
    """Return the factors and shifts of scores to try."""
    if head == "sigmoid":
        # A token counts if its score is above a quantile.
        spread = float(scores.std()) or 1.0
        return [
            (sign * size / spread, float(np.quantile(sign * scores, level)) * sign)
            for sign in (1.0, -1.0)
            for size in _INVERSE_TEMPERATURES
            for level in _LEVELS
        ]
    signs = (1.0,) if head == "erf" else (1.0, -1.0)  # erf is odd
    factors = [sign * size for sign in signs for size in _INVERSE_TEMPERATURES]
    if name == "value" and head != "erf":
        factors.append(0.0)  # the mean of the bag
    return [(factor, 0.0) for factor in factors]


def _constant_direction(state: FitState) -> FloatArray:
    """Return the coordinates of the last feature, which is one for every token."""
    last = np.eye(1, state.n_columns, state.n_columns - 1)[0]
    if state.coordinates.whitening is None:
        return last
    return np.asarray(solve(state.coordinates.whitening, last))


def _tied_profiles(
    name: str, screen: LabelledBags, unit: FloatArray, scores: FloatArray
) -> Iterator[HeadStart]:
    """Yield starts of the log-sum-exp head, whose value is its key.

    The output must rise with the readout of a token, so a falling fit does not count.
    """
    response = screen.responses[:, 0] - np.average(
        screen.responses[:, 0], weights=screen.weights
    )
    for factor in [sign * size for sign in (1, -1) for size in _INVERSE_TEMPERATURES]:
        outputs = log_mean_exp(screen.bags, factor * scores)
        outputs = outputs - np.average(outputs, weights=screen.weights)
        square = float(np.average(outputs**2, weights=screen.weights)) or 1.0
        slope = float(np.average(outputs * response, weights=screen.weights)) / square
        residuals = response - max(slope, 0.0) * outputs
        error = 0.5 * float(np.average(residuals**2, weights=screen.weights))
        yield HeadStart(name, error, 0.0, 0 * unit, (factor * unit)[None])


def _best_starts(state: FitState) -> dict[str, FloatArray]:
    """Return, for each name, the direction, sign and length of the key of least error.

    The penalty breaks ties: where the key does not matter, it is zero. The least error
    is first.
    """
    best, alpha = dict[str, FloatArray](), state.settings.alpha
    for start in sorted(state.profiles, key=lambda s: s.error + 0.5 * alpha * s.square):
        flat = np.concatenate([start.key, start.values.ravel()])
        best.setdefault(start.name, flat)
    return best


# --- Stages of the optimiser --------------------------------------------------------


def screen_starts(state: FitState) -> FitState:
    """Compare the starts after a few iterations on some bags; keep the best.

    Given solutions are compared as they are.
    """
    state = replace(state, attended=None, n_iter=0)
    if state.given:
        objective = PenalisedLoss(replace(state, n_heads=state.settings.n_heads))
        best = state.given[0]
        if len(state.given) > 1:
            best = min(state.given, key=lambda flat: objective(flat)[0])
        n_heads = state.settings.n_heads
        return replace(state, flat=best, start="given", n_heads=n_heads)
    state = replace(state, n_heads=1)
    none = np.zeros(state.data.n_outputs)
    starts = {
        name: np.concatenate([flat, none]) for name, flat in _best_starts(state).items()
    }
    return _best_screened(state, state.data.screen(), starts)


def _best_screened(
    state: FitState, screen: LabelledBags, starts: dict[str, FloatArray]
) -> FitState:
    settings = state.settings
    objective = PenalisedLoss(replace(state, data=data_in_memory(screen)))
    rounds = _SCREEN_ITERATIONS if len(starts) > 2 else _SCREEN_ITERATIONS[1:]
    for iterations in rounds:
        max_iter = min(iterations, settings.max_iter)
        results = {
            name: minimise(objective, flat, max_iter=max_iter, tol=settings.tol)
            for name, flat in starts.items()
        }
        for name, result in results.items():
            state.report(f"start {name}: objective {result.fun:.6g}")
        ranked = sorted(results, key=lambda name: float(results[name].fun))
        starts = {name: results[name].x for name in ranked[:2]}
    return replace(state, flat=results[ranked[0]].x, start=ranked[0])


def refine(state: FitState) -> FitState:
    """Minimise the penalised loss over all bags."""
    # If a stage with the attended mean follows, this one needs only be good enough to
    # tell which tokens are attended to.
    tol = state.settings.tol * (10 if state.is_held else 1)
    return state.after(_minimise_attentively(state, tol, is_rough=state.is_held))


def hold_to_attended(state: FitState) -> FitState:
    r"""Minimise again with the coherence penalty, which steadies the key.

    For tokens with an elliptical law the mean attended token, whitened, has the
    direction of the key: selection along :math:`k` moves the mean by a multiple of
    :math:`\Sigma k`. It is a mean over all bags, so it varies less than a key that the
    targets alone determine.
    """
    if not state.is_held:
        return state
    units = []
    for key in state.rows[:: 1 + state.data.n_outputs]:
        attended = np.zeros(state.n_columns)
        for batch in state.data.read():
            scores = token_products(batch.bags, key[None])[:, 0]
            weights = attention_weights(batch.bags, scores, head=state.settings.head)
            weights = weights * batch.bags.spread(batch.weights)
            attended += weights.astype(batch.bags.tokens.dtype) @ batch.bags.tokens
        if state.radius is not None:
            attended[-1] = 0.0
        length = float(np.linalg.norm(attended)) / state.data.weight
        if length <= 1e-8:
            return state
        units.append(attended / np.linalg.norm(attended))
    state = replace(state, attended=np.stack(units))
    return state.after(_minimise_attentively(state, state.settings.tol))


def add_heads(state: FitState) -> FitState:
    """Add heads one by one, each started on what the others leave unexplained."""
    while state.n_heads < state.settings.n_heads:
        state = hold_to_attended(refine(_with_next_head(state)))
    return replace(state, minimum=state.flat)


def _with_next_head(state: FitState) -> FitState:
    settings, rows, intercepts = state.settings, state.rows, state.intercepts

    def unexplained(batch: LabelledBags) -> LabelledBags:
        outputs = head_outputs(batch.bags, rows, len(intercepts), head=settings.head)
        residuals = settings.kind.residuals(outputs + intercepts, batch.targets)
        return replace(batch, responses=residuals)

    data = state.data.changed(unexplained)
    remainder = find_starts(replace(state, data=data, profiles=[], given=()))
    starts = {
        name: np.concatenate([rows.ravel(), flat, intercepts])
        for name, flat in _best_starts(remainder).items()
    }
    # The profiles of the first head are kept for other penalties.
    more = replace(state, n_heads=state.n_heads + 1, attended=None)
    return _best_screened(more, state.data.screen(), starts)


def make_sparse(state: FitState) -> FitState:
    """L1 penalty: minimise in standardised features, in which it is separable."""
    if not state.is_sparse:
        return state
    whitening = state.coordinates.whitening
    if whitening is not None:
        if state.radius is not None:
            whitening = np.pad(whitening, ((0, 1), (0, 1)))
            whitening[-1, -1] = 1.0
        inverse = np.linalg.inv(whitening)
        metric = inverse @ inverse
        flat = np.concatenate([(state.rows @ whitening).ravel(), state.intercepts])
        attended = state.attended
        if attended is not None:
            attended = attended @ whitening @ metric

        def unwhitened(bags: Bags) -> Bags:
            tokens = bags.tokens @ inverse.astype(bags.tokens.dtype)
            return replace(bags, tokens=tokens)

        state = replace(
            state,
            data=state.data.mapped(unwhitened),
            coordinates=replace(state.coordinates, whitening=None),
            metric=metric,
            unwhitened=unwhitened,
            flat=flat,
            attended=attended,
        )
    settings = state.settings
    objective = PenalisedLoss(state)
    return state.after(
        minimise_sparse(
            objective, state.flat, max_iter=settings.max_iter, tol=settings.tol
        )
    )


def choose_key_length(state: FitState) -> FitState:
    r"""Regression: keep the direction of the key and choose its length.

    Along its length the loss is so flat, and a fixed penalty so strong if there is
    little noise, that the optimiser stops early: a softmax then still leaks to tokens
    that it could tell apart. The length minimises
    :math:`n \log(\text{loss}) + \lVert k \rVert_W^2 / 2`, as if the noise had an
    unknown variance and the scores of pooled tokens prior variance one; `alpha` scales
    the second term. Given the key, the value is a ridge regression.
    """
    settings, n_outputs = state.settings, state.data.n_outputs
    state.report(
        f"refined {state.start}: objective {state.value:.6g} after "
        f"{state.n_iter} iterations"
    )
    is_simple = state.n_heads == 1 and not state.is_sparse
    if settings.kind != SQUARED or not is_simple or not settings.has_relative_weights:
        return state
    key = state.rows[0]
    strength = settings.alpha / (_UNIT_ALPHA * state.data.size)
    length = 0.5 * strength * float(key @ key)
    best = np.inf, 1.0, state.flat[len(key) :], state.value
    # The criterion falls, then rises: stop at the first length that does not improve.
    for factor in _LENGTHS:
        loss, values = _values_of_key(state, factor * key)
        cost = n_outputs * np.log(loss + _TINY) + factor**2 * length
        if cost >= best[0]:
            break
        best = cost, factor, values, loss
    _, factor, values, loss = best
    norm = float(np.linalg.norm(key))
    state.report(f"length of the key: {factor * norm:.4g} instead of {norm:.4g}")
    flat = np.concatenate([factor * key, values])
    # The reported objective has no coherence term: the direction is fixed.
    coefficients = flat[:-n_outputs]
    value = loss + 0.5 * settings.alpha * float(coefficients @ coefficients)
    return replace(state, flat=flat, value=value)


def _values_of_key(state: FitState, key: FloatArray) -> tuple[float, FloatArray]:
    """Return the loss of the best values for a key, and values and intercepts."""
    tables, targets, weights = [], [], []
    for batch in state.data.read():
        scores = token_products(batch.bags, key[None])[:, 0]
        shares = attention_weights(batch.bags, scores, head=state.settings.head)
        tables.append(batch.bags.pooled(shares))
        targets.append(columns(batch.targets))
        weights.append(batch.weights / state.data.weight)
    table, aims, share = map(np.concatenate, (tables, targets, weights))
    if state.radius is not None:
        table[:, -1] = 0.0
    center, middle = share @ table, share @ aims
    if not state.settings.has_intercept:
        center, middle = 0.0 * center, 0.0 * middle
    equations = Equations(state.data.n_outputs)
    equations.add(table - center, aims - middle, share)
    # The floor gives columns of zeros the coefficient zero.
    floor = 1e-12 * equations.mean_square()
    values = equations.ridge(state.settings.alpha + floor)
    intercepts = middle - center @ values
    errors = aims - table @ values - intercepts
    loss = 0.5 * float(share @ (errors**2).sum(axis=1))
    return loss, np.concatenate([values.T.ravel(), intercepts])


def _minimise_attentively(
    state: FitState, tol: float, *, is_rough: bool = False
) -> OptimizeResult:
    """Minimise over the tokens that count, until the others change nothing.

    Most tokens of a long bag have a weight that no sum notices. The minimum over the
    others is that over all if there the two gradients differ by less than `tol`. If
    they do not, tokens are chosen again; after some rounds all tokens are read. With
    `is_rough`, one round over fewer tokens is enough.
    """
    objective, settings, flat = PenalisedLoss(state), state.settings, state.flat
    data, n_iter = state.data, 0
    is_small = data.n_tokens * data.n_features <= _FEW_NUMBERS and not data.is_stream
    margin = _ROUGH_MARGIN if is_rough else max(0.0, _MARGIN - np.log(tol))
    for _ in range(0 if is_small else _ROUNDS):
        keys = objective.split(flat)[0][objective.keys]
        attentive = data.attentive(keys, margin, head=settings.head)
        if attentive is None:
            break
        small = PenalisedLoss(replace(state, data=attentive))
        result = minimise(small, flat, max_iter=settings.max_iter - n_iter, tol=tol)
        n_iter += int(result.nit)
        flat = result.x
        value, gradient = objective(flat)
        agrees = is_rough or np.abs(gradient - result.jac).max() <= tol
        if agrees or n_iter >= settings.max_iter:
            result.fun, result.nit = value, n_iter
            return result
    result = minimise(objective, flat, max_iter=settings.max_iter - n_iter, tol=tol)
    result.nit += n_iter
    return result


# Every fit runs these stages, in this order: first those that do not depend on the
# penalty, then the optimiser. Those that do not apply (no radius, no L1 penalty, …)
# return their argument.
PREPARATION: tuple[Stage, ...] = (standardise, add_constant, whiten, add_radius)
OPTIMISATION: tuple[Stage, ...] = (
    find_starts,
    screen_starts,
    refine,
    hold_to_attended,
    add_heads,
    make_sparse,
    choose_key_length,
)


@dataclass(frozen=True)
class HeadSolution:
    """One head (or several that are added) in the features as given.

    `rows` has for each head its key and its values. The radial head has one more
    column, the coefficient of the radius, and the sigmoid head one for its constant.
    """

    head: str
    rows: FloatArray
    intercepts: FloatArray
    center: FloatArray
    precision: FloatArray | None
    objective: float
    n_iter: int
    converged: bool
    start: str

    def with_outputs(self, places: NDArray[np.int64], n_heads: int) -> "HeadSolution":
        """Return the solution with outputs moved to other places, and all heads."""
        n_outputs = len(self.intercepts)
        rows = self.rows.reshape(-1, 1 + n_outputs, self.rows.shape[1])
        ordered = np.zeros((max(n_heads, len(rows)), *rows.shape[1:]))
        ordered[: len(rows), 0] = rows[:, 0]
        ordered[: len(rows), 1 + places] = rows[:, 1:]
        intercepts = np.empty(n_outputs)
        intercepts[places] = self.intercepts
        return replace(
            self, rows=ordered.reshape(-1, rows.shape[2]), intercepts=intercepts
        )


def solution_of(state: FitState) -> HeadSolution:
    """Return the solution in the features as given."""
    coordinates, rows, n_outputs = state.coordinates, state.rows, state.data.n_outputs
    radius = None
    if state.radius is not None:
        rows, radius = rows[:, :-1], rows[:, -1:] / state.radius[1]
    rows = coordinates.raw(rows)
    is_value = np.arange(len(rows)) % (1 + n_outputs) > 0
    moved = (rows[is_value][:, : len(coordinates.mean)] @ coordinates.mean).reshape(
        -1, n_outputs
    )
    if radius is not None:
        rows = np.hstack([rows, radius])
    return HeadSolution(
        head=state.settings.head,
        rows=rows,
        intercepts=state.intercepts - moved.sum(axis=0),
        center=coordinates.mean,
        precision=None if radius is None else coordinates.precision(),
        objective=state.value,
        n_iter=max(state.n_iter, 1),
        converged=state.converged,
        start=state.start,
    )
