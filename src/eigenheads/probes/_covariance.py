"""Covariance probe: alignment of scores with principal directions of tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._checks import Got, check_count, check_finite_array, fail
from eigenheads._parallel import RunPool, advance
from eigenheads._rng import stream
from eigenheads._typing import Array, FloatArray
from eigenheads.functional import effective_rank
from eigenheads.probes._heads import (
    as_number_array,
    check_magnitude,
    check_mask,
    check_untrained,
)
from eigenheads.probes._nulls import (
    KEYS,
    PERMUTATIONS,
    ROTATIONS,
    WEIGHTS,
    frames,
    permutations,
)
from eigenheads.probes._result import ProbeResult, Statistic, with_untrained
from eigenheads.probes._statistics import COVARIANCE, measured, statistic_names

# From this width of tokens on, several threads decompose their covariance.
_WIDE = 1024
# Statistic -> null -> (heads, draws).
Nulls = dict[str, dict[str, FloatArray]]
# Numbers held at once by a block of draws: 32 MiB of doubles.
_BLOCK = 2**22
# Each shift requires a covariance matrix, and the null hardly varies. With 39 draws a
# single test of many can be decided.
N_SHIFTS = 39


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
    n_permutations = check_count("n_permutations", n_permutations, minimum=0)
    seed = check_count("seed", seed, minimum=0)
    if not isinstance(untrained, Sequence | None) or isinstance(untrained, str | bytes):
        fail("untrained", "a sequence of mappings", untrained)
    # For products of this size, threads cost more than they save on a busy machine.
    tokens = as_number_array("tokens", tokens)
    limit = 1 if tokens.shape[-1:] < (_WIDE,) else None
    with threadpool_limits(limit, user_api="blas"):
        layer = _check_layer(
            tokens, w_query, w_key, w_value, w_output, mask, n_components
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
    check_untrained(copy, names)
    layer = _check_layer(
        copy["tokens"],
        copy["w_query"],
        copy["w_key"],
        copy.get("w_value") if has_outputs else None,
        copy.get("w_output") if has_outputs else None,
        copy.get("mask"),
        n_components,
    )
    statistics = covariance_statistics(layer)
    # Heads of a layer share its tokens: a model is one draw of the rank.
    return statistics | {"token_rank": statistics["token_rank"][:1]}


def _check_layer(
    tokens: Array,
    w_query: Array,
    w_key: Array,
    w_value: Array | None,
    w_output: Array | None,
    mask: Array | None,
    n_components: int | None,
) -> "LayerForms":
    tokens = as_number_array("tokens", tokens)
    shape = np.shape(tokens)
    if len(shape) != 3 or 0 in shape:
        contract = "of shape (sequences, tokens, d_model)"
        fail("tokens", contract, Got(shape))
    real = check_mask(mask, shape[:2])
    rows = check_finite_array("tokens", tokens[real])
    check_magnitude("tokens", rows)
    if len(rows) < 2:
        fail("mask", "two real tokens or more", Got(len(rows)))
    query = _weights("w_query", w_query, shape[2], None)
    key = _weights("w_key", w_key, shape[2], query.shape)
    k = check_count(
        "n_components",
        min(query.shape[1], shape[2]) if n_components is None else n_components,
        maximum=min(2 * query.shape[1], shape[2]),
    )
    ov = None
    if (w_value is None) != (w_output is None):
        name = "w_output" if w_output is None else "w_value"
        fail(name, "given with its counterpart", None)
    if w_value is not None:
        value = _weights("w_value", w_value, shape[2], None)
        turned = np.swapaxes(np.asarray(w_output), -1, -2)
        output = _weights("w_output", turned, shape[2], value.shape)
        if len(value) != len(query):
            contract = f"of {len(query)} heads, as `w_query`"
            fail("w_value", contract, Got(value.shape))
        ov = symmetric_form(output, value)
        k = min(k, ov.eigenvalues.shape[1])
    return LayerForms.of(rows, symmetric_form(query, key), ov, k)


def _weights(
    name: str, value: Array, d_model: int, like: tuple[int, ...] | None
) -> FloatArray:
    array = check_magnitude(name, check_finite_array(name, value))
    if array.ndim != 3 or 0 in array.shape or array.shape[2] != d_model:
        contract = f"of shape (heads, width, {d_model}), the last the tokens' width"
        if name == "w_output":
            contract = f"of shape (heads, {d_model}, width)"
        fail(name, contract, Got(array.shape))
    if like is not None and array.shape != like:
        contract = f"of shape {like}, as its counterpart"
        fail(name, contract, Got(array.shape))
    return array


@dataclass(frozen=True, eq=False)
class BilinearForm:
    r"""Symmetric part of :math:`A^\top B` per head, by its eigenvectors.

    Attributes
    ----------
    eigenvalues
        (heads, rank), largest first; about half of them are negative.
    eigenvectors
        (heads, d_model, rank), in columns.
    ranks
        Effective rank (entropy) of the singular values of :math:`A^\top B`, (heads,).
    width
        :math:`D`, rows of :math:`A` and :math:`B`.
    """

    eigenvalues: FloatArray
    eigenvectors: FloatArray
    ranks: FloatArray
    width: int

    @property
    def norm(self) -> FloatArray:
        """Frobenius norm, (heads,)."""
        return np.linalg.norm(self.eigenvalues, axis=-1)

    @cached_property
    def flat(self) -> FloatArray:
        """The forms as matrices, (heads, d_model squared)."""
        vectors = self.eigenvectors
        whole = (vectors * self.eigenvalues[:, None]) @ np.swapaxes(vectors, 1, 2)
        return whole.reshape(len(whole), -1)


def symmetric_form(left: FloatArray, right: FloatArray) -> BilinearForm:
    r"""Return :math:`(A^\top B + B^\top A)/2` of (heads, D, d_model) matrices.

    Its rank is at most 2D, and the d_model x d_model matrix is never formed: with
    :math:`(A^\top, B^\top) = QR` it is :math:`Q R J R^\top Q^\top / 2`, where :math:`J`
    swaps the two halves.
    """
    d = left.shape[1]
    columns = np.concatenate([left, right], axis=1)
    # Reduce to the 2D directions in which the form lives.
    basis, triangle = np.linalg.qr(np.swapaxes(columns, 1, 2))
    swapped = np.concatenate([triangle[..., d:], triangle[..., :d]], axis=-1)
    inner = triangle @ np.swapaxes(swapped, 1, 2) / 2
    # Symmetrised against rounding errors; eigenvalues come in ascending order.
    values, vectors = np.linalg.eigh((inner + np.swapaxes(inner, 1, 2)) / 2)
    singular = product_singular_values(left, right)
    return BilinearForm(
        values[:, ::-1],
        basis @ vectors[..., ::-1],
        effective_rank(singular),
        d,
    )


def product_singular_values(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the singular values of AᵀB, A and B of shape (..., D, d_model)."""
    # AᵀB = Q₁ R₁ R₂ᵀ Q₂ᵀ has the singular values of the small matrix R₁ R₂ᵀ.
    first = np.linalg.qr(np.swapaxes(left, -1, -2), mode="r")
    second = np.linalg.qr(np.swapaxes(right, -1, -2), mode="r")
    return np.linalg.svd(first @ np.swapaxes(second, -1, -2), compute_uv=False)


