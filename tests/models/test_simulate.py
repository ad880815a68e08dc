"""Exact simulation, real vectors and the older simulators have one law."""

import math

import numpy as np
import pytest
from numba import njit
from scipy import stats
from tests.models import declared_models as declared

from eigenheads.datasets import SignalTokens, SingleLocation
from eigenheads.models import (
    Model,
    Token,
    signs,
    simulate,
    simulate_location,
    simulate_signal,
    threads,
)
from eigenheads.models._simulate import wrong_degrees_of_freedom

# Of a whole test, for all its comparisons together.
FALSE_ALARM = 1e-4
GENERIC = {"k.key": 0.4, "v.value": 0.3, "v.key": 0.2, "k.value": -0.3, "k.v": 0.1}
SETTING = {"step_size": 0.12, "batch_size": 2, "n_steps": 4, "record_every": 4}


@pytest.fixture(scope="module")
def location():
    return declared.location_model(gamma=0.3)


def corrected_p_value(left, right, names=None):
    values = [
        stats.ks_2samp(left.final(one), right.final(other), method="asymp").pvalue
        for one, other in (names or {name: name for name in left}).items()
    ]
    return min(values) * len(values)


NAMES = {
    "k.key": "kappa",
    "v.value": "nu",
    "v.key": "theta",
    "k.value": "eta",
    "k.v": "rho",
}


@pytest.mark.parametrize("d", [5, 9])
def test_location_has_the_law_of_simulate_location(rng_seed, location, d):
    law = SingleLocation(d=d, n_tokens=3, gamma=0.3, noise=0.2)
    order = [GENERIC[name] for name in NAMES]
    options = SETTING | {"n_runs": 4000}
    reference = simulate_location(
        law, inverse_temperature=0.6, start=order, seed=rng_seed, **options
    )
    seed = rng_seed + 100
    ours = simulate(location, d=d, start=GENERIC, seed=seed, **options)
    assert corrected_p_value(ours, reference, NAMES) > FALSE_ALARM
    with wrong_degrees_of_freedom(8.0):
        wrong = simulate(location, d=d, start=GENERIC, seed=seed, **options)
    assert corrected_p_value(wrong, reference, NAMES) < FALSE_ALARM


def test_random_starts_are_those_of_the_sphere(rng_seed, location):
    law = SingleLocation(d=6, n_tokens=3, gamma=0.3, noise=0.2)
    options = SETTING | {"n_runs": 3000}
    reference = simulate_location(
        law, inverse_temperature=0.6, seed=rng_seed, **options
    )
    ours = simulate(location, d=6, seed=rng_seed + 1, **options)
    assert corrected_p_value(ours, reference, NAMES) > FALSE_ALARM


RULES = [
    pytest.param({}, id="plain"),
    pytest.param(
        {"momentum": 0.5, "average": 0.3, "weight_decay": 0.1, "step": "normalised"},
        id="momentum, average, decay, normalised",
    ),
]


@pytest.mark.parametrize("rule", [*RULES, pytest.param({"reuse": 2}, id="reuse")])
def test_two_heads_have_the_law_of_real_vectors(rng_seed, rule):
    options = {"d": 12, "step_size": 0.2, "n_steps": 4, "record_every": 4, **rule}
    model = declared.two_heads_model()
    exact = simulate(model, n_runs=3000, seed=rng_seed, **options)
    full = simulate(model, n_runs=120, seed=rng_seed + 9, method="full", **options)
    assert corrected_p_value(exact, full) > FALSE_ALARM


@pytest.mark.parametrize("rule", RULES)
def test_clustering_has_the_law_of_real_vectors(rng_seed, rule):
    options = {"d": 8, "step_size": 0.2, "n_steps": 3, "record_every": 3, **rule}
    model = declared.clustering_model()
    exact = simulate(model, n_runs=3000, batch_size=3, seed=rng_seed, **options)
    full = simulate(
        model, n_runs=150, batch_size=3, seed=rng_seed + 9, method="full", **options
    )
    assert corrected_p_value(exact, full) > FALSE_ALARM


