import math
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from eigenheads._location_order import are_feasible
from eigenheads.datasets import SingleLocation
from eigenheads.models import location_start, simulate_location
from eigenheads.models._location import add_location_gradient, location_model
from eigenheads.models._simulate import exact_kernel

NAMES = ("kappa", "nu", "theta", "eta", "rho")
SMALL = {
    "inverse_temperature": lambda t: 2 / (1 + 0.01 * t),
    "step_size": 1e-2,
    "batch_size": 3,
    "n_steps": 45,
    "n_runs": 4,
    "record_every": 10,
    "seed": 5,
}


def simulated(d=8, **options):
    return simulate_location(SingleLocation(d=d, n_tokens=5), **(SMALL | options))


@pytest.mark.parametrize("method", ["exact", "full"])
def test_zero_inverse_temperature_moves_nothing(method):
    # λ = 0: attention is 0, so v has no gradient; k's is proportional to λ.
    paths = simulated(method=method, inverse_temperature=0.0)
    for name in NAMES:
        steady = np.broadcast_to(paths[name][:, :1], paths[name].shape)
        np.testing.assert_allclose(paths[name], steady, atol=1e-14)


@pytest.mark.parametrize("corner", [(1, 1), (1, -1), (-1, 1), (-1, -1)])
@pytest.mark.parametrize("d", [5, 80, 10**12])
def test_corners_start_without_a_residual(corner, d):
    start = [*corner, 0, 0, 0]
    paths = simulated(d=d, start=start, step_size=1e-3 / d)
    np.testing.assert_array_equal(np.sign(paths.final("kappa")), corner[0])
    np.testing.assert_array_equal(np.sign(paths.final("nu")), corner[1])
    assert (paths.final("rho") != 0).all()  # they have left the corner


def test_start_in_a_plane_stays_in_it():
    # d = 2: the head is two angles, and κ² + η² = ν² + θ² = 1 for ever.
    paths = simulated(d=2, method="full", start=[0.6, 1.0, 0.0, 0.8, 0.8])
    one = paths["kappa"] ** 2 + paths["eta"] ** 2
    np.testing.assert_allclose(one, 1.0, atol=1e-14)
    np.testing.assert_allclose(paths["nu"] ** 2 + paths["theta"] ** 2, 1, atol=1e-14)


def test_unit_vectors_stay_so_over_a_million_updates():
    state = np.zeros((2, 6))
    state[0, 2] = state[1, 3] = 1.0
    n_steps, records = 10**6, np.zeros((2, 1))
    rng = np.random.Generator(np.random.SFC64(1))
    kernel = exact_kernel(
        location_model(2, 0.7),
        d=50,
        batch_size=1,
        parameters={"inverse_temperature": 1.0, "noise": 0.1},
        pairs=np.array([[0, 1]]),
    )
    zeros = np.zeros(n_steps)
    rules = (zeros + 0.01, zeros, zeros, zeros)
    assert kernel(rng, state, *rules, 0, n_steps, records) < 0
    # One update rounds a few times, and renormalises: errors do not add up.
    np.testing.assert_allclose(np.sum(state**2, axis=1), 1.0, atol=2e-15)
    np.testing.assert_array_equal(state[0, 3:], 0.0)
    np.testing.assert_array_equal(state[1, 4:], 0.0)


def loss(state, tokens, target, inverse_temperature):
    k, v = state
    attention = special.erf(inverse_temperature * tokens @ k)
    return (attention @ (tokens @ v) - target) ** 2


