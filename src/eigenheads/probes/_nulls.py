"""Null distributions: random draws, and transformations that redraw a head."""

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._rng import stream
from eigenheads._typing import FloatArray
from eigenheads.probes._heads import Head

# The null of untrained models, which redraws no head.
UNTRAINED = "untrained"
# Random streams per purpose: adding one null never changes the draws of another.
PERMUTATIONS, ROTATIONS, KEYS, PROJECTIONS, WEIGHTS = range(5)
# Numbers per block of drawn attention matrices: 4 MiB of doubles.
_BLOCK = 2**19


def permutations(rng: np.random.Generator, n_draws: int, n: int) -> NDArray[np.intp]:
    """Return the identity, then uniform permutations of ``range(n)``, one per row."""
    rows = np.tile(np.arange(n, dtype=np.intp), (n_draws + 1, 1))
    rng.permuted(rows[1:], axis=1, out=rows[1:])
    return rows


def frames(rng: np.random.Generator, n_draws: int, n: int, k: int) -> FloatArray:
    """Return uniform orthonormal k-frames of R^n, (draws, n, k)."""
    basis, triangle = np.linalg.qr(rng.standard_normal((n_draws, n, k)))
    # The Householder algorithm gives a uniform Q only with a positive diagonal of R.
    signs = np.sign(np.einsum("bii->bi", triangle))
    return basis * np.where(signs == 0, 1.0, signs)[:, None, :]


def centred_frames(
    rng: np.random.Generator, n_draws: int, n: int, k: int
) -> FloatArray:
    """Return uniform orthonormal k-frames of the vectors of R^n with mean zero."""
    return helmert(n) @ frames(rng, n_draws, n - 1, k)


def helmert(n: int) -> FloatArray:
    """Return an orthonormal basis, in columns, of the vectors of R^n with mean zero."""
    j = np.arange(1, n)
    basis = np.triu(np.ones((n, n - 1)))
    basis[j, j - 1] = -j
    return basis / np.sqrt(j * (j + 1.0))


def rotated(cloud: FloatArray, frame: FloatArray) -> FloatArray:
    r"""Return random clouds with the mean and covariance of `cloud`.

    With the centred cloud :math:`X_c = Q_0 R`, the draws are :math:`\bar x + Q R` with
    uniform :math:`Q`: a random rotation of the token space that keeps the mean. If the
    rows of :math:`X` are independent Gaussians with one mean and covariance, a draw has
    the law of :math:`X` given its mean and covariance, so that the test is exact (a
    rotation test, Langsrud 2005).

    Parameters
    ----------
    cloud
        (n, d).
    frame
        Result of :func:`centred_frames` with k = min(n - 1, d).

    Returns
    -------
    clouds
        (draws, n, d).
    """
    draws, n, k = frame.shape
    mean, triangle = _mean_and_triangle(cloud, k)
    flat = frame.reshape(draws * n, k) @ triangle
    flat += mean
    return flat.reshape(draws, n, -1)


def rotated_columns(cloud: FloatArray, frame: FloatArray) -> FloatArray:
    """Return :func:`rotated` in the memory layout (d, draws, n)."""
    draws, n, k = frame.shape
    mean, triangle = _mean_and_triangle(cloud, k)
    flat = triangle.T @ frame.reshape(draws * n, k).T
    flat += mean[:, None]
    return flat.reshape(-1, draws, n)


