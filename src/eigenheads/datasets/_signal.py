"""Signal recovery: a few tokens carry a direction, many are noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_number,
    check_positive,
    fail,
)
from eigenheads._limits import check_sample_size
from eigenheads._rng import check_generator
from eigenheads._typing import FloatArray

_SIGNS = ("random", "fixed")


class SignalSample(NamedTuple):
    """Prompts, and the sign of every token: 1 or -1 if informative, 0 if nuisance."""

    tokens: FloatArray
    signs: NDArray[np.int64]


@dataclass(frozen=True)
class SignalTokens:
    r"""Law of prompts in which a few tokens contain a direction and many are noise.

    .. math::

        \text{informative: } x = s\, \theta \sqrt d\, u + z, \qquad
        \text{nuisance: } x = z, \qquad z \sim \mathcal N(0, I_d)

    with a unit vector :math:`u`, here the first basis vector; this is no restriction,
    because the law is rotation invariant. The paper does not give its constants: this
    law, its scaling and all numbers used with it are ours.

    Parameters
    ----------
    d
        Dimension of a token, at least 2.
    n_informative, n_nuisance
        Tokens of each kind in a prompt, at least one in all.
    strength
        :math:`\theta \ge 0`; the amplitude of an informative token is
        :math:`A = \theta \sqrt d`.
    signs
        ``"random"``: each :math:`s` is 1 or -1 with equal probability, so that no mean
        points along :math:`u`. ``"fixed"``: every :math:`s` is 1.
    inverse_temperature
        :math:`\beta > 0` of the head that reads the prompts: its weights are
        :math:`\operatorname{softmax}(\beta\, q \cdot x)`.

    References
    ----------
    .. [1] truong2026.

    Examples
    --------
    >>> import numpy as np
    >>> law = SignalTokens(d=50, n_informative=2, n_nuisance=6, strength=0.5)
    >>> tokens, signs = law.sample(3, np.random.default_rng(0))
    >>> tokens.shape, np.abs(signs).sum(axis=1)
    ((3, 8, 50), array([2, 2, 2]))
    >>> law.fraction, round(law.amplitude, 3)
    (0.25, 3.536)
    """

    d: int
    n_informative: int
    n_nuisance: int
    strength: float
    signs: str = "random"
    inverse_temperature: float = 1.0

    def __post_init__(self) -> None:
        checked = {
            "d": check_count("d", self.d, minimum=2),
            "n_informative": check_count(
                "n_informative", self.n_informative, minimum=0
            ),
            "n_nuisance": check_count("n_nuisance", self.n_nuisance, minimum=0),
            "strength": check_number("strength", self.strength, minimum=0.0),
            "signs": check_choice("signs", self.signs, _SIGNS),
            "inverse_temperature": check_positive(
                "inverse_temperature", self.inverse_temperature
            ),
        }
        for name, value in checked.items():
            # The dataclass is frozen: this is how its fields are normalised, once.
            object.__setattr__(self, name, value)
        if self.n_tokens == 0:
            contract = "an integer >= 1 where `n_informative` is 0"
            fail("n_nuisance", contract, Got("0"))

    @property
    def n_tokens(self) -> int:
        """Tokens in a prompt."""
        return self.n_informative + self.n_nuisance

    @property
    def fraction(self) -> float:
        r""":math:`\pi`, the share of informative tokens."""
        return self.n_informative / self.n_tokens

    @property
    def amplitude(self) -> float:
        r""":math:`A = \theta \sqrt d`."""
        return self.strength * math.sqrt(self.d)

    @property
    def direction(self) -> FloatArray:
        """:math:`u`, the direction of the informative tokens."""
        vector = np.zeros(self.d)
        vector[0] = 1.0
        return vector

    def sample(self, n: int, rng: np.random.Generator) -> SignalSample:
        """Draw `n` prompts; the informative tokens are at random positions.

        Parameters
        ----------
        n
            Number of prompts.
        rng
            Source of randomness.

        Returns
        -------
        sample
            ``tokens`` (n, n_tokens, d), ``signs`` (n, n_tokens).
        """
        hint = "simulate_signal needs no such arrays."
        n = check_sample_size(n, self.n_tokens * self.d, hint=hint)
        rng = check_generator(rng)
        signs = np.zeros((n, self.n_tokens), dtype=np.int64)
        informative = signs[:, : self.n_informative]
        informative[:] = 1
        if self.signs == "random":
            informative -= 2 * rng.integers(2, size=informative.shape)
        signs = rng.permuted(signs, axis=1)
        tokens = rng.standard_normal((n, self.n_tokens, self.d))
        tokens[..., 0] += self.amplitude * signs
        return SignalSample(tokens, signs)
