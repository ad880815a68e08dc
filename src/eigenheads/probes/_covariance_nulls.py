"""Statistics of the PCA reading and their nulls."""

from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from eigenheads._parallel import n_threads
from eigenheads._typing import FloatArray
from eigenheads.functional import effective_rank
from eigenheads.probes import _draws
from eigenheads.probes._forms import Form, overlap, product_singular_values

# Statistic -> null -> (heads, draws).
Nulls = dict[str, dict[str, FloatArray]]
# Numbers held at once by a block of draws: 64 MiB of doubles.
_BLOCK = 2**23

ABOUT = {
    "qk_covariance_cosine": (
        "greater",
        "Cosine of the query-key form and the tokens' covariance, as matrices.",
    ),
    "qk_covariance_overlap": (
        "greater",
        "Mean squared cosine of the principal angles of the leading eigenvectors of "
        "the query-key form and of the tokens' covariance.",
    ),
    "qk_rank": ("less", "Effective rank (entropy) of W_Qᵀ W_K."),
    "token_rank": (
        "less",
        "Effective rank (participation) of the tokens' covariance; one a layer.",
    ),
    "qk_ov_cosine": (
        "two-sided",
        "Cosine of the query-key form and the value-output form, as matrices.",
    ),
    "qk_ov_overlap": (
        "greater",
        "Mean squared cosine of the principal angles of the leading eigenvectors of "
        "both forms (of the value-output form, by absolute value).",
    ),
    "ov_covariance_cosine": (
        "two-sided",
        "Cosine of the value-output form and the tokens' covariance, as matrices.",
    ),
    "ov_rank": ("less", "Effective rank (entropy) of W_O W_V."),
}


@dataclass(frozen=True, eq=False)
class Layer:
    """The tokens of a layer and the forms of its heads."""

    tokens: FloatArray  # centred, (all real tokens, d_model)
    covariance: FloatArray
    levels: FloatArray  # its eigenvalues, largest first
    principal: FloatArray  # (d_model, k), its leading eigenvectors
    qk: Form
    ov: Form | None
    n_components: int
    d_head: int

    @classmethod
    def of(
        cls, tokens: FloatArray, qk: Form, ov: Form | None, k: int, d_head: int
    ) -> "Layer":
        """Centre the tokens and decompose their covariance."""
        centred = tokens - tokens.mean(axis=0)
        covariance = centred.T @ centred / (len(tokens) - 1)
        levels, vectors = np.linalg.eigh(covariance)
        levels = np.maximum(levels[::-1], 0.0)
        principal = np.ascontiguousarray(vectors[:, ::-1][:, :k])
        return cls(centred, covariance, levels, principal, qk, ov, k, d_head)

    @property
    def n_heads(self) -> int:
        """Number of heads."""
        return len(self.qk.eigenvalues)

    @property
    def n_tokens(self) -> int:
        """Number of real tokens, of all sequences."""
        return len(self.tokens)

    def leading_ov(self) -> FloatArray:
        """Return the leading eigenvectors of the value-output form, (heads, d, k)."""
        assert self.ov is not None
        order = np.argsort(-np.abs(self.ov.eigenvalues), axis=1)[:, None]
        return np.take_along_axis(
            self.ov.eigenvectors, order[..., : self.n_components], axis=2
        )


def measure(layer: Layer) -> dict[str, FloatArray]:
    """Return the statistics, (heads,) each."""
    found = _of_frames(layer, layer.qk.eigenvectors[:, None])
    found = {name: x[:, 0] for name, x in found.items()}
    participation = effective_rank(layer.levels, kind="participation")
    found["qk_rank"] = layer.qk.ranks
    found["token_rank"] = np.full(layer.n_heads, float(participation))
    if layer.ov is not None:
        own = layer.ov.eigenvectors[:, None]
        found["ov_covariance_cosine"] = _cosine(
            layer.ov, _quadratic(own, layer.covariance), layer.covariance
        )[:, 0]
        found["ov_rank"] = layer.ov.ranks
    return {name: found[name] for name in ABOUT if name in found}


