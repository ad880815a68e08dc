"""Starts of the single-location fit, computed from moments of the data."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve
from scipy.linalg.lapack import dposv
from scipy.sparse.linalg import LinearOperator, eigsh

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    MODES,
    attend_tokens,
    log_mean_exp,
    pool_tokens,
    token_scores,
)
from eigenheads.estimators._location._objective import (
    TokenWhitening,
    weighted_gram,
    weighted_sum,
)
from eigenheads.estimators._location._problem import LabelledBags, LocationData

# Standard deviations of the scores that a start may have.
_INVERSE_TEMPERATURES = (1.5, 5.0)
# Shares of tokens that a sigmoid start leaves out.
_LEVELS = (0.5, 0.8, 0.95)
# Above this width a full eigendecomposition costs more than two eigenvectors.
_WIDE = 500
# Accuracy of these, which are but starts.
_ROUGH = 1e-3
# Numbers of the tables that are fitted together.
_STACKED = 2**15


@dataclass(frozen=True)
class HeadStart:
    """Named key and values at which a fit may begin, in whitened coordinates.

    `error` is that of the best values, `square` the squared length of the key.
    """

    name: str
    error: float
    square: float
    key: FloatArray
    values: FloatArray


def key_directions(
    data: LocationData, coordinates: TokenWhitening
) -> dict[str, list[FloatArray]]:
    r"""Return candidate directions of the key, by name, in whitened coordinates.

    With whitened tokens :math:`x` and centred responses :math:`y`, ``moments`` is the
    mean of :math:`y \, (x \cdot v) \, x` where :math:`v` is the regression of
    :math:`y` on the sum of a bag; ``principal`` the direction of largest pooled
    variance; ``value`` is :math:`v` itself, because the deciding token may be the one
    with the largest readout.
    """
    matrices: Any = None
    if data.is_stream:
        equations = RidgeEquations()
        for part in data.read():
            equations.add(_sums(part, coordinates), part.responses, part.weights)
            added = np.stack(list(_response_moments(part, coordinates)))
            matrices = added if matrices is None else matrices + added
        values = equations.solution()
    else:
        (part,) = data.read()
        values = ridge_values(_sums(part, coordinates), part.responses, part.weights)
        is_wide = len(coordinates.mean) > _WIDE
        moments = _moment_products if is_wide else _response_moments
        matrices = list(moments(part, coordinates))
    directions = {
        "moments": [coordinates.pulled_back(_moment(data, values, coordinates))],
        "spectral": list(_spectral(matrices, coordinates)),
    }
    if coordinates.principal is not None:
        directions["principal"] = [coordinates.principal]
    directions["value"] = list(values)
    return directions


def _sums(part: LabelledBags, coordinates: TokenWhitening) -> FloatArray:
    """Return the sum of the whitened tokens of each bag."""
    bags = part.bags
    sums = pool_tokens(bags.tokens, bags.offsets, np.ones(len(bags.tokens)))
    return coordinates.pulled_back(sums - np.outer(bags.lengths, coordinates.mean))


def _moment(
    data: LocationData, values: FloatArray, coordinates: TokenWhitening
) -> FloatArray:
    raw = coordinates.raw(values)
    moment = np.zeros(len(coordinates.mean))
    for part in data.read():
        bags = part.bags
        rows = raw.astype(bags.tokens.dtype)  # equal types: no copy of all tokens
        readouts = bags.tokens @ rows.T - raw @ coordinates.mean
        pulls = part.weights[:, None] * part.responses
        per_token = np.repeat(pulls, bags.lengths, axis=0)
        pull = (per_token * readouts).sum(axis=1)
        moment += weighted_sum(bags.tokens, pull) - pull.sum() * coordinates.mean
    return moment


def _response_moments(
    part: LabelledBags, coordinates: TokenWhitening
) -> Iterator[FloatArray]:
    """Yield the sum of y (x − m)(x − m)ᵀ for each response y."""
    for response in part.responses.T:
        pull = np.repeat(part.weights * response, part.bags.lengths)
        yield weighted_gram(part.bags.tokens, pull, coordinates.mean)


def _moment_products(
    part: LabelledBags, coordinates: TokenWhitening
) -> Iterator[LinearOperator]:
    """Yield the same in whitened coordinates, as products with a vector.

    A product takes two passes over the tokens; a matrix of many features, as many
    passes as features.
    """
    tokens, mean, d = part.bags.tokens, coordinates.mean, len(coordinates.mean)
    for response in part.responses.T:
        pull = np.repeat(part.weights * response, part.bags.lengths)

        def product(whitened: FloatArray, pull: FloatArray = pull) -> FloatArray:
            raw = coordinates.raw(whitened.ravel())
            pulled = pull * (tokens @ raw.astype(tokens.dtype) - raw @ mean)
            total = weighted_sum(tokens, pulled)
            return coordinates.pulled_back(total - pulled.sum() * mean)

        yield LinearOperator((d, d), matvec=product, dtype=np.float64)


def _spectral(matrices: Any, coordinates: TokenWhitening) -> Iterator[FloatArray]:
    r"""Yield sum and difference of the extreme eigenvectors of the moment matrix.

    Under single-location regression :math:`E[y \sum_l x_l x_l^\top]` is proportional
    to :math:`k v^\top + v k^\top`, whose two eigenvectors are :math:`k \pm v`.
    """
    for matrix in matrices:
        whitened = matrix
        if not isinstance(matrix, LinearOperator):
            whitened = coordinates.pulled_back(coordinates.pulled_back(matrix).T)
        if whitened.shape[0] > _WIDE:  # only the two extreme eigenvectors are needed
            start = np.ones(whitened.shape[0])
            _, vectors = eigsh(whitened, k=2, which="BE", v0=start, tol=_ROUGH)
        else:
            _, vectors = np.linalg.eigh(whitened)
        yield vectors[:, -1] + vectors[:, 0]
        yield vectors[:, -1] - vectors[:, 0]


def solve_positive(matrix: FloatArray, columns: FloatArray) -> FloatArray:
    """Solve with a positive definite matrix, without the checks of SciPy.

    For a small matrix they take ten times as long as the solution.
    """
    _, solution, info = dposv(matrix, columns)
    if info:
        return np.asarray(solve(matrix, columns, assume_a="sym"))
    return np.asarray(solution).reshape(columns.shape)


class RidgeEquations:
    """Normal equations of a ridge regression whose rows come batch by batch."""

    def __init__(self) -> None:
        self._gram: Any = 0.0
        self._cross: Any = 0.0
        self._weight = 0.0

    def add(
        self, features: FloatArray, responses: FloatArray, weights: FloatArray
    ) -> None:
        """Add some rows."""
        weighted = features * weights[:, None]
        self._gram = self._gram + weighted.T @ features
        self._cross = self._cross + weighted.T @ responses
        self._weight += float(weights.sum())

    def solution(self) -> FloatArray:
        """Return one row of coefficients per response."""
        gram = self._gram.copy()
        amount = np.trace(gram) / self._weight or 1.0  # features may all be zero
        gram.flat[:: len(gram) + 1] += amount
        return solve_positive(gram, self._cross).T


def ridge_values(
    features: FloatArray, responses: FloatArray, weights: FloatArray
) -> FloatArray:
    """Return one row of coefficients per response, shrunk by trace over total weight.

    With weights that count repetitions the result is that of repeated rows.
    """
    return _stacked_values(features[None], responses, weights)[0]


def _stacked_values(
    features: FloatArray, responses: FloatArray, weights: FloatArray
) -> FloatArray:
    """Return the same for several tables of features, which are stacked."""
    roots = np.sqrt(weights)[:, None]
    rows = roots * features
    amounts = np.einsum("kij,kij->k", rows, rows) / weights.sum()
    amounts[amounts == 0] = 1.0  # features may all be zero
    return stacked_ridge(rows, roots * responses, amounts).transpose(0, 2, 1)


def stacked_ridge(
    rows: FloatArray, aims: FloatArray, amounts: FloatArray
) -> FloatArray:
    """Return the coefficients of ridge regressions on several tables.

    One column per aim; `amounts` are the penalties.
    """
    across = rows.transpose(0, 2, 1)
    # Fewer bags than features: the same solution from a matrix with one row per bag.
    is_wide = rows.shape[1] < rows.shape[2]
    grams = rows @ across if is_wide else across @ rows
    np.einsum("kii->ki", grams)[...] += amounts[:, None]
    if is_wide:
        duals = np.stack([solve_positive(gram, aims) for gram in grams])
        return np.asarray(across @ duals)
    sides = across @ aims
    return np.stack([solve_positive(*pair) for pair in zip(grams, sides, strict=True)])


def best_starts(profiles: list[HeadStart], alpha: float) -> list[HeadStart]:
    """Return, for each name, the direction, sign and length of the key of least error.

    The penalty breaks ties: where the key does not matter, it is zero. The least error
    is first.
    """
    best: dict[str, HeadStart] = {}
    for start in sorted(profiles, key=lambda s: s.error + 0.5 * alpha * s.square):
        best.setdefault(start.name, start)
    return list(best.values())


def start_profiles(
    directions: dict[str, list[FloatArray]],
    screen: LabelledBags,
    coordinates: TokenWhitening,
    head: str,
) -> list[HeadStart]:
    """Return every direction, sign and length of the key, with its best values.

    Given a key the values are a ridge regression on the attended tokens.
    """
    bags, profiles = screen.bags, list[HeadStart]()
    trials: list[tuple[str, float, FloatArray, FloatArray]] = []
    for name, candidates in directions.items():
        for direction in candidates:
            length = float(np.linalg.norm(direction))
            unit = direction / length if length > 0 else direction
            scores = token_scores(bags, coordinates.raw(unit)).astype(np.float64)
            if head == "logsumexp":
                profiles += _tied_profiles(name, screen, unit, scores)
                continue
            for factor, shift in _lengths(name, scores, head):
                key = factor * unit
                if shift:
                    key = key - factor * shift * _constant_direction(coordinates)
                trials.append((name, factor**2, key, factor * (scores - shift)))
    # For few bags most of the time is spent between operations, so they are shared.
    together = max(1, _STACKED // (len(bags) * len(coordinates.mean)))
    for first in range(0, len(trials), together):
        some = trials[first : first + together]
        moved = np.stack([scores for *_, scores in some])
        features = attended_features(bags, moved, coordinates, head)
        values = _stacked_values(features, screen.responses, screen.weights)
        residuals = screen.responses - features @ values.transpose(0, 2, 1)
        squares = np.einsum("kij,kij->ki", residuals, residuals)
        errors = 0.5 * (squares @ screen.weights) / screen.weights.sum()
        profiles += [
            HeadStart(name, float(error), square, key, own)
            for (name, square, key, _), error, own in zip(
                some, errors, values, strict=True
            )
        ]
    return profiles


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


def _constant_direction(coordinates: TokenWhitening) -> FloatArray:
    """Return the coordinates of the last feature, which is one for every token."""
    last = np.zeros(len(coordinates.mean))
    last[-1] = coordinates.scale[-1]
    if coordinates.whitening is None:
        return last
    return np.asarray(solve(coordinates.whitening, last))


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


def attended_features(
    bags: Bags, scores: FloatArray, coordinates: TokenWhitening, head: str
) -> FloatArray:
    """Return the attended token of each bag, in whitened coordinates, as tables.

    There is one table per row of scores. The coordinate of the radius is zero: values
    do not read it.
    """
    features = attend_tokens(bags.tokens, bags.offsets, scores, MODES[head])
    n_missing = len(coordinates.mean) - features.shape[2]
    features -= coordinates.mean[: features.shape[2]]
    if n_missing:
        features = np.pad(features, ((0, 0), (0, 0), (0, n_missing)))
    return coordinates.pulled_back(features)