def overlap(first: FloatArray, second: FloatArray) -> FloatArray:
    r"""Return the mean squared cosine of the principal angles of two k-frames.

    :math:`\lVert U^\top E \rVert_F^2 / k` for orthonormal columns (..., d, k). The
    mean for two uniform subspaces is :math:`k/d`.
    """
    cross = np.swapaxes(first, -1, -2) @ second
    return np.einsum("...ij,...ij->...", cross, cross) / second.shape[-1]


@dataclass(frozen=True, eq=False)
class LayerForms:
    """The tokens of a layer and the forms of its heads."""

    tokens: FloatArray  # centred, (all real tokens, d_model)
    covariance: FloatArray
    levels: FloatArray  # its eigenvalues, largest first
    principal: FloatArray  # (d_model, k), its leading eigenvectors
    qk: BilinearForm
    ov: BilinearForm | None
    n_components: int

    @classmethod
    def of(
        cls, tokens: FloatArray, qk: BilinearForm, ov: BilinearForm | None, k: int
    ) -> "LayerForms":
        """Centre the tokens and decompose their covariance."""
        centred = tokens - tokens.mean(axis=0)
        covariance = centred.T @ centred / (len(tokens) - 1)
        levels, vectors = np.linalg.eigh(covariance)
        levels = np.maximum(levels[::-1], 0.0)
        principal = np.ascontiguousarray(vectors[:, ::-1][:, :k])
        return cls(centred, covariance, levels, principal, qk, ov, k)

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return len(self.qk.eigenvalues)

    @property
    def n_tokens(self) -> int:
        """Number of real tokens, of all sequences."""
        return len(self.tokens)

    def leading_ov(self) -> NDArray[np.intp]:
        """Return which eigenvectors of the value-output form lead, (heads, k)."""
        assert self.ov is not None
        order = np.argsort(-np.abs(self.ov.eigenvalues), axis=1)
        return order[:, : self.n_components]