def test_gradient_of_a_prompt_by_finite_differences(rng):
    tokens, state = rng.standard_normal((5, 7)), rng.standard_normal((2, 7))
    gradient, scratch = np.full((2, 7), 0.5), np.empty((4, 5))
    add_location_gradient(tokens, 0.3, state, 0.8, 0.25, scratch, gradient)
    expected = np.empty((2, 7))
    for index in np.ndindex(2, 7):
        bump = np.zeros((2, 7))
        bump[index] = 1e-5
        ahead, back = (loss(state + s * bump, tokens, 0.3, 0.8) for s in (1, -1))
        expected[index] = 0.25 * (ahead - back) / 2e-5
    # Central differences: h² times a third derivative, and 1e-16 / h of rounding.
    np.testing.assert_allclose(gradient - 0.5, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.torch
def test_gradient_of_a_prompt_is_autograds(rng):
    import torch

    tokens, state = rng.standard_normal((5, 7)), rng.standard_normal((2, 7))
    gradient, scratch = np.zeros((2, 7)), np.empty((4, 5))
    add_location_gradient(tokens, 0.3, state, 0.8, 0.25, scratch, gradient)
    leaf = torch.tensor(state, requires_grad=True)
    prompt = torch.tensor(tokens)
    prediction = torch.erf(0.8 * prompt @ leaf[0]) @ (prompt @ leaf[1])
    (0.25 * (prediction - 0.3) ** 2).backward()
    np.testing.assert_allclose(gradient, leaf.grad.numpy(), rtol=1e-12, atol=1e-13)


def test_a_billion_dimensions_fit_into_a_gigabyte():
    # One array with an axis of length d would be 8 GB. The kernels are compiled, and
    # the threads and their memory pools made, before the limit is set.
    code = """
    import resource
    from pathlib import Path
    from eigenheads.datasets import SingleLocation
    from eigenheads.models import location_start, simulate_location
    import numpy as np

    def run(d):
        return simulate_location(
            SingleLocation(d=d), inverse_temperature=1e-3, step_size=1e-12,
            batch_size=5, n_steps=2000, n_runs=4, record_every=1000, seed=0)

    run(10)
    statm = Path("/proc/self/statm")
    if statm.exists():
        pages = int(statm.read_text().split()[0])
        limit = pages * resource.getpagesize() + 2**30
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            np.empty(10**9)
            print("no limit")
        except MemoryError:
            print("limited")
    else:
        print("limited")
    paths = run(10**9)
    assert location_start(10**9, n_runs=2, seed=0, on_manifold=True).shape == (2, 5)
    print(paths["kappa"].shape, np.isfinite(paths["rho"]).all())
    """
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.stderr == ""
    assert result.stdout.split("\n")[:2] == ["limited", "(4, 3) True"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d": 4}, "`law` must be a law with d >= 5 .* got d=4. Use method='full'"),
        ({"d": 10**16}, "`law` must be a law with d <= 10{15}; got d=10{16}"),
        ({"d": 10**9, "method": "full"}, "got d=10{9}, n_tokens=5. Use method='exact'"),
        ({"method": "exakt"}, "`method` must be one of .* Did you mean 'exact'"),
        ({"method": None}, "`method` must be one of 'exact', 'full'; got None"),
        ({"step_size": -1.0}, "`step_size` must be a finite number >= 0; got -1.0"),
        ({"step_size": math.inf}, "`step_size` must be a finite number >= 0; got inf"),
        ({"inverse_temperature": math.nan}, "`inverse_temperature` must be a finite"),
        ({"inverse_temperature": "hot"}, "`inverse_temperature` must be a .* 'hot'"),
        (
            {"inverse_temperature": lambda t: -t},
            "`inverse_temperature` must be a schedule .* got -1 at update 1",
        ),
        (
            {"step_size": lambda t: None},
            "`step_size` must be a schedule .* got None at update 0",
        ),
        ({"batch_size": 0}, "`batch_size` must be an integer from 1 to .*; got 0"),
        ({"batch_size": 10**12}, "`batch_size` must be an integer from 1 to"),
        ({"n_steps": 0}, "`n_steps` must be an integer from 1 to 10{15}; got 0"),
        ({"n_steps": 2.5}, "`n_steps` must be an integer from 1 to 10{15}; got 2.5"),
        ({"n_steps": 1e30}, r"`n_steps` must be an integer from 1 to .* got 1e\+30"),
        (
            {"method": "full", "d": 10**6, "n_runs": 1000},
            "`n_runs` must be so small that d .* got 1000. Use method='exact'",
        ),
        (
            {"inverse_temperature": 1e60},
            r"`inverse_temperature` must be <= 1e\+50; got 1e\+60",
        ),
        (
            {"inverse_temperature": lambda t: 1e60 if t == 3 else 1.0},
            r"a schedule that returns numbers <= 1e\+50; got 1e\+60 at update 3",
        ),
        (
            {"step_size": lambda t: True},
            "`step_size` must be a schedule .* got True at update 0",
        ),
        ({"n_runs": 0}, "`n_runs` must be an integer from 1 to 1000000; got 0"),
        ({"record_every": 0}, "`record_every` must be an integer from 1 to 45; got 0"),
        ({"record_every": 46}, "from 1 to 45; got 46. A run has 45 steps"),
        (
            {"n_steps": 10**12, "record_every": 1},
            "`record_every` must be large enough .* got 1, which makes 2",
        ),
        ({"seed": -1}, "`seed` must be an integer >= 0; got -1"),
        ({"seed": None}, "`seed` must be an integer >= 0; got None"),
        ({"start": [0.0] * 4}, r"`start` must be order parameters .* \(5,\) or \(4, 5"),
        ({"start": [math.nan] * 5}, "`start` must be finite numbers; got nan"),
        ({"start": "sphere"}, "`start` must be finite numbers; got 'sphere'"),
        (
            {"start": [1.0, 0.0, 0.0, 0.5, 0.0]},
            "two unit vectors in 8 dimensions; got 1.0, 0.0, 0.0, 0.5, 0.0 in run 0",
        ),
        ({"start": [0.0, 0.0, 0.0, 0.0, 1.1]}, "got 0.0, 0.0, 0.0, 0.0, 1.1 in run 0"),
        ({"start": [1.0, 0.0, 0.0, 0.0, 0.5]}, "two unit vectors"),
        ({"start": [0.8, 0.8, 0.0, 0.0, 0.9]}, "two unit vectors"),
        ({"d": 3, "method": "full", "start": [0.0] * 5}, "in 3 dimensions"),
        ({"d": 2, "method": "full", "start": [1, 0, 0, 0, 0]}, "in 2 dimensions"),
    ],
)
def test_bad_arguments_get_a_sentence(options, message):
    with pytest.raises(ValueError, match="simulate_location: .*" + message):
        simulated(**options)


