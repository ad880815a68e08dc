"""Random generators from seeds: the one place where seeds become generators.

A place (run, head, chunk, …) has a stream of its own, which depends on the seed and the
place only: neither threads nor neighbours change a number.
"""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads._checks import check_count, fail

if TYPE_CHECKING:
    import torch


def generator(seed: int | Sequence[int], *place: int) -> np.random.Generator:
    """Return NumPy's default generator of a seed, or of several numbers, and a place.

    Examples
    --------
    >>> bool(generator(0).random() == np.random.default_rng(0).random())
    True
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=place))


def stream(seed: int, *place: int) -> np.random.Generator:
    """Return a fast generator of a seed and a place.

    SFC64 is the fastest of NumPy's bit generators, also inside Numba.

    Examples
    --------
    >>> bool(stream(0, 3).random() == stream(0, 3).random())
    True
    """
    sequence = np.random.SeedSequence(seed, spawn_key=place)
    return np.random.Generator(np.random.SFC64(sequence))


def run_generators(seed: int, n_runs: int) -> list[np.random.Generator]:
    """Return one generator per run: run 7 is the same in 8 runs and in 800."""
    seed = check_count("seed", seed, minimum=0)
    return [stream(seed, run) for run in range(n_runs)]


def derived_seed(*words: int, place: Sequence[int] = (), n_bits: int = 32) -> int:
    """Return a seed of 32 or 64 bits that depends on all `words` and the place.

    Examples
    --------
    >>> derived_seed(0, 1) == derived_seed(0, 1) != derived_seed(1, 0)
    True
    """
    sequence = np.random.SeedSequence(words, spawn_key=tuple(place))
    kind = np.uint64 if n_bits == 64 else np.uint32
    return int(sequence.generate_state(1, kind)[0])


def torch_generator(seed: int) -> "torch.Generator":
    """Return PyTorch's generator of a seed, on the processor."""
    import torch

    return torch.Generator().manual_seed(seed)


def random_source(random_state: Any) -> np.random.RandomState:
    """Return the generator that scikit-learn's `random_state` stands for, or raise.

    Examples
    --------
    >>> random_source(0).randint(10)
    5
    """
    from sklearn.utils import check_random_state

    try:
        return check_random_state(random_state)
    except (ValueError, TypeError):
        contract = "None, an integer from 0 to 2**32 - 1, or a RandomState"
        fail("random_state", contract, random_state)


def check_generator(rng: object) -> np.random.Generator:
    """Return `rng`, or raise unless it is a NumPy generator."""
    if not isinstance(rng, np.random.Generator):
        hint = "np.random.default_rng(0) is one."
        contract = "a numpy.random.Generator"
        fail("rng", contract, rng, hint=hint, error=TypeError)
    return rng


def gaussian_length(rng: np.random.Generator, dof: float) -> float:
    r"""Draw the length of a standard Gaussian vector in :math:`\mathbb R^{dof}`.

    Half its square is a gamma variable: one draw for any dimension. Nothing is drawn,
    and 0 returned, if `dof` <= 0.
    """
    return math.sqrt(2.0 * rng.standard_gamma(0.5 * dof)) if dof > 0 else 0.0