def _mean_and_triangle(cloud: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    mean = cloud.mean(axis=0)
    _, values, right = np.linalg.svd(cloud - mean, full_matrices=False)
    return mean, values[:k, None] * right[:k]


@dataclass(frozen=True, eq=False)
class Null:
    """A null hypothesis on heads, given by a way to redraw a head.

    Attributes
    ----------
    name
        Its key in :attr:`Statistic.nulls`.
    draw
        ``draw(head, rng) -> Head``, one draw; with `is_batched`, ``draw(head, rng, n)``
        returns a head with arrays (n, tokens, width).
    about
        One line: what is redrawn, and what a rejection means.
    is_shared
        Whether all sequences use the same random numbers, as for a redrawn weight
        matrix; otherwise each sequence has its own.
    is_batched
        Whether `draw` returns many draws at once.

    Examples
    --------
    >>> def without_queries(head, rng):
    ...     return head.with_changes(queries=rng.standard_normal(head.queries.shape))
    >>> Null("random_queries", without_queries, "Gaussian queries.").name
    'random_queries'
    """

    name: str
    draw: Callable[..., Head]
    about: str = ""
    is_shared: bool = False
    is_batched: bool = False

    def blocks(self, head: Head, n_draws: int, seed: int, place: int) -> Iterator[Head]:
        """Yield heads with arrays (draws, tokens, width), `n_draws` in all.

        The generator depends on seed, name and sequence, not on the head: heads of a
        layer share the draws, so that their joint law is preserved.
        """
        key = zlib.crc32(self.name.encode())
        rng = stream(seed, key) if self.is_shared else stream(seed, key, place)
        size = max(1, _BLOCK // head.n_tokens**2) if self.is_batched else n_draws
        for start in range(0, n_draws, size):
            count = min(size, n_draws - start)
            if self.is_batched:
                yield self.draw(head, rng, count)
            else:
                yield _stacked([self.draw(head, rng) for _ in range(count)])


def _stacked(draws: list[Head]) -> Head:
    arrays = {
        name: np.stack([getattr(draw, name) for draw in draws])
        for name in ("queries", "keys", "values")
    }
    return draws[0].with_changes(**arrays)


def _permuted_values(head: Head, rng: np.random.Generator, n: int) -> Head:
    orders = _orders(head, rng, n)
    # Queries and keys stay, so that the weights of all draws are those of the head.
    return head.with_changes(weights=head.weights, values=head.values[orders])


def _shuffled_positions(head: Head, rng: np.random.Generator, n: int) -> Head:
    orders = _orders(head, rng, n)
    # Without a mask, permuted keys permute the columns of the weights.
    weights = None
    if head.sees_all:
        weights = head.weights[:, orders].transpose(1, 0, 2)
    return head.with_changes(
        weights=weights, keys=head.keys[orders], values=head.values[orders]
    )


def _rotated_queries(head: Head, rng: np.random.Generator, n: int) -> Head:
    d = head.queries.shape[-1]
    return head.with_changes(queries=head.queries @ _reused(frames, rng, n, d, d))


def _random_keys(head: Head, rng: np.random.Generator, n: int) -> Head:
    return head.with_changes(keys=_rotated_cloud(head.keys, rng, n))


def _random_values(head: Head, rng: np.random.Generator, n: int) -> Head:
    values = _rotated_cloud(head.values, rng, n)
    return head.with_changes(weights=head.weights, values=values)


def _random_projections(head: Head, rng: np.random.Generator, n: int) -> Head:
    assert head.tokens is not None
    matrices = rng.standard_normal((n, head.tokens.shape[-1], head.values.shape[-1]))
    drawn = head.tokens @ matrices
    # The scale of a random matrix is arbitrary: give it that of the values.
    size = np.linalg.norm(drawn, axis=(-2, -1), keepdims=True)
    drawn *= np.linalg.norm(head.values) / np.where(size > 0, size, 1.0)
    return head.with_changes(weights=head.weights, values=drawn)


def _orders(head: Head, rng: np.random.Generator, n: int) -> NDArray[np.intp]:
    orders = np.tile(np.arange(head.n_tokens), (n, 1))
    return rng.permuted(orders, axis=1)


def _rotated_cloud(cloud: FloatArray, rng: np.random.Generator, n: int) -> FloatArray:
    n_tokens, d = cloud.shape
    k = min(n_tokens - 1, d)
    return rotated(cloud, _reused(centred_frames, rng, n, n_tokens, k))


def _reused(
    make: Callable[..., FloatArray], rng: np.random.Generator, *sizes: int
) -> FloatArray:
    """Return `make(rng, *sizes)`, computed once for heads that share the stream."""
    words = tuple(int(word) for word in rng.bit_generator.state["state"]["state"])
    drawn, after = _made(make, words, sizes)
    rng.bit_generator.state = after
    return drawn


@lru_cache(maxsize=16)
def _made(
    make: Callable[..., FloatArray], words: tuple[int, ...], sizes: tuple[int, ...]
) -> tuple[FloatArray, Any]:
    rng = stream(0)
    state = rng.bit_generator.state
    state["state"]["state"] = np.array(words, dtype=np.uint64)
    rng.bit_generator.state = state
    drawn = make(rng, *sizes)
    return drawn, rng.bit_generator.state


NULLS = {
    null.name: null
    for null in (
        Null(
            "permuted_tokens",
            _permuted_values,
            "Values change places among the tokens; queries and keys stay.",
            is_batched=True,
        ),
        Null(
            "shuffled_positions",
            _shuffled_positions,
            "Keys and values change places among the positions; queries stay.",
            is_batched=True,
        ),
        Null(
            "rotated_queries",
            _rotated_queries,
            "Queries are multiplied by a random rotation, one for all sequences.",
            is_shared=True,
            is_batched=True,
        ),
        Null(
            "random_keys",
            _random_keys,
            "Random keys with the mean and covariance of the head's keys.",
            is_batched=True,
        ),
        Null(
            "random_values",
            _random_values,
            "Random values with the mean and covariance of the head's values.",
            is_batched=True,
        ),
        Null(
            "random_projections",
            _random_projections,
            "Values from a Gaussian value matrix applied to the same tokens.",
            is_shared=True,
            is_batched=True,
        ),
    )
}
# Nulls of the two probes and of weight matrices, for the page.
NULL_TEXTS = {name: null.about for name, null in NULLS.items()} | {
    UNTRAINED: "The same statistic on untrained copies of the model.",
    "rotated": "Query-key form rotated at random; its spectrum stays.",
    "permuted_coordinates": "Coordinates of the query-key form change places.",
    "shifted_tokens": "Coordinates of the tokens move along the tokens, each by its own"
    " offset.",
    "random_weights": "Gaussian weight matrices of the same shape.",
    "random_subspaces": "Uniformly random subspaces of the same dimension.",
    "swapped_models": "The two models change roles in random sequences.",
}
