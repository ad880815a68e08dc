"""JAX's random numbers, to replay the draws of programs that use them.

Threefry with two words and twenty rounds (Salmon et al. 2011), and JAX's ways to split
a key and to draw normals. In JAX 0.5 the counters changed ("partitionable"), so that
one seed gives other numbers before and after it.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv

from eigenheads.extend import FloatArray

Words = NDArray[np.uint32]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry(key: Words, first: Words, second: Words) -> tuple[Words, Words]:
    """Encrypt counters of two words each with a key of two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):
        x, y = first + keys[0], second + keys[1]
        for number in range(5):
            for turn in _ROTATIONS[number % 2]:
                x = x + y
                y = (y << np.uint32(turn) | y >> np.uint32(32 - turn)) ^ x
            x = x + keys[(number + 1) % 3]
            y = y + keys[(number + 2) % 3] + np.uint32(number + 1)
    return x, y


def _words(key: Words, n: int, *, partitionable: bool) -> tuple[Words, Words]:
    """Encrypt the counters of `n` pairs of words, in JAX's order."""
    if partitionable:
        return threefry(key, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    counters = np.arange(2 * n, dtype=np.uint32)
    return threefry(key, counters[:n], counters[n:])


def split(key: Words, n: int = 2, *, partitionable: bool) -> Words:
    """Return `n` new keys, as ``jax.random.split``."""
    pair = _words(key, n, partitionable=partitionable)
    if partitionable:
        return np.stack(pair, axis=1)
    return np.concatenate(pair).reshape(n, 2)


def normal(key: Words, shape: tuple[int, ...], *, partitionable: bool) -> FloatArray:
    """Return standard normals, as ``jax.random.normal`` in single precision."""
    n = int(np.prod(shape))
    if partitionable:
        x, y = _words(key, n, partitionable=True)
        drawn = x ^ y
    else:
        # An odd number of words is filled up with a counter of zero.
        half = (n + 1) // 2
        counters = np.append(np.arange(n, dtype=np.uint32), np.zeros(n % 2, np.uint32))
        drawn = np.concatenate(threefry(key, counters[:half], counters[half:]))[:n]
    unit = (drawn >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32)
    least = np.nextafter(np.float32(-1), np.float32(0))
    width = np.float32(1) - least
    uniform = np.maximum(least, (unit - np.float32(1)) * width + least)
    roots = erfinv(uniform.astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(np.sqrt(2)) * roots, np.float64).reshape(shape)
