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

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from eigenheads._checks import (
    Got,
    check_choice,
    check_covariance,
    check_positive,
    fail,
)
from eigenheads._limits import LARGEST
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.datasets import GaussianPrompts, SpikedWishartPrompts
from eigenheads.functional import PrincipalSubspace, principal_subspace
from eigenheads.theory._pca_descent import descend_pca_risk
from eigenheads.theory._ranges import check_law, check_range

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

    def times(self, factor: float) -> Coefficients:
        """Return all coefficients multiplied by a number."""
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
        Number of directions in which the risk decreases.
    hessian_eigenvalues
        Smallest first.
    eigenspace
        Orthonormal columns. Every vector of their span with the length of `location`
        is such a point too. One column if the eigenvalue is simple; none at 0.
    """

    location: FloatArray
    risk: float
    kind: Kind
    n_negative: int
    hessian_eigenvalues: FloatArray
    eigenspace: FloatArray


class PCALandscape:
    r"""Population risk of attention-based PCA as a function of the head.

    The head has free directions :math:`M` (d, k), one vector :math:`\mu` for rank 1,
    and the loss :math:`\lVert x_1 - T(X) \rVert^2`. Three cases have closed forms:

    - **Softmax head, Gaussian prompts.** As :math:`L \to \infty` the softmax average
      becomes a Gaussian tilt, :math:`T(X) \to \lambda \Sigma M M^\top x_1`, and

      .. math::

          R(M) = \tau - 2\lambda \operatorname{tr}(M^\top \Sigma^2 M)
               + \lambda^2 \operatorname{tr}(M^\top\Sigma M\, M^\top\Sigma^2 M), \qquad
          \tau = \operatorname{tr}\Sigma

      If :math:`\sigma_k > \sigma_{k+1}`, every minimiser has
      :math:`MM^\top = U_k \operatorname{diag}(1/(\lambda\sigma_i)) U_k^\top` and
      reaches the rank-k PCA error, :math:`\tau - \sigma_1 - … - \sigma_k`. For one
      direction the critical points are 0, a maximum, and
      :math:`\pm u_i/\sqrt{\lambda\sigma_i}` with the risk :math:`\tau - \sigma_i` and
      i - 1 negative directions.
    - **Linear head, Gaussian prompts**, exact for any number of tokens. With
      :math:`a, b, f, g` the traces of :math:`B\Sigma`, :math:`B\Sigma^2`,
      :math:`B\Sigma B\Sigma`, :math:`B\Sigma B\Sigma^2`, :math:`B = MM^\top`,

      .. math::

          R_L(M) = \tau - 2\lambda[a\tau + (L+1) b]
          + \lambda^2 [\tau a^2 + (L+1)\tau f + 2(L+1)ab + (L^2+3L+4) g]
    - **Softmax head, prompts in context** (Wishart covariances), as
      :math:`L \to \infty`. The risk is n times that of a linear head on prompts of
      length n from :math:`N(0, V)`:

      .. math::

          \mathbb E \lVert x - \lambda \Sigma B x \rVert^2
          = \sum_i \mathbb E \lVert y_i - \lambda \Sigma B y_i \rVert^2

      since :math:`x \mid \Sigma` has the second moments of
      :math:`\sum_i y_i y_i^\top`, and :math:`\lambda\Sigma B y_i` is the linear head on
      :math:`y_1, …, y_n`.

    Parameters
    ----------
    law
        Law of the prompts. The number of tokens matters for the linear head only.
    inverse_temperature
        :math:`\lambda > 0`.
    head
        ``"softmax"`` or ``"linear"``.
    rank
        :math:`k`. With rank 1 a point is a vector (d,), else a matrix (d, rank);
        leading axes are a batch.
    scale_matrix
        :math:`V` of prompts in context, if it is not ``law.scale_matrix``.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import GaussianPrompts
    >>> law = GaussianPrompts(np.diag([3.0, 2.0, 1.0]))
    >>> landscape = PCALandscape(law, inverse_temperature=1.0)
    >>> [point.kind for point in landscape.critical_points()]
    ['minimum', 'strict saddle', 'strict saddle', 'maximum']
    >>> path = landscape.descend([0.1, 0.5, 0.2], step_size=0.01, n_steps=900)
    >>> path.final("risk").round(4), path.final("alignment").round(4)
    (array([3.]), array([1.]))
    """

    def __init__(
        self,
        law: GaussianPrompts | SpikedWishartPrompts,
        *,
        inverse_temperature: float,
        head: str = "softmax",
        rank: int = 1,
        scale_matrix: ArrayLike | None = None,
    ) -> None:
        check_law(law, (GaussianPrompts, SpikedWishartPrompts))
        check_choice("head", head, ("softmax", "linear"))
        self.inverse_temperature = check_positive(
            "inverse_temperature", inverse_temperature
        )
        if isinstance(law, GaussianPrompts):
            if scale_matrix is not None:
                contract = "None for prompts of one covariance"
                fail("scale_matrix", contract, scale_matrix)
            matrix = law.covariance
            coefficients = (
                _linear_coefficients(float(np.trace(matrix)), law.n_tokens)
                if head == "linear"
                else Coefficients(float(np.trace(matrix)), 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
            )
        else:
            if head == "linear":
                contract = "'softmax' for prompts in context"
                fail("head", contract, head)
            matrix, n = law.scale_matrix, law.degrees_of_freedom
            if scale_matrix is not None:
                name = "scale_matrix"
                matrix = check_covariance(name, scale_matrix)
            coefficients = _linear_coefficients(float(np.trace(matrix)), n).times(n)
        self.subspace: PrincipalSubspace = principal_subspace(matrix, rank)
        self.matrix: FloatArray = matrix
        self.coefficients = coefficients

    @property
    def d(self) -> int:
        """Dimension."""
        return len(self.matrix)

    @property
    def rank(self) -> int:
        """Number of directions of the head."""
        return self.subspace.rank

    def risk(self, point: object) -> FloatArray:
        """Return the risk at a point, or at each point of a batch."""
        m, sm, ssm = self._products(self._as_matrix(point))
        a, b = np.sum(m * sm, axis=(-2, -1)), np.sum(m * ssm, axis=(-2, -1))
        first, second = _transposed(m) @ sm, _transposed(m) @ ssm
        f = np.sum(first * first, axis=(-2, -1))
        g = np.sum(first * second, axis=(-2, -1))
        c, scale = self.coefficients, self.inverse_temperature
        linear = c.on_a * a + c.on_b * b
        square = c.on_aa * a * a + c.on_f * f + c.on_ab * a * b + c.on_g * g
        return c.null_risk - 2 * scale * linear + scale**2 * square

    def gradient(self, point: object) -> FloatArray:
        """Return the gradient, of the shape of `point`."""
        m, sm, ssm = self._products(self._as_matrix(point))
        a = np.sum(m * sm, axis=(-2, -1), keepdims=True)
        b = np.sum(m * ssm, axis=(-2, -1), keepdims=True)
        first, second = _transposed(m) @ sm, _transposed(m) @ ssm
        c, scale = self.coefficients, self.inverse_temperature
        linear = c.on_a * sm + c.on_b * ssm
        square = (2 * c.on_aa * a + c.on_ab * b) * sm + c.on_ab * a * ssm
        square += sm @ (2 * c.on_f * first + c.on_g * second) + ssm @ (c.on_g * first)
        gradient = -4 * scale * linear + 2 * scale**2 * square
        return gradient[..., 0] if self.rank == 1 else gradient

    def hessian(self, point: object) -> FloatArray:
        """Return the matrix of second derivatives at one vector (rank 1 only)."""
        self._check_rank_one()
        mu = self._as_matrix(point)[..., 0]
        if mu.ndim != 1:
            fail("point", f"one vector ({self.d},)", mu)
        s = self.matrix
        sm, ssm = s @ mu, s @ (s @ mu)
        a, b = mu @ sm, mu @ ssm
        c, scale = self.coefficients, self.inverse_temperature
        on_aa, on_ab = c.on_aa + c.on_f, c.on_ab + c.on_g
        square = (2 * on_aa * a + on_ab * b) * s + on_ab * a * (s @ s)
        square += 4 * on_aa * np.outer(sm, sm)
        square += 2 * on_ab * (np.outer(sm, ssm) + np.outer(ssm, sm))
        return -4 * scale * (c.on_a * s + c.on_b * s @ s) + 2 * scale**2 * square

    def minimiser(self) -> FloatArray:
        r"""Return a minimiser of the risk; its rotations :math:`MQ` are others.

        Its columns are the leading eigenvectors. For one direction the squared length
        is :math:`(\alpha + \beta\sigma) / (\lambda\sigma(\gamma + \delta\sigma))`; for
        several the squared lengths minimise a quadratic form over positive numbers.
        """
        self.subspace.warn_if_not_identified()
        point = self._minimiser()
        return point[:, 0] if self.rank == 1 else point

    def _minimiser(self) -> FloatArray:
        columns = self.subspace.eigenvectors[:, : self.rank]
        point: FloatArray = columns * np.sqrt(self._squared_lengths())
        return point

    @property
    def minimum(self) -> float:
        """Minimum of the risk."""
        point = self._minimiser()
        return float(self.risk(point[:, 0] if self.rank == 1 else point))

    def critical_points(self) -> list[CriticalPoint]:
        """Return all critical points up to sign, in order of risk (rank 1 only).

        There is one point per positive eigenvalue, along its eigenvectors; the last
        one is 0. Components in the null space of the covariance do not change the risk
        and are set to zero.
        """
        self._check_rank_one()
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
        r"""Return the step size above which descent is unstable at the minimum.

        It is 2 divided by the largest curvature, that along the leading eigenvector:
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

    def descend(
        self,
        start: ArrayLike,
        *,
        step_size: Schedule,
        n_steps: int,
        record_every: int = 1,
    ) -> Trajectories:
        r"""Descend the risk, :math:`M \leftarrow M - \alpha_t \nabla R(M)`.

        Parameters
        ----------
        start
            (d,) or (n_runs, d); for rank k, (d, k) or (n_runs, d, k).
        step_size
            :math:`\alpha_t`, a number or a callable of the 0-based index of the update.
        n_steps
            Number of updates.
        record_every
            Updates between two records.

        Returns
        -------
        trajectories
            ``alignment`` with the principal direction (or subspace), from 0 to 1;
            ``norm`` of :math:`M` (Frobenius); and ``risk``. A record is the state after
            that many updates.

        Raises
        ------
        ValueError
            If the descent diverges; the message names the largest stable step.

        Warns
        -----
        NotIdentifiedWarning
            If the covariance has several principal directions.

        Notes
        -----
        In the eigenbasis of the covariance a step costs O(d k²). The number of threads
        does not change the result.
        """
        self.subspace.warn_if_not_identified()
        return descend_pca_risk(
            self._check_start(start),
            self.subspace,
            (*self.coefficients, self.inverse_temperature),
            self.largest_stable_step(),
            step_size=step_size,
            n_steps=n_steps,
            record_every=record_every,
        )

    def descent_rates(self) -> FloatArray:
        r"""Return the eigenvalue of the Hessian at the minimum along each eigenvector.

        For rank 1 only. Under gradient flow, mode i of an error decays like
        :math:`e^{-r_i t}`. For the softmax limit
        :math:`r_i = 2\lambda\sigma_i(\sigma_1 - \sigma_i)`, :math:`i > 1`.
        """
        self._check_rank_one()
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
        array = check_range("point", point, -LARGEST, LARGEST)
        shape = (self.d,) if self.rank == 1 else (self.d, self.rank)
        if array.shape[-len(shape) :] != shape:
            contract = f"of shape (..., {', '.join(map(str, shape))})"
            fail("point", contract, Got(array.shape))
        return array[..., None] if self.rank == 1 else array

    def _check_start(self, start: ArrayLike) -> FloatArray:
        array = check_range("start", start, -LARGEST, LARGEST)
        shape = (self.d,) if self.rank == 1 else (self.d, self.rank)
        if array.ndim not in (len(shape), len(shape) + 1) or not array.size:
            array = np.empty(0)
        if array.shape[-len(shape) :] != shape:
            sizes = ", ".join(map(str, shape))
            comma = "," if self.rank == 1 else ""
            contract = f"of shape ({sizes}{comma}) or (n_runs, {sizes})"
            fail("start", contract, Got(np.shape(start)))
        return array.reshape(-1, self.d, self.rank)

    def _check_rank_one(self) -> None:
        if self.rank != 1:
            got = Got(f"rank {self.rank}")
            fail("landscape", "one of rank 1", got)


def _linear_coefficients(trace: float, n: int) -> Coefficients:
    # In order: the risk at 0; on a, b; on a², f, ab, g (see PCALandscape).
    quartic = trace, (n + 1) * trace, 2.0 * (n + 1), n**2 + 3.0 * n + 4
    return Coefficients(trace, trace, n + 1.0, *quartic)


def _transposed(matrix: FloatArray) -> FloatArray:
    return np.swapaxes(matrix, -1, -2)