def covariance_statistics(layer: LayerForms) -> dict[str, FloatArray]:
    """Return the statistics, (heads,) each."""
    statistics = _overlaps(layer, layer.qk.eigenvectors[:, None])
    statistics = {name: x[:, 0] for name, x in statistics.items()}
    statistics["qk_covariance_cosine"] = _cosines(layer.qk, layer.covariance[None])[
        :, 0
    ]
    participation = effective_rank(layer.levels, kind="participation")
    statistics["qk_rank"] = layer.qk.ranks
    statistics["token_rank"] = np.full(layer.n_heads, float(participation))
    if layer.ov is not None:
        statistics["ov_covariance_cosine"] = _cosines(layer.ov, layer.covariance[None])[
            :, 0
        ]
        statistics["ov_rank"] = layer.ov.ranks
    return {
        name: statistics[name]
        for name in statistic_names(COVARIANCE)
        if name in statistics
    }


def covariance_nulls(layer: LayerForms, n_draws: int, seed: int) -> Nulls:
    """Return the draws of every null."""
    nulls: Nulls = {name: {} for name in statistic_names(COVARIANCE)}
    if not n_draws:
        return nulls
    draws = {
        "rotated": _rotated,
        "permuted_coordinates": _permuted,
        "random_weights": _random_weights,
        "shifted_tokens": _shifted_tokens,
    }
    by_null: dict[str, dict[str, FloatArray]] = {}

    # The longest first, so that two threads end at about the same time.
    waiting = ("shifted_tokens", "permuted_coordinates", "rotated", "random_weights")

    def work(i: int) -> None:
        null = waiting[i]
        by_null[null] = draws[null](layer, n_draws, seed)

    # Matrices are small: one thread per null is faster than threads in each product.
    with threadpool_limits(1, user_api="blas"), RunPool(len(draws)) as pool:
        pool.each(work)
    for null in draws:
        for name, values in by_null[null].items():
            nulls[name][null] = values
    return nulls


def _overlaps(layer: LayerForms, drawn: FloatArray) -> dict[str, FloatArray]:
    """Return statistics of the directions of the query-key form, (heads, draws).

    `drawn` holds eigenvectors of the form, (heads or 1, draws, d_model, rank).
    """
    k = layer.n_components
    shape = (layer.n_heads, drawn.shape[1])
    aligned = overlap(drawn[..., :k], layer.principal)
    statistics = {"qk_covariance_overlap": np.broadcast_to(aligned, shape)}
    if layer.ov is None:
        return statistics
    cosines, overlaps = np.empty(shape), np.empty(shape)
    leading = layer.leading_ov()
    for head in range(layer.n_heads):
        axes = drawn[head if len(drawn) > 1 else 0]
        vectors, values = layer.ov.eigenvectors[head], layer.ov.eigenvalues[head]
        # <S, T> of two forms: eigenvalues times squared cosines of eigenvectors.
        squares = np.square(np.swapaxes(axes, -1, -2) @ vectors)
        inner = squares @ values @ layer.qk.eigenvalues[head]
        whole = layer.qk.norm[head] * layer.ov.norm[head]
        cosines[head] = inner / whole if whole > 0 else np.nan
        overlaps[head] = squares[:, :k, leading[head]].sum(axis=(1, 2)) / k
    return statistics | {"qk_ov_cosine": cosines, "qk_ov_overlap": overlaps}


def _cosines(form: BilinearForm, matrices: FloatArray) -> FloatArray:
    """Return the cosines of forms and matrices (draws, d, d), (heads, draws)."""
    inner = form.flat @ matrices.reshape(len(matrices), -1).T
    return _over_norms(form, inner, float(np.linalg.norm(matrices[0])))


def _over_norms(form: BilinearForm, inner: FloatArray, norm: float) -> FloatArray:
    whole = np.broadcast_to(form.norm[:, None] * norm, inner.shape)
    empty = np.full(inner.shape, np.nan)
    return np.divide(inner, whole, out=empty, where=whole > 0)


def _rotated(layer: LayerForms, n_draws: int, seed: int) -> dict[str, FloatArray]:
    """Rotate the forms: their eigenvectors become a uniform frame, one for all heads.

    The inner product of the rotated form with a matrix C is the sum of its eigenvalues
    times the quadratic form of C on the vectors of that frame: no matrix is rotated.
    """
    d, rank = layer.qk.eigenvectors.shape[1:]
    forms = {"qk_covariance_cosine": layer.qk}
    if layer.ov is not None:
        forms["ov_covariance_cosine"] = layer.ov
    wide = max(form.eigenvectors.shape[2] for form in forms.values())
    rng = stream(seed, ROTATIONS)
    norm = float(np.linalg.norm(layer.covariance))
    blocks = []
    for size in _sizes(n_draws, d * wide):
        drawn = frames(rng, size, d, wide)
        statistics = _overlaps(layer, drawn[None, ..., :rank])
        quadratic = np.einsum("bdr,bdr->br", drawn, layer.covariance @ drawn)
        for name, form in forms.items():
            inner = form.eigenvalues @ quadratic[:, : form.eigenvalues.shape[1]].T
            statistics[name] = _over_norms(form, inner, norm)
        blocks.append(statistics)
    return _joined(blocks)


