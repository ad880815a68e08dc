"""Laws of bags: shapes, frequencies, and oracles that nothing can beat."""

import numpy as np
import pytest
from sklearn.metrics import log_loss

from eigenheads.datasets import BagLaw

CLASSES = ["witness", "two kinds", "ring", "xor", "both"]


@pytest.mark.parametrize("name", CLASSES)
def test_the_oracle_is_calibrated(name, rng):
    """Its log loss is the mean entropy of its own probabilities."""
    law = BagLaw(name, d=5, n_tokens=6)
    tokens, targets, _ = law.sample(8000, rng)
    p = np.clip(law.oracle(tokens), 1e-12, 1 - 1e-12)
    entropy = -(p * np.log(p) + (1 - p) * np.log(1 - p))
    surprise = -np.log(np.where(targets > 0, p, 1 - p))
    gap = surprise - entropy
    # "both" leaves out pairs of one token; else four standard errors.
    room = 4 * gap.std() / np.sqrt(len(gap)) + 0.01 * (name == "both")
    assert abs(gap.mean()) < room
    assert log_loss(targets, p) < np.log(2) - 0.1


def test_the_sum_is_nearly_recovered(rng):
    law = BagLaw("sum", d=5, n_tokens=12)
    tokens, targets, _ = law.sample(4000, rng)
    error = np.mean((law.oracle(tokens) - targets) ** 2)
    assert 0.24 < error < 0.4  # noise 0.25, and few tokens that are not told apart
    assert np.var(targets) > 2


@pytest.mark.parametrize("name", [*CLASSES, "sum"])
def test_deciding_tokens_are_where_they_are_said_to_be(name, rng):
    law = BagLaw(name, d=4, n_tokens=5)
    tokens, targets, places = law.sample(3000, rng)
    assert tokens.shape == (3000, 5, 4)
    has = places >= 0
    shifted = np.linalg.norm(tokens[has, places[has]], axis=1).mean()
    others = np.linalg.norm(tokens[has, (places[has] + 1) % 5], axis=1).mean()
    assert shifted > others + 0.5
    if name in ("witness", "two kinds", "ring", "both"):
        assert (has == (targets > 0)).all()


def test_samples_of_one_law_share_the_frame():
    first, second = BagLaw("ring", frame_seed=3), BagLaw("ring", frame_seed=3)
    assert (first.frame == second.frame).all()
    np.testing.assert_allclose(first.frame.T @ first.frame, np.eye(20), atol=1e-12)
    with pytest.raises(ValueError, match="`law` must be one of"):
        BagLaw("square")
