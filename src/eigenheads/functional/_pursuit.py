"""Principal attention pursuit: robust PCA of the keys by repeated attention.

The readable reference. It builds every matrix, in the order of the formulas; the
layers compute the same numbers without the matrices, and a test compares the two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any, Literal, NamedTuple

from array_api_compat import (
    array_namespace,
    device,
    is_numpy_array,
    is_torch_array,
)
from jaxtyping import Float

from eigenheads._arrays import stable_softmax
from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_float_arrays,
    check_number,
    fail,
)
from eigenheads._typing import Array
from eigenheads.functional._spectrum import soft_threshold

# On clean Gaussian keys `sparsity="auto"` flags this share of the entries.
AUTO_FALSE_POSITIVE_RATE = 0.01

# A Gaussian entry exceeds `z sigma` with that probability, and the median of its
# absolute value is `sigma Phi^{-1}(3/4)`: so the threshold is this many medians.
AUTO_MEDIANS = NormalDist().inv_cdf(
    1 - AUTO_FALSE_POSITIVE_RATE / 2
) / NormalDist().inv_cdf(3 / 4)

# Each is a softmax over all tokens; a pursuit settles within tens.
_MAX_ITER = 10_000
_THRESHOLDS = ("paper", "reference")
_MULTIPLIERS = ("paper", "admm")
_QUERY_STEPS = ("last", "every")


@dataclass(frozen=True, kw_only=True)
class AttentionPursuit:
    r"""Result of :func:`attention_pursuit`; the last three are given per iteration.

    Attributes
    ----------
    output
        :math:`L`, the head's output.
    sparse
        :math:`S`, the entries flagged as corruption.
    cleaned
        :math:`K' = K - S \mp Y/\mu`, the keys of the last softmax.
    weights
        The last softmax.
    flagged
        Share of the key entries with :math:`S \ne 0`, by iteration.
    self_weight
        Mean weight of a token on itself in the pursuit's softmax, by iteration.
    residual
        :math:`\lVert K - L - S \rVert_F`, by iteration.
    """

    output: Float[Array, "*batch n_queries d"]
    sparse: Float[Array, "*batch n_keys d"]
    cleaned: Float[Array, "*batch n_keys d"]
    weights: Float[Array, "*batch n_queries n_keys"]
    flagged: Float[Array, " n_iter *batch"]
    self_weight: Float[Array, " n_iter *batch"]
    residual: Float[Array, " n_iter *batch"]


def attention_pursuit(  # noqa: PLR0913 -- the pursuit has as many settings
    keys: Float[Array, "*batch n_keys d"],
    values: Float[Array, "*batch n_keys d"],
    *,
    queries: Float[Array, "*batch n_queries d"] | None = None,
    n_iter: int = 4,
    sparsity: float | str = 4.0,
    threshold: str = "paper",
    width: int | None = None,
    multiplier: Literal["paper", "admm"] = "paper",
    query_steps: Literal["last", "every"] = "last",
    attn_mask: Any = None,
    is_causal: bool = False,
    scale: float | None = None,
) -> AttentionPursuit:
    r"""Split keys into a low-rank part, which is the output, and a sparse part.

    Start from :math:`L = Y = 0` and repeat `n_iter` times:

    .. math::

        S &= \operatorname{shrink}(K - L + Y/\mu, \tau), &
        K' &= K - S \mp Y/\mu, \\
        L &= \operatorname{softmax}(c K' K'^\top) V, &
        Y &\leftarrow Y + \mu (K - L - S),

    with :math:`\mu = N D / (4 \lVert K \rVert_1)` per head.

    Parameters
    ----------
    keys
        Rows of :math:`K`.
    values
        Rows of :math:`V`, of the same width, since :math:`K - L` is formed.
    queries
        If given, the last softmax is :math:`\operatorname{softmax}(c Q K'^\top)`; see
        `query_steps`.
    n_iter
        Number of softmaxes, at least 1.
    sparsity
        :math:`\lambda`; infinity flags nothing. With ``"auto"``, :math:`\tau` is 3.82
        times the median over tokens of the median absolute entry of
        :math:`K - L + Y/\mu` per token, which flags 1 % of the entries of clean
        Gaussian keys.
    threshold
        ``"paper"``: :math:`\tau = \lambda/\mu`. ``"reference"`` (the authors' code):
        :math:`\tau = \lambda\mu`, with `width` for :math:`D` in :math:`\mu`.
    width
        Width of the model, for ``threshold="reference"``.
    multiplier
        Sign of the multiplier in :math:`K'`. ``"paper"``: :math:`K - S - Y/\mu`, as
        in [1]_. ``"admm"``: :math:`K - S + Y/\mu`, the minimiser of the
        augmented Lagrangian; with the proximal map of the nuclear norm in place of the
        softmax the iteration is then principal component pursuit.
    query_steps
        ``"last"``: `queries` enter the last softmax only, and the earlier ones compare
        the keys with themselves. ``"every"``: they enter every softmax, as in the
        asymmetric models of [1]_; then there must be as many queries as keys.
    attn_mask
        Broadcasts against ``(*batch, n_keys, n_keys)``: ``True`` where a token (row)
        may see a key (column), or numbers that are added to the scores, where
        ``-inf`` hides. Queries are the last tokens if the mask has more than one row.
    is_causal
        Whether a token sees only itself and earlier ones; combines with `attn_mask`.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.

    Returns
    -------
    pursuit
        Output, parts and diagnostics.

    Notes
    -----
    Under a mask every row has its own :math:`\mu_j`, an average over the keys that it
    may see; for a causal mask, :math:`\mu_j = j D / (4 \sum_{i \le j} \lVert k_i
    \rVert_1)`. Tokens that no token sees count as zero. :math:`\mu` has an effect
    through :math:`\tau` only: with :math:`Z = Y/\mu` it cancels elsewhere.

    References
    ----------
    .. [1] Teo and Nguyen, Unveiling the hidden structure of self-attention via kernel
       principal component analysis, 2024, arXiv 2406.13762.

    Examples
    --------
    >>> import numpy as np
    >>> keys = np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> attention_pursuit(keys, np.eye(2), n_iter=1, scale=100.0).output.round(3)
    array([[1., 0.],
           [0., 1.]])
    """
    check_pursuit(n_iter, sparsity, threshold, multiplier, query_steps)
    n_iter = int(n_iter)  # 4.0 counts as an integer
    check_flag("is_causal", is_causal)
    if width is not None:
        width = check_count("width", width)
    arrays = {"keys": keys, "values": values}
    arrays |= {} if queries is None else {"queries": queries}
    check_float_arrays(**arrays, finite=False)
    _check_mask(keys, attn_mask)
    check_query_steps(query_steps, keys, queries)
    _check_shapes(keys, values, queries, attn_mask)
    if threshold == "reference" and width is None:
        fail("width", "the width of the model", width)
    xp = array_namespace(keys, values)
    d = keys.shape[-1]
    c = d**-0.5 if scale is None else check_number("scale", scale)
    visible, bias = _mask(xp, keys, attn_mask, is_causal)
    live = xp.any(visible, axis=-2)  # whether any token sees the token
    keys = xp.where(live[..., None], keys, xp.zeros_like(keys))
    values = xp.where(live[..., None], values, xp.zeros_like(values))
    # Checked after hiding, because hidden tokens may hold any values.
    check_float_arrays(keys=keys, values=values)
    mu = _mu(xp, keys, visible, d if threshold == "paper" else width)

    every = queries if query_steps == "every" else None

    weights: Array = None

    def attend(cleaned: Array) -> Array:
        nonlocal weights
        rows = cleaned if every is None else every
        weights = stable_softmax(c * rows @ xp.matrix_transpose(cleaned) + bias)
        return weights @ values

    def limit(argument: Array) -> Array:
        return _threshold(xp, argument, visible, mu, sparsity, threshold)

    records = []
    for step in pursuit_steps(keys, attend, limit, n_iter, multiplier=multiplier):
        S, cleaned, L = step
        records.append(_record(xp, keys - L - S, S, weights, live))
    if queries is not None and every is None:
        # A mask of one row holds for all queries; otherwise the last rows are theirs.
        rows = bias if bias.shape[-2] == 1 else bias[..., -queries.shape[-2] :, :]
        weights = stable_softmax(c * queries @ xp.matrix_transpose(cleaned) + rows)
        L = weights @ values
    flagged, self_weight, residual = (xp.stack(r) for r in zip(*records, strict=True))
    return AttentionPursuit(
        output=L,
        sparse=S,
        cleaned=cleaned,
        weights=weights,
        flagged=flagged,
        self_weight=self_weight,
        residual=residual,
    )


class PursuitStep(NamedTuple):
    """Arrays of one iteration: sparse part, cleaned keys, low-rank part."""

    sparse: Array
    cleaned: Array
    low_rank: Array


def pursuit_steps(
    keys: Array,
    low_rank: Callable[[Array], Array],
    threshold: Callable[[Array], Any],
    n_iter: int,
    *,
    multiplier: str,
) -> Iterator[PursuitStep]:
    r"""Yield the iterations of a pursuit with any low-rank step.

    Parameters
    ----------
    keys
        The matrix to split.
    low_rank
        From cleaned keys to the low-rank part: an attention, or a proximal map.
    threshold
        From the argument of the shrinkage to :math:`\tau`.
    n_iter, multiplier
        As in :func:`attention_pursuit`.

    Examples
    --------
    Principal component pursuit of a matrix of rank 1 with one gross error:

    >>> import numpy as np
    >>> from eigenheads.functional import singular_value_threshold
    >>> matrix = np.ones((8, 8))
    >>> matrix[0, 0] = 5.0
    >>> mu = matrix.size / (4 * np.abs(matrix).sum())
    >>> step = lambda x: singular_value_threshold(x, 1 / mu)
    >>> *_, last = pursuit_steps(
    ...     matrix, step, lambda _: 8**-0.5 / mu, 500, multiplier="admm")
    >>> bool(np.allclose(last.low_rank, 1.0))
    True
    """
    xp = array_namespace(keys)
    sign = -1 if multiplier == "paper" else 1
    L, Z = xp.zeros_like(keys), xp.zeros_like(keys)  # Z is Y / mu
    for _ in range(n_iter):
        argument = keys - L + Z
        S = soft_threshold(argument, threshold(argument))
        cleaned = keys - S + sign * Z
        L = low_rank(cleaned)
        Z = Z + keys - L - S
        yield PursuitStep(S, cleaned, L)


def check_query_steps(query_steps: object, keys: Any, queries: Any) -> None:
    """Raise if queries shall enter every softmax and are not as many as the keys."""
    if query_steps != "every":
        return
    if queries is None:
        fail("queries", "given for query_steps='every'", queries)
    if queries.shape[-2] != keys.shape[-2]:
        contract = "as many as the keys for query_steps='every'"
        got = Got(f"{queries.shape[-2]} queries and {keys.shape[-2]} keys")
        fail("queries", contract, got)


def check_pursuit(
    n_iter: object,
    sparsity: object,
    threshold: object,
    multiplier: object = "paper",
    query_steps: object = "last",
) -> None:
    """Raise unless the settings of a pursuit are valid."""
    check_count("n_iter", n_iter, maximum=_MAX_ITER)
    check_choice("multiplier", multiplier, _MULTIPLIERS)
    check_choice("query_steps", query_steps, _QUERY_STEPS)
    check_choice("threshold", threshold, _THRESHOLDS)
    if isinstance(sparsity, str):
        if sparsity != "auto":
            fail("sparsity", "a number >= 0 or 'auto'", sparsity)
        if threshold != "paper":
            got = Got(f"threshold={threshold!r} with sparsity='auto'")
            fail("threshold", "'paper' if `sparsity` is 'auto'", got)
    elif not (isinstance(sparsity, float) and sparsity == math.inf):
        check_number("sparsity", sparsity, minimum=0.0)


def _check_mask(keys: Array, attn_mask: Any) -> None:
    """Raise unless a mask is an array of the keys' library, of bools or numbers."""
    if attn_mask is None:
        return
    is_torch = is_torch_array(keys)
    if not (is_torch_array(attn_mask) if is_torch else is_numpy_array(attn_mask)):
        contract = "an array of the library of `keys`"
        fail("attn_mask", contract, attn_mask, error=TypeError)
    xp = array_namespace(keys)
    kinds = ("bool", "real floating")
    if not xp.isdtype(attn_mask.dtype, kinds):
        got = Got(f"dtype {attn_mask.dtype}")
        fail("attn_mask", "an array of bools or floats", got)
    if bool(xp.any(attn_mask != attn_mask)):
        fail("attn_mask", "an array without NaN", Got("NaN"))


def _check_shapes(keys: Array, values: Array, queries: Any, attn_mask: Any) -> None:
    shape = tuple(keys.shape)
    if len(shape) < 2 or 0 in shape:
        contract = "of shape (..., n_keys, d), without empty axes"
        fail("keys", contract, Got(shape))
    if tuple(values.shape) != shape:
        contract = f"of the keys' shape {shape}"
        fail("values", contract, Got(tuple(values.shape)))
    if queries is not None:
        asked = tuple(queries.shape)
        if (*asked[:-2], *asked[-1:]) != (*shape[:-2], shape[-1]):
            contract = f"of the keys' shape {shape} up to the number of tokens"
            fail("queries", contract, Got(asked))
    full = (*shape[:-1], shape[-2])
    mask = (1,) if attn_mask is None else tuple(attn_mask.shape)
    pairs = zip(reversed(mask), reversed(full), strict=False)
    if len(mask) > len(full) or any(size not in (1, whole) for size, whole in pairs):
        contract = f"of a shape that broadcasts to {full}"
        fail("attn_mask", contract, Got(mask))


def _mask(xp: Any, keys: Array, attn_mask: Any, is_causal: bool) -> tuple[Any, Any]:
    """Return which tokens see which, and the numbers added to the scores."""
    n = keys.shape[-2]
    where = device(keys)
    visible = xp.ones((n if is_causal else 1, n), dtype=xp.bool, device=where)
    if is_causal:
        visible = xp.tril(visible)
    bias = xp.zeros((1, n), dtype=keys.dtype, device=where)
    if attn_mask is not None and attn_mask.dtype == xp.bool:
        visible = visible & attn_mask
    elif attn_mask is not None:
        # A number whose exponential is zero hides, as -inf does.
        visible = visible & (xp.exp(attn_mask) > 0)
        bias = bias + attn_mask
    return visible, xp.where(visible, bias, xp.full_like(bias, -math.inf))


def _mu(xp: Any, keys: Array, visible: Array, width: Any) -> Array:
    """Return ``n width / (4 sum |k|)`` over the keys that each row may see."""
    norms = xp.sum(xp.abs(keys), axis=-1)[..., None, :]
    counted = xp.astype(visible, keys.dtype)
    total = xp.sum(counted * norms, axis=-1)[..., None]
    count = xp.sum(counted, axis=-1)[..., None]
    ones = xp.ones_like(total)
    mu = count * width / (4 * xp.where(total > 0, total, ones))
    return xp.where(total > 0, mu, xp.full_like(total, math.inf))


def _threshold(
    xp: Any, argument: Array, visible: Array, mu: Array, sparsity: Any, rule: str
) -> Array:
    if sparsity == "auto":
        return AUTO_MEDIANS * _visible_median(xp, argument, visible)
    if sparsity == math.inf:
        return xp.full_like(mu, math.inf)
    if rule == "reference":
        return sparsity * mu if sparsity > 0 else xp.zeros_like(mu)
    return sparsity / mu


def _visible_median(xp: Any, x: Array, visible: Array) -> Array:
    """Return, for each row, the median over the tokens it sees of their median |x|."""
    d = x.shape[-1]
    entries = xp.sort(xp.abs(x), axis=-1)
    medians = (entries[..., (d - 1) // 2] + entries[..., d // 2]) / 2
    medians = medians[..., None, :]
    ordered = xp.where(visible, medians, xp.full_like(medians, math.inf))
    ordered = xp.sort(ordered, axis=-1)
    count = xp.sum(xp.astype(visible, xp.int64), axis=-1)[..., None]
    count = xp.broadcast_to(count, (*ordered.shape[:-1], 1))
    lower = xp.take_along_axis(ordered, xp.clip((count - 1) // 2, 0, None), axis=-1)
    upper = xp.take_along_axis(ordered, xp.clip(count // 2, 0, None), axis=-1)
    return xp.where(count > 0, (lower + upper) / 2, xp.zeros_like(lower))


def _record(
    xp: Any, residual: Array, sparse: Array, weights: Array, live: Array
) -> tuple[Array, Array, Array]:
    """Return share of flagged entries, mean self-weight, norm: over live tokens."""
    alive = xp.astype(live, sparse.dtype)
    n_live = xp.sum(alive, axis=-1)
    flagged = xp.sum(xp.astype(sparse != 0, sparse.dtype), axis=-1)
    share = xp.sum(flagged * alive, axis=-1) / (n_live * sparse.shape[-1])
    diagonal = xp.linalg.diagonal(weights)
    self_weight = xp.sum(diagonal * alive, axis=-1) / n_live
    squares = xp.sum(residual**2, axis=-1) * alive
    return share, self_weight, xp.sqrt(xp.sum(squares, axis=-1))
