"""Statistics of single heads: the built-in ones, and how to define another."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eigenheads._checks import (
    Got,
    check_callable,
    check_choice,
    check_items,
    fail,
)
from eigenheads._errors import naming_errors
from eigenheads._typing import FloatArray
from eigenheads.probes._head import Head
from eigenheads.probes._head_nulls import NULLS, UNTRAINED, Null
from eigenheads.probes._significance import ALTERNATIVES

_DEFAULT_NULLS = ("rotated_queries", "random_values", UNTRAINED)


@dataclass(frozen=True, eq=False)
class HeadStatistic:
    """A statistic of a head, with the nulls that make sense for it.

    Attributes
    ----------
    name
        Its key in the results.
    measure
        ``measure(head) -> number``, or one number per token, which are averaged; NaN
        where it is not defined. See :class:`Head` for what `head` has.
    nulls
        Names of built-in nulls, or :class:`Null` objects. Built in are
        ``permuted_tokens``, ``shuffled_positions``, ``rotated_queries``,
        ``random_keys``, ``random_values``, ``random_projections`` and ``untrained``.
    alternative
        ``"greater"``, ``"less"`` or ``"two-sided"``.
    about
        One sentence that defines it.
    is_batched
        Whether `measure` takes heads with arrays (draws, tokens, width) and returns
        (draws,) or (draws, tokens). This is faster than one call per draw.

    Examples
    --------
    >>> def self_attention(head):
    ...     return head.weights.diagonal().mean()
    >>> HeadStatistic("self", self_attention, nulls=("rotated_queries",)).alternative
    'two-sided'
    """

    name: str
    measure: Callable[[Head], object]
    nulls: Sequence[str | Null] = _DEFAULT_NULLS
    alternative: str = "two-sided"
    about: str = ""
    is_batched: bool = False

    def __post_init__(self) -> None:
        owner = f"HeadStatistic {self.name!r}"
        check_choice("alternative", self.alternative, ALTERNATIVES, owner=owner)
        check_callable("measure", self.measure, "a function of a head", owner=owner)
        wanted = "a sequence of names and Null objects"
        for null in check_items("nulls", self.nulls, wanted, owner=owner):
            if not isinstance(null, Null):
                check_choice("nulls", null, [*NULLS, UNTRAINED], owner=owner)

    @property
    def drawn_nulls(self) -> list[Null]:
        """The nulls that redraw a head: all except untrained models."""
        return [
            null if isinstance(null, Null) else NULLS[null]
            for null in self.nulls
            if null != UNTRAINED
        ]

    def observe(self, head: Head) -> float:
        """Return the statistic of one head; numbers per token are averaged."""
        with naming_errors(f"the statistic {self.name!r}"):
            return float(self._numbers(self.measure(head), 0))

    def observe_draws(self, head: Head, n_draws: int) -> FloatArray:
        """Return the statistic of each draw of a head, (draws,)."""
        # A null that leaves the arrays of a statistic alone gives one number for all.
        if self.is_batched:
            with naming_errors(f"the statistic {self.name!r}"):
                return np.broadcast_to(self._numbers(self.measure(head), 1), (n_draws,))
        return np.array([self.observe(head.draw(index)) for index in range(n_draws)])

    def _numbers(self, found: object, n_axes: int) -> FloatArray:
        """Return what `measure` returned without the axis of tokens."""
        try:
            numbers = np.asarray(found, dtype=np.float64)
        except (TypeError, ValueError):
            got = Got(f"{type(found).__name__} from {self.name!r}")
            fail(
                "measure", "a function that returns numbers", got, owner="HeadStatistic"
            )
        if numbers.ndim > n_axes + 1:
            got = Got(f"an array of shape {numbers.shape} from {self.name!r}")
            contract = "a function that returns a number, or one number per token"
            fail("measure", contract, got, owner="HeadStatistic")
        if numbers.ndim <= n_axes:
            return numbers
        return _mean_of_known(numbers)


def _mean_of_known(numbers: FloatArray) -> FloatArray:
    """Return means over the last axis without NaN; NaN if there are no others."""
    known = ~np.isnan(numbers)
    count = known.sum(axis=-1)
    total = np.where(known, numbers, 0.0).sum(axis=-1)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)


def entropy(head: Head) -> FloatArray:
    """Return the entropy of each row of weights over that of uniform weights."""
    weights = head.weights
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    n = np.full(head.n_tokens, head.n_tokens)
    if head.visible is not None:
        n = head.visible.sum(axis=-1)
    # The first query of a causal head attends to one key: its entropy says nothing.
    largest = np.where(n > 1, np.log(np.maximum(n, 2)), np.nan)
    return -np.einsum("...ij,...ij->...i", weights, logs) / largest


def previous_token(head: Head) -> FloatArray:
    """Return the weight of each query on the token before it."""
    return np.diagonal(head.weights, offset=-1, axis1=-2, axis2=-1)


def first_token(head: Head) -> FloatArray:
    """Return the weight of each query on the first token, from the second query on."""
    return head.weights[..., 1:, 0]


def duplicate_token(head: Head) -> FloatArray:
    """Return the weight of each query on earlier copies of its token."""
    return _on_pattern(head, lambda same, earlier: same & earlier)


def induction(head: Head) -> FloatArray:
    """Return the weight on the tokens that follow earlier copies of the query's."""

    def after_copies(same: np.ndarray, earlier: np.ndarray) -> np.ndarray:
        # Key j follows a copy of query i if token j - 1 is that copy.
        follows = np.zeros_like(same)
        follows[:, 1:] = (same & earlier)[:, :-1]
        return follows & earlier

    return _on_pattern(head, after_copies)


