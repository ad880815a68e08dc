"""Any statistics of the heads of a layer, with their null distributions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from eigenheads._checks import (
    Got,
    check_count,
    check_finite_array,
    check_flag,
    check_items,
    check_numbers,
    check_positive,
    fail,
)
from eigenheads._parallel import RunPool, advance
from eigenheads._typing import Array, FloatArray
from eigenheads.probes._heads import Head, LayerHeads, check_heads, check_untrained
from eigenheads.probes._nulls import UNTRAINED, Null
from eigenheads.probes._result import ProbeResult, Statistic, with_untrained
from eigenheads.probes._statistics import (
    HeadStatistic,
    as_statistic,
    head_statistics,
)

_MATRICES = ("query", "key", "value", "output")


def head_probe(  # noqa: PLR0913 -- a head has as many arrays
    queries: Array,
    keys: Array,
    values: Array,
    *,
    statistics: Sequence[object] | None = None,
    tokens: Array | None = None,
    token_ids: Array | None = None,
    matrices: Mapping[str, Array] | None = None,
    mask: Array | None = None,
    bias: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    n_draws: int = 200,
    untrained: Sequence[Mapping[str, Any]] = (),
    layer: int = 0,
    seed: int = 0,
) -> ProbeResult:
    r"""Measure any statistics of the heads of a layer and compare with nulls.

    Parameters
    ----------
    queries, keys, values, mask, is_causal, scale
        As in :func:`kernel_pca_probe`.
    statistics
        Names of built-in statistics, functions ``f(head) -> number`` (see
        :class:`Head`), or :class:`HeadStatistic` objects. None means all built-in ones.
    tokens
        Input of the layer, (sequences, tokens, d_model), if known.
    token_ids
        Vocabulary indices, (sequences, tokens), for statistics on repeated tokens.
    matrices
        ``query``, ``key``, ``value`` of shape (heads, width, d_model) and ``output`` of
        shape (heads, d_model, width), where known.
    bias
        (sequences, 1 or heads, tokens, tokens), added to the scores; minus infinity
        hides a key.
    n_draws
        Draws of each null.
    untrained
        Untrained models: per model a mapping of the arrays above by name.
    layer
        Index of the layer, for statistics that use ``head.layer``.
    seed
        Seed of the draws. Use a different seed for every layer.

    Returns
    -------
    result
        One :class:`Statistic` per statistic; means over sequences where it is defined.

    Notes
    -----
    A p-value is exact if observed heads and draws are exchangeable under the null
    hypothesis; every draw redraws all sequences. Heads share the draws.

    Examples
    --------
    >>> from eigenheads.probes import planted_heads
    >>> arrays = planted_heads(2, 3, n_tokens=12, d_head=4)
    >>> def on_itself(head):
    ...     return head.weights.diagonal()
    >>> result = head_probe(*arrays, statistics=["entropy", on_itself], n_draws=19)
    >>> result.statistics["on_itself"].nulls["rotated_queries"].shape
    (3, 19)
    """
    n_draws = check_count("n_draws", n_draws, minimum=0)
    seed = check_count("seed", seed, minimum=0)
    chosen = read_statistics(statistics)
    heads = _Layer(
        {
            "queries": queries,
            "keys": keys,
            "values": values,
            "tokens": tokens,
            "token_ids": token_ids,
            "matrices": matrices,
            "mask": mask,
            "bias": bias,
            "is_causal": is_causal,
            "scale": scale,
        },
        layer,
    )
    sequences = _measure(heads, chosen, n_draws, seed)
    # Untrained models have no draws of their own: each of their heads is one draw.
    copies = check_items("untrained", untrained, "a sequence of mappings")
    options = {"scale": heads.scale, "is_causal": heads.is_causal}
    untrained_draws = [
        untrained_head_statistics(x, chosen, layer, **options) for x in copies
    ]
    results = {}
    for statistic in chosen:
        nulls = {
            null.name: _mean_over_sequences(sequences, statistic.name, null.name)
            for null in _nulls_of(statistic, heads)
            if n_draws
        }
        observed = _mean_over_sequences(sequences, statistic.name, None)
        results[statistic.name] = Statistic(
            statistic.name, observed, nulls, statistic.alternative, statistic.about
        )
    settings = {"n_draws": n_draws, "n_untrained": len(untrained_draws), "seed": seed}
    per_sequence = {
        statistic.name: np.array([x[statistic.name, None] for x in sequences])
        for statistic in chosen
    }
    results = with_untrained(results, untrained_draws)
    return ProbeResult("head_probe", results, per_sequence, settings)


def read_statistics(statistics: Sequence[object] | None) -> list[HeadStatistic]:
    """Return statistics by name, function or object; names must differ."""
    if statistics is None:
        return list(head_statistics().values())
    if isinstance(statistics, str) or not isinstance(statistics, Sequence):
        fail("statistics", "a sequence", statistics, error=TypeError)
    chosen = [as_statistic(statistic) for statistic in statistics]
    names = [statistic.name for statistic in chosen]
    if len(set(names)) < len(names):
        hint = "Give HeadStatistic objects a name."
        fail("statistics", "of different names", Got(names), hint=hint)
    return chosen


class _Layer:
    """Validated heads of a layer: `head(i, j)` is head j on sequence i."""

    def __init__(self, arrays: Mapping[str, Any], layer: int) -> None:
        mask, tokens = arrays.get("mask"), arrays.get("tokens")
        self.heads: LayerHeads = check_heads(
            arrays["queries"], arrays["keys"], arrays["values"], mask, tokens
        )
        scale = arrays.get("scale")
        self.scale = (
            self.heads.d_head**-0.5 if scale is None else check_positive("scale", scale)
        )
        causal = arrays.get("is_causal", False)
        self.is_causal = check_flag("is_causal", causal)
        self.layer = check_count("layer", layer, minimum=0)
        self.bias = arrays.get("bias")
        if self.bias is not None:
            self.bias = self._check_bias(self.bias)
        self.ids = arrays.get("token_ids")
        if self.ids is not None:
            self.ids = check_numbers("token_ids", self.ids)
        if self.ids is not None and np.shape(self.ids) != np.shape(arrays["keys"])[::2]:
            shape = np.shape(arrays["keys"])
            contract = f"of shape {(shape[0], shape[2])}"
            fail("token_ids", contract, Got(np.shape(self.ids)))
        matrices = arrays.get("matrices")
        if matrices is None:
            matrices = {}
        if not isinstance(matrices, Mapping):
            fail("matrices", "a mapping", matrices, error=TypeError)
        self.matrices = {
            k: self._check_matrix(k, matrices[k]) for k in _MATRICES if k in matrices
        }

    @property
    def n_heads(self) -> int:
        return self.heads.n_heads

    def _check_bias(self, bias: Any) -> FloatArray:
        """Return the bias as an array; minus infinity hides a key, NaN is refused."""
        array = check_numbers("bias", bias)
        n = len(self.heads.masks[0])
        fits = array.ndim == 4 and len(array) > max(self.heads.indices)
        if not fits or array.shape[1] not in (1, self.n_heads) or array.shape[2] != n:
            contract = f"of shape (sequences, 1 or {self.n_heads}, {n}, {n})"
            fail("bias", contract, Got(array.shape))
        if np.isnan(array).any() or np.isposinf(array).any():
            got = Got("nan" if np.isnan(array).any() else "inf")
            fail("bias", "finite numbers or minus infinity", got)
        return array

    def _check_matrix(self, name: str, matrix: Any) -> FloatArray:
        array = check_finite_array(name, matrix)
        if array.ndim != 3 or len(array) != self.n_heads:
            fail(name, f"of shape ({self.n_heads}, …, …)", array)
        return array

    @property
    def has_tokens(self) -> bool:
        return self.heads.tokens is not None

    def head(self, i: int, j: int) -> Head:
        q, k, v = self.heads.sequences[i]
        real, place = self.heads.masks[i], self.heads.indices[i]
        n = k.shape[1]
        # Padding was removed, so that causality is all that is left to hide.
        visible = np.tri(n, dtype=bool) if self.is_causal else None
        bias = None
        if self.bias is not None:
            # The bias holds all rules of visibility, causal ones included.
            of_heads = self.bias[place]
            bias = of_heads[j if len(of_heads) > 1 else 0][np.ix_(real, real)]
            visible = np.isfinite(bias)
            bias = np.where(visible, bias, 0.0)
        tokens = None if self.heads.tokens is None else self.heads.tokens[i]
        ids = None if self.ids is None else np.asarray(self.ids[place])[real]
        return Head(
            q[j],
            k[j],
            v[j],
            self.scale,
            visible,
            bias,
            tokens,
            ids,
            {name: matrix[j] for name, matrix in self.matrices.items()},
            self.layer,
            j,
        )


# (statistic, null or None for observed) -> (heads, draws) or (heads,), per sequence.
_Numbers = dict[tuple[str, str | None], FloatArray]


def _measure(
    layer: _Layer, statistics: Sequence[HeadStatistic], n_draws: int, seed: int
) -> list[_Numbers]:
    """Return the numbers of each sequence."""
    n_sequences = len(layer.heads.sequences)
    numbers: list[_Numbers] = [{} for _ in range(n_sequences)]

    def work(i: int) -> None:
        rows = [
            _measure_head(layer.head(i, j), layer, statistics, n_draws, seed, i)
            for j in range(layer.n_heads)
        ]
        numbers[i] = {key: np.array([row[key] for row in rows]) for key in rows[0]}

    # Matrices are small: sequences run in parallel, each product in one thread.
    with threadpool_limits(1, user_api="blas"), RunPool(n_sequences) as pool:
        pool.each(work, lambda: advance(layer.n_heads))
    return numbers


def _measure_head(
    head: Head,
    layer: _Layer,
    statistics: Sequence[HeadStatistic],
    n_draws: int,
    seed: int,
    i: int,
) -> dict[tuple[str, str | None], Any]:
    row: dict[tuple[str, str | None], Any] = {
        (statistic.name, None): statistic.observe(head) for statistic in statistics
    }
    if not n_draws:
        return row
    # Draws are made once per null and shared by the statistics.
    by_null: dict[Null, list[HeadStatistic]] = {}
    for statistic in statistics:
        for null in _nulls_of(statistic, layer):
            by_null.setdefault(null, []).append(statistic)
    for null, compared in by_null.items():
        parts: dict[str, list[FloatArray]] = {
            statistic.name: [] for statistic in compared
        }
        done = 0
        for block in null.blocks(head, n_draws, seed, layer.heads.indices[i]):
            count = max(
                len(x) if x.ndim == 3 else 1
                for x in (block.queries, block.keys, block.values)
            )
            done += count
            for statistic in compared:
                parts[statistic.name].append(statistic.observe_draws(block, count))
        for statistic in compared:
            row[statistic.name, null.name] = np.concatenate(parts[statistic.name])
    return row


def _nulls_of(statistic: HeadStatistic, layer: _Layer) -> list[Null]:
    """Return the nulls that can be drawn: random value matrices need the tokens."""
    return [
        null
        for null in statistic.drawn_nulls
        if null.name != "random_projections" or layer.has_tokens
    ]


def untrained_head_statistics(
    arrays: Mapping[str, Any],
    statistics: Sequence[HeadStatistic],
    layer: int,
    **options: float | bool,
) -> dict[str, FloatArray]:
    """Return the statistics of an untrained model; each number is one draw.

    `options` are scale and is_causal, where the arrays do not have their own.
    """
    check_untrained(arrays, ("queries", "keys", "values"))
    heads = _Layer({**options, **arrays}, layer)
    needed = [statistic for statistic in statistics if UNTRAINED in statistic.nulls]
    sequences = _measure(heads, needed, 0, 0)
    return {
        statistic.name: _mean_over_sequences(sequences, statistic.name, None)
        for statistic in needed
    }


def _mean_over_sequences(
    sequences: Sequence[_Numbers], name: str, null: str | None
) -> FloatArray:
    """Return means over the sequences in which the statistic is defined."""
    # A sequence counts if the observed statistic is defined there, for draws as well:
    # otherwise observed numbers and draws would be means over different sequences.
    numbers = np.array([sequence[name, null] for sequence in sequences])
    observed = np.array([sequence[name, None] for sequence in sequences])
    defined = np.isfinite(observed)
    if null is not None:
        defined = defined[..., None]
    count = defined.sum(axis=0)
    total = np.where(defined, numbers, 0.0).sum(axis=0)
    empty = np.full(total.shape, np.nan)
    return np.divide(
        total, count, out=empty, where=np.broadcast_to(count > 0, total.shape)
    )
