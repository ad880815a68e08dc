"""Skeleton of a law: a distribution of prompts, for ``datasets/_<system>.py``."""

from dataclasses import dataclass

import numpy as np

from eigenheads._checks import check_count, check_positive
from eigenheads._limits import check_sample_size
from eigenheads._rng import check_generator


@dataclass(frozen=True)
class ShiftedTokens:
    r"""Law of prompts whose tokens share a mean.

    .. math:: x = \mu e_1 + z, \qquad z \sim \mathcal N(0, I_d)

    Parameters
    ----------
    d
        Dimension of a token.
    n_tokens
        Tokens per prompt.
    shift
        :math:`\mu > 0`.

    Examples
    --------
    >>> law = ShiftedTokens(d=3, n_tokens=5, shift=2.0)
    >>> law.sample(4, np.random.default_rng(0)).shape
    (4, 5, 3)
    """

    d: int
    n_tokens: int
    shift: float

    def __post_init__(self) -> None:
        # Frozen, so that a law can be a key and never changes under a simulation.
        object.__setattr__(self, "d", check_count("d", self.d))
        n_tokens = check_count("n_tokens", self.n_tokens)
        object.__setattr__(self, "n_tokens", n_tokens)
        shift = check_positive("shift", self.shift)
        object.__setattr__(self, "shift", shift)

    def sample(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Return `n` prompts of shape ``(n, n_tokens, d)``."""
        rng = check_generator(rng)
        numbers = self.n_tokens * self.d
        n = check_sample_size(n, numbers, hint="Sample in batches.")
        tokens = rng.standard_normal((n, self.n_tokens, self.d))
        tokens[..., 0] += self.shift
        return tokens
