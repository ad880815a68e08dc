"""Single-location regression: one latent token decides the output."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import check_count, check_number, check_positive, fail
from eigenheads._limits import LARGEST, MAX_SAMPLE, check_sample_size
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray


class SingleLocationSample(NamedTuple):
    """Prompts, targets, and the index of the deciding token of each prompt."""

    tokens: FloatArray
    targets: FloatArray
    locations: NDArray[np.int64]


@dataclass(frozen=True)
class SingleLocation:
    r"""Law of prompts in which one token, at a latent position, decides the output.

    .. math::

        J_0 \sim \mathcal U\{1..L\}, \quad
        X_{J_0} \sim \mathcal N(\sqrt{d/2}\, k^*, \gamma^2 I), \quad
        X_l \sim \mathcal N(0, I) \ (l \neq J_0), \quad
        Y = X_{J_0} \cdot v^* + \varepsilon \xi

    with unit vectors :math:`k^* \perp v^*`, here the first two basis vectors; this is
    no restriction, because the law is rotation invariant.

    Parameters
    ----------
    d
        Dimension of a token, at least 2.
    n_tokens
        :math:`L`, tokens in a prompt.
    gamma
        :math:`\gamma`, standard deviation of the deciding token. Default
        :math:`\sqrt{1/2}`, as in the paper: then all tokens have the same mean squared
        length.
    noise
        :math:`\varepsilon`, standard deviation of the noise on the target.

    References
    ----------
    .. [1] marion2025.

    Examples
    --------
    >>> import numpy as np
    >>> law = SingleLocation(d=50, n_tokens=4)
    >>> tokens, targets, locations = law.sample(3, np.random.default_rng(0))
    >>> tokens.shape, targets.shape, locations.shape
    ((3, 4, 50), (3,), (3,))
    """

    d: int
    n_tokens: int = 10
    gamma: float = math.sqrt(0.5)
    noise: float = 0.0

    def __post_init__(self) -> None:
        # The dataclass is frozen: this is how its fields are normalised, once.
        object.__setattr__(self, "d", check_count("d", self.d, minimum=2))
        object.__setattr__(self, "n_tokens", check_count("n_tokens", self.n_tokens))
        object.__setattr__(self, "gamma", check_positive("gamma", self.gamma))
        object.__setattr__(
            self, "noise", check_number("noise", self.noise, minimum=0.0)
        )
        # Within these bounds squares neither overflow nor underflow.
        if self.gamma < 1 / LARGEST:
            fail("gamma", f">= {1 / LARGEST:g}", self.gamma)
        for name, value in (("gamma", self.gamma), ("noise", self.noise)):
            if value > LARGEST:
                fail(name, f"<= {LARGEST:g}", value)

    @property
    def key_direction(self) -> FloatArray:
        """:math:`k^*`: the deciding token is shifted along it."""
        return _basis_vector(self.d, 0)

    @property
    def value_direction(self) -> FloatArray:
        """:math:`v^*`: the target is the coordinate of the deciding token along it."""
        return _basis_vector(self.d, 1)

    def sample(self, n: int, rng: np.random.Generator) -> SingleLocationSample:
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
            ``tokens`` (n, n_tokens, d), ``targets`` (n,), ``locations`` (n,).
        """
        hint = "simulate_location needs no such arrays."
        n = check_sample_size(n, self.n_tokens * self.d, hint=hint)
        rng = check_generator(rng)
        locations = rng.integers(self.n_tokens, size=n)
        tokens = rng.standard_normal((n, self.n_tokens, self.d))
        rows = np.arange(n)
        # Scaling comes before the shift: gamma is the spread around the shifted mean.
        tokens[rows, locations] *= self.gamma
        tokens[rows, locations, 0] += math.sqrt(self.d / 2)
        targets = tokens[rows, locations, 1] + self.noise * rng.standard_normal(n)
        return SingleLocationSample(tokens, targets, locations)


def _basis_vector(d: int, index: int) -> FloatArray:
    if d > MAX_SAMPLE:
        hint = "simulate_location needs no such arrays."
        fail("d", f"an integer <= {MAX_SAMPLE}", d, hint=hint)
    vector = np.zeros(d)
    vector[index] = 1.0
    return vector