def test_law_of_another_type_gets_a_sentence():
    with pytest.raises(TypeError, match="`law` must be a SingleLocation; got 80"):
        simulate_location(80, **SMALL)


def test_too_many_tokens_get_a_sentence():
    law = SingleLocation(d=10, n_tokens=10**9)
    with pytest.raises(ValueError, match=r"n_tokens <= \d+; got n_tokens=10"):
        simulate_location(law, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d": 1}, "`d` must be an integer from 2 to .*; got 1"),
        ({"d": 2, "on_manifold": True}, "`d` must be an integer from 3 to .*; got 2"),
        ({"d": 10**16}, "`d` must be an integer from 2 to"),
        ({"n_runs": 0}, "`n_runs` must be an integer from 1 to 1000000; got 0"),
        ({"seed": 0.5}, "`seed` must be an integer >= 0; got 0.5"),
        ({"on_manifold": None}, "`on_manifold` must be True or False; got None"),
    ],
)
def test_bad_arguments_of_a_start_get_a_sentence(arguments, message):
    arguments = {"d": 8, "n_runs": 1, "seed": 0} | arguments
    with pytest.raises(ValueError, match="location_start: " + message):
        location_start(**arguments)


numbers = st.one_of(
    st.floats(),
    st.integers(-2, 40),
    st.sampled_from([None, "1", 1e300, [1.0], lambda t: 1 / (1 + t), lambda t: "x"]),
)
counts = st.one_of(st.integers(-1, 12), st.floats(-1, 9), st.none(), st.text())
starts = st.one_of(
    st.none(),
    st.lists(st.floats(-1.2, 1.2) | st.just(math.nan), min_size=4, max_size=6),
)


@given(
    d=st.integers(2, 9),
    method=st.sampled_from(["exact", "full", "fast"]),
    inverse_temperature=numbers,
    step_size=numbers,
    batch_size=counts,
    n_steps=counts,
    n_runs=counts,
    record_every=counts,
    seed=counts,
    start=starts,
)
@settings(max_examples=300, deadline=None)
def test_any_call_gives_a_result_or_a_sentence(d, **options):
    try:
        paths = simulated(d, **options)
    except (ValueError, TypeError) as error:
        assert str(error).startswith("simulate_location: `")
    else:
        for name in NAMES:
            assert np.abs(paths[name]).max() <= 1 + 1e-8


@given(
    d=st.integers(2, 9),
    method=st.sampled_from(["exact", "full"]),
    inverse_temperature=st.floats(0, 1e308),
    step_size=st.floats(0, 1e308),
    start=starts,
)
@settings(max_examples=150, deadline=None)
def test_any_size_of_step_gives_a_result_or_a_sentence(d, **options):
    test_any_call_gives_a_result_or_a_sentence.hypothesis.inner_test(d, **options)


@given(
    d=counts | numbers, n_runs=counts, seed=counts, on_manifold=st.booleans() | counts
)
@settings(max_examples=150, deadline=None)
def test_any_start_is_drawn_or_a_sentence(d, n_runs, seed, on_manifold):
    try:
        start = location_start(d, n_runs=n_runs, seed=seed, on_manifold=on_manifold)
    except ValueError as error:
        assert str(error).startswith("location_start: `")
    else:
        assert start.shape == (n_runs, 5)
        assert are_feasible(start, d).all()


@given(st.lists(st.floats(-1.1, 1.1), min_size=5, max_size=5))
@settings(max_examples=200)
def test_feasible_starts_are_those_with_a_gram_matrix(row):
    kappa, nu, theta, eta, rho = row
    gram = np.array(
        [
            [1, 0, kappa, theta],
            [0, 1, eta, nu],
            [kappa, eta, 1, rho],
            [theta, nu, rho, 1],
        ]
    )
    least = np.linalg.eigvalsh(gram)[0]
    feasible = are_feasible(np.array([row]), 9)[0]
    # The slack is 1e-7 in the entries of the Schur complement of k*, v*; an
    # eigenvalue of the whole moves by no more, and by its root's order at most.
    if abs(least) > 1e-6:
        assert feasible == (least > 0)
