import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenheads.datasets import SignalTokens
from eigenheads.functional import signal_output_gradient
from eigenheads.models import simulate_signal
from eigenheads.models._signal import add_signal_gradient, signal_model
from eigenheads.models._simulate import exact_kernel

LAW = {"n_informative": 3, "n_nuisance": 5, "strength": 0.8}
SMALL = {
    "step_size": lambda t: 0.2 / (1 + 0.1 * t),
    "n_steps": 45,
    "n_runs": 4,
    "record_every": 10,
    "seed": 5,
}
METHODS = pytest.mark.parametrize("method", ["exact", "full"])


def simulated(d=8, law=LAW, **options):
    return simulate_signal(SignalTokens(d=d, **law), **(SMALL | options))


@METHODS
def test_the_average_is_recorded_on_request(method):
    assert tuple(simulated(method=method)) == ("alignment",)
    both = simulated(method=method, averaging=True)
    assert tuple(both) == ("alignment", "averaged_alignment")
    np.testing.assert_array_equal(
        both["alignment"][:, 0], both["averaged_alignment"][:, 0]
    )


def test_averaging_does_not_change_a_full_run():
    # The exact engine draws one number more a step for the average's direction.
    plain, averaged = (simulated(method="full", averaging=a) for a in (False, True))
    np.testing.assert_array_equal(plain["alignment"], averaged["alignment"])


@METHODS
@pytest.mark.parametrize(
    ("law", "step_size"),
    [
        pytest.param(LAW, 0.0, id="no step"),
        pytest.param(
            {"n_informative": 1, "n_nuisance": 0, "strength": 1.0}, 0.1, id="one token"
        ),
    ],
)
def test_without_step_or_choice_the_query_stays(method, law, step_size):
    # One token has all the weight, whatever the query: no gradient.
    path = simulated(method=method, law=law, step_size=step_size)["alignment"]
    np.testing.assert_allclose(
        path, np.broadcast_to(path[:, :1], path.shape), atol=1e-14
    )


@pytest.mark.parametrize("corner", [1.0, -1.0])
@pytest.mark.parametrize("d", [3, 80, 10**12])
@pytest.mark.parametrize("averaging", [False, True])
def test_corners_start_without_a_residual(corner, d, averaging):
    law = LAW | {"strength": 1 / math.sqrt(d)}
    paths = simulated(
        d=d, law=law, start=corner, step_size=1e-3 / d**2, averaging=averaging
    )
    assert (np.sign(paths.final("alignment")) == corner).all()
    assert np.isfinite(paths["alignment"]).all()
    assert (np.abs(simulated(d=3, start=corner).final("alignment")) < 1).all()


def test_unit_vectors_stay_so_over_many_updates():
    state = np.zeros((2, 4))
    state[:, 1] = 1.0
    n_steps, records = 10**5, np.zeros((2, 1))
    rng = np.random.Generator(np.random.SFC64(1))
    kernel = exact_kernel(
        signal_model(2, 2, 3.0, True),
        d=50,
        batch_size=1,
        parameters={"inverse_temperature": 0.5},
        pairs=np.array([[0, -1]]),
        flags=(True, False, True),
    )
    zeros = np.zeros(n_steps)
    rules = (zeros + 0.01, zeros, zeros, 4 / (4 + np.arange(n_steps)))
    assert kernel(rng, state, *rules, 0, n_steps, records) < 0
    # One update rounds a few times, and renormalises: errors do not add up.
    assert np.sum(state[0] ** 2) == pytest.approx(1.0, abs=2e-15)
    np.testing.assert_array_equal(state[0, 2:], 0.0)
    assert state[1, 3] == 0
    assert np.sum(state[1] ** 2) <= 1 + 1e-12  # an average of unit vectors


def test_gradient_of_a_prompt_is_the_functional_one(rng):
    tokens, query = rng.standard_normal((6, 7)), rng.standard_normal(7)
    gradient, scratch, output = np.full(7, 0.5), np.empty((3, 6)), np.empty(7)
    add_signal_gradient(tokens, query, 0.8, 0.25 * 1.6, scratch, output, gradient)
    expected = 0.25 * signal_output_gradient(tokens, query, inverse_temperature=0.8)
    np.testing.assert_allclose(gradient - 0.5, expected, rtol=1e-11, atol=1e-13)


