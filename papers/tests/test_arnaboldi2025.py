"""Claims of arnaboldi2025 at preset smoke, and what would make them fail."""

import math

import numpy as np
import pytest

import eigenheads_papers.arnaboldi2025.gain as gain
import eigenheads_papers.arnaboldi2025.transition as transition_module
from eigenheads.models import verify
from eigenheads_papers import experiment_keys, get_experiment
from eigenheads_papers._core import Run
from eigenheads_papers._run import draw_experiment, experiment_rng
from eigenheads_papers.arnaboldi2025._landscape import (
    corners,
    escape_curvatures,
    quadrature_risk,
    transition,
)
from eigenheads_papers.arnaboldi2025._models import attention_model, recovered
from eigenheads_papers.arnaboldi2025.phase_diagram import REGIONS, classify

KEYS = [key for key in experiment_keys() if key.startswith("arnaboldi2025/")]


@pytest.mark.slow
@pytest.mark.parametrize("key", KEYS)
def test_claims_are_as_on_record_and_figures_repeat(key):
    experiment = get_experiment(key)
    params = experiment.presets["smoke"]
    table = experiment.simulate(params, experiment_rng(key, 0))
    run = Run(params, table)
    assert [
        claim.statement for claim in experiment.check(run) if claim.is_changed
    ] == []
    assert draw_experiment(experiment, run) == draw_experiment(experiment, run)


def test_the_transition_of_the_paper():
    assert transition(1.0, loss="half_square") == pytest.approx(0.641, abs=5e-4)
    # The distance, on which the authors train, turns a little earlier.
    assert transition(1.0, loss="frobenius") == pytest.approx(0.628, abs=1e-3)


def test_derivatives_at_the_corners_are_those_of_the_risk():
    omega, a, h = 0.7, 0.9, 0.05
    found = corners(np.array([omega]), a)

    def at(e, m):
        return quadrature_risk(e, m, omega, a)

    assert found.deeper[0] == pytest.approx(at(1, 0) - at(0, 1), abs=1e-4)
    curvatures = [2 * (at(h, 0) - at(0, 0)) / h**2, 2 * (at(0, h) - at(0, 0)) / h**2]
    assert found.steepest[0] == pytest.approx(curvatures[0] - curvatures[1], abs=2e-3)
    other = escape_curvatures(omega, a, loss="half_square")
    assert curvatures == pytest.approx([other.positional, other.semantic], abs=2e-3)


def test_all_regions_occur_in_the_order_of_omega():
    row = classify(np.linspace(0.4, 1.0, 200), 1.0)
    seen = [list(REGIONS.values())[int(n)] for n in dict.fromkeys(row) if n >= 0]
    assert seen == [
        "unique semantic minimum",
        "global semantic minimum",
        "global semantic minimum, positional dynamics",
        "global positional minimum",
        "unique positional minimum",
    ]


def test_the_probability_of_the_escape_falls_and_sharpens():
    shares = {
        d: [transition_module.escape_probability(w, d, 0.05) for w in (0.5, 0.62, 0.8)]
        for d in (100, 10**6)
    }
    for values in shares.values():
        assert values == sorted(values, reverse=True)
    assert shares[10**6][0] > shares[100][0]
    assert shares[10**6][2] < shares[100][2]


def test_recovery_is_interpolated_and_may_never_happen():
    curves = np.array([[0.0, 0.2, 0.6], [0.0, 0.1, 0.2]])
    times = recovered(curves, np.array([0.0, 10.0, 20.0]), 0.4)
    assert times[0] == pytest.approx(15.0)
    assert math.isinf(times[1])


def test_an_exponent_is_a_slope():
    lengths = np.array([1.0, 2.0, 4.0])
    assert gain._exponent(lengths, 3 * lengths**2) == pytest.approx(2.0)


@pytest.mark.slow
def test_the_declared_model_is_simulated_exactly():
    assert verify(attention_model("half_square"), d=6).passed
