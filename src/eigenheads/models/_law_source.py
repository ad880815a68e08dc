"""Source code that draws the tokens of a sample in frame coordinates.

Sizes of the law (amplitudes, scales, cumulative probabilities) are entries of an array
``law``, so that models that differ in these numbers alone share one compiled module.
"""

from itertools import accumulate

import numpy as np

from eigenheads._typing import FloatArray
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
    """The generated functions of a law, and the numbers that they read.

    ``_fixed_law(law, mean, scale)`` writes what never changes; ``_draw_tokens(rng, d,
    law, mean, scale, latents, tokens)`` draws a sample's latents and the coordinates of
    its tokens; ``_times_scale(scale, rows)`` multiplies rows over the tokens by the
    tokens' scales.
    """

    def __init__(self, law: TokenLaw) -> None:
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
        start = 0
        for group in law.groups:
            self._write_group(group, start, start + group.n)
            start += group.n

    def numbers(self, d: int) -> FloatArray:
        """Return the entries of ``law`` in dimension `d`."""
        sizes = [size_at(size, d, name="mean or scale") for size in self._sizes]
        return np.array([*sizes, 0.0])

    def source(self) -> str:
        """Return the three functions."""
        normals = [
            "for row in range(tokens.shape[0]):",
            f"    for i in range({self._law.n_tokens}):",
            "        tokens[row, i] = rng.standard_normal()",
        ]
        draw = [*self._random, *normals, *self._scale_tokens(), *self._place]
        return "\n\n".join(
            [
                _function("_fixed_law", "law, mean, scale", self._fixed),
                _function(
                    "_draw_tokens",
                    "rng, d, law, mean, scale, latents, tokens",
                    [*draw, *self._last],
                ),
                _function("_times_scale", "scale, rows", self._scale_rows()),
            ]
        )

    def _size(self, size: Size) -> str:
        self._sizes.append(size)
        return f"law[{len(self._sizes) - 1}]"

    def _write_latents(self) -> None:
        for index in range(self._law.normals):
            self._random.append(f"latents[{index}] = rng.standard_normal()")
        for index, law in enumerate(self._law.latents.values(), self._law.normals):
            self._random.append(f"latents[{index}] = {self._number(law)}")

    def _write_custom(self) -> None:
        n_tokens, n_planted = self._law.n_tokens, len(self._law.planted)
        self._random.append("custom_draw(rng, d, mean, scale, latents)")
        self._scaled.append(f"range({n_tokens})")
        for row in range(n_planted):
            self._add_mean(row, 0, n_tokens)

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
        return f"_drawn_index(rng, law[{first} : {len(self._sizes)}])"

    def _write_group(self, group: Token, start: int, stop: int) -> None:
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

    def _write_direction(self, law: RandomDirection, start: int, stop: int) -> None:
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

    def _add_mean(self, row: int, start: int, stop: int) -> None:
        self._place += [
            f"for i in range({start}, {stop}):",
            f"    tokens[{row}, i] += mean[{row}, i]",
        ]

    def _write_tilt(self, tilt: PositionLaw, start: int, stop: int) -> None:
        row, strength = (
            self._law.planted.index(tilt.direction),
            self._size(tilt.strength),
        )
        scores = f"tokens[{row}, {start}:{stop}]"
        self._last += [
            f"i = {start} + _tilted_index(rng, {strength}, {scores})",
            f"scale[{start}], scale[i] = scale[i], scale[{start}]",
            "for row in range(tokens.shape[0]):",
            f"    tokens[row, {start}], tokens[row, i] = (",
            f"        tokens[row, i], tokens[row, {start}]",
            "    )",
        ]

    def _scale_tokens(self) -> list[str]:
        lines: list[str] = []
        for tokens in self._scaled:
            lines += [
                "for row in range(tokens.shape[0]):",
                f"    for i in {tokens}:",
                "        tokens[row, i] *= scale[i]",
            ]
        return lines

    def _scale_rows(self) -> list[str]:
        lines: list[str] = []
        for tokens in self._scaled:
            lines += [
                "for row in range(rows.shape[0]):",
                f"    for i in {tokens}:",
                "        rows[row, i] *= scale[i]",
            ]
        return lines


def _function(name: str, parameters: str, lines: list[str]) -> str:
    body = "".join(f"    {line}\n" for line in lines or ["return"])
    return f"@njit(fastmath=REORDER)\ndef {name}({parameters}):\n{body}"
