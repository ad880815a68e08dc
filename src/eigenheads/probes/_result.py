"""Results of probes: numbers of heads, their nulls, p-values and q-values."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import false_discovery_control

from eigenheads._checks import (
    Got,
    check_choice,
    check_finite_array,
    check_numbers,
    fail,
)
from eigenheads._typing import FloatArray

ALTERNATIVES = ("greater", "less", "two-sided")
_METHODS = ("bh", "by")
# A head stands out if its q-value is at most this.
LEVEL = 0.05
# A draw closer than this to the observed value, relative to the larger of the two, is a
# tie: equal numbers in exact arithmetic may come out of a matrix product with different
# last digits. Ties count against a discovery, so this can only raise a p-value.
_TIE = 1e-10


def permutation_p_values(
    observed: ArrayLike, draws: ArrayLike, *, alternative: str = "greater"
) -> FloatArray:
    r"""Return p-values of Monte Carlo tests, with the +1.

    .. math::

        p = \frac{1 + \#\{b : T_b \ge T\}}{1 + B}, \qquad
        \text{two-sided: } \min(1,\ 2 \min(p_{\ge}, p_{\le}))

    Parameters
    ----------
    observed
        :math:`T`, of any shape, usually (heads,) or (layers, heads).
    draws
        :math:`T_1 \dots T_B`, of the shape of `observed` with one more axis, the last.
    alternative
        ``"greater"``, ``"less"`` or ``"two-sided"``.

    Returns
    -------
    p_values
        Of the shape of `observed`; NaN where the observed number or a draw is NaN.

    Notes
    -----
    If :math:`T, T_1, \dots, T_B` are exchangeable, :math:`P(p \le \alpha) \le \alpha`
    for every :math:`\alpha` and every :math:`B`, with equality at the multiples of
    :math:`1/(B+1)` when there are no ties. Without the +1 this fails [1]_.

    References
    ----------
    .. [1] Phipson and Smyth, Permutation p-values should never be zero, 2010.

    Examples
    --------
    >>> permutation_p_values([3.0], [[0.0, 1.0, 2.0, 5.0]])
    array([0.4])
    """
    check_choice("alternative", alternative, ALTERNATIVES)
    value, null = _pair(observed, draws)
    slack = _TIE * np.maximum(np.abs(value)[..., None], np.abs(null))
    with np.errstate(invalid="ignore"):
        above = 1 + np.sum(null >= value[..., None] - slack, axis=-1)
        below = 1 + np.sum(null <= value[..., None] + slack, axis=-1)
    count = {
        "greater": above,
        "less": below,
        "two-sided": 2 * np.minimum(above, below),
    }[alternative]
    p_values = np.minimum(1.0, count / (1 + null.shape[-1]))
    unknown = np.isnan(value) | np.isnan(null).any(axis=-1)
    return np.where(unknown, np.nan, p_values)


def effect_sizes(observed: ArrayLike, draws: ArrayLike) -> FloatArray:
    r"""Return :math:`(T - \operatorname{mean} T_b) / \operatorname{sd} T_b`.

    Shapes are those of :func:`permutation_p_values`. The result is NaN with fewer than
    two draws, or if the draws do not vary.

    Examples
    --------
    >>> effect_sizes([4.0], [[1.0, 2.0, 3.0]])
    array([2.])
    """
    value, null = _pair(observed, draws)
    if null.shape[-1] < 2:
        return np.full(value.shape, np.nan)
    centre, spread = null.mean(axis=-1), null.std(axis=-1, ddof=1)
    varies = spread > _TIE * np.abs(centre)
    return np.where(varies, (value - centre) / np.where(varies, spread, 1.0), np.nan)


def q_values(p_values: ArrayLike, *, method: str = "bh") -> FloatArray:
    r"""Adjust p-values of many heads so that the false-discovery rate is controlled.

    ``scipy.stats.false_discovery_control`` for arrays of any shape, with NaN. With the
    sorted :math:`p_{(1)} \le \dots \le p_{(m)}`,

    .. math::

        q_{(i)} = \min_{j \ge i} \min\Bigl(1, \frac{c_m\, m}{j} p_{(j)}\Bigr), \qquad
        c_m = 1 \text{ (bh)}, \quad \sum_{i \le m} \tfrac1i \text{ (by)} .

    Parameters
    ----------
    p_values
        Of any shape; all of them together are one family. NaN stay NaN and do not
        count.
    method
        ``"bh"`` (Benjamini-Hochberg: independent or positively dependent tests) or
        ``"by"`` (Benjamini-Yekutieli: any dependence).

    Returns
    -------
    q_values
        Rejecting those up to :math:`\alpha` keeps the expected share of false
        rejections among all rejections below :math:`\alpha`.

    Notes
    -----
    Heads of one layer share tokens and draws, so that their tests are dependent,
    usually positively. ``"by"`` needs no such assumption.

    References
    ----------
    .. [1] Benjamini and Yekutieli, The control of the false discovery rate in multiple
       testing under dependency, 2001, theorems 1.2 and 1.3.

    Examples
    --------
    >>> q_values([0.01, 0.04, 0.03, 0.5])
    array([0.04      , 0.05333333, 0.05333333, 0.5       ])
    """
    check_choice("method", method, _METHODS)
    p = check_numbers("p_values", p_values)
    if np.any((p < 0) | (p > 1)):
        fail("p_values", "numbers from 0 to 1", p_values)
    adjusted = np.full(p.shape, np.nan)
    is_defined = ~np.isnan(p)
    if is_defined.any():
        adjusted[is_defined] = false_discovery_control(p[is_defined], method=method)
    return adjusted


def max_statistic_p_values(
    tests: Sequence[tuple[ArrayLike, ArrayLike, str]],
) -> list[FloatArray]:
    r"""Return p-values adjusted by the largest standard score of each draw.

    With the standard scores :math:`z_{t0}` of the observed number of test :math:`t` and
    :math:`z_{tb}` of its draws, over mean and standard deviation of all :math:`B + 1`
    numbers together,

    .. math::

        p_t = \frac{1 + \#\{b : \max_s z_{sb} \ge z_{t0}\}}{1 + B} .

    Parameters
    ----------
    tests
        Observed numbers, draws and alternative of each family member, with shapes as in
        :func:`permutation_p_values`. Draws of the same index belong together.

    Returns
    -------
    p_values
        One array per member. Rejecting those up to :math:`\alpha` makes any false
        rejection with probability at most :math:`\alpha` (Westfall and Young, 1993),
        however many tests there are, if the numbers of the true nulls and their draws
        are jointly exchangeable.

    Examples
    --------
    >>> draws = [[0.0, 1.0, 2.0, 1.5], [1.0, 0.0, 1.0, 2.0]]
    >>> max_statistic_p_values([([9.0, 1.0], draws, "greater")])[0]
    array([0.2, 0.8])
    """
    # Members may have more draws than others; the first ones serve all.
    n_draws = min((np.shape(draws)[-1] for _, draws, _ in tests), default=0)
    largest = np.full(n_draws, -np.inf)
    own_scores = []
    for observed, draws, alternative in tests:
        value, null = _pair(observed, draws)
        scores = _standard_scores(value, null[..., :n_draws], alternative)
        own_scores.append(scores[..., 0])
        if n_draws:
            rows = scores[..., 1:].reshape(-1, n_draws)
            largest = np.fmax(largest, np.fmax.reduce(rows, axis=0, initial=-np.inf))
    ordered = np.sort(largest)
    p_values = []
    for score in own_scores:
        slack = _TIE * np.abs(np.nan_to_num(score))
        n_above = n_draws - np.searchsorted(ordered, score - slack, side="left")
        p_values.append(
            np.where(np.isnan(score), np.nan, (1 + n_above) / (1 + n_draws))
        )
    return p_values


def _standard_scores(
    value: FloatArray, null: FloatArray, alternative: str
) -> FloatArray:
    """Return scores of the observed number, then of its draws; large ones reject."""
    # The observed number counts as one of the draws: scores stay exchangeable.
    numbers = np.concatenate([value[..., None], null], axis=-1)
    away = numbers - numbers.mean(axis=-1, keepdims=True)
    spread = np.sqrt(np.square(away).mean(axis=-1, keepdims=True))
    is_flat = spread <= _TIE * np.abs(numbers).max(axis=-1, keepdims=True)
    scores = np.where(is_flat, 0.0, away / np.where(is_flat, 1.0, spread))
    if alternative == "two-sided":
        return np.abs(scores)
    return -scores if alternative == "less" else scores


def least_p_value(n_draws: int, *, alternative: str) -> float:
    """Return the smallest p-value that a number of draws allows.

    Examples
    --------
    >>> least_p_value(19, alternative="greater"), least_p_value(3, alternative="less")
    (0.05, 0.25)
    """
    sides = 2 if alternative == "two-sided" else 1
    return min(1.0, sides / (1 + n_draws))


def draws_needed(
    n_tests: int, *, alternative: str, level: float = LEVEL, method: str = "bh"
) -> int:
    """Return the number of draws with which one test alone can have q <= `level`.

    Examples
    --------
    >>> draws_needed(1, alternative="greater"), draws_needed(72, alternative="greater")
    (19, 1439)
    """
    # All tests at p = 1/m have q = c_m / m: this reads the constant off SciPy.
    constant = float(q_values(np.full(n_tests, 1 / n_tests), method=method)[0])
    smallest = level / (n_tests * n_tests * constant)
    sides = 2 if alternative == "two-sided" else 1
    return math.ceil(round(sides / smallest, 6)) - 1


def _pair(observed: ArrayLike, draws: ArrayLike) -> tuple[FloatArray, FloatArray]:
    value = check_numbers("observed", observed)
    null = check_numbers("draws", draws)
    if value.ndim == 0 or null.shape[:-1] != value.shape:
        contract = f"of shape {value.shape} and one more axis, that of the draws"
        fail("draws", contract, Got(null.shape))
    check_finite_array("draws", np.nan_to_num(null))
    return value, null


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
    extended = {}
    for name, statistic in statistics.items():
        nulls = dict(statistic.nulls)
        if name in copies[0]:
            draws = np.concatenate([copy[name] for copy in copies])
            nulls["untrained"] = np.tile(draws, (len(statistic.observed), 1))
        extended[name] = replace(statistic, nulls=nulls)
    return extended


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
        n_draws = min(result.shape[-1] for result in draws)
        nulls[null] = np.stack(
            list(_padded([x[..., :n_draws] for x in draws], n_heads))
        )
    observed = np.stack(list(_padded([result.observed for result in layers], n_heads)))
    return replace(first, observed=observed, nulls=nulls)


def _padded(arrays: Sequence[FloatArray], n_heads: int) -> Iterator[FloatArray]:
    """Yield arrays of `n_heads` rows, NaN in those that are missing."""
    for array in arrays:
        whole = np.full((n_heads, *array.shape[1:]), np.nan)
        whole[: len(array)] = array
        yield whole
