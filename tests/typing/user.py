"""What a user writes, for the type checker alone (`make check`); it never runs.

Right calls must pass in strict mode. Of a wrong one mypy must complain: an ignored
error that is none is an error itself (``warn_unused_ignores``).
"""

from typing import assert_type

import numpy as np
from numpy.typing import NDArray

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import RobustPCA, SingleLocationRegressor
from eigenheads.models import simulate_location
from eigenheads.theory import LocationLandscape
from eigenheads_papers import Claim, Result, reproduce


def right() -> None:
    law = SingleLocation(d=40, n_tokens=10)
    bags, targets, _ = law.sample(100, np.random.default_rng(0))
    model = SingleLocationRegressor(alpha=0.1).fit(bags, targets)
    assert_type(model, SingleLocationRegressor)
    assert_type(RobustPCA().fit(bags[0]), RobustPCA)
    paths = simulate_location(
        law,
        inverse_temperature=lambda step: 1 / (1 + step),
        step_size=1e-3,
        batch_size=5,
        n_steps=10,
        n_runs=2,
        record_every=5,
        seed=0,
    )
    assert_type(paths["kappa"], NDArray[np.float64])
    landscape = LocationLandscape(law, inverse_temperature=1.0)
    assert_type(landscape.risk(1, 1, theta=[0.0, 0.1]), NDArray[np.float64])
    results: list[Result] = reproduce("marion2025/fig5", preset="smoke")
    assert_type(results[0].claims, tuple[Claim, ...])


def wrong() -> None:
    SingleLocation(dimension=3)  # type: ignore[call-arg]
    SingleLocationRegressor(penalty=1)  # type: ignore[call-arg]
    law = SingleLocation(d=40, n_tokens="ten")  # type: ignore[arg-type]
    simulate_location(law, n_steps=10)  # type: ignore[call-arg]
    LocationLandscape(law)  # type: ignore[call-arg]
