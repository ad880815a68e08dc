"""Kernel-PCA probe: heads as projections on principal axes of their keys."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._checks import (
    check_count,
    check_flag,
    check_items,
    check_number,
)
from eigenheads._limits import LARGEST
from eigenheads._parallel import RunPool, advance
from eigenheads._rng import stream
from eigenheads._typing import Array, FloatArray
from eigenheads.functional import effective_rank
from eigenheads.functional._kernel import centred_gram, feature_gram
from eigenheads.probes._heads import (
    LayerHeads,
    check_heads,
    check_outputs,
    check_untrained,
)
from eigenheads.probes._kernel_reading import (
    PAIRS,
    HeadReading,
    SequenceReading,
    joined_draws,
    parts,
    rbf_of_permuted,
)
from eigenheads.probes._nulls import (
    KEYS,
    PERMUTATIONS,
    PROJECTIONS,
    ROTATIONS,
    centred_frames,
    permutations,
    rotated,
    rotated_columns,
)
from eigenheads.probes._result import ProbeResult, with_untrained
from eigenheads.probes._statistics import (
    KERNEL,
    STATISTICS,
    measured,
    statistic_names,
)

# Statistic -> null -> (draws,), of one head on one sequence.
Nulls = dict[str, dict[str, FloatArray]]

# Size of the array whose release makes the allocator keep memory (in doubles).
_KEPT = 2**21
# Entries of the Gram matrices of heads that are in memory together (128 MiB).
_AT_ONCE = 2**24
# Statistics that depend on the queries.
OF_QUERIES = ("norm_ratio", "output_norm", "feature_norm")


def kernel_pca_probe(  # noqa: PLR0913 -- a head has as many arrays
    queries: Array,
    keys: Array,
    values: Array,
    *,
    outputs: Array | None = None,
    tokens: Array | None = None,
    mask: Array | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    standardize: bool = False,
    n_permutations: int = 200,
    n_redraws: int | None = None,
    untrained: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> ProbeResult:
    r"""Test whether heads are projections on kernel principal axes of their keys.

    The paper [1]_ interprets softmax attention as kernel PCA: if the values are
    :math:`\hat V = GA` of :func:`eigenheads.functional.kernel_pca_values`, the head's
    output is the projection of the query's feature on the principal axes of the keys'
    features. A second team disputes that trained values have this form [2]_. Every
    statistic is compared with null distributions.

    Parameters
    ----------
    queries, keys
        (sequences, heads, tokens, d_head); rotary positions applied, not scaled.
    values
        (sequences, heads, tokens, d_value).
    outputs
        Outputs of the heads before the output projection, if known. They are compared
        with :math:`\operatorname{softmax}(c QK^\top)V`; if they differ, a
        :class:`NotAttentionWarning` is issued.
    tokens
        Input of the layer, (sequences, tokens, d_model), if known: adds the null of
        random projections.
    mask
        (sequences, tokens), true for real tokens. Padding and sequences with fewer than
        3 real tokens are left out.
    is_causal
        Whether a query attends only to its own key and earlier ones. See the notes.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.
    standardize
        Whether queries and keys are standardised for the features; see
        :func:`eigenheads.functional.log_feature_norms`. Affects ``norm_ratio`` and
        ``feature_norm`` only.
    n_permutations
        Draws of permuted tokens. With 0 this null is left out, and so are those of
        `n_redraws` unless it is given.
    n_redraws
        Draws of the costly nulls, which redraw values or keys. None means
        ``min(n_permutations, max(39, n_permutations // 5))``. With m draws no p-value
        is below 1/(m + 1), so that q-values of 0.05 among h heads require 20 h/(m + 1)
        heads beyond all draws.
    untrained
        Untrained models of the same architecture: per model a mapping with ``queries``,
        ``keys``, ``values`` and, if given, ``mask``.
    seed
        Seed of the draws. Each sequence has its own random streams, derived from (seed,
        sequence), and all heads share them: the numbers of a head do not depend on the
        other heads. Use a different seed for every layer.

    Returns
    -------
    result
        ``norm_ratio``, ``output_norm``, ``feature_norm`` (decimal logarithms),
        ``gamma_difference``, ``eigen_residual``, ``captured_variance``,
        ``linear_cka``, ``rbf_cka``, ``matching_cosine``, ``kernel_trace``,
        ``top_eigenvalue``, ``kernel_rank``; and the mean ``eigenvalues``. NaN where a
        statistic is not defined: for equal keys or values, and where the kernel is
        constant or overflows.

    Notes
    -----
    Each statistic is a mean over sequences; a draw of a null redraws every sequence
    independently. Nulls:

    - ``permuted_tokens``: the rows of :math:`V` are permuted. Exact if, given queries
      and keys, the values of a sequence are exchangeable. A rejection means that values
      depend on the keys of their tokens, which is true for any head whose keys and
      values are functions of the same tokens, even before training.
    - ``random_values``: a random rotation of the token space gives values of the same
      mean and covariance. Exact if rows of :math:`V` are Gaussian and independent.
    - ``random_projections`` (with `tokens`): :math:`V = XR`, :math:`R` Gaussian, one
      for all sequences. Exact if :math:`W_V` is Gaussian: the distribution of an
      untrained value matrix with the same keys. Not for norms, which depend on the
      scale.
    - ``random_keys``: as ``random_values``, for the keys; for statistics that do not
      depend on the values.
    - ``untrained``: the same measurement on untrained models, pooled over their heads.
      Exact if the heads measured were independent draws of one law, as heads of one
      layer are, given its input. Heads that share keys and values (grouped queries)
      are one draw of a statistic that does not depend on the queries.

    On a sequence of at most d_value + 1 tokens, the columns of any values in general
    position span all directions, and ``captured_variance`` is 1: use longer sequences.

    ``matching_cosine`` does not depend on the order of the tokens, so that it has no
    null of permuted tokens.

    Under a causal mask each row has a different set of keys, hence a different kernel
    PCA, and no single :math:`V` can serve them all. The interpretation then holds for
    the last token only, which attends to every key. Values are compared with the kernel
    PCA of all keys of the sequence; norms are computed row by row, each with its own
    normaliser.

    References
    ----------
    .. [1] teo2024. See docs/theory/kernel.md for the statement and its proof.
    .. [2] saritas2025.

    Examples
    --------
    >>> from eigenheads.probes import planted_heads, kernel_pca_probe
    >>> heads = planted_heads(2, 3, n_tokens=12, d_head=4, seed=0)
    >>> result = kernel_pca_probe(*heads, n_permutations=19, seed=0)
    >>> result.statistics["captured_variance"].observed.round(6)
    array([1., 1., 1.])
    """
    n_permutations = check_count("n_permutations", n_permutations, minimum=0)
    if n_redraws is None:
        n_redraws = default_redraws(n_permutations)
    n_redraws = check_count("n_redraws", n_redraws, minimum=0)
    seed = check_count("seed", seed, minimum=0)
    heads = check_heads(queries, keys, values, mask, tokens)
    heads = heads.with_options(
        scale=heads.d_head**-0.5
        if scale is None
        else check_number("scale", scale, minimum=1e-50, maximum=LARGEST),
        is_causal=check_flag("is_causal", is_causal),
        standardize=check_flag("standardize", standardize),
    )
    # Values are compared with softmax attention: other attention would mislead.
    if outputs is not None:
        check_outputs(heads, outputs)
    observed, nulls, spectra = kernel_nulls(heads, n_permutations, n_redraws, seed)
    models = () if untrained is None else untrained
    models = check_items("untrained", models, "a sequence of mappings")
    options = {
        "scale": heads.scale,
        "is_causal": heads.is_causal,
        "standardize": heads.standardize,
    }
    copies = [untrained_kernel_statistics(copy, **options) for copy in models]
    statistics = {
        name: measured(name, observed[name], nulls[name])
        for name in statistic_names(KERNEL)
    }
    settings = {
        "n_sequences": len(heads.sequences),
        "n_heads": heads.n_heads,
        **options,
        "n_permutations": n_permutations,
        "n_redraws": n_redraws,
        "n_untrained": len(copies),
        "seed": seed,
    }
    statistics = with_untrained(statistics, copies)
    return ProbeResult("kernel_pca_probe", statistics, spectra, settings)


def untrained_kernel_statistics(
    copy: Mapping[str, Any], **options: float | bool
) -> dict[str, FloatArray]:
    """Return the statistics of an untrained model; each number is one draw.

    `options` are scale, is_causal and standardize, as of the trained model.
    """
    check_untrained(copy, ("queries", "keys", "values"))
    q, k, v = (copy[name] for name in ("queries", "keys", "values"))
    heads = check_heads(q, k, v, copy.get("mask"), None)
    heads = heads.with_options(**options)
    # Heads with grouped keys and values are equal in statistics without queries.
    apart = _apart(np.asarray(k), np.asarray(v))
    return {
        name: numbers if name in OF_QUERIES else numbers[apart]
        for name, numbers in kernel_statistics(heads).items()
    }


def _apart(keys: FloatArray, values: FloatArray) -> list[int]:
    """Return the heads whose keys and values are not those of the head before."""
    return [
        head
        for head in range(keys.shape[1])
        if head == 0
        or any(not np.array_equal(x[:, head], x[:, head - 1]) for x in (keys, values))
    ]


def default_redraws(n_permutations: int) -> int:
    """Return the default number of costly draws: a fifth, but at least 39.

    With 39 draws one head of many can stand out (see :meth:`ModelProbe.q_value`).
    Permutations reuse the kernel PCA, the distances and the norms of the head; nulls
    that redraw values or keys compute them again for each draw.
    """
    return min(n_permutations, max(39, n_permutations // 5))


def kernel_statistics(heads: LayerHeads) -> dict[str, FloatArray]:
    """Return the statistics of heads without nulls, (heads,) each."""
    return _observed(heads)[0]


def _observed(heads: LayerHeads) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return the statistics (heads,), and the mean spectrum (heads, tokens)."""
    total = len(heads.sequences)
    by_sequence: list[dict[str, FloatArray]] = [{} for _ in range(total)]
    spectra: list[list[FloatArray]] = [[] for _ in range(total)]

    def work(i: int) -> None:
        for part in _parts(heads, i):
            reading = _reading(part)
            of_part = reading.statistics()
            by_sequence[i] = {
                name: np.concatenate([by_sequence[i].get(name, x[:0]), x])
                for name, x in of_part.items()
            }
            spectra[i].append(reading.cloud.eigenvalues)

    with threadpool_limits(1, user_api="blas"), RunPool(total) as pool:
        pool.each(work, lambda: advance(heads.n_heads))
    observed = {
        name: np.mean([statistics[name] for statistics in by_sequence], axis=0)
        for name in by_sequence[0]
    }
    return observed, _mean_spectrum(spectra)


def kernel_nulls(
    heads: LayerHeads, n_permutations: int, n_redraws: int, seed: int
) -> tuple[dict[str, FloatArray], Nulls, dict[str, FloatArray]]:
    """Return observed statistics, nulls (heads, draws) and spectra of heads."""
    if not n_permutations and not n_redraws:
        observed, spectrum = _observed(heads)
        return observed, {name: {} for name in observed}, {"eigenvalues": spectrum}
    total = len(heads.sequences)
    by_sequence: list[list[Nulls]] = [[] for _ in range(total)]
    spectra: list[list[FloatArray]] = [[] for _ in range(total)]
    projections = _projections(heads, n_redraws, seed)

    def work(i: int) -> None:
        for part in _parts(heads, i):
            reading = _reading(part)
            spectra[i].append(reading.cloud.eigenvalues)
            by_sequence[i] += _sequence(
                part, reading, n_permutations, n_redraws, seed, projections
            )

    # Once an array of this size was freed, glibc keeps freed memory of that size for
    # reuse instead of returning it to the system after every block.
    np.empty(_KEPT)
    # Matrices are small: sequences run in parallel, each product in one thread.
    with threadpool_limits(1, user_api="blas"), RunPool(total) as pool:
        pool.each(work, lambda: advance(heads.n_heads))
    names = statistic_names(KERNEL)
    observed = {name: _mean(by_sequence, name, "observed")[:, 0] for name in names}
    nulls: Nulls = {
        name: {
            null: _mean(by_sequence, name, null)
            for null in by_sequence[0][0][name]
            if null != "observed"
        }
        for name in names
    }
    return observed, nulls, {"eigenvalues": _mean_spectrum(spectra)}


def _parts(heads: LayerHeads, i: int) -> Iterator[LayerHeads]:
    """Yield the heads on one sequence, as many as fit into memory at a time."""
    size = max(1, _AT_ONCE // heads.sequences[i][1].shape[1] ** 2)
    for start in range(0, heads.n_heads, size):
        q, k, v = (x[start : start + size] for x in heads.sequences[i])
        yield replace(
            heads,
            sequences=[(q, k, v)],
            indices=[heads.indices[i]],
            tokens=None if heads.tokens is None else [heads.tokens[i]],
            masks=[heads.masks[i]],
        )


def _reading(heads: LayerHeads) -> SequenceReading:
    """Return the reading of heads on their only sequence."""
    return SequenceReading.of(
        *heads.sequences[0],
        scale=heads.scale,
        is_causal=heads.is_causal,
        standardize=heads.standardize,
    )


def _mean(by_sequence: list[list[Nulls]], name: str, null: str) -> FloatArray:
    """Return the mean over sequences, (heads, draws)."""
    return np.mean(
        [[nulls[name][null] for nulls in heads] for heads in by_sequence], axis=0
    )


def _mean_spectrum(by_part: list[list[FloatArray]]) -> FloatArray:
    """Return the mean spectrum, (heads, longest sequence), padded with zeros."""
    spectra = [np.concatenate(parts_of) for parts_of in by_part]
    total = np.zeros((len(spectra[0]), max(x.shape[1] for x in spectra)))
    for spectrum in spectra:
        total[:, : spectrum.shape[1]] += spectrum
    return total / len(spectra)


def _projections(heads: LayerHeads, n_draws: int, seed: int) -> FloatArray | None:
    """Return random value matrices (d_model, d_value * draws), shared by sequences."""
    if heads.tokens is None or n_draws == 0:
        return None
    rng = stream(seed, PROJECTIONS)
    width = heads.sequences[0][2].shape[-1] * n_draws
    return rng.standard_normal((heads.tokens[0].shape[-1], width))


def _sequence(
    heads: LayerHeads,
    reading: SequenceReading,
    n_permutations: int,
    n_redraws: int,
    seed: int,
    projections: FloatArray | None,
) -> list[Nulls]:
    """Return the statistics and draws of every head on the only sequence."""
    v, place = reading.values, heads.indices[0]
    readings = [reading.head(index) for index in range(len(v))]
    n, d_value = v.shape[1:]
    rng = stream(seed, PERMUTATIONS, place)
    orders = permutations(rng, n_permutations, n)
    drawn: dict[str, Callable[[int], FloatArray]] = {}
    if n_redraws:
        rng = stream(seed, ROTATIONS, place)
        frames = centred_frames(rng, n_redraws, n, min(n - 1, d_value))
        drawn["random_values"] = lambda head: rotated_columns(v[head], frames)
    if projections is not None and heads.tokens is not None:
        mixed = (heads.tokens[0] @ projections).reshape(n, n_redraws, d_value)
        mixed = np.ascontiguousarray(mixed.transpose(2, 1, 0))
        drawn["random_projections"] = lambda head: mixed
    aligned = rbf_of_permuted(readings, orders)
    of_keys = _of_random_keys(heads, n_redraws, seed)
    return [
        _head(head_reading, head, orders, aligned[head], drawn)
        | of_keys(head_reading, head)
        for head, head_reading in enumerate(readings)
    ]


def _head(
    reading: HeadReading,
    head: int,
    orders: NDArray[np.intp],
    aligned: FloatArray,
    drawn: dict[str, Callable[[int], FloatArray]],
) -> Nulls:
    """Return the statistics that depend on the values, for one head and sequence."""
    # Row 0 of the orders is the identity, so that observed and permuted numbers come
    # from the same computation and ties are exact.
    permuted = reading.of_permuted(orders)
    permuted["rbf_cka"] = aligned
    nulls: Nulls = {name: {"observed": x[:1]} for name, x in permuted.items()}
    if len(orders) > 1:
        for name, x in permuted.items():
            nulls[name]["permuted_tokens"] = x[1:]
    columns = reading.values.T[:, None, :]
    nulls["matching_cosine"] = {"observed": reading.matching_of_values(columns)}
    for null, draw in drawn.items():
        values = draw(head)
        numbers = reading.of_values(values, is_alike=null != "random_projections")
        numbers["rbf_cka"] = reading.rbf_of_values(values)
        numbers["matching_cosine"] = reading.matching_of_values(values)
        for name, x in numbers.items():
            # Norms depend on the scale of the values, which random matrices lack.
            if STATISTICS[name].has_null(null):
                nulls[name][null] = x
    return nulls


def _of_random_keys(
    heads: LayerHeads, n_draws: int, seed: int
) -> Callable[[HeadReading, int], Nulls]:
    """Return a function of a head: its statistics that depend on keys only."""
    q, k, _ = heads.sequences[0]
    n, d = k.shape[1:]
    rng = stream(seed, KEYS, heads.indices[0])
    frames = centred_frames(rng, n_draws, n, min(n - 1, d))

    def of_keys(reading: HeadReading, head: int) -> Nulls:
        cloud = reading.cloud
        observed = {
            "feature_norm": reading.log_features.mean() / math.log(10),
            "kernel_trace": cloud.trace,
            "top_eigenvalue": cloud.eigenvalues[0],
            "kernel_rank": effective_rank(cloud.eigenvalues),
        }
        nulls: Nulls = {x: {"observed": np.atleast_1d(y)} for x, y in observed.items()}
        if n_draws:
            drawn = rotated(k[head], frames)
            blocks = [
                _of_keys(heads, q[head], drawn[part])
                for part in parts(n_draws, n * n, PAIRS)
            ]
            for name, x in joined_draws(blocks).items():
                nulls[name]["random_keys"] = x
        return nulls

    return of_keys


def _of_keys(
    heads: LayerHeads, queries: FloatArray, keys: FloatArray
) -> dict[str, FloatArray]:
    """Return the statistics that depend on keys only, of drawn keys (draws, n, d)."""
    gram = feature_gram(keys, heads.scale)[1]
    levels = np.linalg.eigvalsh(centred_gram(gram))
    logs = heads.log_features(queries, keys)
    return {
        "feature_norm": logs.mean(axis=-1) / math.log(10),
        "kernel_trace": np.trace(gram, axis1=1, axis2=2),
        "top_eigenvalue": levels[:, -1],
        "kernel_rank": effective_rank(levels),
    }
