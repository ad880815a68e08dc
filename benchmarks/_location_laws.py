"""Distributions of bags whose deciding token is known."""

from typing import NamedTuple

import numpy as np

LAWS = ("isotropic", "anisotropic", "decoy", "heavy tails", "distractors")


class Drawn(NamedTuple):
    bags: np.ndarray
    y: np.ndarray
    places: np.ndarray
    key: np.ndarray
    value: np.ndarray

    def oracle_places(self):
        return (self.bags @ self.key).argmax(axis=1)

    def oracle(self):
        """Return v*.x at the token with the largest k*.x."""
        return self.bags[np.arange(len(self.y)), self.oracle_places()] @ self.value


def draw(law: str, d: int, n_tokens: int, n: int, seed: int) -> Drawn:
    """Draw single-location bags in a random orthonormal frame.

    The deciding token is N(sqrt(d/2) k*, I/2), the others N(0, I), except:
    ``anisotropic``: the directions beside k* and v* have standard deviations from 0.1
    to 10; ``decoy``: one of them has 9; ``heavy tails``: Student's t with 8 degrees of
    freedom, scaled to variance 1, in every coordinate; ``distractors``: a fifth of the
    other tokens is shifted by 3 or -3 along v*.
    """
    rng = np.random.default_rng([LAWS.index(law), d, n_tokens, seed])
    frame, _ = np.linalg.qr(rng.standard_normal((d, d)))
    if law == "heavy tails":
        tokens = rng.standard_t(8, size=(n, n_tokens, d)) * np.sqrt(6 / 8)
    else:
        tokens = rng.standard_normal((n, n_tokens, d))
    places, rows = rng.integers(n_tokens, size=n), np.arange(n)
    tokens[rows, places] *= np.sqrt(0.5)
    if law == "anisotropic":
        tokens[..., 2:] *= np.logspace(-1, 1, d - 2)
    if law == "decoy":
        tokens[..., 2] *= 9
    if law == "distractors":
        for step in range(1, 1 + n_tokens // 5):
            tokens[rows, (places + step) % n_tokens, 1] += 3 * rng.choice([-1, 1], n)
    tokens[rows, places, 0] += np.sqrt(d / 2)
    y = tokens[rows, places, 1].copy()
    return Drawn(tokens @ frame.T, y, places, frame[:, 0], frame[:, 1])


def digit_streams(images, digits, n, n_frames, rng):
    """Draw streams of digit images; one image is a 3 or an 8 and gives the class."""
    deciding = np.flatnonzero(np.isin(digits, (3, 8)))
    others = np.flatnonzero(~np.isin(digits, (3, 8)))
    chosen = rng.choice(deciding, n)
    frames = rng.choice(others, (n, n_frames))
    places = rng.integers(n_frames, size=n)
    frames[np.arange(n), places] = chosen
    return images[frames], digits[chosen] == 8, places
