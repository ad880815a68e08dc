r"""Descent on the risk of a rank-k head, with nothing decomposed beyond k by k.

With infinitely long prompts the head of attention-based PCA is
:math:`T(x) = \Sigma M M^\top x` (λ = 1: it only scales M) with risk

.. math::

    R(M) = \operatorname{tr} \Sigma - 2 \operatorname{tr} M^\top \Sigma^2 M
         + \operatorname{tr} (M^\top \Sigma M)(M^\top \Sigma^2 M).

For a given span the best M has whitened scores, :math:`M^\top \Sigma M = I`. There,
with :math:`W = \Sigma M` and after a rotation that makes
:math:`W^\top W = \operatorname{diag}(b)`,

.. math::

    \nabla R = -2 (\Sigma W - W \operatorname{diag}(b)),

so an eigendirection with :math:`r = \sigma_j / b_i` in column i has the curvature
:math:`2 b_i^2\, r (1 - r) \le b_i^2 / 2`. The step :math:`2 / b_i^2` is the inverse of
this bound: it is the same whatever the scale of the data and however different the
columns' variances are.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from eigenheads._typing import FloatArray

Product = Callable[[FloatArray], FloatArray]
# The inverse of the largest curvature, in units of the squared variance of a column.
_STEP = 2.0


class Descent(NamedTuple):
    """Where a descent ended.

    `directions` (d, k) are orthonormal and ordered, `variances` (k,) those of the data
    along them, `residuals` (k,) the lengths of Σu − variance·u.
    """

    directions: FloatArray
    variances: FloatArray
    residuals: FloatArray
    n_iter: int
    converged: bool


class _Head(NamedTuple):
    """M with whitened scores, W = ΣM with orthogonal columns, their squared lengths."""

    encoder: FloatArray
    decoder: FloatArray
    lengths: FloatArray


def descend(
    covariance_times: Product,
    start: FloatArray,
    *,
    tolerances: Callable[[FloatArray], FloatArray],
    max_iter: int,
    rounding: float,
    report: Callable[[int, FloatArray, FloatArray], None],
) -> Descent:
    """Descend with momentum until every residual is within its tolerance.

    Parameters
    ----------
    covariance_times
        V ↦ ΣV for V of shape (d, k).
    start
        M before whitening, (d, k).
    tolerances
        Variances ↦ largest residuals at which to stop.
    max_iter
        Iterations at most; each takes two products.
    rounding
        Relative error of the products.
    report
        Called with iteration, variances and residuals.
    """
    point, previous, best, age = start, None, -math.inf, 1.0
    for iteration in range(1, max_iter + 1):
        basis = np.linalg.qr(point)[0]
        head = whitened_head(basis, covariance_times(basis), rounding)
        span, mixing = np.linalg.qr(head.decoder)
        image = covariance_times(span)
        found = _rotated(span, image, iteration)
        report(iteration, found.variances, found.residuals)
        if np.all(found.residuals <= tolerances(found.variances)):
            return found._replace(converged=True)
        value = float(head.lengths.sum())
        new = _step(head, image @ mixing)
        if previous is None or value < best:  # momentum led uphill: start it anew
            point, age = new, 1.0
        else:
            older = chart(head, previous)
            later = (1 + math.sqrt(1 + 4 * age * age)) / 2
            point = new + (age - 1) / later * (new - older)
            age = later
        previous, best = new, value
    return found


def whitened_head(basis: FloatArray, image: FloatArray, rounding: float) -> _Head:
    """Return the best head whose encoder spans the basis; k × k decompositions only."""
    gram = basis.T @ image
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    values = np.maximum(values, _floor(values[-1], rounding))
    mixing = vectors / np.sqrt(values)
    decoder = image @ mixing
    lengths, rotation = np.linalg.eigh(decoder.T @ decoder)
    lengths = np.maximum(lengths, _floor(lengths[-1], rounding))[::-1]
    rotation = rotation[:, ::-1]
    return _Head(basis @ (mixing @ rotation), decoder @ rotation, lengths)


def _floor(largest: float, rounding: float) -> float:
    """Return what stands for a variance that is zero up to rounding."""
    return max(float(largest) * rounding, np.finfo(float).tiny ** 0.5)


def _step(head: _Head, image: FloatArray) -> FloatArray:
    """Return the encoder after one preconditioned gradient step, in the chart."""
    gradient = -2 * (image - head.decoder * head.lengths)
    return chart(head, head.encoder - _STEP * gradient / head.lengths**2)


def chart(head: _Head, encoder: FloatArray) -> FloatArray:
    r"""Return the basis of the same span with :math:`W^\top M = I`.

    Bases of nearby spans are then comparable, so that momentum may subtract them.
    """
    try:
        moved: Any = np.linalg.solve((head.decoder.T @ encoder).T, encoder.T).T
    except np.linalg.LinAlgError:  # fewer dimensions than columns
        return encoder
    usable: FloatArray = moved if np.isfinite(moved).all() else encoder
    return usable


def _rotated(span: FloatArray, image: FloatArray, n_iter: int) -> Descent:
    """Return ordered directions within an orthonormal span, from a k × k matrix."""
    form = span.T @ image
    values, rotation = np.linalg.eigh((form + form.T) / 2)
    values, rotation = np.maximum(values[::-1], 0.0), rotation[:, ::-1]
    directions = span @ rotation
    residuals = np.linalg.norm(image @ rotation - directions * values, axis=0)
    return Descent(directions, values, residuals, n_iter, converged=False)
