import dataclasses
import math

import numpy as np
import pytest
from scipy import stats

from eigenheads.datasets import SignalTokens

# Two-sided bound of a standard normal: false failure 2e-6 a comparison.
Z_BOUND = stats.norm.isf(1e-6)
GOOD = {"d": 7, "n_informative": 2, "n_nuisance": 3, "strength": 0.5}


def test_sample_has_the_shapes_it_promises(rng):
    sample = SignalTokens(**GOOD).sample(11, rng)
    assert sample.tokens.shape == (11, 5, 7)
    assert sample.signs.shape == (11, 5)
    np.testing.assert_array_equal(np.abs(sample.signs).sum(axis=1), 2)


@pytest.mark.parametrize("signs", ["random", "fixed"])
def test_tokens_have_the_moments_of_the_law(rng, signs):
    # 14 means and 14 variances, each within its bound with probability 1 - 2e-6.
    law = SignalTokens(**GOOD, signs=signs)
    tokens, found = law.sample(6000, rng)
    shift = law.amplitude * law.direction
    for part in (
        tokens[found != 0] - found[found != 0][:, None] * shift,
        tokens[found == 0],
    ):
        n = len(part)
        assert np.abs(part.mean(axis=0) * math.sqrt(n)).max() < Z_BOUND
        spread = (part.var(axis=0) - 1) / math.sqrt(2 / n)
        assert np.abs(spread).max() < Z_BOUND


def test_random_signs_are_fair_and_fixed_ones_positive(rng):
    # A binomial test of 12 000 signs, false failure 1e-6.
    signs = SignalTokens(**GOOD).sample(6000, rng).signs
    assert stats.binomtest(int((signs == 1).sum()), 12_000).pvalue > 1e-6
    assert SignalTokens(**GOOD, signs="fixed").sample(9, rng).signs.min() == 0


def test_informative_tokens_stand_anywhere(rng):
    # Chi-square test, false failure 1e-6.
    signs = SignalTokens(**GOOD).sample(6000, rng).signs
    assert stats.chisquare((signs != 0).sum(axis=0)).pvalue > 1e-6


def test_amplitude_and_fraction_are_what_they_are():
    law = SignalTokens(d=400, n_informative=10, n_nuisance=90, strength=0.25)
    assert law.n_tokens == 100
    assert law.fraction == pytest.approx(0.1, rel=1e-15)
    assert law.amplitude == pytest.approx(5.0, rel=1e-15)
    assert law.direction @ law.direction == 1


def test_same_generator_state_draws_the_same_bytes():
    law = SignalTokens(**GOOD)
    first, second = (law.sample(9, np.random.default_rng(5)) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()


def test_law_is_frozen_and_compares_by_value():
    law = SignalTokens(**GOOD | {"d": 7.0})
    assert law == SignalTokens(**GOOD)
    assert isinstance(law.d, int)
    with pytest.raises(dataclasses.FrozenInstanceError):
        law.d = 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d": 1}, "SignalTokens: `d` must be an integer >= 2; got 1"),
        ({"n_informative": -1}, "`n_informative` must be an integer >= 0; got -1"),
        ({"n_nuisance": 2.5}, "`n_nuisance` must be an integer >= 0; got 2.5"),
        ({"strength": -0.1}, "`strength` must be a finite number >= 0; got -0.1"),
        ({"strength": math.nan}, "`strength` must be a finite number >= 0; got nan"),
        ({"signs": "randon"}, "`signs` must be one of .* Did you mean 'random'"),
        ({"inverse_temperature": 0.0}, "`inverse_temperature` must be a finite number"),
        (
            {"n_informative": 0, "n_nuisance": 0},
            "`n_nuisance` must be an integer >= 1 where `n_informative` is 0; got 0",
        ),
    ],
)
def test_bad_parameters_get_a_sentence(arguments, message):
    with pytest.raises(ValueError, match=message):
        SignalTokens(**(GOOD | arguments))


def test_bad_sample_size_gets_a_sentence(rng):
    with pytest.raises(ValueError, match=r"SignalTokens\.sample: `n` must be an int"):
        SignalTokens(**GOOD).sample(0, rng)
