"""Null, linear, oracle and Bayes risk: against simulation, each other, their limits."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import SingleLocation
from eigenheads.functional import location_predictor
from eigenheads.theory import (
    LocationLandscape,
    location_baselines,
    location_bayes_risk,
)

PAPER = {"d": 400, "n_tokens": 10, "gamma": math.sqrt(0.5)}

# Normal quantile of 1e-6 on both sides.
SIGMAS = 5.0


def baselines(**law):
    return location_baselines(SingleLocation(**{"d": 9, **law}))


def bayes_risk(*, n_samples, rng, **law):
    return location_bayes_risk(SingleLocation(**law), n_samples=n_samples, rng=rng)


def oracle_risk(*, inverse_temperature, **law):
    made = LocationLandscape(
        SingleLocation(**law), inverse_temperature=inverse_temperature
    )
    return made.oracle_risk()


def within(samples, expected, other_error=0.0):
    error = math.hypot(samples.std() / math.sqrt(len(samples)), other_error)
    return abs(samples.mean() - expected) < SIGMAS * error


def test_null_risk_is_the_mean_square_of_the_target(rng):
    _, targets, _ = SingleLocation(d=2, n_tokens=3, gamma=0.7, noise=0.5).sample(
        100_000, rng
    )
    assert within(targets**2, baselines(gamma=0.7, noise=0.5).null)


@pytest.mark.parametrize("gamma", [0.5, 2.0])
def test_linear_risk_is_that_of_least_squares(rng, gamma):
    """The stated weights have the stated risk, and no coordinate improves them."""
    law = SingleLocation(d=3, n_tokens=4, gamma=gamma, noise=0.3)
    tokens, targets, _ = law.sample(200_000, rng)
    weight = gamma**2 / (gamma**2 + 3)
    residuals = targets - weight * tokens[:, :, 1].sum(axis=1)
    risk = baselines(n_tokens=4, gamma=gamma, noise=0.3).linear
    assert within(residuals**2, risk)

    design = np.column_stack([tokens.reshape(len(tokens), -1), np.ones(len(tokens))])
    scores = design * residuals[:, None]
    z = np.sqrt(len(scores)) * scores.mean(0) / scores.std(0)
    assert np.abs(z).max() < SIGMAS

    fitted = np.linalg.lstsq(design, targets, rcond=None)[0]
    # Overfitting lowers the training risk by about 13 / 200 000 of itself.
    assert within((targets - design @ fitted) ** 2, risk, other_error=1e-4 * risk)


def test_one_token_needs_no_attention():
    assert baselines(n_tokens=1, gamma=1e-40, noise=0.0).linear == 0
    assert baselines(n_tokens=1, gamma=3.0, noise=0.5).linear == 0.25


def test_linear_tends_to_null_with_the_number_of_tokens():
    for gamma in (0.5, 1.0):
        many = baselines(n_tokens=10**15, gamma=gamma, noise=0.1)
        assert many.linear == pytest.approx(many.null, rel=1e-12)


def test_oracle_is_the_risk_at_the_planted_vectors():
    law = SingleLocation(**PAPER, noise=0.2)
    made = LocationLandscape(law, inverse_temperature=np.logspace(-3, 1, 9))
    assert_allclose(made.oracle_risk(), made.risk(1, 1, 0, 0, 0), rtol=0)


def test_oracle_excess_vanishes_only_under_its_three_conditions():
    """L = 10, lambda = d^(-1/4), and then one condition dropped at a time."""
    d = np.array([1e4, 1e6, 1e8, 1e10, 1e12])

    def oracle(n_tokens, sharp):
        cases = zip(d, np.broadcast_to(n_tokens, d.shape), sharp, strict=True)
        return np.array(
            [
                oracle_risk(
                    d=int(one),
                    n_tokens=int(n),
                    gamma=PAPER["gamma"],
                    inverse_temperature=scale,
                )
                for one, n, scale in cases
            ]
        )

    good = oracle(10, d**-0.25)
    assert np.all(np.diff(good) < 0)
    # The other tokens cost (4/pi) lambda² each, nothing else is left.
    assert_allclose(good[1:], 9 * 4 / math.pi * d[1:] ** -0.5, rtol=5e-3)

    blind = oracle(10, d**-0.5)  # lambda sqrt(d) = 1
    floor = PAPER["gamma"] ** 2 * math.erfc(math.sqrt(0.5)) ** 2
    assert_allclose(blind[-1], floor, rtol=1e-9)
    loud = oracle(np.floor(d**0.5), d**-0.25)  # lambda sqrt(L) = 1
    assert loud.min() > 1.0
    crowded = oracle(d, d**-0.5 * np.log(d))  # L = d with lambda sqrt(d) -> infinity
    assert crowded.min() > 1.0


@pytest.mark.parametrize("gamma", [0.6, 1.0, 1.5])
def test_bayes_risk_is_that_of_the_posterior_mean(rng, gamma):
    """Densities of R^d, squared errors: another estimator of the same number."""
    law = SingleLocation(d=4, n_tokens=3, gamma=gamma, noise=0.2)
    tokens, targets, _ = law.sample(200_000, rng)
    shifted = tokens - math.sqrt(2) * law.key_direction
    log_odds = (tokens**2).sum(-1) / 2 - (shifted**2).sum(-1) / (2 * gamma**2)
    weights = np.exp(log_odds - log_odds.max(axis=1, keepdims=True))
    weights /= weights.sum(axis=1, keepdims=True)
    squares = (targets - (weights * tokens[:, :, 1]).sum(axis=1)) ** 2

    bayes = bayes_risk(
        d=4, n_tokens=3, gamma=gamma, noise=0.2, n_samples=200_000, rng=rng
    )
    assert within(squares, bayes.estimate, other_error=bayes.standard_error)
    # The point of averaging posterior variances.
    assert bayes.standard_error < squares.std() / math.sqrt(len(squares))


@pytest.mark.parametrize("d", [2, 3, 30])
def test_bayes_is_best(rng, d):
    law = {"d": d, "n_tokens": 5, "gamma": 0.8, "noise": 0.1}
    bayes = bayes_risk(**law, n_samples=50_000, rng=rng)
    best_other = min(
        *baselines(**law),
        *oracle_risk(**law, inverse_temperature=np.logspace(-3, 1, 50)),
    )
    assert bayes.estimate < best_other + SIGMAS * bayes.standard_error


def test_bayes_risk_of_one_token_is_the_noise(rng):
    law = {"d": 10, "n_tokens": 1, "gamma": 0.8, "noise": 0.3}
    bayes = bayes_risk(**law, n_samples=100, rng=rng)
    assert bayes.estimate == pytest.approx(0.09, rel=1e-12)
    assert bayes.standard_error == 0


@pytest.mark.parametrize("gamma", [math.sqrt(0.5), 1.0, 2.0])
def test_bayes_risk_tends_to_the_noise(rng, gamma):
    """The excess falls with d, and is below rounding at d = 1e12."""
    law = {"n_tokens": 10, "gamma": gamma, "noise": 0.3, "n_samples": 20_000}
    small, large, huge = (bayes_risk(d=d, **law, rng=rng) for d in (4, 40, 10**12))
    gap = small.estimate - large.estimate
    assert gap > SIGMAS * math.hypot(small.standard_error, large.standard_error)
    assert huge.estimate == pytest.approx(0.09, rel=1e-12)


def test_samples_that_do_not_fit_one_block():
    law = {"d": 6, "n_tokens": 400_000, "gamma": 1.0, "n_samples": 3}
    first = bayes_risk(**law, rng=np.random.default_rng(1))
    again = bayes_risk(**law, rng=np.random.default_rng(1))
    assert first == again
    assert first.estimate > 0


def test_softmax_oracle_is_bayes_for_equal_variances(rng):
    """At gamma = 1 the risk of the softmax head is the Bayes risk."""
    law = SingleLocation(d=8, n_tokens=4, gamma=1.0)
    tokens, targets, _ = law.sample(100_000, rng)
    predictions = location_predictor(
        tokens,
        law.key_direction,
        law.value_direction,
        inverse_temperature=2.0,
        head="softmax",
    )
    bayes = bayes_risk(d=8, n_tokens=4, gamma=1.0, n_samples=100_000, rng=rng)
    squares = (targets - predictions) ** 2
    assert within(squares, bayes.estimate, other_error=bayes.standard_error)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"n_samples": 1}, ValueError, "`n_samples` must be an integer from 2 to"),
        ({"n_samples": 1e12}, ValueError, "`n_samples` must be an integer from 2 to"),
        ({"rng": 0}, TypeError, "`rng` must be a numpy.random.Generator; got 0"),
        ({"n_tokens": 10**9}, ValueError, "`law` must be a law with n_tokens <= 1000"),
    ],
)
def test_bad_input(changes, error, message):
    law = {**PAPER, "n_samples": 10, "rng": np.random.default_rng(0)}
    with pytest.raises(error, match=f"location_bayes_risk: {message}"):
        bayes_risk(**{**law, **changes})
