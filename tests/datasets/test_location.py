import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from eigenheads.datasets import SingleLocation

# Two-sided bound of a standard normal: false failure 2e-6 a comparison.
Z_BOUND = stats.norm.isf(1e-6)


def test_sample_has_the_shapes_it_promises(rng):
    sample = SingleLocation(d=7, n_tokens=4).sample(11, rng)
    assert sample.tokens.shape == (11, 4, 7)
    assert sample.targets.shape == (11,)
    assert sample.locations.shape == (11,)


def test_tokens_have_the_moments_of_the_law(rng):
    # 14 means and 14 variances, each within its bound with probability 1 - 2e-6.
    law = SingleLocation(d=7, n_tokens=3, gamma=0.4, noise=0.5)
    n = 20_000
    tokens, _, locations = law.sample(n, rng)
    rows = np.arange(n)
    deciding = tokens[rows, locations]
    other = tokens[rows, (locations + 1) % 3]
    shift = math.sqrt(7 / 2) * law.key_direction
    for part, mean, scale in ((deciding, shift, 0.4), (other, np.zeros(7), 1.0)):
        error = (part.mean(axis=0) - mean) / (scale / math.sqrt(n))
        assert np.abs(error).max() < Z_BOUND
        spread = (part.var(axis=0) / scale**2 - 1) / math.sqrt(2 / n)
        assert np.abs(spread).max() < Z_BOUND


def test_target_is_the_deciding_tokens_value_coordinate(rng):
    law = SingleLocation(d=5, n_tokens=6)
    tokens, targets, locations = law.sample(50, rng)
    deciding = tokens[np.arange(50), locations]
    np.testing.assert_array_equal(targets, deciding @ law.value_direction)


def test_noise_adds_its_variance_to_the_target(rng):
    # A chi-square with 9 999 degrees of freedom: false failure 2e-6.
    law = SingleLocation(d=5, n_tokens=6, noise=0.3)
    tokens, targets, locations = law.sample(10_000, rng)
    noise = targets - tokens[np.arange(10_000), locations, 1]
    low, high = stats.chi2.ppf([1e-6, 1 - 1e-6], 9_999)
    assert low < noise.var(ddof=1) * 9_999 / 0.3**2 < high


def test_locations_are_uniform(rng):
    # Chi-square test, false failure 1e-6.
    locations = SingleLocation(d=2, n_tokens=5).sample(10_000, rng).locations
    counts = np.bincount(locations, minlength=5)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_planted_directions_are_orthonormal():
    law = SingleLocation(d=4)
    frame = np.array([law.key_direction, law.value_direction])
    np.testing.assert_array_equal(frame @ frame.T, np.eye(2))


def test_same_generator_state_draws_the_same_bytes():
    law = SingleLocation(d=6, noise=0.1)
    first, second = (law.sample(9, np.random.default_rng(5)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()


def test_default_gamma_gives_all_tokens_one_expected_length():
    # E|X|² = d/2 + γ²d for the deciding token, d for the others.
    law = SingleLocation(d=10)
    assert law.d / 2 + law.gamma**2 * law.d == pytest.approx(law.d, rel=1e-15)


def test_law_is_frozen_and_compares_by_value():
    law = SingleLocation(d=1e1)
    assert law == SingleLocation(d=10)
    assert isinstance(law.d, int)
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.d = 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d": 1}, "SingleLocation: `d` must be an integer >= 2; got 1"),
        ({"d": 2.5}, "SingleLocation: `d` must be an integer >= 2; got 2.5"),
        ({"d": 5, "n_tokens": 0}, "`n_tokens` must be an integer >= 1; got 0"),
        ({"d": 5, "gamma": 0.0}, "`gamma` must be a finite number > 0; got 0.0"),
        ({"d": 5, "gamma": 1e200}, r"`gamma` must be <= 1e\+50; got 1e\+200"),
        ({"d": 5, "noise": 1e200}, r"`noise` must be <= 1e\+50; got 1e\+200"),
        ({"d": 5, "noise": -1.0}, "`noise` must be a finite number >= 0; got -1.0"),
        ({"d": 5, "noise": math.nan}, "`noise` must be a finite number >= 0; got nan"),
    ],
)
def test_bad_parameters_get_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        SingleLocation(**arguments)


def test_bad_sample_size_gets_a_sentence(rng):
    with pytest.raises(ValueError, match=r"SingleLocation\.sample: `n` must be an int"):
        SingleLocation(d=5).sample(0, rng)


def test_a_sample_that_fits_no_memory_gets_a_sentence():
    with pytest.raises(
        ValueError, match=r"SingleLocation\.sample: `n` must be so small"
    ):
        SingleLocation(d=10**400).sample(1, np.random.default_rng(0))


def test_directions_that_fit_no_memory_get_a_sentence():
    law = SingleLocation(d=10**13)
    for name in ("key_direction", "value_direction"):
        with pytest.raises(ValueError, match=rf"{name}: `d` must be an integer <= \d+"):
            getattr(law, name)


@pytest.mark.parametrize("rng", [None, 0, np.random.RandomState(0)])
def test_sample_needs_a_generator(rng):
    message = r"SingleLocation\.sample: `rng` must be a numpy\.random\.Generator; got"
    with pytest.raises(TypeError, match=message):
        SingleLocation(d=5).sample(3, rng)


anything = st.one_of(
    st.integers(-2, 30),
    st.floats(),
    st.sampled_from([None, "5", True, [3], 10**400, 1e13, 1e60, 1j]),
)


@given(d=anything, n_tokens=anything, gamma=anything, noise=anything, n=anything)
@settings(max_examples=100, deadline=None)
def test_any_law_gives_a_sample_or_a_sentence(d, n_tokens, gamma, noise, n):
    try:
        law = SingleLocation(d=d, n_tokens=n_tokens, gamma=gamma, noise=noise)
        sample = law.sample(n, np.random.default_rng(0))
        direction = law.key_direction
    except ValueError as error:
        assert str(error).startswith("SingleLocation")
        assert "` must be " in str(error)
    else:
        assert sample.tokens.shape == (n, n_tokens, d)
        assert direction.shape == (d,)
        assert all(np.isfinite(part).all() for part in sample)
