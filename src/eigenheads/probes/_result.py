"""What a probe returns: statistics with their null distributions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.probes._significance import effect_sizes, permutation_p_values


@dataclass(frozen=True, eq=False)
class Statistic:
    """One number a head, with what it would be if there were nothing to find.

    Attributes
    ----------
    name
        Its key in :attr:`ProbeResult.statistics`.
    observed
        One number a head: the mean over the sequences.
    nulls
        By name of the null, an array (heads, draws); empty if none was asked for.
    alternative
        What the reading predicts: ``"greater"`` than the null, ``"less"``, or
        ``"two-sided"``, if it predicts a difference only.
    about
        One sentence: what it measures and what the reading says about it.
    """

    name: str
    observed: FloatArray
    nulls: Mapping[str, FloatArray]
    alternative: str
    about: str

    @property
    def p_value(self) -> dict[str, FloatArray]:
        """P-value of each head, by null (+1 rule)."""
        return {
            null: permutation_p_values(
                self.observed, draws, alternative=self.alternative
            )
            for null, draws in self.nulls.items()
        }

    @property
    def effect_size(self) -> dict[str, FloatArray]:
        """Distance from the null's mean in its standard deviations, by null."""
        return {
            null: effect_sizes(self.observed, draws)
            for null, draws in self.nulls.items()
        }

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row a head and null; a single row with ``null=None`` if none."""
        rows: list[dict[str, Any]] = []
        for head, observed in enumerate(self.observed):
            first = {
                "statistic": self.name,
                "head": head,
                "observed": float(observed),
                "alternative": self.alternative,
            }
            rows.extend({**first, **null} for null in self._null_rows(head))
        return rows

    def _null_rows(self, head: int) -> list[dict[str, Any]]:
        names = ("null", "n_draws", "null_mean", "null_sd", "effect", "p_value")
        nothing: tuple[Any, ...] = (None, 0, np.nan, np.nan, np.nan, np.nan)
        effect, p_value = self.effect_size, self.p_value
        rows: list[tuple[Any, ...]] = [
            (
                null,
                draws.shape[1],
                float(draws[head].mean()),
                float(draws[head].std(ddof=1)) if draws.shape[1] > 1 else np.nan,
                float(effect[null][head]),
                float(p_value[null][head]),
            )
            for null, draws in self.nulls.items()
        ]
        return [dict(zip(names, row, strict=True)) for row in rows or [nothing]]


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """The statistics of one layer's heads.

    Attributes
    ----------
    probe
        Name of the function that measured.
    statistics
        By name.
    spectra
        Whole spectra, one row a head, largest first; means over the sequences.
    settings
        What was used: scale, counts, which options.

    Examples
    --------
    >>> from eigenheads.probes import planted_heads, kernel_pca_probe
    >>> heads = planted_heads(2, 3, n_tokens=12, d_head=4, seed=0)
    >>> result = kernel_pca_probe(*heads, n_permutations=19, seed=0)
    >>> result.statistics["captured_variance"].p_value["permuted_tokens"]
    array([0.05, 0.05, 0.05])
    >>> result.to_records()[0]["statistic"]
    'norm_ratio'
    """

    probe: str
    statistics: Mapping[str, Statistic]
    spectra: Mapping[str, FloatArray] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_records(self) -> list[dict[str, Any]]:
        """Return the rows of all statistics (see :meth:`Statistic.to_records`)."""
        return [row for s in self.statistics.values() for row in s.to_records()]
