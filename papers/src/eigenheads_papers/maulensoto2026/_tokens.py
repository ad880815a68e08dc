"""Tokens that are not Gaussian, and a head with any activation trained on them."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit

from eigenheads.extend import FloatArray
from eigenheads.extend.numbers import njit
from eigenheads_papers._data import read_idx

Draw = Callable[[int, np.random.Generator], FloatArray]
HEADS = ("softmax", "linear", "sigmoid", "erf", "relu")


def synthetic_laws(eigenvalues: tuple[float, ...], dof: int) -> dict[str, Draw]:
    """Return laws with one covariance: Gaussian, heavy-tailed, skewed (two ways).

    ``skewed`` has independent centred exponentials along the eigenvectors;
    ``skewed_across`` mixes them by a rotation first, so that the skewness points
    elsewhere than the eigenvectors.
    """
    roots = np.sqrt(eigenvalues)
    d = len(roots)
    # A fixed rotation that no axis survives: reflect along the diagonal.
    rotation = np.eye(d) - 2 * np.ones((d, d)) / d

    def gaussian(n: int, rng: np.random.Generator) -> FloatArray:
        return roots * rng.standard_normal((n, d))

    def heavy(n: int, rng: np.random.Generator) -> FloatArray:
        # The mean of 1/χ² is 1/(dof − 2), so this factor gives Student t tokens exactly
        # the covariance of the Gaussian ones, and only the tails differ.
        radius = np.sqrt((dof - 2) / rng.chisquare(dof, size=(n, 1)))
        return roots * radius * rng.standard_normal((n, d))

    def skewed(n: int, rng: np.random.Generator) -> FloatArray:
        # A standard exponential has mean 1 and variance 1: after centring, the
        # covariance is again that of the Gaussian tokens.
        return roots * (rng.standard_exponential((n, d)) - 1)

    def across(n: int, rng: np.random.Generator) -> FloatArray:
        # The reflection is orthogonal, so it leaves the unit covariance as it is and
        # changes only the higher moments.
        return roots * ((rng.standard_exponential((n, d)) - 1) @ rotation)

    return {
        "gaussian": gaussian,
        "heavy-tailed": heavy,
        "skewed": skewed,
        "skewed across": across,
    }


def draw_from(data: FloatArray) -> tuple[Draw, FloatArray]:
    """Return a law that draws rows of a table, and its covariance.

    The rows are centred, and scaled to a top eigenvalue of one.
    """
    centred = data - data.mean(axis=0)
    covariance = centred.T @ centred / len(centred)
    top = float(np.linalg.eigvalsh(covariance)[-1])
    scaled = centred / math.sqrt(top)

    def draw(n: int, rng: np.random.Generator) -> FloatArray:
        # Rows are drawn with replacement: tokens are then independent, and their
        # covariance is exactly the one returned.
        rows: FloatArray = scaled[rng.integers(len(scaled), size=n)]
        return rows

    return draw, covariance / top


def digit_images() -> FloatArray:
    """Return the 1 797 images of scikit-learn's digits, 64 pixels each."""
    from sklearn.datasets import load_digits

    images: FloatArray = np.asarray(load_digits().data, dtype=np.float64)
    return images