def test_signal_has_the_law_of_simulate_signal(rng_seed):
    d, strength = 8, 0.5
    model = Model(
        declared.signal,
        weights={"q": "sphere"},
        planted=("u",),
        tokens=[
            Token(2, mean={"u": signs(lambda d: strength * math.sqrt(d))}),
            Token(3),
        ],
    )
    options = {"d": d, "step_size": 0.05, "n_steps": 12, "record_every": 12}
    ours = simulate(
        model,
        batch_size=2,
        n_runs=3000,
        parameters={"inverse_temperature": 0.7},
        start={"q.u": 0.3},
        average=lambda t: 4 / (t + 4),
        seed=rng_seed,
        **options,
    )
    law = SignalTokens(d, 2, 3, strength, inverse_temperature=0.7)
    del options["d"]
    reference = simulate_signal(
        law, batch_size=2, n_runs=3000, averaging=True, start=0.3, seed=1, **options
    )
    length = np.sqrt(ours.final("q_average.q_average"))
    pairs = [
        (ours.final("q.u"), reference.final("alignment")),
        (ours.final("q_average.u") / length, reference.final("averaged_alignment")),
    ]
    for one, other in pairs:
        p_value = stats.ks_2samp(one, other, method="asymp").pvalue
        assert p_value > FALSE_ALARM / 2


def test_neither_threads_nor_neighbours_change_a_number(location):
    options = {"d": 10**12, "step_size": lambda t: 1e-15 / (1 + t), "n_steps": 50}
    options |= {"record_every": 10, "seed": 3, "batch_size": 2}
    paths = simulate(location, n_runs=4, **options)
    with threads(1):
        alone = simulate(location, n_runs=2, **options)
    for name in paths:
        np.testing.assert_array_equal(paths[name][:2], alone[name])
        assert np.all(np.abs(paths[name]) < 1e-4)  # random starts in R^(10^12)


def test_arrays_of_a_run_start_with_a_cache_line(location):
    """Misaligned, an update of 1000 tokens takes 5 % longer."""
    space = location.workspace(np.ones((2, 6)), n_axes=4)
    arrays = [space.state, *space.memory, *space.work]
    places = [array.ctypes.data for array in arrays]
    assert not any(place % 64 for place in places)
    ends = [place + array.nbytes for place, array in zip(places, arrays, strict=True)]
    # Far enough from each other that compiled loops need not fear an overlap.
    gaps = [next_ - end for end, next_ in zip(ends, places[1:], strict=False)]
    assert min(gaps) >= 64 * 8
    assert (space.state == 1.0).all()


def test_records_can_be_chosen_and_starts_come_from_a_simulation(location):
    options = {"d": 9, "step_size": 0.1, "n_steps": 2, "record_every": 1, "seed": 0}
    paths = simulate(location, n_runs=3, **options)
    again = simulate(
        location,
        n_runs=3,
        start=paths,
        record=["v.value", "k_velocity.key", "k.k"],
        momentum=0.0,
        **options,
    )
    # Starts are drawn in any case, so the batches are the same; momentum 0 adds rows
    # and draws on their axes, so that only the start is.
    assert list(again) == ["v.value", "k_velocity.key", "k.k"]
    np.testing.assert_allclose(again["v.value"][:, 0], paths["v.value"][:, 0])
    np.testing.assert_allclose(again["k.k"], 1.0)
    np.testing.assert_array_equal(again["k_velocity.key"][:, 0], 0.0)


def test_schedules_of_parameters_are_followed(location):
    options = {"d": 9, "step_size": 0.1, "n_steps": 6, "record_every": 1, "seed": 0}

    def run(value):
        return simulate(
            location, n_runs=2, parameters={"inverse_temperature": value}, **options
        )

    constant, switched = run(0.5), run(lambda t: 0.5 if t < 3 else 2.0)
    np.testing.assert_array_equal(constant["k.v"][:, :4], switched["k.v"][:, :4])
    assert np.all(constant["k.v"][:, 4] != switched["k.v"][:, 4])


