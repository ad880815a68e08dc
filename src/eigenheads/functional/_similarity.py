"""Similarity of two representations of the same tokens: CKA and optimal matching."""

from __future__ import annotations

import numpy as np
from array_api_compat import array_namespace, is_numpy_array
from jaxtyping import Float
from scipy.optimize import linear_sum_assignment

from eigenheads._checks import Got, fail
from eigenheads._typing import Array, FloatArray
from eigenheads.functional._kernel import centred_gram, check_floats


def linear_cka(
    first: Float[Array, "*batch n d_first"], second: Float[Array, "*batch n d_second"]
) -> Float[Array, "*batch"]:
    r"""Return the linear centred kernel alignment, from 0 to 1.

    .. math::

        \frac{\lVert Y^\top H X \rVert_F^2}
        {\lVert X^\top H X \rVert_F\, \lVert Y^\top H Y \rVert_F}

    It is invariant under shifts, rotations and scaling of either argument, and under
    the same permutation of the tokens of both. It is NaN if one of them is constant.

    Parameters
    ----------
    first, second
        One row per token, :math:`X` and :math:`Y`; the widths may differ.

    Returns
    -------
    alignment
        One number per batch entry.

    References
    ----------
    .. [1] Kornblith et al., Similarity of neural network representations revisited,
       2019, equation 5.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0, 1.0], [1.0, 0.0], [2.0, 5.0]])
    >>> round(float(linear_cka(x, 3 * x[:, ::-1] + 1)), 6)
    1.0
    """
    xp = check_floats(first=first, second=second)
    _check_tokens(first, second)
    x = first - xp.mean(first, axis=-2, keepdims=True)
    y = second - xp.mean(second, axis=-2, keepdims=True)
    xt, yt = xp.matrix_transpose(x), xp.matrix_transpose(y)
    norms = xp.sqrt(_squares(xp, xt @ x) * _squares(xp, yt @ y))
    return _ratio(xp, _squares(xp, yt @ x), norms)


def rbf_cka(
    first: Float[Array, "*batch n d_first"], second: Float[Array, "*batch n d_second"]
) -> Float[Array, "*batch"]:
    r"""Return the centred kernel alignment with Gaussian kernels, median bandwidth.

    :math:`\langle \tilde K, \tilde L \rangle_F / (\lVert \tilde K \rVert_F \lVert
    \tilde L \rVert_F)` of the centred :func:`rbf_gram` of both. NaN if one of them is
    constant.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.array([[0.0], [1.0], [5.0]])
    >>> round(float(rbf_cka(x, -2 * x)), 6)
    1.0
    """
    xp = check_floats(first=first, second=second)
    _check_tokens(first, second)
    x, y = centred_gram(rbf_gram(first)), centred_gram(rbf_gram(second))
    norms = xp.sqrt(_squares(xp, x) * _squares(xp, y))
    return _ratio(xp, xp.sum(x * y, axis=(-2, -1)), norms)


def rbf_gram(points: Float[Array, "*batch n d"]) -> Float[Array, "*batch n n"]:
    r"""Return the Gram matrix :math:`e^{-\lVert x_i - x_j \rVert^2 / (2\sigma^2)}`.

    :math:`\sigma` is the median distance of two different tokens; for an even number of
    pairs, the lower of the two middle values.

    Examples
    --------
    >>> import numpy as np
    >>> rbf_gram(np.array([[0.0], [2.0]])).round(4)
    array([[1.    , 0.6065],
           [0.6065, 1.    ]])
    """
    xp = check_floats(points=points)
    n = points.shape[-2]
    if n < 2:
        fail("points", "two rows or more", Got(tuple(points.shape)))
    inner = points @ xp.matrix_transpose(points)
    square = xp.linalg.diagonal(inner)
    distance = square[..., :, None] + square[..., None, :] - 2 * inner
    # Rounding may make small squared distances negative.
    distance = xp.where(distance > 0, distance, xp.zeros_like(distance))
    rows, columns = np.triu_indices(n, 1)
    pairs = distance[..., rows, columns]
    median = xp.sort(pairs, axis=-1)[..., (pairs.shape[-1] - 1) // 2]
    safe = xp.where(median > 0, median, xp.ones_like(median))
    return xp.exp(-distance / (2 * safe[..., None, None]))


def matching_cosine(first: FloatArray, second: FloatArray) -> FloatArray:
    r"""Return the mean cosine of tokens under the best one-to-one matching.

    .. math::

        \max_\pi \frac1N \sum_i \cos(x_i, y_{\pi(i)})

    Parameters
    ----------
    first, second
        Arrays of shape (..., n, d), NumPy; one row per token. A row of zeros has cosine
        0 with everything.

    Returns
    -------
    cosine
        One number per batch entry.

    Notes
    -----
    A permutation of the tokens of either argument does not change the result, so
    permuted tokens cannot serve as a null. The maximum is positive for unrelated rows
    as well; compare it with a null that redraws the values. The result changes under
    rotations of the columns, and with the arbitrary signs of principal axes.

    References
    ----------
    .. [1] saritas2025, section on values (Jonker-Volgenant matching).

    Examples
    --------
    >>> import numpy as np
    >>> matching_cosine(np.eye(3), np.eye(3)[::-1])
    array(1.)
    """
    if not (is_numpy_array(first) and is_numpy_array(second)):
        got = Got(f"{type(first).__name__}, {type(second).__name__}")
        contract = "a NumPy array, as `second`"
        fail("first", contract, got, error=TypeError)
    check_floats(first=first, second=second)
    _check_tokens(first, second)
    if first.shape[-1] != second.shape[-1]:
        contract = f"of the width of `first`, {first.shape[-1]}"
        fail("second", contract, Got(second.shape))
    cosines = unit_rows(first) @ np.swapaxes(unit_rows(second), -1, -2)
    n = cosines.shape[-1]
    return best_matching(cosines.reshape(-1, n, n)).reshape(cosines.shape[:-2])


def best_matching(scores: FloatArray) -> FloatArray:
    """Return the largest mean score of a one-to-one matching, (count, n, n).

    NaN for matrices with an entry that is not finite.
    """
    best = np.full(len(scores), np.nan)
    for index in np.flatnonzero(np.isfinite(scores).all(axis=(-2, -1))):
        matched = linear_sum_assignment(scores[index], maximize=True)
        best[index] = scores[index][matched].mean()
    return best


def unit_rows(rows: FloatArray) -> FloatArray:
    """Return rows of length 1; zero rows stay zero."""
    with np.errstate(over="ignore", under="ignore"):
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
    if not ((length > 1e-140) & (length < 1e140)).all():
        # Squares of such entries may leave the range of floats: scale them first.
        largest = np.abs(rows).max(axis=-1, keepdims=True)
        rows = rows / np.where(largest > 0, largest, 1.0)
        length = np.linalg.norm(rows, axis=-1, keepdims=True)
    return rows / np.where(length > 0, length, 1.0)


def _squares(xp: Array, matrix: Array) -> Array:
    return xp.sum(matrix * matrix, axis=(-2, -1))


def _ratio(xp: Array, part: Array, whole: Array) -> Array:
    safe = xp.where(whole > 0, whole, xp.ones_like(whole))
    return xp.where(whole > 0, part / safe, xp.full_like(whole, xp.nan))


def _check_tokens(first: Array, second: Array) -> None:
    if first.shape[-2] != second.shape[-2] or second.shape[-2] < 2:
        contract = "of as many tokens as `first`, at least 2"
        fail("second", contract, Got(tuple(second.shape)))
    array_namespace(first, second)
