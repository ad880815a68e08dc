"""Theory of signal recovery against its definitions, limits and Monte Carlo."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from eigenheads.datasets import SignalTokens
from eigenheads.functional import signal_output, signal_output_gradient
from eigenheads.theory import (
    SignalLandscape,
    SignalSteps,
    pooled_pca_alignment,
    pooled_pca_threshold,
    random_alignment,
    signal_mean_dynamics,
    signal_steps,
)

LAW = {"d": 100, "n_informative": 100, "n_nuisance": 1000, "strength": 0.25}


def population(*, fraction, amplitude):
    """Infinitely many tokens of this share and amplitude."""
    law = SignalTokens(d=4, n_informative=1, n_nuisance=1, strength=amplitude / 2)
    return SignalLandscape(law, infinite=True, fraction=fraction)


def finite(**fields):
    return SignalLandscape(SignalTokens(**fields))


def chosen_steps(error=1e-3, n_steps=None, **fields):
    return signal_steps(SignalTokens(**fields), error=error, n_steps=n_steps)


def mean_path(start, *, step_size, n_steps, record_every=1, batch_size=1, **fields):
    return signal_mean_dynamics(
        SignalTokens(**fields),
        start,
        step_size=step_size,
        n_steps=n_steps,
        record_every=record_every,
        batch_size=batch_size,
    )


shares = st.floats(0, 1)
amplitudes = st.floats(0, 20)
alignments = st.floats(-1, 1)


@given(alignments, shares, amplitudes)
def test_objective_is_the_squared_length_of_the_tilted_mean(t, pi, a):
    # Tilting by e^{q·x}: nuisance mean q, informative mean q ± A u with weight e^{±At}.
    weights = np.array([1 - pi, pi / 2 * np.exp(a * t), pi / 2 * np.exp(-a * t)])
    shift = weights @ np.array([0.0, a, -a]) / weights.sum()
    output = np.array([t + shift, math.sqrt(1 - t * t)])
    ours = population(fraction=pi, amplitude=a).objective(t)
    assert_allclose(ours, output @ output, rtol=1e-10)


@given(st.floats(-0.99, 0.99), shares, st.floats(0, 8))
def test_gradient_is_the_derivative(t, pi, a):
    h = 1e-5
    ahead, back = (
        population(fraction=pi, amplitude=a).objective(t + s) for s in (h, -h)
    )
    slope = population(fraction=pi, amplitude=a).gradient(t)
    # Central differences: h² times a third derivative of size A⁵.
    assert_allclose(slope, (ahead - back) / (2 * h), rtol=1e-5, atol=1e-5)


@given(alignments, shares, amplitudes)
def test_objective_is_even_and_its_slope_points_away_from_zero(t, pi, a):
    options = {"fraction": pi, "amplitude": a}
    assert population(**options).objective(-t) == pytest.approx(
        float(population(**options).objective(t)), rel=1e-12
    )
    assert population(**options).gradient(t) * t >= 0


@pytest.mark.parametrize("a", [1e3, 1e10, 1e40])
def test_huge_amplitudes_do_not_overflow(a):
    # All attention on one sign: m = A, J = (1 + A)² at t = 1.
    ours = population(fraction=0.01, amplitude=a).objective(1.0)
    assert_allclose(ours, (1 + a) ** 2, rtol=1e-12)
    slope = population(fraction=0.01, amplitude=a).gradient(1.0)
    assert_allclose(slope, 2 * a, rtol=1e-12)


def test_nothing_informative_or_no_amplitude_is_flat():
    t = np.linspace(-1, 1, 5)
    for options in (
        {"fraction": 0.0, "amplitude": 9.0},
        {"fraction": 0.3, "amplitude": 0},
    ):
        assert_allclose(population(**options).objective(t), 1.0)
        assert_allclose(population(**options).gradient(t), 0.0)


@given(st.floats(0.01, 1), st.floats(0.1, 5))
def test_escape_rate_is_the_curvature_at_zero(pi, a):
    h = 1e-6
    slope = population(fraction=pi, amplitude=a).gradient(h)
    rate = population(fraction=pi, amplitude=a).escape_rate
    assert float(slope) / h == pytest.approx(rate, rel=1e-6)


def test_fixed_points_are_three_with_the_flows_own_rates():
    low, zero, high = population(fraction=0.1, amplitude=2.0).fixed_points()
    assert (low.alignment, zero.alignment, high.alignment) == (-1, 0, 1)
    assert (low.kind, zero.kind, high.kind) == ("sink", "source", "sink")
    # Two derivations: eigenvalue of the velocity, and decay of the flow itself.
    path = population(fraction=0.1, amplitude=2.0).flow(
        0.999, times=np.linspace(0, 1.0, 201)
    )
    error = 1 - path["alignment"][0]
    decay = np.log(error[100] / error[50]) / (path.steps[100] - path.steps[50])
    assert decay == pytest.approx(high.rate, rel=1e-2)
    start = population(fraction=0.1, amplitude=2.0).flow(
        1e-6, times=np.linspace(0, 1.0, 201)
    )["alignment"]
    assert np.log(start[0, -1] / start[0, 0]) == pytest.approx(zero.rate, rel=1e-6)
    kinds = {
        point.kind for point in population(fraction=0.0, amplitude=1.0).fixed_points()
    }
    assert kinds == {"neutral"}


def test_escape_time_is_the_flows():
    options = {"fraction": 0.05, "amplitude": 3.0}
    time = float(population(**options).escape_time(0.01, level=0.7))
    path = population(**options).flow([0.01, -0.01], times=np.linspace(0, time, 201))
    assert_allclose(path.final("alignment"), [0.7, -0.7], rtol=1e-7)
    # Near zero growth is exponential.
    early = float(population(**options).escape_time(1e-8, level=1e-4))
    rate = population(**options).escape_rate
    assert early == pytest.approx(math.log(1e4) / rate, rel=1e-6)


def test_escape_time_at_the_borders():
    options = {"fraction": 0.05, "amplitude": 3.0}
    times = population(**options).escape_time([0.0, 0.6, 1.0])
    assert_allclose(times, [math.inf, 0.0, 0.0])
    assert population(fraction=0.0, amplitude=3.0).escape_time(0.1) == math.inf


def test_random_alignment_in_three_dimensions_is_uniform():
    # Archimedes: q·u is uniform on [-1, 1].
    for quantile in (0.1, 0.5, 0.9):
        assert random_alignment(3, quantile=quantile) == pytest.approx(quantile)
    assert random_alignment(10**8) * 1e4 == pytest.approx(0.6745, rel=1e-3)


def monte_carlo(t, law, rng, n):
    q = np.zeros(law.d)
    q[:2] = t, math.sqrt(1 - t * t)
    tokens = law.sample(n, rng).tokens
    options = {"inverse_temperature": law.inverse_temperature}
    output = signal_output(tokens, q, **options)
    gradient = signal_output_gradient(tokens, q, **options)
    return np.sum(output**2, axis=1), gradient


@pytest.mark.parametrize("signs", ["random", "fixed"])
@pytest.mark.parametrize("t", [0.0, 0.5, 1.0])
def test_finite_theory_is_monte_carlo(rng, t, signs):
    # β = 0.5: e^{4β²}/n = 0.01. Standard errors of 300 prompts are below 2 percent
    # for the objective and 4 for slope and noise; five of them and 3 percent of order
    # 1/n: false failure below 1e-5.
    fields = {"d": 60, "n_informative": 50, "n_nuisance": 250, "strength": 0.4}
    fields |= {"signs": signs, "inverse_temperature": 0.5}
    squares, gradient = monte_carlo(t, SignalTokens(**fields), rng, 300)
    error = squares.std() / math.sqrt(300)
    expected = finite(**fields).objective(t)
    assert abs(squares.mean() - expected) < 5 * error + 0.03 * expected
    # The gradient's mean is J_n' u up to a multiple of q.
    tangent = gradient[:, 0] - t * (gradient[:, :2] @ [t, math.sqrt(1 - t * t)])
    if t < 1:
        error = tangent.std() / math.sqrt(300)
        expected = (1 - t * t) * finite(**fields).gradient(t)
        assert abs(tangent.mean() - expected) < 5 * error + 0.03 * abs(expected)
    outside = np.sum(gradient[:, 2:] ** 2, axis=1)
    error = outside.std() / math.sqrt(300)
    expected = finite(**fields).noise(t)
    # The noise is a fourth moment: its next order is larger, some 5 percent here.
    assert abs(outside.mean() - expected) < 5 * error + 0.1 * expected


def test_many_tokens_give_the_population_limit():
    t = np.linspace(-1, 1, 9)
    fields = {"d": 100, "n_informative": 10**9, "n_nuisance": 10**11, "strength": 0.3}
    limits = {"fraction": 1 / 101, "amplitude": 3.0}
    assert_allclose(
        finite(**fields).objective(t),
        population(**limits).objective(t),
        rtol=1e-8,
    )
    path = finite(**fields).flow(0.1, times=np.linspace(0, 20, 201))
    limit = population(**limits).flow(0.1, times=np.linspace(0, 20.0, 201))
    assert_allclose(path["alignment"], limit["alignment"], atol=1e-6)


@pytest.mark.parametrize("signs", ["random", "fixed"])
@pytest.mark.parametrize("share", [0.1, 0.7])
def test_finite_slope_and_escape_rate_are_derivatives(signs, share):
    fields = {
        "d": 100,
        "n_informative": round(1000 * share),
        "strength": 0.2,
        "signs": signs,
    }
    fields |= {"n_nuisance": round(1000 * (1 - share)), "inverse_temperature": 0.7}
    h, t = 1e-5, np.linspace(-0.9, 0.9, 7)
    ahead, back = (finite(**fields).objective(t + s) for s in (h, -h))
    slope = finite(**fields).gradient(t)
    assert_allclose(slope, (ahead - back) / (2 * h), rtol=1e-6, atol=1e-8)
    curvature = np.diff(finite(**fields).gradient([-h, h]))[0] / (2 * h)
    drift = float(finite(**fields).gradient(0.0))
    rate = finite(**fields).escape_rate
    assert rate == pytest.approx(max(curvature, drift), rel=1e-6)


def test_the_extra_term_is_the_one_that_was_simulated_before():
    # n = 2000, d = 400, πA² = 0.4: population 1.92, with the extra term 2.35.
    fields = {"d": 400, "n_informative": 200, "n_nuisance": 1800, "strength": 0.1}
    assert population(fraction=0.1, amplitude=2.0).escape_rate == pytest.approx(1.92)
    assert finite(**fields).escape_rate == pytest.approx(2.353, abs=1e-3)


def test_small_constant_steps_end_at_the_noise_floor():
    conditions = finite(**LAW)
    step = 1e-2 * conditions.return_rate / conditions.noise(1.0)
    path = mean_path(0.99, **LAW, step_size=step, n_steps=4000, record_every=4000)
    left = float(1 - path.final("alignment")[0])
    assert left == pytest.approx(conditions.error(step), rel=0.02)
    # A batch of ten prompts leaves a tenth.
    path = mean_path(
        0.99, **LAW, step_size=step, n_steps=4000, record_every=4000, batch_size=10
    )
    assert 1 - path.final("alignment")[0] == pytest.approx(left / 10, rel=0.03)


def test_mean_path_without_noise_is_the_flow():
    # Steps of 1e-3, so errors of that order; noise of many tokens is nil.
    fields = {"d": 100, "n_informative": 10**9, "n_nuisance": 10**10, "strength": 0.2}
    path = mean_path(
        [0.1, -0.2], **fields, step_size=1e-3, n_steps=3000, record_every=1000
    )
    flow = finite(**fields).flow([0.1, -0.2], times=1e-3 * path.steps)
    assert_allclose(path["alignment"], flow["alignment"], atol=3e-3)


@pytest.mark.parametrize("strength", [0.25, 1.0])
@pytest.mark.parametrize("d", [100, 10**6])
def test_rule_does_what_it_says(d, strength):
    fields = {"d": d, "n_informative": 100, "n_nuisance": 3000, "strength": strength}
    fields["inverse_temperature"] = 2.5 / (strength * math.sqrt(d))
    steps, c = chosen_steps(**fields), finite(**fields)
    assert steps.obeys_robbins_monro
    first = 0.5 * min(1 / c.escape_rate, c.escape_rate / c.noise(0.0))
    assert steps(0) == pytest.approx(first)
    assert steps(0) < c.largest_start
    assert c.error(steps(steps.n_steps)) == pytest.approx(1e-3, rel=1e-2)
    needed = (math.log(d) / 2 + 2) / c.escape_rate
    needed += math.log(1e3) / (2 * c.return_rate)
    total = sum(steps(index) for index in range(steps.n_steps))
    assert total == pytest.approx(2 * needed, rel=0.15)  # a sum for an integral
    # Given its own number of steps, the rule finds the same decay.
    again = chosen_steps(**fields, n_steps=steps.n_steps)
    assert again.decay_steps == pytest.approx(steps.decay_steps, rel=1e-2)
    assert chosen_steps(**fields, n_steps=1).decay_steps == math.inf


def test_robbins_monro_is_told_from_what_breaks_it():
    made = [SignalSteps(0.1, 10.0, 100, power) for power in (0.0, 0.5, 0.6, 1.0, 2.0)]
    assert [steps.obeys_robbins_monro for steps in made] == [
        False,
        False,
        True,
        True,
        False,
    ]
    assert not SignalSteps(0.1, math.inf, 100).obeys_robbins_monro
    assert SignalSteps(0.1, math.inf, 100)(7) == 0.1


def test_escape_steps_are_those_of_the_best_step():
    c = finite(**LAW)
    gains = [
        a * c.escape_rate - a * a * c.noise(0.0) / 2
        for a in np.linspace(1e-4, 1 / c.escape_rate, 4001)
    ]
    best = math.log(100) / 2 / max(gains)
    assert c.escape_steps() == pytest.approx(best, rel=1e-3)


def test_pca_threshold_and_alignment_meet():
    options = {"fraction": 0.01, "d": 100, "n_samples": 10_000}
    theta = float(pooled_pca_threshold(**options))
    at = [0.99 * theta, theta, 1.01 * theta]
    ours = pooled_pca_alignment(amplitude=10 * np.array(at), **options)
    assert ours[0] == 0
    assert ours[1] < 1e-6
    assert ours[2] > 0.1
    assert pooled_pca_alignment(amplitude=1e9, **options) == pytest.approx(1.0)
    assert pooled_pca_threshold(fraction=0.0, d=9, n_samples=9) == math.inf


def test_pca_alignment_is_that_of_a_large_sample(rng):
    # d = 300, n = 3000: fluctuations are of order 1/√d, 0.02 here; five of them.
    law = SignalTokens(d=300, n_informative=300, n_nuisance=2700, strength=0.3)
    tokens = law.sample(1, rng).tokens[0]
    top = np.linalg.eigh(tokens.T @ tokens)[1][:, -1]
    theory = pooled_pca_alignment(
        fraction=0.1, amplitude=law.amplitude, d=300, n_samples=3000
    )
    assert abs(top[0]) == pytest.approx(float(theory), abs=0.03)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: population(fraction=0.1, amplitude=1.0).objective(2.0),
            "`alignment` must",
        ),
        (
            lambda: population(fraction=1.5, amplitude=1.0).objective(0.0),
            "`fraction` must",
        ),
        (
            lambda: SignalLandscape(SignalTokens(**LAW), infinite="yes"),
            "`infinite` must be True or False; got 'yes'",
        ),
        (
            lambda: finite(**LAW).fixed_points(),
            "fixed_points: `infinite` must be True; got False",
        ),
        (
            lambda: finite(**LAW, signs="fixed").escape_time(0.1),
            "`law` must be a law with random signs; got signs='fixed'",
        ),
        (
            lambda: population(fraction=0.1, amplitude=1.0).flow(
                [[0.1]], times=np.linspace(0, 1.0, 201)
            ),
            "`start` must be one number or of shape",
        ),
        (
            lambda: population(fraction=0.1, amplitude=1.0).flow(
                1.1, times=np.linspace(0, 1.0, 201)
            ),
            "`start` must be from -1 to 1; got 1.1",
        ),
        (
            lambda: population(fraction=0.1, amplitude=1.0).escape_time(0.1, level=1.0),
            "`level` must be below 1",
        ),
        (
            lambda: population(fraction=0.1, amplitude=1.0).escape_time(1.2),
            "`start` must be from -1 to 1",
        ),
        (lambda: random_alignment(1), "`d` must be an integer >= 2"),
        (lambda: random_alignment(5, quantile=2), "`quantile` must be a finite number"),
        (
            lambda: finite(**LAW | {"signs": "odd"}).objective(0.0),
            "`signs` must be one of 'random', 'fixed'",
        ),
        (
            lambda: finite(**LAW, inverse_temperature=6.0).gradient(0.0),
            "`law` must be a law with inverse_temperature <= 5: the expansion",
        ),
        (
            lambda: finite(**LAW | {"strength": 1e40}).noise(0.0),
            "`law` must be a law with strength·√d <= ",
        ),
        (
            lambda: finite(**LAW).flow(0.1, times=[1.0, 2.0]),
            "`times` must be at least two increasing times, the first 0",
        ),
        (
            lambda: mean_path([[0.1]], **LAW, step_size=0.1, n_steps=3),
            "`start` must be one number or of shape",
        ),
        (
            lambda: mean_path(0.1, **LAW, step_size=0.1, n_steps=3, record_every=4),
            "`record_every` must be an integer from 1 to 3; got 4",
        ),
        (
            lambda: chosen_steps(**LAW | {"strength": 0.0}),
            "`law` must be a law with strength > 0 and .* got 0.0 with 100 informative",
        ),
        (
            lambda: chosen_steps(**LAW | {"d": 2}),
            "`law` must be a law with d >= 3; got d=2",
        ),
        (
            lambda: chosen_steps(**LAW, error=0.0),
            "`error` must be a finite number from",
        ),
        (lambda: chosen_steps(**LAW, n_steps=0), "`n_steps` must be an integer >= 1"),
        (
            lambda: pooled_pca_alignment(fraction=-1, amplitude=1, d=9, n_samples=9),
            "`fraction` must be",
        ),
        (
            lambda: pooled_pca_threshold(fraction=1, d=0.5, n_samples=9),
            "`d` must be",
        ),
    ],
)
def test_bad_arguments_get_a_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.timeout(60)
@pytest.mark.parametrize("duration", [5e-324, 1e-200, 1e-100, 1e-9])
@pytest.mark.parametrize("infinite", [True, False])
def test_flows_of_tiny_duration_end(duration, infinite):
    # The integrator never returned for 1e-200.
    law = SignalTokens(d=100, n_informative=10, n_nuisance=90, strength=0.5)
    landscape = SignalLandscape(law, infinite=infinite)
    path = landscape.flow(0.1, times=[0.0, duration])["alignment"][0]
    # The velocity is (1 − t²) J'(t), at t = 0.1.
    moved = 0.99 * duration * float(landscape.gradient(0.1))
    assert path[1] == pytest.approx(0.1 + moved, rel=1e-12)
