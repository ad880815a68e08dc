"""Statistics and nulls of the kernel-PCA probe, sequence by sequence."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._numerics._symmetric_eigenvalues import (
    LANES,
    MOST_ROWS,
    symmetric_eigenvalues,
)
from eigenheads._parallel import RunPool, advance
from eigenheads._typing import FloatArray
from eigenheads.functional import effective_rank
from eigenheads.probes import _null_draws
from eigenheads.probes._heads import LayerHeads
from eigenheads.probes._kernel_compiled import centred_features, subtract_tops
from eigenheads.probes._kernel_reading import (
    PAIRS,
    HeadReading,
    SequenceReading,
    joined_draws,
    parts,
    rbf_of_permuted,
)
from eigenheads.probes._statistics import KERNEL, STATISTICS, statistic_names

# Statistic -> null -> (draws,), of one head on one sequence.
Nulls = dict[str, dict[str, FloatArray]]

# Size of the array whose release makes the allocator keep memory (in doubles).
_KEPT = 2**21
# Entries of the Gram matrices of heads that are in memory together (128 MiB).
_AT_ONCE = 2**24
# Statistics that depend on the queries.
OF_QUERIES = ("norm_ratio", "output_norm", "feature_norm")


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
    found: list[dict[str, FloatArray]] = [{} for _ in range(total)]
    spectra: list[list[FloatArray]] = [[] for _ in range(total)]

    def work(i: int) -> None:
        for part in _parts(heads, i):
            reading = _reading(part)
            own = reading.statistics()
            found[i] = {
                name: np.concatenate([found[i].get(name, x[:0]), x])
                for name, x in own.items()
            }
            spectra[i].append(reading.cloud.eigenvalues)

    with threadpool_limits(1, user_api="blas"), RunPool(total) as pool:
        pool.each(work, lambda: advance(heads.n_heads))
    observed = {
        name: np.mean([one[name] for one in found], axis=0) for name in found[0]
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
    found: list[list[Nulls]] = [[] for _ in range(total)]
    spectra: list[list[FloatArray]] = [[] for _ in range(total)]
    projections = _projections(heads, n_redraws, seed)

    def work(i: int) -> None:
        for part in _parts(heads, i):
            reading = _reading(part)
            spectra[i].append(reading.cloud.eigenvalues)
            found[i] += _sequence(
                part, reading, n_permutations, n_redraws, seed, projections
            )

    # Once an array of this size was freed, glibc keeps freed memory of that size for
    # reuse instead of returning it to the system after every block.
    np.empty(_KEPT)
    # Matrices are small: sequences run in parallel, each product in one thread.
    with threadpool_limits(1, user_api="blas"), RunPool(total) as pool:
        pool.each(work, lambda: advance(heads.n_heads))
    names = statistic_names(KERNEL)
    observed = {name: _mean(found, name, "observed")[:, 0] for name in names}
    nulls: Nulls = {
        name: {
            null: _mean(found, name, null)
            for null in found[0][0][name]
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


def _mean(found: list[list[Nulls]], name: str, null: str) -> FloatArray:
    """Return the mean over sequences, (heads, draws)."""
    return np.mean([[one[name][null] for one in heads] for heads in found], axis=0)


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
    rng = _null_draws.stream(seed, _null_draws.PROJECTIONS)
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
    rng = _null_draws.stream(seed, _null_draws.PERMUTATIONS, place)
    orders = _null_draws.permutations(rng, n_permutations, n)
    drawn: dict[str, Callable[[int], FloatArray]] = {}
    if n_redraws:
        rng = _null_draws.stream(seed, _null_draws.ROTATIONS, place)
        frames = _null_draws.centred_frames(rng, n_redraws, n, min(n - 1, d_value))
        drawn["random_values"] = lambda head: _null_draws.rotated_columns(
            v[head], frames
        )
    if projections is not None and heads.tokens is not None:
        mixed = (heads.tokens[0] @ projections).reshape(n, n_redraws, d_value)
        mixed = np.ascontiguousarray(mixed.transpose(2, 1, 0))
        drawn["random_projections"] = lambda head: mixed
    aligned = rbf_of_permuted(readings, orders)
    of_keys = _of_random_keys(heads, n_redraws, seed)
    return [
        _head(one, head, orders, aligned[head], drawn) | of_keys(one, head)
        for head, one in enumerate(readings)
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
    found: Nulls = {name: {"observed": x[:1]} for name, x in permuted.items()}
    if len(orders) > 1:
        for name, x in permuted.items():
            found[name]["permuted_tokens"] = x[1:]
    own = reading.values.T[:, None, :]
    found["matching_cosine"] = {"observed": reading.matching_of_values(own)}
    for null, draw in drawn.items():
        values = draw(head)
        numbers = reading.of_values(values, is_alike=null != "random_projections")
        numbers["rbf_cka"] = reading.rbf_of_values(values)
        numbers["matching_cosine"] = reading.matching_of_values(values)
        for name, x in numbers.items():
            # Norms depend on the scale of the values, which random matrices lack.
            if STATISTICS[name].has_null(null):
                found[name][null] = x
    return found


def _of_random_keys(
    heads: LayerHeads, n_draws: int, seed: int
) -> Callable[[HeadReading, int], Nulls]:
    """Return a function of a head: its statistics that depend on keys only."""
    q, k, _ = heads.sequences[0]
    n, d = k.shape[1:]
    rng = _null_draws.stream(seed, _null_draws.KEYS, heads.indices[0])
    frames = _null_draws.centred_frames(rng, n_draws, n, min(n - 1, d))

    def of_keys(reading: HeadReading, head: int) -> Nulls:
        cloud = reading.cloud
        found = {
            "feature_norm": reading.log_features.mean() / math.log(10),
            "kernel_trace": cloud.trace,
            "top_eigenvalue": cloud.eigenvalues[0],
            "kernel_rank": effective_rank(cloud.eigenvalues),
        }
        nulls: Nulls = {x: {"observed": np.atleast_1d(y)} for x, y in found.items()}
        if n_draws:
            drawn = _null_draws.rotated(k[head], frames)
            # As many draws as eigenvalues are computed of at once.
            size = LANES if n <= MOST_ROWS else PAIRS // n**2
            blocks = [
                _of_keys(heads, q[head], drawn[part])
                for part in parts(n_draws, 1, size)
            ]
            for name, x in joined_draws(blocks).items():
                nulls[name]["random_keys"] = x
        return nulls

    return of_keys


def _of_keys(
    heads: LayerHeads, queries: FloatArray, keys: FloatArray
) -> dict[str, FloatArray]:
    """Return the statistics that depend on keys only, of drawn keys (draws, n, d)."""
    gram = (heads.scale * keys) @ keys.transpose(0, 2, 1)
    tops = subtract_tops(gram)
    trace = centred_features(np.exp(gram, out=gram), tops)
    levels = symmetric_eigenvalues(gram)
    logs = heads.log_features(queries, keys)
    return {
        "feature_norm": logs.mean(axis=-1) / math.log(10),
        "kernel_trace": trace,
        "top_eigenvalue": levels[:, -1],
        "kernel_rank": effective_rank(levels),
    }
