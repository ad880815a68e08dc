"""P-values of Monte Carlo tests, effect sizes, and false-discovery control."""

import math
from collections.abc import Sequence

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
    owner = "permutation_p_values"
    check_choice("alternative", alternative, ALTERNATIVES, owner=owner)
    value, null = _pair(observed, draws, owner)
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
    value, null = _pair(observed, draws, "effect_sizes")
    if null.shape[-1] < 2:
        return np.full(value.shape, np.nan)
    centre, spread = null.mean(axis=-1), null.std(axis=-1, ddof=1)
    known = spread > _TIE * np.abs(centre)
    return np.where(known, (value - centre) / np.where(known, spread, 1.0), np.nan)


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
    owner = "q_values"
    check_choice("method", method, _METHODS, owner=owner)
    p = check_numbers("p_values", p_values, owner=owner)
    if np.any((p < 0) | (p > 1)):
        fail("p_values", "numbers from 0 to 1", p_values, owner=owner)
    adjusted = np.full(p.shape, np.nan)
    known = ~np.isnan(p)
    if known.any():
        adjusted[known] = false_discovery_control(p[known], method=method)
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
    own = []
    for observed, draws, alternative in tests:
        value, null = _pair(observed, draws, "max_statistic_p_values")
        scores = _standard_scores(value, null[..., :n_draws], alternative)
        own.append(scores[..., 0])
        if n_draws:
            rows = scores[..., 1:].reshape(-1, n_draws)
            largest = np.fmax(largest, np.fmax.reduce(rows, axis=0, initial=-np.inf))
    ordered = np.sort(largest)
    p_values = []
    for score in own:
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


def _pair(
    observed: ArrayLike, draws: ArrayLike, owner: str
) -> tuple[FloatArray, FloatArray]:
    value = check_numbers("observed", observed, owner=owner)
    null = check_numbers("draws", draws, owner=owner)
    if value.ndim == 0 or null.shape[:-1] != value.shape:
        contract = f"of shape {value.shape} and one more axis, that of the draws"
        fail("draws", contract, Got(null.shape), owner=owner)
    check_finite_array("draws", np.nan_to_num(null), owner=owner)
    return value, null
