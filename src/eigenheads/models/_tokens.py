r"""Laws of tokens: :math:`x_i = \sum_j m_{ij} u_j + s_i z_i` with normal :math:`z_i`.

Each law has two independent forms: source code for the compiled simulation
(``_law_source``) and a draw in NumPy here, which ``method="full"`` uses.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from eigenheads._checks import (
    Got,
    as_float,
    check_count,
    check_items,
    check_text,
    fail,
)
from eigenheads._typing import FloatArray

# A number, or a function of the dimension.
Size: TypeAlias = float | Callable[[int], float]
_OWNER = "Token"


def size_at(size: Size, d: int, *, name: str) -> float:
    """Return a number of the law in dimension `d`, or raise if it is not finite."""
    value = size(d) if callable(size) else size
    number = as_float(value)
    if not math.isfinite(number):
        contract = "a finite number, or a function of d that returns one"
        fail(name, contract, value, owner=_OWNER)
    return number


@dataclass(frozen=True)
class RandomNumber:
    """One of several values with given probabilities, or a normal."""

    values: tuple[Size, ...]
    probabilities: tuple[float, ...] = ()  # empty: a normal, values = (deviation,)

    def draw(self, rng: np.random.Generator, d: int, n: int) -> FloatArray:
        """Draw `n` independent numbers."""
        values = np.array([size_at(v, d, name="values") for v in self.values])
        if not self.probabilities:
            return values[0] * rng.standard_normal(n)
        return rng.choice(values, size=n, p=self.probabilities)


@dataclass(frozen=True)
class LatentMultiple:
    """A latent of the sample, times a number."""

    latent: str
    amplitude: Size


Coefficient: TypeAlias = Size | RandomNumber | LatentMultiple


@dataclass(frozen=True)
class RandomDirection:
    """One planted direction out of several, times a number."""

    directions: tuple[str, ...]
    amplitude: Size
    probabilities: tuple[float, ...]
    shared: bool  # one draw for all tokens of the group


@dataclass(frozen=True)
class PositionLaw:
    """Law of the position that stands first: weight exp(strength · field)."""

    direction: str
    strength: Size


def choice(*values: Size, probabilities: Sequence[float] | None = None) -> RandomNumber:
    """Draw one of several values, independently per token (per sample for latents).

    Parameters
    ----------
    *values
        Numbers, or functions of d.
    probabilities
        One per value; default: equal.

    Examples
    --------
    >>> choice(0.0, 1.0, probabilities=(0.8, 0.2)).probabilities
    (0.8, 0.2)
    """
    if not values:
        fail("values", "at least one number", Got("none"), owner="choice")
    for value in values:
        _check_law_number("values", value, owner="choice")
    shares = _check_probabilities(probabilities, len(values), owner="choice")
    return RandomNumber(values, shares)


def signs(amplitude: Size = 1.0) -> RandomNumber:
    """Draw plus or minus `amplitude`, a number or a function of d, with equal odds."""
    _check_law_number("amplitude", amplitude, owner="signs")
    if callable(amplitude):
        return RandomNumber((amplitude, lambda d: -amplitude(d)), (0.5, 0.5))
    return RandomNumber((amplitude, -amplitude), (0.5, 0.5))


def gaussian(deviation: Size = 1.0) -> RandomNumber:
    """Draw a centred normal: the covariance gets `deviation` squared on top."""
    _check_law_number("deviation", deviation, owner="gaussian")
    return RandomNumber((deviation,))


def multiple_of(latent: str, amplitude: Size = 1.0) -> LatentMultiple:
    """Use a latent of the sample, times `amplitude`, for all tokens of a group."""
    check_text("latent", latent, owner="multiple_of")
    _check_law_number("amplitude", amplitude, owner="multiple_of")
    return LatentMultiple(latent, amplitude)


def mixture(
    *directions: str,
    amplitude: Size = 1.0,
    probabilities: Sequence[float] | None = None,
) -> RandomDirection:
    """Give each token a mean along one of several directions, independently."""
    _check_directions(directions, amplitude, owner="mixture")
    shares = _check_probabilities(probabilities, len(directions), owner="mixture")
    return RandomDirection(directions, amplitude, shares, shared=False)


def one_of(
    *directions: str,
    amplitude: Size = 1.0,
    probabilities: Sequence[float] | None = None,
) -> RandomDirection:
    """Give all tokens of a group a mean along one direction, drawn per sample."""
    _check_directions(directions, amplitude, owner="one_of")
    shares = _check_probabilities(probabilities, len(directions), owner="one_of")
    return RandomDirection(directions, amplitude, shares, shared=True)


def chosen_by(direction: str, strength: Size) -> PositionLaw:
    r"""Choose position i with weight :math:`\exp(\text{strength}\; x_i \cdot u)`.

    The token that is chosen stands first in its group: the others are exchangeable.
    """
    check_text("direction", direction, owner="chosen_by")
    _check_law_number("strength", strength, owner="chosen_by")
    return PositionLaw(direction, strength)


@dataclass(frozen=True)
class Token:
    r"""A group of `n` tokens :math:`x = \sum_j m_j u_j + s z`, z standard normal.

    Parameters
    ----------
    n
        Number of tokens in the group; 0 for none.
    mean
        Coefficients :math:`m_j` by planted direction: numbers, functions of d,
        :func:`signs`, :func:`gaussian`, :func:`choice`, :func:`multiple_of`; or a
        :func:`mixture` or :func:`one_of` of directions. Directions that are not named
        get 0.
    scale
        :math:`s`: a number, a function of d, or a :func:`choice`.
    first
        :func:`chosen_by`: which of the tokens stands first.

    Examples
    --------
    >>> Token(n=9, mean={"key": lambda d: (d / 2) ** 0.5}, scale=0.7).n
    9
    """

    n: int = 1
    mean: Mapping[str, Coefficient] | RandomDirection = field(default_factory=dict)
    scale: Coefficient = 1.0
    first: PositionLaw | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_count("n", self.n, owner=_OWNER, minimum=0))
        if not isinstance(self.mean, Mapping | RandomDirection):
            contract = "a mapping of planted directions to coefficients, or a mixture"
            fail("mean", contract, self.mean, owner=_OWNER, error=TypeError)
        if self.first is not None and not isinstance(self.first, PositionLaw):
            fail("first", "chosen_by(...) or None", self.first, owner=_OWNER)
        coefficients = (
            list(self.mean.values()) if isinstance(self.mean, Mapping) else []
        )
        for value in [*coefficients, self.scale]:
            known = isinstance(value, RandomNumber | LatentMultiple) or callable(value)
            if not known and not math.isfinite(as_float(value)):
                contract = (
                    "made of finite numbers, functions of d, signs, gaussian, choice "
                    "or multiple_of"
                )
                fail("mean or scale", contract, value, owner=_OWNER)

    @property
    def directions(self) -> tuple[str, ...]:
        """Planted directions that the law names."""
        names = (
            self.mean.directions
            if isinstance(self.mean, RandomDirection)
            else tuple(self.mean)
        )
        return names if self.first is None else (*names, self.first.direction)


@dataclass(frozen=True)
class TokenLaw:
    """The law of a sample: groups of tokens, latents, names of planted directions."""

    groups: tuple[Token, ...]
    planted: tuple[str, ...]
    normals: int
    latents: dict[str, RandomNumber]
    custom: Callable[..., None] | None = None  # compiled draw(rng, d, mean, …)

    @property
    def n_tokens(self) -> int:
        """Tokens per sample."""
        return sum(group.n for group in self.groups)

    @property
    def latent_names(self) -> tuple[str, ...]:
        """Names of the latents that are no normals."""
        return tuple(self.latents)

    def sample(
        self, rng: np.random.Generator, d: int, *, length: int | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Draw one sample: tokens (n_tokens, d) and latents.

        The planted directions are the first basis vectors; this is no restriction,
        because noise and losses do not change under rotations. With `length`, only
        that many coordinates of the tokens are drawn.
        """
        n_planted = len(self.planted)
        named = [law.draw(rng, d, 1) for law in self.latents.values()]
        latents = np.concatenate([rng.standard_normal(self.normals), *named])
        tokens = rng.standard_normal((self.n_tokens, length or d))
        if self.custom is not None:
            mean, scale = np.zeros((n_planted, self.n_tokens)), np.ones(self.n_tokens)
            self.custom(rng, float(d), mean, scale, latents)
            tokens *= scale[:, None]
            tokens[:, :n_planted] += mean.T
            return tokens, latents
        values = dict(zip(self.latents, latents[self.normals :], strict=True))
        start = 0
        for group in self.groups:
            part = tokens[start : start + group.n]
            part *= _drawn(group.scale, rng, d, group.n, values)[:, None]
            part[:, :n_planted] += self._means(group, rng, d, values)
            if group.first is not None:
                self._put_first(group.first, part, rng, d)
            start += group.n
        return tokens, latents

    def _means(
        self, group: Token, rng: np.random.Generator, d: int, latents: dict[str, float]
    ) -> FloatArray:
        means = np.zeros((group.n, len(self.planted)))
        if isinstance(group.mean, RandomDirection):
            axes = [self.planted.index(name) for name in group.mean.directions]
            n_draws = 1 if group.mean.shared else group.n
            drawn = rng.choice(axes, size=n_draws, p=group.mean.probabilities)
            rows = np.arange(group.n)
            amplitude = size_at(group.mean.amplitude, d, name="amplitude")
            means[rows, np.broadcast_to(drawn, group.n)] = amplitude
            return means
        for name, coefficient in group.mean.items():
            column = self.planted.index(name)
            means[:, column] = _drawn(coefficient, rng, d, group.n, latents)
        return means

    def _put_first(
        self, tilt: PositionLaw, tokens: FloatArray, rng: np.random.Generator, d: int
    ) -> None:
        strength = size_at(tilt.strength, d, name="strength")
        scores = strength * tokens[:, self.planted.index(tilt.direction)]
        odds = np.exp(scores - scores.max())
        chosen = rng.choice(len(tokens), p=odds / odds.sum())
        tokens[[0, chosen]] = tokens[[chosen, 0]]


