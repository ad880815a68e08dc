r"""One family of risks: a linear head, and the limits of a softmax head.

With :math:`B = MM^\top`, :math:`a = \operatorname{tr} B\Sigma`,
:math:`b = \operatorname{tr} B\Sigma^2`, :math:`f = \operatorname{tr} B\Sigma B\Sigma`
and :math:`g = \operatorname{tr} B\Sigma B\Sigma^2`, each of them is

.. math::

    R(M) = R_0 - 2\lambda(\alpha a + \beta b)
         + \lambda^2 (\gamma_1 a^2 + \gamma_2 f + \delta_1 ab + \delta_2 g)

and for one direction, where :math:`f = a^2` and :math:`g = ab`, only the sums
:math:`\gamma = \gamma_1 + \gamma_2` and :math:`\delta = \delta_1 + \delta_2` count.
"""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from scipy.optimize import nnls

from eigenheads._checks import Got, check_finite_array, fail
from eigenheads._typing import FloatArray
from eigenheads.functional import PrincipalSubspace

Kind: TypeAlias = Literal["minimum", "strict saddle", "maximum"]
# A Hessian eigenvalue below this share of the largest is rounding, and counts as 0.
_FLAT = 1e-9


class Coefficients(NamedTuple):
    """The numbers of the family; see the module's docstring."""

    null_risk: float
    on_a: float
    on_b: float
    on_aa: float
    on_f: float
    on_ab: float
    on_g: float

    def times(self, factor: float) -> "Coefficients":
        """Return all of them multiplied."""
        return Coefficients(*(factor * number for number in self))


@dataclass(frozen=True, eq=False)
class CriticalPoint:
    """Points at which the gradient of a risk vanishes, up to sign.

    Attributes
    ----------
    location
        One such point, (d,).
    risk
        Its risk.
    kind
        ``"minimum"``, ``"strict saddle"`` or ``"maximum"``, from the Hessian.
    n_negative
        Number of directions in which the risk falls.
    hessian_eigenvalues
        Smallest first.
    eigenspace
        Orthonormal columns: every vector of their span with the length of `location`
        is such a point too. One column if the eigenvalue is simple; none at 0.
    """

    location: FloatArray
    risk: float
    kind: Kind
    n_negative: int
    hessian_eigenvalues: FloatArray
    eigenspace: FloatArray