def _on_pattern(head: Head, pattern: Callable[..., np.ndarray]) -> FloatArray:
    """Return the weight of each query on a pattern of keys; NaN where it has none."""
    weights = head.weights
    if head.token_ids is None:
        return np.full(weights.shape[:-1], np.nan)
    # The pattern depends on positions and ids, not on the draw: nulls that shuffle
    # keys move weights away from it.
    same = head.token_ids[:, None] == head.token_ids
    keys = pattern(same, np.tri(head.n_tokens, k=-1, dtype=bool))
    found = np.einsum("...ij,ij->...i", weights, keys.astype(np.float64))
    return np.where(keys.any(axis=-1), found, np.nan)


def largest_share(head: Head) -> FloatArray:
    """Return the largest mean weight that a single key receives."""
    return head.weights.mean(axis=-2).max(axis=-1)


def key_outliers(head: Head) -> FloatArray:
    """Return log10 of the longest over the median key."""
    return _outliers(head.keys)


def value_outliers(head: Head) -> FloatArray:
    """Return log10 of the longest over the median value."""
    return _outliers(head.values)


def _outliers(rows: FloatArray) -> FloatArray:
    # A ratio of norms has no unit, so that layers and models can be compared.
    norms = np.linalg.norm(rows, axis=-1)
    median = np.median(norms, axis=-1)
    tiny = np.finfo(np.float64).tiny
    ratio = np.log10(np.maximum(norms.max(axis=-1), tiny) / np.maximum(median, tiny))
    return np.where(median > 0, ratio, np.nan)


def _built_in(
    name: str,
    measure: Callable[[Head], object],
    nulls: str,
    alternative: str,
    about: str,
) -> HeadStatistic:
    return HeadStatistic(name, measure, nulls.split(), alternative, about, True)


BUILT_IN = {
    one.name: one
    for one in (
        _built_in(
            "entropy",
            entropy,
            "rotated_queries random_keys untrained",
            "two-sided",
            "Entropy of the attention weights over that of uniform weights, mean over "
            "queries; 0 is one key, 1 is all keys equally.",
        ),
        _built_in(
            "previous_token",
            previous_token,
            "shuffled_positions untrained",
            "greater",
            "Attention weight on the previous token, mean over queries.",
        ),
        _built_in(
            "sink_mass",
            first_token,
            "shuffled_positions untrained",
            "greater",
            "Attention weight on the first token, mean over later queries.",
        ),
        _built_in(
            "duplicate_token",
            duplicate_token,
            "shuffled_positions untrained",
            "greater",
            "Attention weight on earlier copies of the query's token, mean over "
            "queries that have any.",
        ),
        _built_in(
            "induction",
            induction,
            "shuffled_positions untrained",
            "greater",
            "Attention weight on tokens that follow earlier copies of the query's "
            "token, mean over queries that have any.",
        ),
        _built_in(
            "largest_share",
            largest_share,
            "rotated_queries random_keys untrained",
            "greater",
            "Largest share of attention that one key receives, mean over queries.",
        ),
        _built_in(
            "key_outliers",
            key_outliers,
            "random_keys untrained",
            "greater",
            "log10 of the norm of the longest key over the median norm.",
        ),
        _built_in(
            "value_outliers",
            value_outliers,
            "random_values untrained",
            "greater",
            "log10 of the norm of the longest value over the median norm.",
        ),
    )
}


def as_statistic(given: object, *, owner: str) -> HeadStatistic:
    """Return a built-in statistic by name, or one made of a function."""
    if isinstance(given, HeadStatistic):
        return given
    if isinstance(given, str):
        return BUILT_IN[check_choice("statistics", given, list(BUILT_IN), owner=owner)]
    if not callable(given):
        contract = "names of statistics, functions of a head, or HeadStatistic objects"
        fail("statistics", contract, given, owner=owner, error=TypeError)
    name = getattr(given, "__name__", type(given).__name__).strip("<>")
    text = inspect.getdoc(given) or ""
    return HeadStatistic(name, given, about=text.partition("\n")[0])
