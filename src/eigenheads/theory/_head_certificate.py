"""Certificate of one attention head against replaced tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eigenheads._checks import (
    Got,
    check_array_like,
    check_count,
    check_finite_array,
    check_items,
    check_number,
    check_positive,
    fail,
)
from eigenheads._typing import FloatArray


@dataclass(frozen=True, eq=False)
class HeadCertificate:
    r"""Result of :func:`head_certificate`; axes are those of the queries.

    Attributes
    ----------
    counts
        Numbers :math:`m` of replaced tokens.
    bounds
        ``(…, n_queries, len(counts))``: the output of a query moves by at most this, in
        the norm of the values, whatever replaces any :math:`m` tokens.
    attained
        Movement by an explicit replacement, in the same shape: the heaviest tokens of
        the query get its direction as key, and the worst value of the ball.
    replaced_mass
        :math:`A(m)`, largest attention weight that the replaced tokens can get.
    lost_mass
        :math:`p(m)`, weight of the heaviest :math:`m` tokens now.
    breakdown
        ``(…, n_queries)``: largest :math:`m` with :math:`A(m) < 1/2`.
    outputs
        Outputs of the head with clipped keys and values.
    key_norm, value_radius
        Radii of the balls that keys and values are clipped to.
    value_center
        Centre of the ball of the values.

    See Also
    --------
    eigenheads.adapters.CapturedLayer.certificate : The same of the heads of a model.
    """

    counts: tuple[int, ...]
    bounds: FloatArray
    attained: FloatArray
    replaced_mass: FloatArray
    lost_mass: FloatArray
    breakdown: NDArray[np.int64]
    outputs: FloatArray
    key_norm: float
    value_radius: float
    value_center: FloatArray

    @property
    def tightness(self) -> FloatArray:
        """Share of the bound that the explicit replacement reaches."""
        return self.attained / self.bounds

    @property
    def is_vacuous(self) -> NDArray[np.bool_]:
        """True where the bound is not below the diameter of the ball."""
        return self.bounds >= 2 * self.value_radius

    def __str__(self) -> str:
        head = ("replaced", "bound / diameter", "attained / bound", "not vacuous")
        rows = [
            (
                str(count),
                f"{np.median(self.bounds[..., at]) / (2 * self.value_radius):.2f}",
                f"{np.median(self.tightness[..., at]):.2f}",
                f"{100 * np.mean(~self.is_vacuous[..., at]):.0f} %",
            )
            for at, count in enumerate(self.counts)
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        table = [
            "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
            for row in (head, *rows)
        ]
        low, middle, high = np.quantile(self.breakdown, [0.0, 0.5, 1.0])
        last = (
            f"Medians over {self.breakdown.size} rows of attention. Breakdown number: "
            f"median {middle:g}, from {low:g} to {high:g}."
        )
        return "\n".join([*table, last])


def head_certificate(
    queries: ArrayLike,
    keys: ArrayLike,
    values: ArrayLike,
    *,
    counts: Sequence[int] = (1, 2, 4, 8),
    scale: float | None = None,
    visible: ArrayLike | None = None,
    key_norm: float | None = None,
    value_radius: float | None = None,
    value_center: ArrayLike | None = None,
) -> HeadCertificate:
    r"""Bound how far replaced tokens can move the outputs of a softmax head.

    Keys are clipped to norm :math:`\kappa`, values to a ball of radius :math:`R`. With
    scores :math:`s_{ij}` and :math:`B_i = \text{scale}\,|q_i|\,\kappa`, if any
    :math:`m` tokens are replaced by anything, the output :math:`z_i` moves by at most

    .. math::

        |z_i' - z_i| \le 2R\,(A_i(m) + p_i(m)), \qquad
        A_i(m) = \frac{m e^{B_i}}{m e^{B_i} + \sum_{j \notin T} e^{s_{ij}}},

    where :math:`T` are the :math:`m` tokens with the largest scores and :math:`p_i(m)`
    is their weight. Without clipping there is no bound: a head is a weighted mean, and
    one value can move it anywhere.

    Parameters
    ----------
    queries, keys
        ``(…, n_queries, d)`` and ``(…, n_tokens, d)``, before scaling.
    values
        ``(…, n_tokens, d_value)``.
    counts
        Numbers of replaced tokens.
    scale
        Factor of the scores; by default :math:`1/\sqrt{d}`.
    visible
        Booleans that broadcast to ``(…, n_queries, n_tokens)``: tokens that a query
        sees. Invisible tokens stay invisible when they are replaced.
    key_norm, value_radius, value_center
        :math:`\kappa`, :math:`R` and the centre of the ball, fixed by clean
        calibration data. By default the largest norm of the keys, the mean of the
        values and their largest distance from it: then nothing is clipped here.

    Returns
    -------
    certificate
        Bounds, an attack that shows how tight they are, and breakdown numbers.

    Notes
    -----
    The certificate is one of a single head, in its queries, keys and values. It says
    nothing of a whole model, whose next layers see the moved outputs. Queries are those
    of tokens that are not replaced.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> q, k, v = 0.5 * rng.standard_normal((3, 64, 16))
    >>> found = head_certificate(q, k, v, counts=[1, 4])
    >>> bool((found.attained <= found.bounds).all())
    True
    """
    q, k, v = (
        check_finite_array(name, array)
        for name, array in (("queries", queries), ("keys", keys), ("values", values))
    )
    _check_shapes(q, k, v)
    ms = _counts(counts, k.shape[-2])
    factor = q.shape[-1] ** -0.5
    if scale is not None:
        factor = check_positive("scale", scale)
    center = _center(value_center, v)
    kappa = _radius("key_norm", key_norm, k)
    radius = _radius("value_radius", value_radius, v - center)
    k, v = _clip(k, kappa), _clip(v - center, radius)
    scores = factor * q @ np.swapaxes(k, -1, -2)
    if visible is not None:
        scores = np.where(_seen(visible, scores.shape), scores, -np.inf)
    largest = factor * kappa * np.linalg.norm(q, axis=-1, keepdims=True)
    if not np.isfinite(largest).all():
        got = Got("scores that overflow")
        fail("queries", "of a length such that scores are finite", got)
    top = scores.max(-1, keepdims=True)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    weights = weights / total
    order = np.argsort(-scores, axis=-1, kind="stable")
    below = np.take_along_axis(weights, order, -1)[..., ::-1].cumsum(-1)[..., ::-1]
    # Weight of all but the m largest, for m = 1, 2, …, n_tokens; then in units of the
    # largest possible weight of one token, which may be zero in a sharp head.
    missing = np.concatenate([below[..., 1:], np.zeros_like(total)], axis=-1)
    every = np.arange(1, k.shape[-2] + 1)
    mass = every / (every + missing * total * np.exp(top - largest))
    at = np.array(ms) - 1
    mass_at, lost_at = mass[..., at], 1 - missing[..., at]
    outputs = weights @ v
    rank = order.argsort(-1)
    reached = [
        _attack(np.where(rank >= m, weights, 0.0), v, outputs, mass[..., m - 1], radius)
        for m in ms
    ]
    return HeadCertificate(
        counts=ms,
        bounds=2 * radius * (mass_at + lost_at),
        attained=np.stack(reached, axis=-1),
        replaced_mass=mass_at,
        lost_mass=lost_at,
        breakdown=(mass < 0.5).sum(-1),
        outputs=outputs + center,
        key_norm=kappa,
        value_radius=radius,
        value_center=center,
    )


def _attack(
    weights: FloatArray,
    values: FloatArray,
    outputs: FloatArray,
    mass: FloatArray,
    radius: float,
) -> FloatArray:
    """Return the movement if the heaviest tokens of each query are replaced.

    With weight A on the new tokens, the output moves by (1 − A) g + A b' − z, where g
    is the mean of the tokens that are kept. The worst b' of the ball lies in the
    direction of the rest of this sum.
    """
    share = weights.sum(-1, keepdims=True)
    mean = (weights @ values) / np.where(share > 0, share, 1.0)
    moved = (1 - mass)[..., None] * mean - outputs
    distances: FloatArray = np.linalg.norm(moved, axis=-1) + mass * radius
    return distances


def _clip(x: FloatArray, radius: float) -> FloatArray:
    norm = np.linalg.norm(x, axis=-1, keepdims=True)
    return x * np.minimum(1.0, radius / np.where(norm > 0, norm, 1.0))


def _radius(name: str, value: float | None, x: FloatArray) -> float:
    radius = float(np.linalg.norm(x, axis=-1).max()) if value is None else value
    # A ball of radius zero would make all bounds zero divided by zero; the square of a
    # radius above the maximum may overflow.
    return check_number(name, radius, minimum=1e-300, maximum=1e150)


def _counts(counts: Sequence[int], n_tokens: int) -> tuple[int, ...]:
    numbers = check_items("counts", counts, "numbers of tokens")
    checked = tuple(check_count("counts", m) for m in numbers)
    if not checked or max(checked) > n_tokens:
        contract = f"numbers from 1 to {n_tokens}, the number of tokens"
        fail("counts", contract, list(checked))
    return checked


def _center(value: ArrayLike | None, values: FloatArray) -> FloatArray:
    if value is None:
        mean: FloatArray = values.reshape(-1, values.shape[-1]).mean(axis=0)
        return mean
    center = check_finite_array("value_center", value)
    if center.shape != values.shape[-1:]:
        contract = f"of shape {values.shape[-1:]}"
        fail("value_center", contract, Got(center.shape))
    return center


def _check_shapes(q: FloatArray, k: FloatArray, v: FloatArray) -> None:
    for name, array in (("queries", q), ("keys", k), ("values", v)):
        if array.ndim < 2 or 0 in array.shape:
            contract = "of shape (…, n, d), without empty axes"
            fail(name, contract, Got(array.shape))
    if q.shape[:-2] != k.shape[:-2] or q.shape[-1] != k.shape[-1]:
        contract = f"of shape (…, n_tokens, {q.shape[-1]}), with the queries' axes"
        fail("keys", contract, Got(k.shape))
    if v.shape[:-1] != k.shape[:-1]:
        contract = f"of shape {(*k.shape[:-1], 'd_value')}"
        fail("values", contract, Got(v.shape))


def _seen(visible: Any, shape: tuple[int, ...]) -> NDArray[np.bool_]:
    contract = "booleans with at least one visible token per query"
    mask = check_array_like("visible", visible, contract)
    try:
        full = np.broadcast_to(mask, shape)
    except ValueError:
        fail("visible", f"of shape {shape}", Got(mask.shape))
    if mask.dtype != bool or not full.any(-1).all():
        fail("visible", contract, visible)
    return full
