"""Source code that draws the tokens of a sample in frame coordinates.

Sizes of the law (amplitudes, scales, cumulative probabilities) are entries of an array
``law``, so that models that differ in these numbers alone share one compiled module.
"""

from itertools import accumulate

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.models._emit import Sizes
from eigenheads.models._tokens import (
    Coefficient,
    LatentMultiple,
    PositionLaw,
    RandomDirection,
    RandomNumber,
    Size,
    Token,
    TokenLaw,
    size_at,
)


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
            one, other = (self._size(value) for value in law.values)
            share = self._size(law.probabilities[0])
            return f"{one} if rng.random() < {share} else {other}"
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