def _drawn(
    law: Coefficient,
    rng: np.random.Generator,
    d: int,
    n: int,
    latents: dict[str, float],
) -> FloatArray:
    if isinstance(law, RandomNumber):
        return law.draw(rng, d, n)
    if isinstance(law, LatentMultiple):
        amplitude = size_at(law.amplitude, d, name="amplitude")
        return np.full(n, amplitude * latents[law.latent])
    return np.full(n, size_at(law, d, name="mean or scale"))


def _check_law_number(name: str, value: object, *, owner: str) -> None:
    if not callable(value) and not math.isfinite(as_float(value)):
        fail(name, "a finite number or a function of d", value, owner=owner)


def _check_directions(
    directions: tuple[object, ...], amplitude: object, *, owner: str
) -> None:
    for direction in directions:
        check_text("directions", direction, owner=owner)
    _check_law_number("amplitude", amplitude, owner=owner)


def _check_probabilities(
    probabilities: Any, n: int, *, owner: str
) -> tuple[float, ...]:
    if probabilities is None:
        return (1.0 / n,) * n if n else ()
    contract = f"{n} numbers from 0 to 1"
    items = check_items("probabilities", probabilities, contract, owner=owner)
    shares = tuple(as_float(value) for value in items)
    if len(shares) != n or not all(0 <= s <= 1 for s in shares):
        fail("probabilities", contract, probabilities, owner=owner)
    if abs(sum(shares) - 1) > 1e-9:
        fail("probabilities", "numbers with sum 1", probabilities, owner=owner)
    return shares
