"""Runs of experiments, and one run per key and seed that several tests look at."""

import dataclasses
import functools

from eigenheads._parallel import threads
from eigenheads_papers import get_experiment
from eigenheads_papers._core import Run, experiment_rng
from eigenheads_papers._records import beside_record


def run(key, seed=0, preset="smoke", **changes):
    """Return parameters, table and claims of a new run."""
    experiment = get_experiment(key)
    params = dataclasses.replace(experiment.presets[preset], **changes)
    table = experiment.simulate(params, experiment_rng(key, seed))
    claims = experiment.check(Run(params, table))
    return params, table, [*beside_record(key, claims)]


def smoke_run(key, seed=0):
    """Return the same of a run with one thread, which tests must not change."""
    # The cache would keep `f(key)` and `f(key, 0)` apart.
    return _smoke_run(key, seed)


@functools.cache
def _smoke_run(key, seed):
    with threads(1):
        return run(key, seed)


def failing(claims):
    """Return the claims whose verdict is not the one on record."""
    return [claim.statement for claim in claims if claim.is_changed]
