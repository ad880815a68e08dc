"""Statistics of heads: how to define one, and the table of all built-in ones.

A new built-in statistic is one entry of `STATISTICS`: probes, pages and the command
line read name, function, nulls and sentences from there.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
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
from eigenheads.probes._heads import Head
from eigenheads.probes._nulls import NULLS, UNTRAINED, Null
from eigenheads.probes._result import ALTERNATIVES, Statistic

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
        check_choice("alternative", self.alternative, ALTERNATIVES)
        check_callable("measure", self.measure, "a function of a head")
        contract = "a sequence of names and Null objects"
        for null in check_items("nulls", self.nulls, contract):
            if not isinstance(null, Null):
                check_choice("nulls", null, [*NULLS, UNTRAINED])

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

    def _numbers(self, result: object, n_axes: int) -> FloatArray:
        """Return what `measure` returned without the axis of tokens."""
        try:
            numbers = np.asarray(result, dtype=np.float64)
        except (TypeError, ValueError):
            got = Got(f"{type(result).__name__} from {self.name!r}")
            fail("measure", "a function that returns numbers", got)
        if numbers.ndim > n_axes + 1:
            got = Got(f"an array of shape {numbers.shape} from {self.name!r}")
            contract = "a function that returns a number, or one number per token"
            fail("measure", contract, got)
        if numbers.ndim <= n_axes:
            return numbers
        return _mean_of_known(numbers)


def _mean_of_known(numbers: FloatArray) -> FloatArray:
    """Return means over the last axis without NaN; NaN if there are no others."""
    is_defined = ~np.isnan(numbers)
    count = is_defined.sum(axis=-1)
    total = np.where(is_defined, numbers, 0.0).sum(axis=-1)
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
    on_pattern = np.einsum("...ij,ij->...i", weights, keys.astype(np.float64))
    return np.where(keys.any(axis=-1), on_pattern, np.nan)


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


# Probes that measure many statistics in one pass over the heads of a layer.
KERNEL, COVARIANCE, AFFINITY = "kernel_pca_probe", "covariance_probe", "affinity"

# Questions that the statistics answer, in the order of the page.
ATTENTION = "Which tokens do the heads attend to?"
OUTLIERS = "Do outlier tokens carry the norms?"
SCORES = "Do scores follow the principal directions of the tokens?"
MATRICES = "How are the matrices of a head related to each other and to other heads?"
VALUES = "Are the values kernel principal components of the keys?"
QUESTIONS = (ATTENTION, OUTLIERS, SCORES, MATRICES, VALUES)


@dataclass(frozen=True, kw_only=True)
class StatisticEntry:
    """A built-in statistic of heads.

    Attributes
    ----------
    measure
        Function of a head, as in :class:`HeadStatistic`, for one head or many draws of
        it; or the probe that measures the statistic together with others.
    nulls
        Names of its nulls, separated by spaces.
    alternative
        ``"greater"``, ``"less"`` or ``"two-sided"``.
    about
        One sentence that defines it.
    finding
        Completes "12 of 72 heads ..."; the first word is a verb in the plural.
    question
        The question of `QUESTIONS` that it answers.
    reading
        Completes "layer 0, head 2 ..." with the value in place of {}; empty for its
        name.
    is_share
        Whether it is a share of the attention, so that more than a half is most of it.
    needs_token_ids
        Whether it is undefined without vocabulary indices.
    """

    measure: Callable[[Head], object] | str
    nulls: str
    alternative: str
    about: str
    finding: str
    question: str
    reading: str = ""
    is_share: bool = False
    needs_token_ids: bool = False

    def has_null(self, null: str) -> bool:
        """Return whether the statistic is compared with this null."""
        return null in self.nulls.split()


# The one table of built-in statistics; results list them in this order.
STATISTICS = {
    "norm_ratio": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values untrained",
        alternative="greater",
        about="log10 of |output|² / |feature of the query|², mean over tokens. A "
        "projection on unit axes is at most 0, and the best axes give the most.",
        finding="have longer outputs than chance for their queries",
        question=VALUES,
    ),
    "output_norm": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values untrained",
        alternative="greater",
        about="log10 of |output|², mean over tokens.",
        finding="have longer outputs than chance",
        question=VALUES,
    ),
    "feature_norm": StatisticEntry(
        measure=KERNEL,
        nulls="random_keys untrained",
        alternative="two-sided",
        about="log10 of |feature of the query|² = e^(c q·q) / (sum_j e^(c q·k_j))², "
        "mean over tokens.",
        finding="have longer or shorter query features than chance",
        question=VALUES,
    ),
    "gamma_difference": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values random_projections untrained",
        alternative="less",
        about="Mean over pairs of tokens of |γ_i − γ_j| / max(|γ_i|, |γ_j|), γ = "
        "K̃â/â, mean over columns of the values; kernel PCA gives 0.",
        finding="have values close to eigenvectors of the keys' kernel",
        question=VALUES,
    ),
    "eigen_residual": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values random_projections untrained",
        alternative="less",
        about="Sine of the angle of K̃â and â, mean over columns; kernel PCA gives 0.",
        finding="have values at small angles to those eigenvectors",
        question=VALUES,
    ),
    "captured_variance": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values random_projections untrained",
        alternative="greater",
        about="Variance of the keys' features in the span of the axes that the values "
        "encode, over the most that as many axes can capture; kernel PCA gives 1, "
        "also after any mixing of the columns.",
        finding="have values that span principal axes of their keys",
        question=VALUES,
    ),
    "linear_cka": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values random_projections untrained",
        alternative="greater",
        about="Linear CKA of the values and those of kernel PCA.",
        finding="have values aligned with kernel PCA",
        question=VALUES,
    ),
    "rbf_cka": StatisticEntry(
        measure=KERNEL,
        nulls="permuted_tokens random_values random_projections untrained",
        alternative="greater",
        about="RBF CKA of the values and those of kernel PCA.",
        finding="have values aligned with kernel PCA by a Gaussian kernel",
        question=VALUES,
    ),
    "matching_cosine": StatisticEntry(
        measure=KERNEL,
        nulls="random_values random_projections untrained",
        alternative="greater",
        about="Mean cosine of the values and those of kernel PCA, tokens matched best.",
        finding="have values that match those of kernel PCA",
        question=VALUES,
    ),
    "kernel_trace": StatisticEntry(
        measure=KERNEL,
        nulls="random_keys untrained",
        alternative="two-sided",
        about="Trace of K_φ, at most the number of tokens.",
        finding="have keys of larger or smaller kernel trace than chance",
        question=VALUES,
    ),
    "top_eigenvalue": StatisticEntry(
        measure=KERNEL,
        nulls="random_keys untrained",
        alternative="two-sided",
        about="Largest eigenvalue of K̃, at most the trace.",
        finding="have keys with a larger or smaller first eigenvalue",
        question=VALUES,
    ),
    "kernel_rank": StatisticEntry(
        measure=KERNEL,
        nulls="random_keys untrained",
        alternative="two-sided",
        about="Effective rank (entropy) of the spectrum of K̃.",
        finding="have keys of higher or lower rank than chance",
        question=VALUES,
    ),
    "qk_covariance_cosine": StatisticEntry(
        measure=COVARIANCE,
        nulls="rotated permuted_coordinates untrained",
        alternative="greater",
        about="Cosine of the query-key form and the tokens' covariance, as matrices.",
        finding="score along the principal directions of the tokens",
        question=SCORES,
        reading="scores along the principal directions with cosine {}",
    ),
    "qk_covariance_overlap": StatisticEntry(
        measure=COVARIANCE,
        nulls="rotated permuted_coordinates untrained",
        alternative="greater",
        about="Mean squared cosine of the principal angles of the leading "
        "eigenvectors of the query-key form and of the tokens' covariance.",
        finding="share leading directions with the tokens",
        question=SCORES,
    ),
    "qk_rank": StatisticEntry(
        measure=COVARIANCE,
        nulls="random_weights untrained",
        alternative="less",
        about="Effective rank (entropy) of W_Qᵀ W_K.",
        finding="have query-key forms of lower rank than chance",
        question=SCORES,
    ),
    "token_rank": StatisticEntry(
        measure=COVARIANCE,
        nulls="shifted_tokens untrained",
        alternative="less",
        about="Effective rank (participation) of the tokens' covariance, one per "
        "layer.",
        finding="read tokens of lower rank than chance",
        question=SCORES,
    ),
    "qk_ov_cosine": StatisticEntry(
        measure=COVARIANCE,
        nulls="rotated permuted_coordinates untrained",
        alternative="two-sided",
        about="Cosine of the query-key form and the value-output form, as matrices.",
        finding="have related query-key and value-output forms",
        question=MATRICES,
    ),
    "qk_ov_overlap": StatisticEntry(
        measure=COVARIANCE,
        nulls="rotated permuted_coordinates untrained",
        alternative="greater",
        about="Mean squared cosine of the principal angles of the leading "
        "eigenvectors of both forms (of the value-output form, by absolute value).",
        finding="share leading directions of both forms",
        question=MATRICES,
    ),
    "ov_covariance_cosine": StatisticEntry(
        measure=COVARIANCE,
        nulls="rotated permuted_coordinates untrained",
        alternative="two-sided",
        about="Cosine of the value-output form and the tokens' covariance, as "
        "matrices.",
        finding="write along or against the tokens they read",
        question=MATRICES,
    ),
    "ov_rank": StatisticEntry(
        measure=COVARIANCE,
        nulls="random_weights untrained",
        alternative="less",
        about="Effective rank (entropy) of W_O W_V.",
        finding="have value-output forms of lower rank than chance",
        question=MATRICES,
    ),
    "entropy": StatisticEntry(
        measure=entropy,
        nulls="rotated_queries random_keys untrained",
        alternative="two-sided",
        about="Entropy of the attention weights over that of uniform weights, mean "
        "over queries; 0 is one key, 1 is all keys equally.",
        finding="attend more sharply or more evenly than chance",
        question=ATTENTION,
        reading="attends with {} of the entropy of equal weights",
    ),
    "previous_token": StatisticEntry(
        measure=previous_token,
        nulls="shuffled_positions untrained",
        alternative="greater",
        about="Attention weight on the previous token, mean over queries.",
        finding="attend to the previous token",
        question=ATTENTION,
        reading="gives the previous token {} of its weight",
        is_share=True,
    ),
    "sink_mass": StatisticEntry(
        measure=first_token,
        nulls="shuffled_positions untrained",
        alternative="greater",
        about="Attention weight on the first token, mean over later queries.",
        finding="attend to the first token",
        question=ATTENTION,
        reading="gives the first token {} of its weight",
        is_share=True,
    ),
    "duplicate_token": StatisticEntry(
        measure=duplicate_token,
        nulls="shuffled_positions untrained",
        alternative="greater",
        about="Attention weight on earlier copies of the query's token, mean over "
        "queries that have any.",
        finding="attend to earlier copies of a token",
        question=ATTENTION,
        reading="gives earlier copies of a token {} of its weight",
        is_share=True,
        needs_token_ids=True,
    ),
    "induction": StatisticEntry(
        measure=induction,
        nulls="shuffled_positions untrained",
        alternative="greater",
        about="Attention weight on tokens that follow earlier copies of the query's "
        "token, mean over queries that have any.",
        finding="attend to the tokens after earlier copies (induction)",
        question=ATTENTION,
        reading="gives the tokens after earlier copies {} of its weight",
        is_share=True,
        needs_token_ids=True,
    ),
    "largest_share": StatisticEntry(
        measure=largest_share,
        nulls="rotated_queries random_keys untrained",
        alternative="greater",
        about="Largest share of attention that one key receives, mean over queries.",
        finding="concentrate attention on one key",
        question=ATTENTION,
        reading="gives one key {} of its weight",
        is_share=True,
    ),
    "key_outliers": StatisticEntry(
        measure=key_outliers,
        nulls="random_keys untrained",
        alternative="greater",
        about="log10 of the norm of the longest key over the median norm.",
        finding="have outlier keys",
        question=OUTLIERS,
        reading="has log10 of the longest over the median key {}",
    ),
    "value_outliers": StatisticEntry(
        measure=value_outliers,
        nulls="random_values untrained",
        alternative="greater",
        about="log10 of the norm of the longest value over the median norm.",
        finding="have outlier values",
        question=OUTLIERS,
        reading="has log10 of the longest over the median value {}",
    ),
    "subspace_affinity": StatisticEntry(
        measure=AFFINITY,
        nulls="random_subspaces",
        alternative="greater",
        about="Mean squared cosine of the principal angles between what the head "
        "writes (columns of its output matrix) and what other heads of the layer "
        "write, mean over these.",
        finding="write to the same directions as other heads of their layer",
        question=MATRICES,
    ),
}


def statistic_names(measure: str) -> list[str]:
    """Return the statistics that a probe measures in one pass."""
    return [name for name, entry in STATISTICS.items() if entry.measure == measure]


def head_statistics() -> dict[str, HeadStatistic]:
    """Return the built-in statistics that are functions of a single head."""
    return {
        name: HeadStatistic(
            name,
            entry.measure,
            entry.nulls.split(),
            entry.alternative,
            entry.about,
            is_batched=True,
        )
        for name, entry in STATISTICS.items()
        if not isinstance(entry.measure, str)
    }


def measured(
    name: str, observed: FloatArray, nulls: Mapping[str, FloatArray]
) -> Statistic:
    """Return the numbers of a built-in statistic, with what the table says of it."""
    entry = STATISTICS[name]
    return Statistic(name, observed, nulls, entry.alternative, entry.about)


def as_statistic(statistic: object) -> HeadStatistic:
    """Return a built-in statistic by name, or one made of a function."""
    if isinstance(statistic, HeadStatistic):
        return statistic
    if isinstance(statistic, str):
        built_in = head_statistics()
        check_choice("statistics", statistic, list(built_in))
        return built_in[statistic]
    if not callable(statistic):
        contract = "names of statistics, functions of a head, or HeadStatistic objects"
        fail("statistics", contract, statistic, error=TypeError)
    name = getattr(statistic, "__name__", type(statistic).__name__).strip("<>")
    text = inspect.getdoc(statistic) or ""
    return HeadStatistic(name, statistic, about=text.partition("\n")[0])
