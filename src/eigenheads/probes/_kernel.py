"""Kernel-PCA probe: heads as projections on principal axes of their keys."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eigenheads._checks import (
    check_count,
    check_flag,
    check_items,
    check_number,
)
from eigenheads._limits import LARGEST
from eigenheads._typing import Array, FloatArray
from eigenheads.probes._heads import (
    check_heads,
    check_outputs,
    check_untrained,
)
from eigenheads.probes._kernel_nulls import (
    OF_QUERIES,
    default_redraws,
    kernel_nulls,
    kernel_statistics,
)
from eigenheads.probes._result import ProbeResult, with_untrained
from eigenheads.probes._statistics import KERNEL, measured, statistic_names

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
        else check_number("scale", scale, owner=_OWNER, minimum=1e-50, maximum=LARGEST),
        is_causal=check_flag("is_causal", is_causal, owner=_OWNER),
        standardize=check_flag("standardize", standardize, owner=_OWNER),
    )
    # Values are compared with softmax attention: other attention would mislead.
    if outputs is not None:
        check_outputs(heads, outputs, owner=_OWNER)
    observed, nulls, spectra = kernel_nulls(heads, n_permutations, n_redraws, seed)
    models = () if untrained is None else untrained
    models = check_items("untrained", models, "a sequence of mappings", owner=_OWNER)
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
    owner = f"{_OWNER} (untrained)"
    check_untrained(copy, ("queries", "keys", "values"), owner=_OWNER)
    q, k, v = (copy[name] for name in ("queries", "keys", "values"))
    heads = check_heads(q, k, v, copy.get("mask"), None, owner=owner)
    heads = heads.with_options(**options)
    # Heads with grouped keys and values are equal in statistics without queries.
    apart = _apart(np.asarray(k), np.asarray(v))
    return {
        name: found if name in OF_QUERIES else found[apart]
        for name, found in kernel_statistics(heads).items()
    }


def _apart(keys: FloatArray, values: FloatArray) -> list[int]:
    """Return the heads whose keys and values are not those of the head before."""
    return [
        head
        for head in range(keys.shape[1])
        if head == 0
        or any(not np.array_equal(x[:, head], x[:, head - 1]) for x in (keys, values))
    ]