def _permuted(layer: LayerForms, n_draws: int, seed: int) -> dict[str, FloatArray]:
    """Permute the coordinates of the forms, the same way for all heads.

    For cosines the covariance is permuted instead, once for all heads, by the inverse
    permutation.
    """
    d, rank = layer.qk.eigenvectors.shape[1:]
    rng = stream(seed, PERMUTATIONS)
    orders = permutations(rng, n_draws, d)[1:]
    blocks, start = [], 0
    for size in _sizes(n_draws, d * max(d, rank * layer.n_heads)):
        rows = orders[start : start + size]
        start += size
        statistics = _overlaps(layer, layer.qk.eigenvectors[:, rows])
        # Permuting the form by P equals permuting the covariance by the inverse of P.
        back = np.argsort(rows, axis=1)
        matrices = layer.covariance[back[:, :, None], back[:, None, :]]
        statistics["qk_covariance_cosine"] = _cosines(layer.qk, matrices)
        if layer.ov is not None:
            statistics["ov_covariance_cosine"] = _cosines(layer.ov, matrices)
        blocks.append(statistics)
    return _joined(blocks)


def _sizes(n_draws: int, each: int) -> list[int]:
    """Return the sizes of blocks of draws; a draw holds `each` numbers."""
    size = max(1, _BLOCK // each)
    return [min(size, n_draws - start) for start in range(0, n_draws, size)]


def _joined(blocks: list[dict[str, FloatArray]]) -> dict[str, FloatArray]:
    return {
        name: np.concatenate([block[name] for block in blocks], axis=1)
        for name in blocks[0]
    }


def _random_weights(
    layer: LayerForms, n_draws: int, seed: int
) -> dict[str, FloatArray]:
    """Draw the ranks of products of Gaussian matrices, the same for all heads."""
    rng = stream(seed, WEIGHTS)
    d = len(layer.covariance)
    widths = {"qk_rank": layer.qk.width}
    if layer.ov is not None:
        widths["ov_rank"] = layer.ov.width
    statistics = {}
    for name, width in widths.items():
        ranks = np.empty(n_draws)
        for draw in range(n_draws):
            pair = rng.standard_normal((2, width, d))
            ranks[draw] = effective_rank(product_singular_values(*pair))
        statistics[name] = np.tile(ranks, (layer.n_heads, 1))
    return statistics


def _shifted_tokens(
    layer: LayerForms, n_draws: int, seed: int
) -> dict[str, FloatArray]:
    """Shift every coordinate cyclically along the tokens by its own offset."""
    n, d = layer.tokens.shape
    rng = stream(seed, KEYS)
    columns = np.ascontiguousarray(layer.tokens.T)
    # A cyclic shift is a window of the rows written twice.
    twice = np.concatenate([columns, columns], axis=1)
    moved = np.empty_like(columns)
    ranks = np.empty(min(n_draws, N_SHIFTS))
    for draw in range(len(ranks)):
        for row, start in enumerate(rng.integers(0, n, size=(d,))):
            moved[row] = twice[row, start : start + n]
        covariance = moved @ moved.T
        # Participation ratio from traces: no eigenvalues are needed.
        squares = np.sum(covariance * covariance)
        ranks[draw] = np.trace(covariance) ** 2 / squares if squares > 0 else np.nan
    return {"token_rank": np.tile(ranks, (layer.n_heads, 1))}


def subspace_affinity(
    w_output: FloatArray, n_draws: int, seed: int
) -> Statistic | None:
    """Return the affinity of heads' output subspaces, with a random-subspace null.

    `w_output` is (heads, d_model, width). None for a single head.
    """
    n_heads, d_model, width = w_output.shape
    if n_heads < 2:
        return None
    k = min(d_model, width)
    basis = np.linalg.qr(np.asarray(w_output, dtype=np.float64))[0][..., :k]
    # The overlap of a head with itself is 1 and does not count.
    pairs = overlap(basis[:, None], basis[None])
    observed = (pairs.sum(axis=1) - 1.0) / (n_heads - 1)
    rng = stream(seed, WEIGHTS, 1)
    # The law of the overlap of a fixed and a uniform subspace does not depend on the
    # fixed one, and the other heads stay: only the head's own subspace is redrawn.
    draws = np.empty((n_heads, n_draws))
    for draw in range(n_draws):
        frame = frames(rng, 1, d_model, k)
        affinity = overlap(frame, basis)
        draws[:, draw] = (affinity.sum() - affinity) / (n_heads - 1)
    nulls = {"random_subspaces": draws} if n_draws else {}
    return measured("subspace_affinity", observed, nulls)
