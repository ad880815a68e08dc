"""Bags whose target depends on their tokens by a known rule, for comparisons."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, i0e, logsumexp

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_finite_array,
    fail,
)
from eigenheads._limits import check_sample_size
from eigenheads._rng import check_generator, generator
from eigenheads._typing import FloatArray

LAWS = ("witness", "two kinds", "ring", "xor", "both", "sum")
# Shifts of the deciding tokens, in standard deviations of the others.
_WITNESS, _TWO_KINDS, _RING, _KEY, _BOTH, _SUM = 3.5, 3.5, 4.0, 5.0, 4.5, 5.0
# XOR: size and spread of the two readouts.
_READOUT, _SPREAD = 2.0, 0.5
_MOST_MARKED = 4
_NOISE = 0.5
_OTHERS = ("A", "B", "none")


class BagSample(NamedTuple):
    """Bags, targets, and a deciding token of each bag (-1 if there is none)."""

    tokens: FloatArray
    targets: NDArray[np.float64]
    locations: NDArray[np.int64]


@dataclass(frozen=True)
class BagLaw:
    r"""Law of bags in which few tokens decide, by a rule that is known.

    Tokens are :math:`\mathcal N(0, I)` in a random frame, except the deciding ones:

    - ``"witness"``: class 1 has one token shifted by 3.5 along a direction;
    - ``"two kinds"``: class 1 has one token shifted by 3.5 or −3.5 along a direction;
    - ``"ring"``: class 1 has one token shifted by 4 in a random direction of a plane;
    - ``"xor"``: one token of every bag is shifted by 5 along a key, and two other
      coordinates of it are ±2 with standard deviation 0.5; class 1 if their signs are
      equal;
    - ``"both"``: class 1 has one token shifted by 4.5 along a first direction and one
      along a second; class 0 has one of the two, or none;
    - ``"sum"``: one to four tokens are shifted by 5 along a key, and the target is the
      sum of their coordinates along another direction, plus noise of standard deviation
      0.5.

    Parameters
    ----------
    law
        One of the names above.
    d
        Dimension of a token, at least 3.
    n_tokens
        Tokens in a bag, at least 4.
    frame_seed
        Seed of the frame, which is part of the law: samples of one law share it.

    Examples
    --------
    >>> import numpy as np
    >>> law = BagLaw("ring", d=10, n_tokens=20)
    >>> tokens, targets, locations = law.sample(100, np.random.default_rng(0))
    >>> tokens.shape, float(targets.mean())
    ((100, 20, 10), 0.5)
    >>> bool(np.mean((law.oracle(tokens) > 0.5) == targets) > 0.8)
    True
    """

    law: str
    d: int = 20
    n_tokens: int = 20
    frame_seed: int = 0

    def __post_init__(self) -> None:
        check_choice("law", self.law, LAWS)
        check_count("d", self.d, minimum=3)
        check_count("n_tokens", self.n_tokens, minimum=4)
        check_count("frame_seed", self.frame_seed, minimum=0)

    @property
    def is_regression(self) -> bool:
        """True if targets are numbers, not classes 0 and 1."""
        return self.law == "sum"

    @property
    def frame(self) -> FloatArray:
        """Orthogonal matrix whose first columns are the directions of the law."""
        rng = generator([self.frame_seed, self.d])
        return np.linalg.qr(rng.standard_normal((self.d, self.d)))[0]

    def sample(self, n: int, rng: np.random.Generator) -> BagSample:
        """Draw `n` bags; classes have equal frequency.

        Parameters
        ----------
        n
            Number of bags.
        rng
            Source of randomness.

        Returns
        -------
        sample
            ``tokens`` (n, n_tokens, d), ``targets`` (n,), ``locations`` (n,).
        """
        size = self.n_tokens * self.d
        n = check_sample_size(n, size, hint="Draw fewer bags.")
        rng = check_generator(rng)
        tokens = rng.standard_normal((n, self.n_tokens, self.d))
        targets = rng.permutation(np.arange(n) % 2).astype(np.float64)
        # The first entries of a random order of the tokens of each bag decide.
        order = rng.permuted(np.tile(np.arange(self.n_tokens), (n, 1)), axis=1)
        places, rows = order[:, 0].copy(), np.arange(n)
        positive = rows[targets > 0]
        at = positive, places[positive]
        if self.law == "witness":
            tokens[(*at, 0)] += _WITNESS
        elif self.law == "two kinds":
            tokens[(*at, 0)] += _TWO_KINDS * rng.choice([-1.0, 1.0], len(positive))
        elif self.law == "ring":
            angles = 2 * np.pi * rng.random(len(positive))
            tokens[(*at, 0)] += _RING * np.cos(angles)
            tokens[(*at, 1)] += _RING * np.sin(angles)
        elif self.law == "xor":
            tokens[rows, places, 0] += _KEY
            first = rng.choice([-1.0, 1.0], n)
            for column, sign in ((1, first), (2, first * (2 * targets - 1))):
                spread = _SPREAD * tokens[rows, places, column]
                tokens[rows, places, column] = _READOUT * sign + spread
        elif self.law == "both":
            kinds = rng.choice(len(_OTHERS), n)
            for column, kind in ((0, 0), (1, 1)):
                has = rows[(targets > 0) | (kinds == kind)]
                tokens[has, order[has, column], column] += _BOTH
        else:
            counts = rng.integers(1, _MOST_MARKED + 1, n)
            targets = _NOISE * rng.standard_normal(n)
            for index in range(_MOST_MARKED):
                has = rows[counts > index]
                tokens[has, order[has, index], 0] += _SUM
                targets[has] += tokens[has, order[has, index], 1]
        if self.law in ("witness", "two kinds", "ring", "both"):
            places[targets == 0] = -1
        return BagSample(tokens @ self.frame.T, targets, places)

    def oracle(self, tokens: FloatArray) -> FloatArray:
        """Return the best prediction given the law.

        Parameters
        ----------
        tokens
            Bags (n, n_tokens, d).

        Returns
        -------
        predictions
            Probability of class 1; for ``"sum"``, the sum of readouts weighted by the
            probability that each token is marked, tokens taken one by one.
        """
        bags = check_finite_array("tokens", tokens)
        if bags.ndim != 3 or bags.shape[-1] != self.d or 0 in bags.shape:
            contract = f"of shape (n, n_tokens, {self.d}), without empty axes"
            fail("tokens", contract, Got(bags.shape))
        x = bags @ self.frame
        if self.law == "sum":
            share = (1 + _MOST_MARKED) / 2 / self.n_tokens
            logits = _SUM * x[..., 0] - _SUM**2 / 2 + np.log(share / (1 - share))
            return np.asarray((expit(logits) * x[..., 1]).sum(axis=1))
        if self.law == "both":
            # Given A, the token B is one of the others; pairs of one token are rare.
            ratios = [_mean_ratio(_shift_ratio(x[..., i], _BOTH)) for i in (0, 1)]
            neither = logsumexp([*ratios, np.zeros(len(x))], axis=0) - np.log(3)
            return np.asarray(expit(ratios[0] + ratios[1] - neither))
        if self.law == "xor":
            return np.asarray(expit(_xor_ratio(x)))
        return np.asarray(expit(_mean_ratio(self._token_ratio(x))))

    def _token_ratio(self, x: FloatArray) -> FloatArray:
        """Return the log likelihood ratio of each token, deciding against other."""
        if self.law == "witness":
            return _shift_ratio(x[..., 0], _WITNESS)
        if self.law == "two kinds":
            ratios = [_shift_ratio(x[..., 0], sign * _TWO_KINDS) for sign in (-1, 1)]
            return np.asarray(logsumexp(ratios, axis=0) - np.log(2))
        radius = np.hypot(x[..., 0], x[..., 1])
        bessel = np.log(i0e(_RING * radius)) + _RING * radius
        return np.asarray(bessel - _RING**2 / 2)


def _shift_ratio(coordinate: FloatArray, shift: float) -> FloatArray:
    return np.asarray(shift * coordinate - shift**2 / 2)


def _mean_ratio(per_token: FloatArray) -> FloatArray:
    """Return the log likelihood ratio of bags in which any one token decides."""
    length = per_token.shape[1]
    return np.asarray(logsumexp(per_token, axis=1) - np.log(length))


def _xor_ratio(x: FloatArray) -> FloatArray:
    """Return the logit of equal signs, summed over all possible deciding tokens."""
    key = _shift_ratio(x[..., 0], _KEY)
    plain = -0.5 * (x[..., 1] ** 2 + x[..., 2] ** 2)

    def density(first: float, second: float) -> FloatArray:
        squares = (x[..., 1] - _READOUT * first) ** 2
        squares = squares + (x[..., 2] - _READOUT * second) ** 2
        return np.asarray(key - plain - squares / (2 * _SPREAD**2))

    equal = [density(1, 1), density(-1, -1)]
    opposite = [density(1, -1), density(-1, 1)]
    return np.asarray(logsumexp(equal, axis=(0, 2)) - logsumexp(opposite, axis=(0, 2)))