def measure_nulls(layer: Layer, n_draws: int, seed: int) -> Nulls:
    """Return the draws of every null."""
    nulls: Nulls = {name: {} for name in ABOUT}
    if not n_draws:
        return nulls
    with threadpool_limits(n_threads(), user_api="blas"):
        _turned(layer, n_draws, seed, nulls)
        _random_weights(layer, n_draws, seed, nulls)
        _shifted_tokens(layer, min(n_draws, max(19, n_draws // 5)), seed, nulls)
    return nulls


def _of_frames(layer: Layer, frames: FloatArray) -> dict[str, FloatArray]:
    """Return what depends on eigenvectors of the query-key form, (heads, draws).

    `frames` is (heads or 1, draws, d_model, rank).
    """
    k = layer.n_components
    leading = frames[..., :k]
    quadratic = _quadratic(frames, layer.covariance)
    shape = (layer.n_heads, frames.shape[1])
    aligned = overlap(leading, layer.principal)
    found = {
        "qk_covariance_cosine": _cosine(layer.qk, quadratic, layer.covariance),
        "qk_covariance_overlap": np.broadcast_to(aligned, shape),
    }
    if layer.ov is None:
        return found
    cosines, overlaps = np.empty(shape), np.empty(shape)
    spans = layer.leading_ov()
    for head in range(layer.n_heads):
        own = frames[head if len(frames) > 1 else 0]
        vectors, values = layer.ov.eigenvectors[head], layer.ov.eigenvalues[head]
        squares = np.square(np.swapaxes(own, -1, -2) @ vectors)
        inner = squares @ values @ layer.qk.eigenvalues[head]
        whole = layer.qk.norm[head] * layer.ov.norm[head]
        cosines[head] = inner / whole if whole > 0 else np.nan
        overlaps[head] = overlap(own[..., :k], spans[head])
    return found | {"qk_ov_cosine": cosines, "qk_ov_overlap": overlaps}


def _quadratic(frames: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return the quadratic form on every vector, (heads, draws, rank)."""
    return np.einsum("hbdr,hbdr->hbr", frames, matrix @ frames)


def _cosine(form: Form, quadratic: FloatArray, matrix: FloatArray) -> FloatArray:
    """Return <S, C> / (|S| |C|) from the eigenvectors' quadratic forms in C."""
    inner = np.einsum(
        "hbr,hr->hb",
        np.broadcast_to(quadratic, (len(form.eigenvalues), *quadratic.shape[1:])),
        form.eigenvalues,
    )
    whole = (form.norm * np.linalg.norm(matrix))[:, None]
    empty = np.full(inner.shape, np.nan)
    return np.divide(inner, whole, out=empty, where=whole > 0)


def _turned(layer: Layer, n_draws: int, seed: int, nulls: Nulls) -> None:
    """Rotate the forms, and permute their coordinates."""
    d, rank = layer.qk.eigenvectors.shape[1:]
    wide = max(rank, layer.ov.eigenvectors.shape[2] if layer.ov is not None else 0)
    size = max(1, _BLOCK // (d * wide * layer.n_heads))
    rotations = _draws.stream(seed, _draws.ROTATIONS)
    orders = _draws.permutations(_draws.stream(seed, _draws.PERMUTATIONS), n_draws, d)
    parts: dict[str, list[dict[str, FloatArray]]] = {
        "rotated": [],
        "permuted_coordinates": [],
    }
    for start in range(0, n_draws, size):
        rows = orders[1 + start : 1 + min(start + size, n_draws)]
        frames = _draws.frames(rotations, len(rows), d, wide)[None]
        parts["rotated"].append(_of_turned(layer, frames, frames))
        moved = layer.qk.eigenvectors[:, rows]
        other = None if layer.ov is None else layer.ov.eigenvectors[:, rows]
        parts["permuted_coordinates"].append(_of_turned(layer, moved, other))
    for null, blocks in parts.items():
        for name in blocks[0]:
            nulls[name][null] = np.concatenate([b[name] for b in blocks], axis=1)


def _of_turned(
    layer: Layer, qk: FloatArray, ov: FloatArray | None
) -> dict[str, FloatArray]:
    found = _of_frames(layer, qk[..., : layer.qk.eigenvectors.shape[2]])
    if layer.ov is not None and ov is not None:
        quadratic = _quadratic(
            ov[..., : layer.ov.eigenvectors.shape[2]], layer.covariance
        )
        cosine = _cosine(layer.ov, quadratic, layer.covariance)
        found["ov_covariance_cosine"] = cosine
    return found


def _random_weights(layer: Layer, n_draws: int, seed: int, nulls: Nulls) -> None:
    """Draw the ranks of products of Gaussian matrices, the same for all heads."""
    rng = _draws.stream(seed, _draws.WEIGHTS)
    d = len(layer.covariance)
    widths = {"qk_rank": layer.d_head}
    if layer.ov is not None:
        widths["ov_rank"] = -(-layer.ov.eigenvectors.shape[2] // 2)
    for name, width in widths.items():
        ranks = np.empty(n_draws)
        for draw in range(n_draws):
            pair = rng.standard_normal((2, width, d))
            ranks[draw] = effective_rank(product_singular_values(*pair))
        nulls[name]["random_weights"] = np.tile(ranks, (layer.n_heads, 1))


def _shifted_tokens(layer: Layer, n_draws: int, seed: int, nulls: Nulls) -> None:
    """Shift every coordinate around the tokens by itself."""
    n, d = layer.tokens.shape
    rng = _draws.stream(seed, _draws.KEYS)
    columns = np.ascontiguousarray(layer.tokens.T)
    twice = np.concatenate([columns, columns], axis=1)
    moved = np.empty_like(columns)
    ranks = np.empty(n_draws)
    for draw in range(n_draws):
        for row, start in enumerate(rng.integers(n, size=d)):
            moved[row] = twice[row, start : start + n]
        covariance = moved @ moved.T
        squares = np.sum(covariance * covariance)
        ranks[draw] = np.trace(covariance) ** 2 / squares if squares > 0 else np.nan
    nulls["token_rank"]["permuted_tokens"] = np.tile(ranks, (layer.n_heads, 1))
