"""Statistics and nulls of the covariance probe."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from eigenheads._parallel import RunPool
from eigenheads._typing import FloatArray
from eigenheads.functional import effective_rank
from eigenheads.probes import _null_draws
from eigenheads.probes._bilinear_forms import (
    BilinearForm,
    overlap,
    product_singular_values,
)
from eigenheads.probes._statistics import COVARIANCE, statistic_names

# Statistic -> null -> (heads, draws).
Nulls = dict[str, dict[str, FloatArray]]
# Numbers held at once by a block of draws: 32 MiB of doubles.
_BLOCK = 2**22
# Each shift requires a covariance matrix, and the null hardly varies. With 39 draws a
# single test of many can be decided.
N_SHIFTS = 39


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
    found = _overlaps(layer, layer.qk.eigenvectors[:, None])
    found = {name: x[:, 0] for name, x in found.items()}
    found["qk_covariance_cosine"] = _cosines(layer.qk, layer.covariance[None])[:, 0]
    participation = effective_rank(layer.levels, kind="participation")
    found["qk_rank"] = layer.qk.ranks
    found["token_rank"] = np.full(layer.n_heads, float(participation))
    if layer.ov is not None:
        found["ov_covariance_cosine"] = _cosines(layer.ov, layer.covariance[None])[:, 0]
        found["ov_rank"] = layer.ov.ranks
    return {name: found[name] for name in statistic_names(COVARIANCE) if name in found}


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
    found: dict[str, dict[str, FloatArray]] = {}

    # The longest first, so that two threads end at about the same time.
    waiting = ("shifted_tokens", "permuted_coordinates", "rotated", "random_weights")

    def work(i: int) -> None:
        null = waiting[i]
        found[null] = draws[null](layer, n_draws, seed)

    # Matrices are small: one thread per null is faster than threads in each product.
    with threadpool_limits(1, user_api="blas"), RunPool(len(draws)) as pool:
        pool.each(work)
    for null in draws:
        for name, values in found[null].items():
            nulls[name][null] = values
    return nulls


def _overlaps(layer: LayerForms, frames: FloatArray) -> dict[str, FloatArray]:
    """Return statistics of the directions of the query-key form, (heads, draws).

    `frames` holds drawn eigenvectors of the form, (heads or 1, draws, d_model, rank).
    """
    k = layer.n_components
    shape = (layer.n_heads, frames.shape[1])
    aligned = overlap(frames[..., :k], layer.principal)
    found = {"qk_covariance_overlap": np.broadcast_to(aligned, shape)}
    if layer.ov is None:
        return found
    cosines, overlaps = np.empty(shape), np.empty(shape)
    leading = layer.leading_ov()
    for head in range(layer.n_heads):
        own = frames[head if len(frames) > 1 else 0]
        vectors, values = layer.ov.eigenvectors[head], layer.ov.eigenvalues[head]
        # <S, T> of two forms: eigenvalues times squared cosines of eigenvectors.
        squares = np.square(np.swapaxes(own, -1, -2) @ vectors)
        inner = squares @ values @ layer.qk.eigenvalues[head]
        whole = layer.qk.norm[head] * layer.ov.norm[head]
        cosines[head] = inner / whole if whole > 0 else np.nan
        overlaps[head] = squares[:, :k, leading[head]].sum(axis=(1, 2)) / k
    return found | {"qk_ov_cosine": cosines, "qk_ov_overlap": overlaps}


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
    rng = _null_draws.stream(seed, _null_draws.ROTATIONS)
    norm = float(np.linalg.norm(layer.covariance))
    blocks = []
    for size in _sizes(n_draws, d * wide):
        frames = _null_draws.frames(rng, size, d, wide)
        found = _overlaps(layer, frames[None, ..., :rank])
        quadratic = np.einsum("bdr,bdr->br", frames, layer.covariance @ frames)
        for name, form in forms.items():
            inner = form.eigenvalues @ quadratic[:, : form.eigenvalues.shape[1]].T
            found[name] = _over_norms(form, inner, norm)
        blocks.append(found)
    return _joined(blocks)


def _permuted(layer: LayerForms, n_draws: int, seed: int) -> dict[str, FloatArray]:
    """Permute the coordinates of the forms, the same way for all heads.

    For cosines the covariance is permuted instead, once for all heads, by the inverse
    permutation.
    """
    d, rank = layer.qk.eigenvectors.shape[1:]
    rng = _null_draws.stream(seed, _null_draws.PERMUTATIONS)
    orders = _null_draws.permutations(rng, n_draws, d)[1:]
    blocks, start = [], 0
    for size in _sizes(n_draws, d * max(d, rank * layer.n_heads)):
        rows = orders[start : start + size]
        start += size
        found = _overlaps(layer, layer.qk.eigenvectors[:, rows])
        # Permuting the form by P equals permuting the covariance by the inverse of P.
        back = np.argsort(rows, axis=1)
        matrices = layer.covariance[back[:, :, None], back[:, None, :]]
        found["qk_covariance_cosine"] = _cosines(layer.qk, matrices)
        if layer.ov is not None:
            found["ov_covariance_cosine"] = _cosines(layer.ov, matrices)
        blocks.append(found)
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
    rng = _null_draws.stream(seed, _null_draws.WEIGHTS)
    d = len(layer.covariance)
    widths = {"qk_rank": layer.qk.width}
    if layer.ov is not None:
        widths["ov_rank"] = layer.ov.width
    found = {}
    for name, width in widths.items():
        ranks = np.empty(n_draws)
        for draw in range(n_draws):
            pair = rng.standard_normal((2, width, d))
            ranks[draw] = effective_rank(product_singular_values(*pair))
        found[name] = np.tile(ranks, (layer.n_heads, 1))
    return found


def _shifted_tokens(
    layer: LayerForms, n_draws: int, seed: int
) -> dict[str, FloatArray]:
    """Shift every coordinate cyclically along the tokens by its own offset."""
    n, d = layer.tokens.shape
    rng = _null_draws.stream(seed, _null_draws.KEYS)
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
