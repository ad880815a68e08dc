"""Starts of a fit: keys from moments and spectra of the tokens, with best values."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve
from scipy.linalg.lapack import dposv
from scipy.sparse.linalg import LinearOperator, eigsh

from eigenheads._typing import FloatArray
from eigenheads.estimators._location._data import LabelledBags
from eigenheads.estimators._location._head import (
    attention_weights,
    log_mean_exp,
    token_products,
)
from eigenheads.estimators._location._state import FitState, HeadStart, weighted_gram

# Above this width a full eigendecomposition costs more than two eigenvectors.
_WIDE = 200
# Standard deviations of the scores that a start may have.
_INVERSE_TEMPERATURES = (1.5, 5.0)
# Shares of tokens that a sigmoid start leaves out.
_LEVELS = (0.5, 0.8, 0.95)


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


def best_starts(state: FitState) -> dict[str, FloatArray]:
    """Return, for each name, the direction, sign and length of the key of least error.

    The penalty breaks ties: where the key does not matter, it is zero. The least error
    is first.
    """
    best, alpha = dict[str, FloatArray](), state.settings.alpha
    for start in sorted(state.profiles, key=lambda s: s.error + 0.5 * alpha * s.square):
        flat = np.concatenate([start.key, start.values.ravel()])
        best.setdefault(start.name, flat)
    return best
