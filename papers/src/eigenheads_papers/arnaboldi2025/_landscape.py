r"""Landscape of attention with positions, by quadrature over two normals.

The student's fields are :math:`z_i = m z^*_i + \sqrt{1 - m^2}\, g_i + e s_i` with
:math:`s = (1, -1)`; the risk is a function of the semantic overlap m and the positional
overlap e. Nothing here uses the declared model: derivatives in m and e become
expectations of Hermite polynomials by Gaussian integration by parts,

.. math::

    \partial_m E f(z, z^*) = \sum_i E\, \partial_{z_i} \partial_{z^*_i} f, \qquad
    E\, \partial_i \partial_j A = E\, A (z_i z_j - \delta_{ij}) .

For half the squared Frobenius distance all of them are linear in :math:`\omega`.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from eigenheads.extend import FloatArray

_NODES = 61
_RANGE = 7.0


class Rule(NamedTuple):
    """Nodes of two independent normals, and their weights."""

    first: FloatArray
    second: FloatArray
    weight: FloatArray


@lru_cache(maxsize=4)
def _rule(nodes: int = _NODES) -> Rule:
    x = np.linspace(-_RANGE, _RANGE, nodes)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()
    first, second = (part.ravel() for part in np.meshgrid(x, x, indexing="ij"))
    return Rule(first, second, np.outer(w, w).ravel())


def _diagonal(first: FloatArray, second: FloatArray) -> FloatArray:
    """Return the two diagonal entries of softmax(z zᵀ); its rows have sum one."""
    gap = first - second
    return np.stack([expit(first * gap), expit(-second * gap)])


def _hermite(rule: Rule) -> dict[tuple[int, int], FloatArray]:
    """Return z_i z_j − δ_ij at the nodes."""
    z = (rule.first, rule.second)
    return {(i, j): z[i] * z[j] - (i == j) for i in (0, 1) for j in (0, 1)}


def _positional_target(a: float) -> float:
    return float(expit(2 * a**2))


class Curvatures(NamedTuple):
    """Second derivatives of the risk at the start e = m = 0."""

    positional: float
    semantic: float


def escape_curvatures(
    omega: float, a: float, *, loss: str, nodes: int = 41
) -> Curvatures:
    """Return the curvatures of the risk at the start, for either loss.

    The four normals of student and teacher are independent there, so that both are
    weighted sums of the loss over pairs of nodes. No derivative of the loss is taken,
    so the kink of the Frobenius distance does no harm.
    """
    rule = _rule(nodes)
    student = _diagonal(rule.first, rule.second)
    target = (1 - omega) * student + omega * _positional_target(a)
    # Both rows of a difference have the entries ±Δ.
    square = 2 * ((student[:, :, None] - target[:, None, :]) ** 2).sum(axis=0)
    values = square / 2 if loss == "half_square" else np.sqrt(square)
    hermite = _hermite(rule)
    semantic = sum(
        (rule.weight * h) @ values @ (rule.weight * h) for h in hermite.values()
    )
    along = sum((1 if i == j else -1) * h for (i, j), h in hermite.items())
    return Curvatures(
        float((rule.weight * along) @ values @ rule.weight), float(semantic)
    )


def transition(a: float, *, loss: str, nodes: int = 41) -> float:
    """Return the ω above which the steepest direction at the start is positional."""

    def lead(omega: float) -> float:
        curvatures = escape_curvatures(omega, a, loss=loss, nodes=nodes)
        return curvatures.positional - curvatures.semantic

    return float(brentq(lead, 0.05, 0.999, xtol=1e-6))


def quadrature_risk(
    e: float, m: float, omega: float, a: float, *, nodes: int = 25
) -> float:
    """Return half the mean squared distance, by quadrature over four normals."""
    rule = _rule(nodes)
    target = (1 - omega) * _diagonal(rule.first, rule.second)
    target += omega * _positional_target(a)
    width = math.sqrt(max(0.0, 1 - m**2))
    total = 0.0
    # One node of the teacher at a time keeps memory small.
    for first, second, weight, goal in zip(*rule, target.T, strict=True):
        student = _diagonal(
            m * first + width * rule.first + e, m * second + width * rule.second - e
        )
        total += weight * (rule.weight @ ((student - goal[:, None]) ** 2).sum(axis=0))
    return total


class Corners(NamedTuple):
    """Signs of the regions of the (a, ω) plane; every entry is linear in ω."""

    steepest: FloatArray  # positive: the semantic direction is steeper at the start
    deeper: FloatArray  # positive: the semantic corner has the lower risk
    semantic: FloatArray  # positive: (e, m) = (0, 1) is a local minimum
    positional: FloatArray  # positive: (e, m) = (1, 0) is one


def corners(omegas: FloatArray, a: float) -> Corners:
    r"""Return the signs that classify the landscape, for all ω at one a.

    On the unit ball of (e, m) the semantic corner is a local minimum if the risk falls
    towards it, :math:`R_m < 0`, and grows along the circle, :math:`R_{ee} - R_m > 0`;
    the positional corner likewise with the roles exchanged.
    """
    ends = [_corner_values(omega, a) for omega in (0.0, 1.0)]
    share = np.asarray(omegas, dtype=np.float64)
    steepest, deeper, fall_m, turn_m, fall_e, turn_e = (
        (1 - share) * low + share * high for low, high in zip(*ends, strict=True)
    )
    return Corners(
        steepest, deeper, np.minimum(fall_m, turn_m), np.minimum(fall_e, turn_e)
    )


def _corner_values(omega: float, a: float) -> tuple[float, ...]:
    rule = _rule()
    w, hermite = rule.weight, _hermite(rule)
    goal = _positional_target(a)
    teacher = _diagonal(rule.first, rule.second)
    mean_target = (1 - omega) * teacher @ w + omega * goal

    def shifted(e: float) -> FloatArray:
        return _diagonal(rule.first + e, rule.second - e)

    def alone(e: float) -> float:
        """Return the part of the risk at m = 0 that depends on e."""
        student = shifted(e)
        return float(((student**2) @ w - 2 * (student @ w) * mean_target).sum())

    def together(e: float) -> float:
        """Return the risk at m = 1, teacher and student reading the same fields."""
        target = (1 - omega) * teacher + omega * goal
        return float(((shifted(e) - target) ** 2 @ w).sum())

    constant = float((((1 - omega) * teacher + omega * goal) ** 2 @ w).sum())
    step = 1e-3

    def second(f: Callable[[float], float]) -> float:
        return (f(step) + f(-step) - 2 * f(0.0)) / step**2

    def semantic_curvature(e: float) -> float:
        """Return R_mm at m = 0: products of second Hermite coefficients."""
        student = shifted(e)
        return (
            -2
            * (1 - omega)
            * sum(
                float((student @ (w * h)) @ (teacher @ (w * h)))
                for h in hermite.values()
            )
        )

    # R_m at (0, 1): fields are equal there, and derivatives are those of two sigmoids.
    gradient = _diagonal_gradient(rule)
    slope_m = -2 * (1 - omega) * float((gradient**2 @ w).sum())
    slope_e = (alone(1 + step) - alone(1 - step)) / (2 * step)
    return (
        second(alone) - semantic_curvature(0.0),
        alone(1.0) + constant - together(0.0),
        -slope_m,
        second(together) - slope_m,
        -slope_e,
        semantic_curvature(1.0) - slope_e,
    )


def _diagonal_gradient(rule: Rule) -> FloatArray:
    """Return ∂A_ii/∂z_j at the nodes, one row per (i, j)."""
    z1, z2 = rule.first, rule.second
    first, second = _diagonal(z1, z2)
    first, second = first * (1 - first), second * (1 - second)
    return np.stack(
        [first * (2 * z1 - z2), -first * z1, second * (2 * z2 - z1), -second * z2]
    )
