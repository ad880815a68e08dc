"""The kernel-PCA reading of attention heads, put to the test."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eigenheads._checks import check_count, check_positive
from eigenheads._typing import Array, FloatArray
from eigenheads.probes._heads import Heads, check_heads, check_outputs, check_twin
from eigenheads.probes._kernel_nulls import (
    ABOUT,
    OF_QUERIES,
    default_redraws,
    measure,
    measure_nulls,
)
from eigenheads.probes._result import ProbeResult, Statistic

_OWNER = "kernel_pca_probe"


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

    KERNEL [1]_ reads softmax attention as kernel PCA: if the values are
    :math:`\hat V = GA` of :func:`eigenheads.functional.kernel_pca_values`, the head's
    output is the projection of the query's feature on the principal axes of the keys'
    features. A second team disputes that trained values are [2]_. Here every number
    comes with the distribution that it has when there is nothing to find.

    Parameters
    ----------
    queries, keys
        (sequences, heads, tokens, d_head); rotary positions applied, not scaled.
    values
        (sequences, heads, tokens, d_value).
    outputs
        The head's outputs before the output projection, if known: only to check that
        they are :math:`\operatorname{softmax}(c QK^\top)V`; a warning says if not.
    tokens
        What enters the layer, (sequences, tokens, d_model), if known: adds the null
        of random projections.
    mask
        (sequences, tokens), true for real tokens; padding is left out. Sequences with
        fewer than 3 real tokens are left out.
    is_causal
        Whether a query sees only earlier keys and its own. See the notes.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.
    standardize
        Whether features are measured as in the authors' program; see
        :func:`eigenheads.functional.log_feature_norms`. Touches ``norm_ratio`` and
        ``feature_norm``.
    n_permutations
        Draws of permuted tokens. 0 leaves this null out, and those of `n_redraws`,
        too, unless it is given.
    n_redraws
        Draws of nulls that redraw values or keys, which are costly: a fifth of
        `n_permutations` unless given, but 19 at least (or as many). With m of them no
        p-value is below 1/(m + 1): among h heads it takes 20 h/(m + 1) of them
        together to have q-values of 0.05.
    untrained
        Mappings of ``queries``, ``keys``, ``values`` (and what else is given) of one
        or several untrained models of the same architecture.
    seed
        Each sequence has streams of its own from (seed, sequence), so a head's
        numbers do not depend on the heads beside it. Give every layer another seed.

    Returns
    -------
    result
        ``norm_ratio``, ``output_norm``, ``feature_norm`` (decimal logarithms),
        ``gamma_difference``, ``eigen_residual``, ``captured_variance``,
        ``linear_cka``, ``rbf_cka``, ``matching_cosine``, ``kernel_trace``,
        ``top_eigenvalue``, ``kernel_rank``; and the mean ``eigenvalues``.

    Notes
    -----
    Each number is the mean over sequences of a number of one sequence; a draw of a
    null redraws every sequence by itself. Nulls:

    - ``permuted_tokens``: the rows of :math:`V` change places. Exact if, given queries
      and keys, the values of a sequence are exchangeable. A rejection says that values
      know their tokens' keys, which holds for any head whose keys and values are made
      of the same tokens, also before training.
    - ``random_values``: a random rotation of the token space gives values of the same
      mean and covariance. Exact if rows of :math:`V` are Gaussian and independent.
    - ``random_projections`` (with `tokens`): :math:`V = XR`, :math:`R` Gaussian, one
      for all sequences. Exact if :math:`W_V` is drawn so: what an untrained value
      matrix gives on the very same keys. Not for norms, which see the scale.
    - ``random_keys``: as ``random_values``, for the keys; for numbers that do not see
      the values.
    - ``untrained``: the same measurement on untrained models, pooled over their heads.
      Exact if the heads measured were independent draws of one law, as heads of one
      layer are, given its input. Heads that share keys and values (grouped queries)
      are one draw of what does not see the queries.

    On a sequence of at most d_value + 1 tokens the columns of any values in general
    position span all directions, and ``captured_variance`` is 1: longer ones tell.

    ``matching_cosine`` is the same for all orders of the tokens, so it has no null of
    permuted tokens.

    Under a causal mask each row has another set of keys, hence another kernel PCA, and
    no single :math:`V` can serve them all. The reading then holds for the last token
    alone, which sees every key, and values are compared with the kernel PCA of all
    keys of the sequence; norms are taken row by row, each with its own normaliser.

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
    n_permutations = check_count(
        "n_permutations", n_permutations, owner=_OWNER, minimum=0
    )
    if n_redraws is None:
        n_redraws = default_redraws(n_permutations)
    n_redraws = check_count("n_redraws", n_redraws, owner=_OWNER, minimum=0)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0)
    heads = check_heads(queries, keys, values, mask, tokens, owner=_OWNER)
    heads = heads.with_options(
        scale=heads.d_head**-0.5
        if scale is None
        else check_positive("scale", scale, owner=_OWNER),
        is_causal=bool(is_causal),
        standardize=bool(standardize),
    )
    if outputs is not None:
        check_outputs(heads, outputs, owner=_OWNER)
    observed, nulls, spectra = measure_nulls(heads, n_permutations, n_redraws, seed)
    if untrained:
        twins = [_twin(twin, heads) for twin in untrained]
        for name in ABOUT:
            draws = np.concatenate([twin[name] for twin in twins])
            nulls[name]["untrained"] = np.tile(draws, (heads.n_heads, 1))
    statistics = {
        name: Statistic(name, observed[name], nulls[name], alternative, about)
        for name, (alternative, about) in ABOUT.items()
    }
    settings = {
        "n_sequences": len(heads.sequences),
        "n_heads": heads.n_heads,
        "scale": heads.scale,
        "is_causal": heads.is_causal,
        "standardize": heads.standardize,
        "n_permutations": n_permutations,
        "n_redraws": n_redraws,
        "n_untrained": len(untrained or ()),
        "seed": seed,
    }
    return ProbeResult("kernel_pca_probe", statistics, spectra, settings)


def _twin(twin: Mapping[str, Any], like: Heads) -> dict[str, FloatArray]:
    """Return the statistics of an untrained model, one number a draw."""
    owner = f"{_OWNER} (untrained)"
    check_twin(twin, ("queries", "keys", "values"), owner=_OWNER)
    q, k, v = (twin[name] for name in ("queries", "keys", "values"))
    heads = check_heads(q, k, v, twin.get("mask"), None, owner=owner)
    heads = heads.with_options(
        scale=like.scale, is_causal=like.is_causal, standardize=like.standardize
    )
    apart = _apart(np.asarray(k), np.asarray(v))
    return {
        name: found if name in OF_QUERIES else found[apart]
        for name, found in measure(heads).items()
    }


def _apart(keys: FloatArray, values: FloatArray) -> list[int]:
    """Return the heads but for those with keys and values of the head before."""
    return [
        head
        for head in range(keys.shape[1])
        if head == 0
        or any(not np.array_equal(x[:, head], x[:, head - 1]) for x in (keys, values))
    ]
