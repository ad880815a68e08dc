"""A sample that no machine can hold is refused with a sentence, by every law."""

import numpy as np
import pytest

from eigenheads.datasets import (
    GaussianPrompts,
    SignalTokens,
    SingleLocation,
    SpikedWishartPrompts,
)

LAWS = (
    GaussianPrompts(np.eye(3) + np.diag([1.0, 0.0, 0.0]), 10),
    SpikedWishartPrompts(3, 10, degrees_of_freedom=4),
    SignalTokens(3, n_informative=2, n_nuisance=8, strength=1.0),
    SingleLocation(d=5, n_tokens=10, gamma=1.0, noise=0.1),
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: type(law).__name__)
def test_too_large_a_sample_gets_a_sentence(law):
    owner = rf"{type(law).__name__}\.sample: `n` must be so small that a sample"
    with pytest.raises(ValueError, match=owner + ".* simulate_.* needs no such"):
        law.sample(10**12, np.random.default_rng(0))