@METHODS
def test_average_is_the_weighted_sum_of_the_iterates(method):
    # d = 2 would do for full; in d = 3 the residual's angle is not recorded, so the
    # average's own length is checked where the path stays in one plane: one run, d = 2.
    if method == "exact":
        paths = simulated(averaging=True, step_size=0.0, record_every=1)
        np.testing.assert_allclose(
            paths["averaged_alignment"], paths["alignment"], atol=1e-14
        )
        return
    paths = simulated(
        d=2, method="full", averaging=True, record_every=1, step_size=1e-3
    )
    t = paths["alignment"][:, 1:]
    q = np.stack([t, np.sqrt(1 - t**2)])  # small steps: the residual keeps its sign
    mean = q[:, :, 0]
    for index in range(1, t.shape[1]):
        mean = mean + 4 / (index + 4) * (q[:, :, index] - mean)
    expected = mean[0] / np.hypot(*mean)
    np.testing.assert_allclose(paths.final("averaged_alignment"), expected, atol=1e-12)


@METHODS
def test_logits_up_to_ten_thousand_are_fine(method):
    law = LAW | {"strength": 1e4 / math.sqrt(8)}
    paths = simulated(law=law, method=method, step_size=1e-9, start=0.5)
    assert np.isfinite(paths["alignment"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 2}, "`law` must be a law with d >= 3 .* got d=2. Use method='full'"),
        ({"d": 10**16}, "`law` must be a law with d <= 10{15}; got d=10{16}"),
        ({"d": 10**9, "method": "full"}, "got d=10{9}, 8 tokens. Use method='exact'"),
        ({"method": "exakt"}, "`method` must be one of .* Did you mean 'exact'"),
        ({"step_size": -1.0}, "`step_size` must be a finite number >= 0; got -1.0"),
        ({"step_size": lambda t: None}, "`step_size` must be a schedule .* got None"),
        ({"batch_size": 0}, "`batch_size` must be an integer >= 1; got 0"),
        ({"averaging": "yes"}, "`averaging` must be True or False; got 'yes'"),
        ({"n_steps": 0}, "`n_steps` must be an integer from 1 to 10{15}; got 0"),
        ({"n_runs": 0}, "`n_runs` must be an integer from 1 to 1000000; got 0"),
        ({"record_every": 46}, "from 1 to 45; got 46. A run has 45 steps"),
        (
            {"n_steps": 10**12, "record_every": 1},
            "`record_every` must be large enough .* got 1, which makes 4",
        ),
        ({"seed": -1}, "`seed` must be an integer >= 0; got -1"),
        ({"start": [0.0] * 3}, r"`start` must be one number or of shape \(4,\)"),
        ({"start": math.nan}, "`start` must be finite numbers; got nan"),
        ({"start": 1.1}, "`start` must be alignments from -1 to 1; got 1.1"),
    ],
)
def test_bad_arguments_get_a_sentence(options, message):
    with pytest.raises(ValueError, match="simulate_signal: .*" + message):
        simulated(**options)


def test_law_of_another_type_and_too_many_tokens_get_a_sentence():
    with pytest.raises(TypeError, match="`law` must be a SignalTokens; got 80"):
        simulate_signal(80, **SMALL)
    with pytest.raises(
        ValueError, match=r"`law` must be a law with at most \d+ tokens"
    ):
        simulated(law=LAW | {"n_nuisance": 10**9})


numbers = st.one_of(
    st.floats(), st.sampled_from([None, "1", 1e300, lambda t: 1 / (1 + t)])
)
counts = st.one_of(st.integers(-1, 12), st.floats(-1, 9), st.none(), st.text())


@given(
    d=st.integers(2, 6),
    strength=st.floats(0, 1e308),
    method=st.sampled_from(["exact", "full", "fast"]),
    step_size=numbers,
    batch_size=counts,
    n_steps=counts,
    n_runs=counts,
    record_every=counts,
    seed=counts,
    averaging=st.booleans(),
    start=st.one_of(st.none(), st.floats(), st.lists(st.floats(-1, 1), max_size=3)),
)
@settings(max_examples=200, deadline=None)
def test_any_call_gives_a_result_or_a_sentence(d, strength, **options):
    try:
        paths = simulated(d, LAW | {"strength": strength}, **options)
    except (ValueError, TypeError) as error:
        assert str(error).startswith(("simulate_signal: `", "SignalTokens: `"))
    else:
        assert np.abs(paths["alignment"]).max() <= 1 + 1e-8
