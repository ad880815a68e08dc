"""Controls: heads that are kernel PCA by construction, and random heads."""

import math

import numpy as np

from eigenheads._checks import (
    Got,
    check_count,
    check_flag,
    check_number,
    fail,
)
from eigenheads._limits import MAX_WORK
from eigenheads._typing import FloatArray
from eigenheads.functional import kernel_pca, kernel_pca_values
from eigenheads.probes._null_draws import stream


def planted_heads(
    n_sequences: int,
    n_heads: int,
    *,
    n_tokens: int = 32,
    d_head: int = 16,
    strength: float = 1.0,
    is_mixed: bool = False,
    seed: int = 0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    r"""Draw heads whose values are a mixture of kernel PCA and noise.

    Queries and keys are standard Gaussian. With unit-variance columns of the
    kernel-PCA values :math:`\hat V` and of Gaussian noise :math:`E`,

    .. math:: V = \sqrt{s}\, \hat V + \sqrt{1 - s}\, E .

    Parameters
    ----------
    n_sequences, n_heads, n_tokens, d_head
        Sizes.
    strength
        :math:`s`: with 1, values are kernel PCA up to the scale of columns (positive
        control); with 0, they are independent of the keys (negative control).
    is_mixed
        Whether a random rotation per head mixes the columns. Then single columns are
        not eigenvectors, but they span the principal subspace.
    seed
        Seed.

    Returns
    -------
    queries, keys, values
        (sequences, heads, tokens, d_head) each.

    Examples
    --------
    >>> [x.shape for x in planted_heads(2, 3, n_tokens=12, d_head=4)]
    [(2, 3, 12, 4), (2, 3, 12, 4), (2, 3, 12, 4)]
    """
    owner = "planted_heads"
    shape = (
        check_count("n_sequences", n_sequences, owner=owner),
        check_count("n_heads", n_heads, owner=owner),
        check_count("n_tokens", n_tokens, owner=owner, minimum=3),
        check_count("d_head", d_head, owner=owner),
    )
    if math.prod(shape) > MAX_WORK:
        got = Got(" x ".join(map(str, shape)))
        contract = f"such that the heads have at most {MAX_WORK} numbers"
        fail("n_sequences", contract, got, owner=owner)
    check_flag("is_mixed", is_mixed, owner=owner)
    share = check_number("strength", strength, owner=owner, minimum=0.0, maximum=1.0)
    rng = stream(check_count("seed", seed, owner=owner, minimum=0))
    queries, keys, noise = rng.standard_normal((3, *shape))
    values = kernel_pca_values(kernel_pca(keys), shape[3])
    # Columns of unit variance, so that `strength` is a share of variance.
    spread = values.std(axis=-2, keepdims=True)
    values = values / np.where(spread > 0, spread, 1.0)
    if is_mixed:
        rotations, _ = np.linalg.qr(rng.standard_normal((shape[1], shape[3], shape[3])))
        values = values @ rotations
    return queries, keys, np.sqrt(share) * values + np.sqrt(1 - share) * noise
