"""Results of probes: statistics of heads with their null distributions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.probes._significance import (
    effect_sizes,
    permutation_p_values,
    q_values,
)


@dataclass(frozen=True, eq=False)
class Statistic:
    """One number per head, with the draws of its null distributions.

    The heads are those of one layer, with arrays of shape (heads,), or those of a
    model, (layers, heads). Heads that a layer does not have are NaN.

    Attributes
    ----------
    name
        Its key in :attr:`ProbeResult.statistics`.
    observed
        (heads,) or (layers, heads): means over the sequences.
    nulls
        By name of the null, the draws: the shape of `observed` and one more axis.
    alternative
        Prediction that is tested: ``"greater"`` than the null, ``"less"``, or
        ``"two-sided"`` if only a difference is predicted.
    about
        One sentence that defines the statistic.
    """

    name: str
    observed: FloatArray
    nulls: Mapping[str, FloatArray]
    alternative: str
    about: str

    @property
    def p_value(self) -> dict[str, FloatArray]:
        """P-value per head, by null (+1 rule)."""
        return {
            null: permutation_p_values(
                self.observed, draws, alternative=self.alternative
            )
            for null, draws in self.nulls.items()
        }

    @property
    def effect_size(self) -> dict[str, FloatArray]:
        """Distance from the mean of the null in its standard deviations, by null."""
        return {
            null: effect_sizes(self.observed, draws)
            for null, draws in self.nulls.items()
        }

    @property
    def null_mean(self) -> dict[str, FloatArray]:
        """Mean of the draws per head, by null."""
        return {null: draws.mean(axis=-1) for null, draws in self.nulls.items()}

    @property
    def null_sd(self) -> dict[str, FloatArray]:
        """Standard deviation of the draws per head, by null; NaN with one draw."""
        return {
            null: draws.std(axis=-1, ddof=1)
            if draws.shape[-1] > 1
            else np.full(self.observed.shape, np.nan)
            for null, draws in self.nulls.items()
        }

    def q_value(self, *, method: str = "bh") -> dict[str, FloatArray]:
        """Return the p-values, adjusted for the number of heads, by null."""
        return {null: q_values(p, method=method) for null, p in self.p_value.items()}

    def to_records(self) -> list[dict[str, Any]]:
        """Return one row per head and null; without nulls, one row with ``null=None``.

        A row has the head's index, or its layer's index and its own, and the columns
        ``statistic``, ``observed``, ``alternative``, ``null``, ``n_draws``,
        ``null_mean``, ``null_sd``, ``effect`` and ``p_value``.
        """
        axes = ("layer", "head")[-self.observed.ndim :]
        columns = {
            "null_mean": self.null_mean,
            "null_sd": self.null_sd,
            "effect": self.effect_size,
            "p_value": self.p_value,
        }
        rows: list[dict[str, Any]] = []
        # Numbers are computed once for all heads; the loop only picks them.
        for place in np.ndindex(self.observed.shape):
            first = {
                "statistic": self.name,
                **dict(zip(axes, place, strict=True)),
                "observed": float(self.observed[place]),
                "alternative": self.alternative,
            }
            for null in self.nulls or [None]:
                n_draws = 0 if null is None else self.nulls[null].shape[-1]
                numbers = {
                    column: np.nan if null is None else float(by_null[null][place])
                    for column, by_null in columns.items()
                }
                rows.append({**first, "null": null, "n_draws": n_draws, **numbers})
        return rows


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Statistics of the heads of one layer.

    Attributes
    ----------
    probe
        Name of the function that measured.
    statistics
        By name.
    spectra
        Whole spectra, one row per head, largest first; means over the sequences.
    settings
        Scale, counts and options that were used.

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


def with_untrained(
    statistics: Mapping[str, Statistic], copies: Sequence[Mapping[str, FloatArray]]
) -> dict[str, Statistic]:
    """Return statistics with the null of untrained models.

    `copies` has the numbers of each model by statistic. Each is one draw, and all heads
    share these draws; statistics that are not among them stay as they are.
    """
    if not copies:
        return dict(statistics)
    found = {}
    for name, one in statistics.items():
        nulls = dict(one.nulls)
        if name in copies[0]:
            draws = np.concatenate([copy[name] for copy in copies])
            nulls["untrained"] = np.tile(draws, (len(one.observed), 1))
        found[name] = replace(one, nulls=nulls)
    return found


def stack_layers(layers: Sequence[Mapping[str, Statistic]]) -> dict[str, Statistic]:
    """Return statistics of shape (layers, heads) from those of single layers."""
    return {name: _stacked([layer[name] for layer in layers]) for name in layers[0]}


def _stacked(layers: Sequence[Statistic]) -> Statistic:
    first = layers[0]
    n_heads = max(len(layer.observed) for layer in layers)
    nulls = {}
    for null in first.nulls:
        draws = [layer.nulls[null] for layer in layers]
        # Layers with more heads have more draws of untrained heads. Each draw counts
        # by itself, so that the surplus may be left out.
        n_draws = min(one.shape[-1] for one in draws)
        nulls[null] = np.stack(
            list(_padded([x[..., :n_draws] for x in draws], n_heads))
        )
    observed = np.stack(list(_padded([one.observed for one in layers], n_heads)))
    return replace(first, observed=observed, nulls=nulls)


def _padded(arrays: Sequence[FloatArray], n_heads: int) -> Iterator[FloatArray]:
    """Yield arrays of `n_heads` rows, NaN in those that are missing."""
    for array in arrays:
        whole = np.full((n_heads, *array.shape[1:]), np.nan)
        whole[: len(array)] = array
        yield whole
