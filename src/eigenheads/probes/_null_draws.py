"""Random draws of the nulls: permutations, rotated clouds, orthonormal frames."""

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray

# Random streams per purpose: adding one null never changes the draws of another.
PERMUTATIONS, ROTATIONS, KEYS, PROJECTIONS, WEIGHTS = range(5)


def stream(seed: int, *place: int) -> np.random.Generator:
    """Return the generator of a place, which depends on seed and place only."""
    sequence = np.random.SeedSequence(seed, spawn_key=place)
    return np.random.Generator(np.random.SFC64(sequence))


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