def mnist_patches(path: Path, *, size: int = 7, n_images: int = 2000) -> FloatArray:
    """Return the tiles of MNIST images, from one of the set's gzipped idx files."""
    images = read_idx(path)[:n_images] / 255.0
    height, width = images.shape[1:]
    # The axes are image, row of tiles, row in the tile, column of tiles, column in the
    # tile; the two axes inside a tile must be adjacent before they are merged.
    tiles = images.reshape(-1, height // size, size, width // size, size)
    patches: FloatArray = tiles.swapaxes(2, 3).reshape(-1, size * size)
    return patches


@njit()
def train_head_on_prompts(
    prompts: Any, mu: Any, head: int, step_size: float, mean: Any, averaging: bool
) -> float:
    """Make one update per batch of (n_steps, B, L, d), λ = 1; return the sum of losses.

    ``mu`` is rewritten; if `averaging`, each new one is added to ``mean``, on its side
    (the sign is not identified). A gradient longer than 1 is shortened to 1: heavy
    tails make rare, huge ones.
    """
    n_steps, batch, n_tokens, d = prompts.shape
    gradient, work = np.empty(d), np.empty((4, n_tokens))
    error, total = np.empty(d), 0.0
    for step in range(n_steps):
        gradient[:] = 0.0
        for prompt in range(batch):
            total += _add_gradient(
                prompts[step, prompt], mu, head, work, error, gradient
            )
        gradient /= batch
        length = math.sqrt(np.sum(gradient * gradient))
        mu -= step_size / max(1.0, length) * gradient
        # The vectors μ and −μ give the same scores. Without the choice of a side, a
        # path that changes sign would average to zero.
        if averaging:
            mean += mu if np.sum(mu * mean) >= 0.0 else -mu
    return total / batch


@njit()
def _add_gradient(
    tokens: Any, mu: Any, head: int, work: Any, error: Any, gradient: Any
) -> float:
    """Add a prompt's gradient and return its loss; heads are numbered as in HEADS."""
    n_tokens = len(tokens)
    y, weights, slopes, t = work[0], work[1], work[2], work[3]
    # The score of key k is the product of two projections, (μ·x₁)(μ·x_k).
    for token in range(n_tokens):
        y[token] = np.sum(tokens[token] * mu)
    for token in range(n_tokens):
        slopes[token] = y[0] * y[token]
    # From here on the array holds the derivatives of the weights, not the scores.
    _attend(slopes, head, weights)
    error[:] = tokens[0]
    for token in range(n_tokens):
        error -= weights[token] * tokens[token]
    # The loss changes with score k by −2 times the slope times x_k·error. Softmax also
    # lowers the other weights when one rises, which subtracts the weighted mean of
    # x·error.
    centre = 0.0
    for token in range(n_tokens):
        t[token] = np.sum(tokens[token] * error)
        centre += weights[token] * t[token]
    first = 0.0
    for token in range(n_tokens):
        if head == 0:
            t[token] -= centre
        t[token] *= slopes[token]
        first += t[token] * y[token]
    # The score depends on μ through both of its factors: through the key, which is the
    # loop, and through the query, which is the line after it.
    for token in range(n_tokens):
        gradient -= 2.0 * y[0] * t[token] * tokens[token]
    gradient -= 2.0 * first * tokens[0]
    return np.sum(error * error)


@njit()
def _attend(scores: Any, head: int, weights: Any) -> None:
    """Write the weights, and replace the scores by the weights' slopes."""
    n_tokens = len(scores)
    if head == 0:
        weights[:] = np.exp(scores - np.max(scores))
        weights /= np.sum(weights)
        scores[:] = weights
        return
    # Also the linear head is divided by L here, so that one λ serves all heads.
    for token in range(n_tokens):
        score = scores[token]
        if head == 1:
            weight, slope = score, 1.0
        elif head == 2:
            weight = 0.5 * (1.0 + math.tanh(0.5 * score))
            slope = weight * (1.0 - weight)
        elif head == 3:
            weight = math.erf(score)
            slope = 2.0 / math.sqrt(math.pi) * math.exp(-score * score)
        else:
            weight, slope = max(score, 0.0), 1.0 if score > 0.0 else 0.0
        weights[token], scores[token] = weight / n_tokens, slope / n_tokens


def best_gain(head: str) -> tuple[float, float]:
    r"""Return theory's best squared length times λσ₁, and the share of σ₁ explained.

    Gaussian tokens, L → ∞, an activation φ on each score: by Stein's identity
    :math:`T = \psi(x_1\cdot\mu)\Sigma\mu` with
    :math:`\psi(s) = \lambda s\, \mathbb E\varphi'(\lambda s \sqrt a G)`, and the
    risk is :math:`\tau - (b/a)\,[2\mathbb E\psi s - a\mathbb E\psi^2]`. The bracket
    depends on :math:`c = \lambda a` alone, so for every activation the best direction
    is the top eigenvector, and only the length and the share change.
    """
    if head in ("softmax", "linear"):
        return 1.0, 1.0
    # Gauss-Hermite quadrature for the expectation over s, which is √a times a standard
    # normal variable; its weights must therefore sum to 1.
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    c = np.linspace(0.02, 30.0, 3000)
    products = c[:, None] * nodes
    # The mean slope E φ′(c z G) has a closed form for ReLU and erf; for the sigmoid a
    # second quadrature runs over G.
    if head == "relu":
        slope = np.full_like(products, 0.5)
    elif head == "erf":
        slope = 2 / math.sqrt(math.pi) / np.sqrt(1 + 2 * products**2)
    else:
        value = expit(products[:, :, None] * nodes)
        slope = (value * (1 - value)) @ weights
    first = (nodes**2 * slope) @ weights
    second = (nodes**2 * slope**2) @ weights
    gain = 2 * c * first - c**2 * second
    best = int(np.argmax(gain))
    return float(c[best]), float(gain[best])
