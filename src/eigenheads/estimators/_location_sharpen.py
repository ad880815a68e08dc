"""The last step of a regression: how long the key, and the best value for it."""

from typing import Any

import numpy as np
from scipy.linalg import solve

from eigenheads._typing import FloatArray
from eigenheads.estimators._location_coordinates import Coordinates
from eigenheads.estimators._location_head import attention_weights, token_scores
from eigenheads.estimators._location_start import pooled_features

# Lengths to try, as multiples of the one that the optimiser reached, while it helps.
_FACTORS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# `alpha` at which the prior variance of the scores is one: the default.
_UNIT = 3e-5
_TINY = np.finfo(float).tiny


def sharpened(
    problem: Any, coordinates: Coordinates, rows: FloatArray
) -> tuple[FloatArray, FloatArray]:
    r"""Return key, value and intercept with the best length of the key.

    The direction of the key is kept. Along its length the loss is so flat, and a fixed
    penalty so strong where there is little noise, that the optimiser stops early, where
    a softmax still leaks to tokens that it could tell apart. The length of the key
    minimises :math:`n \log(\text{loss}) + \lVert k \rVert_W^2 / 2`, as if the noise
    had an unknown variance and the scores of pooled tokens the prior variance one;
    `alpha` scales the second term. Given the key the value is a ridge regression.

    Parameters
    ----------
    problem : Problem
        With a squared loss and a softmax over scores.

    coordinates : Coordinates
        Of its tokens.

    rows : ndarray of shape (2, n_features)
        Key and value in whitened coordinates.

    Returns
    -------
    rows, intercepts : ndarray of shape (2, n_features), (1,)
        The same, with another length of the key and another value.
    """
    strength = problem.alpha / (_UNIT * problem.size)
    length = 0.5 * strength * float(rows[0] @ rows[0])
    best = np.inf, 1.0, rows[1:].ravel()
    grams = _attended_grams(problem, coordinates, rows[0])
    for factor, gram in zip(_FACTORS, grams, strict=True):
        loss, fitted = _ridge(gram, problem.alpha)
        cost = np.log(loss + _TINY) + factor**2 * length
        if cost >= best[0]:
            break
        best = cost, factor, fitted
    _, factor, fitted = best
    return np.vstack([factor * rows[0], fitted[:-1]]), fitted[-1:]


def _attended_grams(
    problem: Any, coordinates: Coordinates, key: FloatArray
) -> list[FloatArray]:
    """Return the mean products of attended tokens, a one and the target.

    One matrix for each length of the key, all in one pass: only weights change.
    """
    raw = coordinates.raw(key[None])[0]
    grams: list[Any] = [0.0] * len(_FACTORS)
    for part in problem.parts():
        bags = part.bags
        scores = token_scores(bags, raw).astype(np.float64)
        ones = np.full(len(bags), float(problem.has_intercept))
        shares = (part.weights / problem.weight)[:, None]
        for index, factor in enumerate(_FACTORS):
            weights = attention_weights(bags, factor * scores, head=problem.head)
            features = pooled_features(bags, weights, coordinates)
            table = np.column_stack([features, ones, part.targets])
            grams[index] = grams[index] + (table * shares).T @ table
    return grams


def _ridge(gram: FloatArray, alpha: float) -> tuple[float, FloatArray]:
    """Return penalised loss and coefficients; the last two columns are not shrunk."""
    matrix = gram[:-1, :-1].copy()
    # The floor lets columns of zeros have the coefficient zero.
    floor = 1e-12 * np.trace(matrix) or 1.0
    matrix[np.diag_indices_from(matrix)] += floor
    slopes = np.arange(len(matrix) - 1)
    matrix[slopes, slopes] += alpha
    fitted = np.asarray(solve(matrix, gram[:-1, -1], assume_a="pos"))
    residual = np.append(-fitted, 1.0)
    return max(0.5 * float(residual @ gram @ residual), 0.0), fitted
