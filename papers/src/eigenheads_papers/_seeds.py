"""From the seed of a call to generators: one stream per experiment."""

import hashlib

import numpy as np


def experiment_rng(key: str, seed: int) -> np.random.Generator:
    """Return the generator of one experiment: it depends on key and seed alone."""
    # A digest of the key separates the streams: adding or reordering experiments
    # changes no result of another one.
    words = np.frombuffer(hashlib.sha256(key.encode()).digest()[:16], dtype=np.uint32)
    spawn_key = tuple(int(word) for word in words)
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=spawn_key))


def drawn_seed(rng: np.random.Generator) -> int:
    """Draw a seed, for functions that take a seed instead of a generator."""
    return int(rng.integers(2**63))
