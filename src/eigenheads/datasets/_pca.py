"""Prompts of Gaussian tokens whose covariance has a direction to be found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from eigenheads._checks import (
    check_count,
    check_covariance,
    check_number,
    check_positive,
)
from eigenheads._limits import check_sample_size
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray

_HINT = "simulate_pca needs no such arrays."


@dataclass(frozen=True, eq=False)
class GaussianPrompts:
    r"""Law of prompts of independent tokens :math:`x_1, …, x_L \sim N(0, \Sigma)`.

    Parameters
    ----------
    covariance
        :math:`\Sigma`, symmetric positive semi-definite, (d, d).
    n_tokens
        :math:`L`, tokens in a prompt.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> law = GaussianPrompts(np.diag([3.0, 1.0]), n_tokens=4)
    >>> law.sample(5, np.random.default_rng(0)).shape
    (5, 4, 2)
    """

    covariance: FloatArray
    n_tokens: int = 100
    _factor: FloatArray = field(init=False, repr=False)

    def __post_init__(self) -> None:
        covariance = check_covariance("covariance", self.covariance)
        # The factor below is computed once, so the covariance must not change.
        covariance.setflags(write=False)
        # Unlike a Cholesky factor, this one exists for a singular covariance. Rounding
        # may make eigenvalues of zero slightly negative.
        values, vectors = np.linalg.eigh(covariance)
        # The dataclass is frozen: this is how its fields are normalised, once.
        object.__setattr__(self, "covariance", covariance)
        object.__setattr__(self, "_factor", vectors * np.sqrt(np.maximum(values, 0.0)))
        n_tokens = check_count("n_tokens", self.n_tokens)
        object.__setattr__(self, "n_tokens", n_tokens)

    @property
    def d(self) -> int:
        """Dimension of a token."""
        return len(self.covariance)

    def sample(self, n: int, rng: np.random.Generator) -> FloatArray:
        """Draw `n` prompts, (n, n_tokens, d)."""
        n = check_sample_size(n, self.n_tokens * self.d, hint=_HINT)
        rng = check_generator(rng)
        tokens: FloatArray = (
            rng.standard_normal((n, self.n_tokens, self.d)) @ self._factor.T
        )
        return tokens


class SpikedWishartSample(NamedTuple):
    """Prompts, and the covariance of each prompt."""

    tokens: FloatArray
    covariances: FloatArray


@dataclass(frozen=True)
class SpikedWishartPrompts:
    r"""Law of prompts for in-context PCA: each prompt has its own covariance.

    .. math::

        \Sigma = \sum_{i=1}^{n} y_i y_i^\top, \quad y_i \sim N(0, V), \quad
        V = \xi^2 I + \theta\, v v^\top, \qquad
        x_1, …, x_L \mid \Sigma \sim N(0, \Sigma)

    The spike :math:`v` is the first basis vector; this is no restriction, because the
    law is rotation invariant otherwise.

    Parameters
    ----------
    d
        Dimension of a token.
    n_tokens
        :math:`L`, tokens in a prompt.
    degrees_of_freedom
        :math:`n` of the Wishart law (a sum of n outer products, not a mean).
    spike
        :math:`\theta \ge 0`.
    scale
        :math:`\xi > 0`.
    prompts_per_covariance
        Consecutive prompts that share one covariance.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> law = SpikedWishartPrompts(d=5, n_tokens=8)
    >>> tokens, covariances = law.sample(3, np.random.default_rng(0))
    >>> tokens.shape, covariances.shape
    ((3, 8, 5), (3, 5, 5))
    """

    d: int
    n_tokens: int = 100
    degrees_of_freedom: int = 10
    spike: float = 2.0
    scale: float = 1.0
    prompts_per_covariance: int = 1

    def __post_init__(self) -> None:
        for name in ("d", "n_tokens", "degrees_of_freedom", "prompts_per_covariance"):
            count = check_count(name, getattr(self, name))
            object.__setattr__(self, name, count)
        spike = check_number("spike", self.spike, minimum=0.0)
        object.__setattr__(self, "spike", spike)
        scale = check_positive("scale", self.scale)
        object.__setattr__(self, "scale", scale)

    @property
    def direction(self) -> FloatArray:
        """:math:`v`: along it the covariances are larger on average."""
        vector: FloatArray = np.eye(self.d)[0]
        return vector

    @property
    def scale_matrix(self) -> FloatArray:
        """:math:`V`, so that a covariance has the mean :math:`nV`."""
        return np.diag(self.scale**2 + self.spike * self.direction)

    def sample(self, n: int, rng: np.random.Generator) -> SpikedWishartSample:
        """Draw `n` prompts.

        Parameters
        ----------
        n
            Number of prompts.
        rng
            Source of randomness.

        Returns
        -------
        sample
            ``tokens`` (n, n_tokens, d) and ``covariances`` (n, d, d).
        """
        width = max(self.d, self.degrees_of_freedom)
        numbers = (self.n_tokens + self.d) * width
        n = check_sample_size(n, numbers, hint=_HINT)
        rng = check_generator(rng)
        # Negated floor division rounds up: the last group may be incomplete.
        n_groups = -(-n // self.prompts_per_covariance)
        normals = rng.standard_normal((n_groups, self.d, self.degrees_of_freedom))
        # The scale matrix is diagonal, so its root scales each coordinate by itself.
        factors = np.sqrt(np.diag(self.scale_matrix))[:, None] * normals
        factors = np.repeat(factors, self.prompts_per_covariance, axis=0)[:n]
        # A covariance is a factor times its transpose, so tokens are drawn from the
        # factor, and no covariance is decomposed.
        transposed = np.swapaxes(factors, 1, 2)
        shape = (n, self.n_tokens, self.degrees_of_freedom)
        tokens = rng.standard_normal(shape) @ transposed
        return SpikedWishartSample(tokens, factors @ transposed)


def random_covariance(
    d: int, rng: np.random.Generator, *, ridge: float = 0.1
) -> FloatArray:
    r"""Draw a covariance :math:`A A^\top + r I` with a standard Gaussian matrix A.

    Parameters
    ----------
    d
        Dimension.
    rng
        Source of randomness.
    ridge
        :math:`r \ge 0`; the figures of the paper use 0.1.

    Returns
    -------
    covariance
        Shape (d, d); its eigenvalues are simple with probability one.

    References
    ----------
    .. [1] maulensoto2026, the figures.

    Examples
    --------
    >>> import numpy as np
    >>> covariance = random_covariance(5, np.random.default_rng(0))
    >>> bool(np.linalg.eigvalsh(covariance)[0] >= 0.1)
    True
    """
    d = check_count("d", d)
    ridge = check_number("ridge", ridge, minimum=0.0)
    matrix = check_generator(rng).standard_normal((d, d))
    return matrix @ matrix.T + ridge * np.eye(d)
