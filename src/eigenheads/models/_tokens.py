"""Laws of tokens, in NumPy and as source of compiled code.

Each law has two independent forms: source code for the compiled simulation, and a draw
in NumPy, which ``method="full"`` uses.

Sizes of the law (amplitudes, scales, cumulative probabilities) are entries of an array
``law``, so that models that differ in these numbers alone share one compiled module.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
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
from eigenheads.models._emit import Sizes

# A number, or a function of the dimension.
Size: TypeAlias = float | Callable[[int], float]


def size_at(size: Size, d: int, *, name: str) -> float:
    """Return a number of the law in dimension `d`, or raise if it is not finite."""
    value = size(d) if callable(size) else size
    number = as_float(value)
    if not math.isfinite(number):
        contract = "a finite number, or a function of d that returns one"
        fail(name, contract, value)
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
        fail("values", "at least one number", Got("none"))
    for value in values:
        _check_law_number("values", value)
    shares = _check_probabilities(probabilities, len(values))
    return RandomNumber(values, shares)


def signs(amplitude: Size = 1.0) -> RandomNumber:
    """Draw plus or minus `amplitude`, a number or a function of d, with equal odds."""
    _check_law_number("amplitude", amplitude)
    if callable(amplitude):
        return RandomNumber((amplitude, lambda d: -amplitude(d)), (0.5, 0.5))
    return RandomNumber((amplitude, -amplitude), (0.5, 0.5))


def gaussian(deviation: Size = 1.0) -> RandomNumber:
    """Draw a centred normal: the covariance gets `deviation` squared on top."""
    _check_law_number("deviation", deviation)
    return RandomNumber((deviation,))


def multiple_of(latent: str, amplitude: Size = 1.0) -> LatentMultiple:
    """Use a latent of the sample, times `amplitude`, for all tokens of a group."""
    check_text("latent", latent)
    _check_law_number("amplitude", amplitude)
    return LatentMultiple(latent, amplitude)


def mixture(
    *directions: str,
    amplitude: Size = 1.0,
    probabilities: Sequence[float] | None = None,
) -> RandomDirection:
    """Give each token a mean along one of several directions, independently."""
    _check_directions(directions, amplitude)
    shares = _check_probabilities(probabilities, len(directions))
    return RandomDirection(directions, amplitude, shares, shared=False)


def one_of(
    *directions: str,
    amplitude: Size = 1.0,
    probabilities: Sequence[float] | None = None,
) -> RandomDirection:
    """Give all tokens of a group a mean along one direction, drawn per sample."""
    _check_directions(directions, amplitude)
    shares = _check_probabilities(probabilities, len(directions))
    return RandomDirection(directions, amplitude, shares, shared=True)


def chosen_by(direction: str, strength: Size) -> PositionLaw:
    r"""Choose position i with weight :math:`\exp(\text{strength}\; x_i \cdot u)`.

    The token that is chosen stands first in its group: the others are exchangeable.
    """
    check_text("direction", direction)
    _check_law_number("strength", strength)
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
        object.__setattr__(self, "n", check_count("n", self.n, minimum=0))
        if not isinstance(self.mean, Mapping | RandomDirection):
            contract = "a mapping of planted directions to coefficients, or a mixture"
            fail("mean", contract, self.mean, error=TypeError)
        if self.first is not None and not isinstance(self.first, PositionLaw):
            fail("first", "chosen_by(...) or None", self.first)
        coefficients = (
            list(self.mean.values()) if isinstance(self.mean, Mapping) else []
        )
        for value in [*coefficients, self.scale]:
            laws: tuple[Any, ...] = (signs, gaussian, choice, multiple_of)
            if any(value is law for law in laws):
                name = getattr(value, "__name__", "")
                hint = f"Call it: {name}(…)."
                fail("mean or scale", "a law, not its function", Got(name), hint=hint)
            is_random = isinstance(value, RandomNumber | LatentMultiple) or callable(
                value
            )
            if not is_random and not math.isfinite(as_float(value)):
                contract = (
                    "made of finite numbers, functions of d, signs, gaussian, choice "
                    "or multiple_of"
                )
                fail("mean or scale", contract, value)

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


def _check_law_number(name: str, value: object) -> None:
    if not callable(value) and not math.isfinite(as_float(value)):
        fail(name, "a finite number or a function of d", value)


def _check_directions(directions: tuple[object, ...], amplitude: object) -> None:
    for direction in directions:
        check_text("directions", direction)
    _check_law_number("amplitude", amplitude)


def _check_probabilities(probabilities: Any, n: int) -> tuple[float, ...]:
    if probabilities is None:
        return (1.0 / n,) * n if n else ()
    contract = f"{n} numbers from 0 to 1"
    items = check_items("probabilities", probabilities, contract)
    shares = tuple(as_float(value) for value in items)
    if len(shares) != n or not all(0 <= s <= 1 for s in shares):
        fail("probabilities", contract, probabilities)
    if abs(sum(shares) - 1) > 1e-9:
        fail("probabilities", "numbers with sum 1", probabilities)
    return shares


# --- Source of compiled code ---------------------------------------------------------


class LawSource:
    """Lines of source that draw a sample of a law, and the numbers that they read.

    Parameters
    ----------
    law
        The law.
    sizes
        Gets the boundaries of the groups of tokens.
    """

    def __init__(self, law: TokenLaw, sizes: Sizes) -> None:
        self._law = law
        self._sizes: list[Size] = []
        self._fixed: list[str] = []
        self._random: list[str] = []
        self._place: list[str] = []
        self._scaled: list[str] = []
        self._last: list[str] = []
        self._write_latents()
        if law.custom is not None:
            self._write_custom()
            return
        bounds, total = ["0"], 0
        for number, group in enumerate(law.groups[:-1]):
            total += group.n
            bounds.append(sizes.name(total, key=("group", number)))
        bounds.append("n_tokens")
        for group, start, stop in zip(law.groups, bounds, bounds[1:], strict=False):
            self._write_group(group, start, stop)

    def numbers(self, d: int) -> FloatArray:
        """Return the entries of ``law`` in dimension `d`."""
        sizes = [size_at(size, d, name="mean or scale") for size in self._sizes]
        return np.array([*sizes, 0.0])

    @property
    def is_scaled(self) -> bool:
        """True if some tokens have a scale other than 1."""
        return bool(self._scaled)

    def fixed(self) -> list[str]:
        """Return lines that write what never changes to ``mean`` and ``scale``."""
        return self._fixed

    def draw(self) -> list[str]:
        """Return lines that draw ``latents`` and `n_axes` rows of ``tokens``."""
        normals = [
            "for row in range(n_axes):",
            "    for i in range(n_tokens):",
            "        tokens[row, i] = rng.standard_normal()",
        ]
        scaled = self.times_scale("tokens", "n_axes")
        return [*self._random, *normals, *scaled, *self._place, *self._last]

    def times_scale(self, rows: str, span: str) -> list[str]:
        """Return lines that multiply rows over the tokens by the tokens' scales.

        `span` is the number of rows, or the first row and the one after the last.
        """
        lines: list[str] = []
        for tokens in self._scaled:
            lines += [
                f"for row in range({span}):",
                f"    for i in {tokens}:",
                f"        {rows}[row, i] *= scale[i]",
            ]
        return lines

    def _size(self, size: Size) -> str:
        self._sizes.append(size)
        return f"law[{len(self._sizes) - 1}]"

    def _write_latents(self) -> None:
        for index in range(self._law.normals):
            self._random.append(f"latents[{index}] = rng.standard_normal()")
        for index, law in enumerate(self._law.latents.values(), self._law.normals):
            self._random.append(f"latents[{index}] = {self._number(law)}")

    def _write_custom(self) -> None:
        self._random.append("custom_draw(rng, d, mean, scale, latents)")
        self._scaled.append("range(n_tokens)")
        for row in range(len(self._law.planted)):
            self._add_mean(row, "0", "n_tokens")

    def _number(self, law: Coefficient) -> str:
        """Return an expression that draws a coefficient."""
        if isinstance(law, LatentMultiple):
            index = self._law.normals + self._law.latent_names.index(law.latent)
            return f"{self._size(law.amplitude)} * latents[{index}]"
        if not isinstance(law, RandomNumber):
            return self._size(law)
        if not law.probabilities:
            return f"{self._size(law.values[0])} * rng.standard_normal()"
        if len(law.values) == 2:
            first, second = (self._size(value) for value in law.values)
            share = self._size(law.probabilities[0])
            return f"{first} if rng.random() < {share} else {second}"
        values = len(self._sizes)
        self._sizes += law.values
        return f"law[{values} + {self._choice(law.probabilities)}]"

    def _choice(self, probabilities: tuple[float, ...]) -> str:
        """Return an expression that draws an index."""
        first = len(self._sizes)
        self._sizes += list(accumulate(probabilities))[:-1]
        return f"drawn_index(rng, law[{first} : {len(self._sizes)}])"

    def _write_group(self, group: Token, start: str, stop: str) -> None:
        tokens = f"range({start}, {stop})"
        if group.scale != 1.0:
            self._scaled.append(tokens)
            self._write_coefficient("scale[{}]", group.scale, tokens)
        if isinstance(group.mean, RandomDirection):
            self._write_direction(group.mean, start, stop)
        else:
            for name, coefficient in group.mean.items():
                row = self._law.planted.index(name)
                self._write_coefficient(f"mean[{row}, {{}}]", coefficient, tokens)
                self._add_mean(row, start, stop)
        if group.first is not None:
            self._write_tilt(group.first, start, stop)

    def _write_coefficient(self, target: str, law: Coefficient, tokens: str) -> None:
        is_random = isinstance(law, RandomNumber | LatentMultiple)
        lines = self._random if is_random else self._fixed
        value = self._number(law)
        lines += [f"for i in {tokens}:", f"    {target.format('i')} = {value}"]

    def _write_direction(self, law: RandomDirection, start: str, stop: str) -> None:
        rows = [self._law.planted.index(name) for name in law.directions]
        amplitude, drawn = self._size(law.amplitude), self._choice(law.probabilities)
        lines = [f"for i in range({start}, {stop}):"]
        if law.shared:
            self._random.append(f"drawn = {drawn}")
        else:
            lines.append(f"    drawn = {drawn}")
        for number, row in enumerate(rows):
            value = f"{amplitude} if drawn == {number} else 0.0"
            lines.append(f"    mean[{row}, i] = {value}")
            self._add_mean(row, start, stop)
        self._random += lines

    def _add_mean(self, row: int, start: str, stop: str) -> None:
        self._place += [
            f"for i in range({start}, {stop}):",
            f"    tokens[{row}, i] += mean[{row}, i]",
        ]

    def _write_tilt(self, tilt: PositionLaw, start: str, stop: str) -> None:
        row, strength = (
            self._law.planted.index(tilt.direction),
            self._size(tilt.strength),
        )
        scores = f"tokens[{row}, {start}:{stop}]"
        self._last += [
            f"i = {start} + tilted_index(rng, {strength}, {scores})",
            f"scale[{start}], scale[i] = scale[i], scale[{start}]",
            "for row in range(n_axes):",
            f"    tokens[row, {start}], tokens[row, i] = (",
            f"        tokens[row, i], tokens[row, {start}]",
            "    )",
        ]