def test_an_own_draw_replaces_the_token_law(rng_seed):
    @njit
    def draw(rng, d, mean, scale, latents):
        mean[0, 0] = math.sqrt(d) * (rng.random() < 0.3)
        scale[0] = 0.5

    def line(X, w, u, g, p):
        return (X[0] @ w.k - 1.0) ** 2

    own = Model(
        line, weights={"k": "free"}, planted=("key",), tokens=Token(), draw=draw
    )
    options = {"d": 4, "step_size": 0.05, "n_steps": 4, "record_every": 4}
    exact = simulate(own, seed=rng_seed, n_runs=3000, **options)
    full = simulate(own, seed=0, n_runs=300, method="full", **options)
    assert corrected_p_value(exact, full) > FALSE_ALARM
    assert exact.final("k.key").mean() > 0.1  # the mean was there


BAD = [
    ({"d": 3}, "`d` must be an integer from 4 .* directions: 2; trained vectors: 2"),
    ({"d": 5, "momentum": 0.5}, "trained vectors: 4."),
    ({"step_size": lambda t: "soon"}, "`step_size` must be a schedule .* got 'soon'"),
    (
        {"parameters": {"noise": lambda t: math.nan}},
        "`noise` must be a schedule that returns a finite number; got nan at update 0",
    ),
    ({"parameters": {"nois": 1.0}}, "Did you mean 'noise'"),
    ({"parameters": {"noise": math.inf}}, "must be finite numbers or schedules"),
    ({"start": {"k.key": 1.5}}, "`start` must be overlaps that vectors can have"),
    ({"start": {"k.kay": 0.5}}, "Did you mean 'k.key'"),
    ({"start": {"k.key": [0.1, 0.2, 0.3]}}, r"must be one number or of shape \(2,\)"),
    ({"record": ["k.nothing"]}, "`record` must be overlaps such as"),
    ({"method": "fast"}, "`method` must be one of"),
    ({"step": "long"}, "`step` must be one of"),
    ({"reuse": 0}, "`reuse` must be an integer"),
    ({"batch_size": 0}, "`batch_size` must be an integer"),
    ({"step_size": 1e300}, "so small that no update diverges; got 1e.300 at update"),
]


@pytest.mark.parametrize(("options", "sentence"), BAD)
def test_bad_input_gets_one_sentence(location, options, sentence):
    setting = {"d": 8, "step_size": 0.1, "n_steps": 2, "n_runs": 2, "record_every": 1}
    with pytest.raises(ValueError, match=sentence) as caught:
        simulate(location, **(setting | {"seed": 0} | options))
    assert str(caught.value).startswith("simulate: ")
    assert "\n" not in str(caught.value)


def test_other_bad_input_gets_one_sentence():
    with pytest.raises(TypeError, match="`model` must be a Model"):
        simulate(3, d=8, step_size=0.1, n_steps=2, n_runs=2, record_every=1, seed=0)
    model = declared.clustering_model()
    with pytest.raises(ValueError, match="`reuse` must be 1 for a loss with products"):
        simulate(
            model,
            d=8,
            step_size=0.1,
            n_steps=2,
            n_runs=2,
            record_every=1,
            seed=0,
            reuse=2,
        )


def test_a_loss_that_is_not_finite_at_the_start_is_named():
    def loss(X, w, u, g, p):
        return np.log(-np.abs(X[0] @ w.k))

    model = Model(loss, weights={"k": "free"}, tokens=Token())
    with pytest.raises(ValueError, match="whose loss is finite at the start; got nan"):
        simulate(model, d=4, step_size=0.1, n_steps=2, n_runs=1, record_every=1, seed=0)


def test_real_vectors_that_diverge_are_named():
    # At weights of 1e27 a difference with a fixed step would be 0: no overflow, ever.
    def loss(X, w, u, g, p):
        return (X[0] @ w.k) ** 4

    model = Model(loss, weights={"k": "free"}, tokens=Token())
    setting = {"d": 4, "step_size": 1e6, "n_steps": 20, "n_runs": 1, "record_every": 5}
    with pytest.raises(ValueError, match="so small that no update diverges"):
        simulate(model, method="full", seed=0, **setting)