@dataclass(frozen=True, eq=False)
class PCALandscape:
    """A population risk of attention-based PCA as a function of its directions.

    Made by :func:`softmax_landscape`, :func:`linear_landscape` and
    :func:`in_context_landscape`. With `rank` 1 a point is a vector (d,), else a matrix
    (d, rank); leading axes are a batch.
    """

    matrix: FloatArray
    inverse_temperature: float
    coefficients: Coefficients
    subspace: PrincipalSubspace

    @property
    def d(self) -> int:
        """Dimension."""
        return len(self.matrix)

    @property
    def rank(self) -> int:
        """Number of directions of the head."""
        return self.subspace.rank

    def risk(self, point: object) -> FloatArray:
        """Return the risk at a point, or one at each of a batch."""
        m, sm, ssm = self._products(self._as_matrix(point))
        a, b = np.sum(m * sm, axis=(-2, -1)), np.sum(m * ssm, axis=(-2, -1))
        first, second = _transposed(m) @ sm, _transposed(m) @ ssm
        f = np.sum(first * first, axis=(-2, -1))
        g = np.sum(first * second, axis=(-2, -1))
        c, sharp = self.coefficients, self.inverse_temperature
        linear = c.on_a * a + c.on_b * b
        square = c.on_aa * a * a + c.on_f * f + c.on_ab * a * b + c.on_g * g
        return c.null_risk - 2 * sharp * linear + sharp**2 * square

    def gradient(self, point: object) -> FloatArray:
        """Return the gradient, of the shape of `point`."""
        m, sm, ssm = self._products(self._as_matrix(point))
        a = np.sum(m * sm, axis=(-2, -1), keepdims=True)
        b = np.sum(m * ssm, axis=(-2, -1), keepdims=True)
        first, second = _transposed(m) @ sm, _transposed(m) @ ssm
        c, sharp = self.coefficients, self.inverse_temperature
        linear = c.on_a * sm + c.on_b * ssm
        square = (2 * c.on_aa * a + c.on_ab * b) * sm + c.on_ab * a * ssm
        square += sm @ (2 * c.on_f * first + c.on_g * second) + ssm @ (c.on_g * first)
        gradient = -4 * sharp * linear + 2 * sharp**2 * square
        return gradient[..., 0] if self.rank == 1 else gradient

    def hessian(self, point: object) -> FloatArray:
        """Return the matrix of second derivatives at one vector (rank 1 only)."""
        self._check_rank_one("hessian")
        mu = self._as_matrix(point)[..., 0]
        if mu.ndim != 1:
            fail("point", f"one vector ({self.d},)", mu, owner="hessian")
        s = self.matrix
        sm, ssm = s @ mu, s @ (s @ mu)
        a, b = mu @ sm, mu @ ssm
        c, sharp = self.coefficients, self.inverse_temperature
        on_aa, on_ab = c.on_aa + c.on_f, c.on_ab + c.on_g
        square = (2 * on_aa * a + on_ab * b) * s + on_ab * a * (s @ s)
        square += 4 * on_aa * np.outer(sm, sm)
        square += 2 * on_ab * (np.outer(sm, ssm) + np.outer(ssm, sm))
        return -4 * sharp * (c.on_a * s + c.on_b * s @ s) + 2 * sharp**2 * square

    def minimiser(self) -> FloatArray:
        r"""Return a point of least risk; its negative, or rotations :math:`MQ`, too.

        Its columns are the leading eigenvectors. For one direction the squared length
        is :math:`(\alpha + \beta\sigma) / (\lambda\sigma(\gamma + \delta\sigma))`; for
        several the squared lengths minimise a quadratic form over positive numbers.
        """
        self.subspace.warn_if_not_identified(owner="minimiser")
        point = self._minimiser()
        return point[:, 0] if self.rank == 1 else point

    def _minimiser(self) -> FloatArray:
        columns = self.subspace.eigenvectors[:, : self.rank]
        point: FloatArray = columns * np.sqrt(self._squared_lengths())
        return point

    @property
    def minimum(self) -> float:
        """The least risk."""
        point = self._minimiser()
        return float(self.risk(point[:, 0] if self.rank == 1 else point))

    def critical_points(self) -> list[CriticalPoint]:
        """Return all critical points up to sign, by rising risk, 0 last (rank 1 only).

        One for each positive eigenvalue, along its eigenvectors; what lies in the
        null space of the covariance changes nothing and is left out.
        """
        self._check_rank_one("critical_points")
        values = self.subspace.eigenvalues
        points = []
        first = 0
        while first < self.d and values[first] > _FLAT * values[0]:
            tied = np.sum(np.abs(values - values[first]) <= _FLAT * values[0])
            space = self.subspace.eigenvectors[:, first : first + tied]
            length = math.sqrt(self._squared_length(float(values[first])))
            points.append(self._critical_point(length * space[:, 0], space))
            first += int(tied)
        origin = np.zeros(self.d)
        return [*points, self._critical_point(origin, np.empty((self.d, 0)))]

    def largest_stable_step(self) -> float:
        r"""Return the step beyond which descent cannot stay at the minimum.

        Two over the largest curvature there, which is along the leading eigenvector:
        :math:`1 / (4\lambda\sigma(\alpha + \beta\sigma))` for one direction; for
        several, the largest eigenvalue of the curvature of the squared lengths.
        """
        sigma = self.subspace.eigenvalues[: self.rank]
        lengths = np.sqrt(self._squared_lengths())
        # Along the lengths r of the columns, R = const - 2 λ c·r² + λ² r²ᵀ H r²;
        # where its gradient vanishes the Hessian is 8 λ² diag(r) H diag(r).
        form = lengths[:, None] * self._form(sigma) * lengths
        curvature = 8 * self.inverse_temperature**2 * np.linalg.eigvalsh(form)[-1]
        return float(2 / curvature)

    def descent_rates(self) -> FloatArray:
        r"""Return the Hessian's eigenvalue at the minimum along each eigenvector.

        Rank 1 only, for gradient flow: mode i of an error falls like
        :math:`e^{-r_i t}`. For the softmax limit
        :math:`r_i = 2\lambda\sigma_i(\sigma_1 - \sigma_i)`, :math:`i > 1`.
        """
        self._check_rank_one("descent_rates")
        vectors = self.subspace.eigenvectors
        rates: FloatArray = np.einsum(
            "di,de,ei->i", vectors, self.hessian(self._minimiser()[:, 0]), vectors
        )
        return rates

    def _critical_point(self, location: FloatArray, space: FloatArray) -> CriticalPoint:
        curvatures = np.asarray(
            np.linalg.eigvalsh(self.hessian(location)), dtype=np.float64
        )
        flat = _FLAT * np.abs(curvatures).max()
        n_negative = int(np.sum(curvatures < -flat))
        n_positive = int(np.sum(curvatures > flat))
        kind: Kind = "strict saddle"
        if n_negative == 0:
            kind = "minimum"
        elif n_positive == 0:
            kind = "maximum"
        risk = float(self.risk(location))
        return CriticalPoint(location, risk, kind, n_negative, curvatures, space)

    def _squared_length(self, sigma: float) -> float:
        c = self.coefficients
        square = (c.on_aa + c.on_f) + (c.on_ab + c.on_g) * sigma
        return (c.on_a + c.on_b * sigma) / (self.inverse_temperature * sigma * square)

    def _squared_lengths(self) -> FloatArray:
        sigma = self.subspace.eigenvalues[: self.rank]
        if self.rank == 1:
            return np.array([self._squared_length(float(sigma[0]))])
        c = self.coefficients
        linear = c.on_a * sigma + c.on_b * sigma**2
        factor = np.linalg.cholesky(self._form(sigma))
        solution = nnls(factor.T, np.linalg.solve(factor, linear))[0]
        lengths: FloatArray = solution / self.inverse_temperature
        return lengths

    def _form(self, sigma: FloatArray) -> FloatArray:
        """Return H of the square term, w H w, for B with eigenvalues w."""
        c = self.coefficients
        mixed = np.outer(sigma, sigma**2)
        form = c.on_aa * np.outer(sigma, sigma) + c.on_ab * (mixed + mixed.T) / 2
        return form + np.diag(c.on_f * sigma**2 + c.on_g * sigma**3)

    def _products(self, m: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        sm = self.matrix @ m
        return m, sm, self.matrix @ sm

    def _as_matrix(self, point: object) -> FloatArray:
        array = check_finite_array("point", point, owner="PCALandscape")
        shape = (self.d,) if self.rank == 1 else (self.d, self.rank)
        if array.shape[-len(shape) :] != shape:
            contract = f"of shape (..., {', '.join(map(str, shape))})"
            fail("point", contract, Got(array.shape), owner="PCALandscape")
        return array[..., None] if self.rank == 1 else array

    def _check_rank_one(self, owner: str) -> None:
        if self.rank != 1:
            got = Got(f"rank {self.rank}")
            fail("landscape", "one of rank 1", got, owner=owner)


def _transposed(matrix: FloatArray) -> FloatArray:
    return np.swapaxes(matrix, -1, -2)
