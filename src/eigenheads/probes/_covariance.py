"""Covariance probe: alignment of scores with principal directions of tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from eigenheads._checks import Got, check_count, check_finite_array, fail
from eigenheads._parallel import advance
from eigenheads._typing import Array, FloatArray
from eigenheads.probes._bilinear_forms import symmetric_form
from eigenheads.probes._covariance_nulls import (
    LayerForms,
    covariance_nulls,
    covariance_statistics,
)
from eigenheads.probes._heads import (
    as_number_array,
    check_magnitude,
    check_mask,
    check_untrained,
)
from eigenheads.probes._result import ProbeResult, with_untrained
from eigenheads.probes._statistics import measured

_OWNER = "covariance_probe"
# From this width of tokens on, several threads decompose their covariance.
_WIDE = 1024


def covariance_probe(  # noqa: PLR0913 -- a head has as many arrays
    tokens: Array,
    w_query: Array,
    w_key: Array,
    *,
    w_value: Array | None = None,
    w_output: Array | None = None,
    mask: Array | None = None,
    n_components: int | None = None,
    n_permutations: int = 200,
    untrained: Sequence[Mapping[str, Any]] | None = None,
    seed: int = 0,
) -> ProbeResult:
    r"""Test whether scores of heads align with the principal directions of the tokens.

    A head that is trained to reconstruct a token from the others learns the top
    eigenvectors of the tokens' covariance :math:`\Sigma` (docs/theory/pca.md). The
    query-key form :math:`S` is the symmetric part of :math:`W_Q^\top W_K`, the
    value-output form that of :math:`W_O W_V`.

    Parameters
    ----------
    tokens
        Input of the layer, (sequences, tokens, d_model).
    w_query, w_key
        (heads, d_head, d_model).
    w_value, w_output
        (heads, d_value, d_model) and (heads, d_model, d_value), both or none.
    mask
        (sequences, tokens), true for real tokens.
    n_components
        :math:`k`, the number of leading directions to compare; None means d_head.
    n_permutations
        Draws of each null.
    untrained
        Untrained models of the same architecture: per model a mapping with ``tokens``,
        ``w_query``, ``w_key`` and, if given, ``w_value``, ``w_output``, ``mask``.
    seed
        Seed of the draws, which all heads of the layer share. Use a different seed for
        every layer.

    Returns
    -------
    result
        ``qk_covariance_cosine``, ``qk_covariance_overlap``, ``qk_rank``, and with
        values and outputs ``qk_ov_cosine``, ``qk_ov_overlap``,
        ``ov_covariance_cosine``, ``ov_rank``; ``token_rank`` is the same for all
        heads. A cosine or rank is NaN where the covariance or the form is zero, also
        by underflow. Spectra: ``tokens``, ``qk``, ``ov``.

    Notes
    -----
    Cosine: :math:`\langle S, \Sigma \rangle_F / (\lVert S \rVert_F \lVert \Sigma
    \rVert_F)`. Overlap: mean squared cosine of the principal angles of the spans of
    the :math:`k` leading eigenvectors. A permutation of tokens changes neither, so
    the nulls transform the form instead:

    - ``rotated``: :math:`S \to OSO^\top`, :math:`O` uniform on the rotations. Exact
      if the form's eigenvectors have no preferred direction.
    - ``permuted_coordinates``: the coordinates of the form are permuted. Exact if they
      are exchangeable, even if a few coordinates are much larger than the others.
    - ``random_weights`` (ranks): Gaussian weights of the same shape.
    - ``shifted_tokens`` (``token_rank``): every coordinate is shifted cyclically along
      the tokens by its own random offset, which keeps its distribution and removes
      correlations; 39 draws, because each requires a covariance matrix. Exact if
      coordinates are independent and tokens exchangeable.
    - ``untrained``: the same measurement on untrained models, pooled over heads
      (``token_rank``: one draw per model, because its heads share it).

    References
    ----------
    .. [1] maulensoto2026; docs/theory/kernel.md, section on nulls.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> tokens = rng.standard_normal((4, 50, 10)) * np.r_[5, 5, np.ones(8)]
    >>> w_key = np.eye(10)[None, :2]  # the two strong directions
    >>> result = covariance_probe(tokens, w_key, w_key, n_permutations=19)
    >>> result.statistics["qk_covariance_overlap"].p_value["rotated"]
    array([0.05])
    """
    n_permutations = check_count(
        "n_permutations", n_permutations, owner=_OWNER, minimum=0
    )
    seed = check_count("seed", seed, owner=_OWNER, minimum=0)
    if not isinstance(untrained, Sequence | None) or isinstance(untrained, str | bytes):
        fail("untrained", "a sequence of mappings", untrained, owner=_OWNER)
    # For products of this size, threads cost more than they save on a busy machine.
    tokens = as_number_array("tokens", tokens, owner=_OWNER)
    limit = 1 if tokens.shape[-1:] < (_WIDE,) else None
    with threadpool_limits(limit, user_api="blas"):
        layer = _check_layer(
            tokens, w_query, w_key, w_value, w_output, mask, n_components, owner=_OWNER
        )
        observed = covariance_statistics(layer)
        nulls = covariance_nulls(layer, n_permutations, seed)
        k, has_outputs = layer.n_components, layer.ov is not None
        copies = [
            untrained_covariance_statistics(copy, k, has_outputs=has_outputs)
            for copy in untrained or ()
        ]
    advance(layer.n_heads)
    spectra = {"tokens": layer.levels[None], "qk": layer.qk.eigenvalues}
    if layer.ov is not None:
        spectra["ov"] = layer.ov.eigenvalues
    settings = {
        "n_tokens": layer.n_tokens,
        "n_heads": layer.n_heads,
        "n_components": layer.n_components,
        "n_permutations": n_permutations,
        "n_untrained": len(copies),
        "seed": seed,
    }
    statistics = {
        name: measured(name, observed[name], nulls[name]) for name in observed
    }
    statistics = with_untrained(statistics, copies)
    return ProbeResult("covariance_probe", statistics, spectra, settings)


def untrained_covariance_statistics(
    copy: Mapping[str, Any], n_components: int | None = None, *, has_outputs: bool
) -> dict[str, FloatArray]:
    """Return the statistics of an untrained model; each number is one draw."""
    names: tuple[str, ...] = ("tokens", "w_query", "w_key")
    if has_outputs:
        names = (*names, "w_value", "w_output")
    check_untrained(copy, names, owner=_OWNER)
    layer = _check_layer(
        copy["tokens"],
        copy["w_query"],
        copy["w_key"],
        copy.get("w_value") if has_outputs else None,
        copy.get("w_output") if has_outputs else None,
        copy.get("mask"),
        n_components,
        owner=f"{_OWNER} (untrained)",
    )
    found = covariance_statistics(layer)
    # Heads of a layer share its tokens: a model is one draw of the rank.
    return found | {"token_rank": found["token_rank"][:1]}


def _check_layer(
    tokens: Array,
    w_query: Array,
    w_key: Array,
    w_value: Array | None,
    w_output: Array | None,
    mask: Array | None,
    n_components: int | None,
    *,
    owner: str,
) -> LayerForms:
    tokens = as_number_array("tokens", tokens, owner=owner)
    shape = np.shape(tokens)
    if len(shape) != 3 or 0 in shape:
        contract = "of shape (sequences, tokens, d_model)"
        fail("tokens", contract, Got(shape), owner=owner)
    real = check_mask(mask, shape[:2], owner=owner)
    rows = check_finite_array("tokens", tokens[real], owner=owner)
    check_magnitude("tokens", rows, owner)
    if len(rows) < 2:
        fail("mask", "two real tokens or more", Got(len(rows)), owner=owner)
    query = _weights("w_query", w_query, shape[2], None, owner)
    key = _weights("w_key", w_key, shape[2], query.shape, owner)
    k = check_count(
        "n_components",
        min(query.shape[1], shape[2]) if n_components is None else n_components,
        owner=owner,
        maximum=min(2 * query.shape[1], shape[2]),
    )
    ov = None
    if (w_value is None) != (w_output is None):
        name = "w_output" if w_output is None else "w_value"
        fail(name, "given with its counterpart", None, owner=owner)
    if w_value is not None:
        value = _weights("w_value", w_value, shape[2], None, owner)
        turned = np.swapaxes(np.asarray(w_output), -1, -2)
        output = _weights("w_output", turned, shape[2], value.shape, owner)
        if len(value) != len(query):
            contract = f"of {len(query)} heads, as `w_query`"
            fail("w_value", contract, Got(value.shape), owner=owner)
        ov = symmetric_form(output, value)
        k = min(k, ov.eigenvalues.shape[1])
    return LayerForms.of(rows, symmetric_form(query, key), ov, k)


def _weights(
    name: str, value: Array, d_model: int, like: tuple[int, ...] | None, owner: str
) -> FloatArray:
    array = check_magnitude(name, check_finite_array(name, value, owner=owner), owner)
    if array.ndim != 3 or 0 in array.shape or array.shape[2] != d_model:
        contract = f"of shape (heads, width, {d_model}), the last the tokens' width"
        if name == "w_output":
            contract = f"of shape (heads, {d_model}, width)"
        fail(name, contract, Got(array.shape), owner=owner)
    if like is not None and array.shape != like:
        contract = f"of shape {like}, as its counterpart"
        fail(name, contract, Got(array.shape), owner=owner)
    return array
