"""Mean dynamics against exact maps, closed forms and simulation."""

import numpy as np
import pytest
from tests.models import declared_models as declared

from eigenheads.models import Model, Token, mean_dynamics, simulate


def line(X, w, u, g, p):
    """Least squares: overlaps of one update have means in closed form."""
    return (X[0] @ w.k - X[0] @ u.key) ** 2


@pytest.fixture(scope="module")
def regression():
    return Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())


def squared_error(paths):
    return paths["k.k"] - 2 * paths["k.key"] + 1


@pytest.mark.parametrize("batch_size", [1, 3])
def test_least_squares_follows_its_exact_map(regression, batch_size):
    d, rate, n = 30, 0.01, 20
    paths = mean_dynamics(
        regression,
        d=d,
        start={"k.key": 0.2, "k.k": 0.5},
        step_size=rate,
        batch_size=batch_size,
        n_steps=n,
        record_every=1,
        stride=1,
        n_samples=20_000,
    )
    # E x xᵀ x xᵀ = (d + 2) I: the squared error shrinks by this factor per update.
    second = (d + 2) / batch_size + (1 - 1 / batch_size)
    factor = 1 - 4 * rate + 4 * rate**2 * second
    expected = squared_error(paths)[0, 0] * factor ** np.arange(n + 1)
    np.testing.assert_allclose(squared_error(paths)[0], expected, rtol=0.01)
    expected = 1 - 0.8 * (1 - 2 * rate) ** np.arange(n + 1)
    np.testing.assert_allclose(paths["k.key"][0], expected, rtol=0.01)


def test_without_noise_it_is_descent_on_the_risk(regression):
    rate, n = 0.05, 40
    paths = mean_dynamics(
        regression,
        d=50,
        start={"k.key": 0.0, "k.k": 1.0},
        step_size=rate,
        n_steps=n,
        record_every=10,
        stride=1,
        noise=False,
        n_samples=20_000,
    )
    expected = 2.0 * (1 - 2 * rate) ** (2 * paths.steps)
    np.testing.assert_allclose(squared_error(paths)[0], expected, rtol=0.1, atol=2e-3)


def test_noise_terms_and_band_describe_the_simulation(rng_seed):
    model = declared.two_heads_model()
    start = {"k1.key1": 0.6, "k1.key2": 0.1, "k2.key1": 0.1, "k2.key2": 0.5}
    start |= {"v.value": 0.5, "k1.k1": 0.6, "k2.k2": 0.6, "k1.k2": 0.1}
    options = {"d": 200, "step_size": 0.005, "n_steps": 600, "record_every": 200}
    paths = simulate(model, start=start, n_runs=300, seed=rng_seed, **options)
    theory = mean_dynamics(model, start=start, band=True, stride=20, **options)
    without = mean_dynamics(model, start=start, noise=False, stride=20, **options)
    for name in model.overlaps:
        values = paths[name][:, -1]
        error = abs(values.mean() - theory[name][0, -1])
        # 2 % of what the overlaps are (order 1), and the noise of the mean.
        assert error < 0.02 + 5 * values.std() / 300**0.5, name
        deviation = theory[f"{name}_deviation"][0, -1]
        assert deviation == pytest.approx(values.std(), rel=0.3, abs=0.004), name
    gaps = [
        abs(paths["v.value"][:, -1].mean() - curve["v.value"][0, -1])
        for curve in (theory, without)
    ]
    assert gaps[1] > 5 * gaps[0]


def test_starts_come_from_a_simulation(regression):
    options = {"d": 40, "step_size": 0.005, "n_steps": 4, "record_every": 2}
    paths = simulate(regression, n_runs=3, seed=0, **options)
    theory = mean_dynamics(regression, start=paths, **options)
    np.testing.assert_allclose(theory["k.key"][:, 0], paths["k.key"][:, 0])
    assert theory["k.key"].shape == (3, 3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"start": 3.0}, "`start` must be a mapping"),
        ({"stride": 0}, "`stride` must be an integer"),
        ({"n_samples": 1}, "`n_samples` must be an integer"),
        ({"step_size": 1e200}, "so small that the mean dynamics stay finite"),
        ({"d": 1}, "`d` must be an integer from 2"),
    ],
)
def test_bad_input_gets_a_sentence(regression, options, sentence):
    setting = {"d": 9, "start": {}, "step_size": 0.1, "n_steps": 4, "record_every": 2}
    with pytest.raises((ValueError, TypeError), match=sentence) as caught:
        mean_dynamics(regression, **(setting | options))
    assert str(caught.value).startswith("mean_dynamics: ")


def test_a_long_stride_stays_among_overlaps_that_vectors_have():
    # Strides of 0.2 units of time are far too long, and must not run away.
    model = declared.location_model()
    start = {"k.key": 0.8, "v.value": 0.9}
    paths = mean_dynamics(
        model,
        d=100,
        start=start,
        step_size=0.01,
        n_steps=2000,
        record_every=500,
        stride=20,
        noise=False,
        n_samples=1000,
    )
    assert np.all(np.abs(paths["v.value"]) <= 1 + 1e-9)
    assert np.all(np.abs(paths["k.v"]) <= 1 + 1e-9)


def test_long_strides_follow_fast_directions():
    """The overlap relaxes by 4 % per update: strides of 200 would be unstable.

    From the first record on, both paths are within 1 % of their limit.
    """

    def line(X, w, u, g, p):
        return (X[0] @ w.k - X[0] @ u.key) ** 2

    model = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
    run = {"d": 50, "start": {"k.k": 0.0}, "step_size": 0.02, "n_steps": 800}
    long, short = (
        mean_dynamics(model, **run, record_every=200, noise=False, stride=stride)
        for stride in (200, 1)
    )
    np.testing.assert_allclose(long["k.key"], short["k.key"], atol=0.03)
    assert abs(short["k.key"][0, 1] - 1) < 0.02
