"""The loss equals the plain formula, its gradient finite differences."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.special import erf, log_softmax

from eigenheads.estimators._bag_targets import LOGISTIC, MULTINOMIAL, SQUARED
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._data import (
    HeadSettings,
    LabelledBags,
    data_in_memory,
)
from eigenheads.estimators._location._head import (
    attention_weights,
    head_loss,
    head_outputs,
)
from eigenheads.estimators._location._prepare import FitState, standardise, whiten
from eigenheads.functional import location_predictor

# Sums of about a hundred float64 products, reordered.
RTOL = 1e-12
# Central differences with step 1e-6 of a loss of size one: rounding 1e-10, with margin.
GRADIENT_TOLERANCE = 1e-7

KINDS = {SQUARED: 1, LOGISTIC: 1, MULTINOMIAL: 3}


def ragged_bags(rng, n=12, d=4, longest=7, dtype=np.float64):
    offsets = np.concatenate([[0], np.cumsum(rng.integers(1, longest + 1, size=n))])
    return Bags(rng.standard_normal((offsets[-1], d)).astype(dtype), offsets)


def labelled_bags(rng, kind, bags=None):
    bags = ragged_bags(rng) if bags is None else bags
    n = len(bags)
    targets = rng.standard_normal(n) if kind == SQUARED else rng.integers(2, size=n)
    return LabelledBags(
        bags,
        targets.astype(float),
        responses=np.zeros((n, KINDS[kind])),
        weights=rng.uniform(0.1, 2.0, size=n),
    )


def settings_of(kind, *, head="softmax"):
    return HeadSettings(
        head=head,
        kind=kind,
        alpha=0.3,
        l1_ratio=0.0,
        coherence=5.0,
        shrinkage=None,
        has_intercept=True,
        max_iter=10,
        tol=1e-4,
    )


def state_of(batch, settings):
    """Return standardised and whitened bags, before the optimiser."""
    return whiten(standardise(FitState(data_in_memory(batch), settings, print)))


@pytest.mark.parametrize("head", ["softmax", "erf"])
def test_ragged_head_is_the_functional_one_bag_by_bag(rng, head):
    bags = ragged_bags(rng)
    key, value = rng.standard_normal((2, 4))
    outputs = head_outputs(bags, np.stack([key, value]), 1, head=head)[:, 0]
    expected = [
        location_predictor(tokens, key, value, inverse_temperature=1.0, head=head)
        for tokens in bags.split(bags.tokens)
    ]
    assert_allclose(outputs, expected, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("head", ["softmax", "erf"])
def test_rectangular_head_is_the_functional_one(rng, head):
    tokens = rng.standard_normal((5, 6, 4))
    key, value = rng.standard_normal((2, 4))
    bags = Bags(tokens.reshape(-1, 4), 6 * np.arange(6))
    assert_allclose(
        head_outputs(bags, np.stack([key, value]), 1, head=head)[:, 0],
        location_predictor(tokens, key, value, inverse_temperature=1.0, head=head),
        rtol=RTOL,
        atol=RTOL,
    )


def test_softmax_weights_do_not_overflow():
    bags = Bags(np.zeros((3, 1)), np.array([0, 2, 3]))
    weights = attention_weights(bags, np.array([1e4, -1e4, 1e4]), head="softmax")
    assert_allclose(weights, [1.0, 0.0, 1.0])


@pytest.mark.parametrize("head", ["softmax", "erf"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_loss_is_the_plain_one(rng, head, kind, dtype):
    bags = ragged_bags(rng, dtype=dtype)
    batch = labelled_bags(rng, kind, bags)
    rows = rng.standard_normal((1 + KINDS[kind], 4))
    intercepts = rng.standard_normal(KINDS[kind])
    wide = Bags(bags.tokens.astype(np.float64), bags.offsets)
    outputs = head_outputs(wide, rows, KINDS[kind], head=head) + intercepts
    targets, weights = batch.targets, batch.weights
    plain = {
        SQUARED: lambda: 0.5 * (outputs[:, 0] - targets) ** 2,
        LOGISTIC: lambda: np.logaddexp(0, (1 - 2 * targets) * outputs[:, 0]),
        MULTINOMIAL: lambda: (
            -log_softmax(outputs, axis=1)[np.arange(len(targets)), targets.astype(int)]
        ),
    }[kind]()

    shares = weights / weights.sum()
    loss, _, _ = head_loss(
        bags, targets, shares, rows, intercepts, head=head, kind=kind
    )

    expected = np.average(plain, weights=weights)
    # Products in the floating type of the tokens.
    assert_allclose(loss, expected, rtol=RTOL if dtype == np.float64 else 1e-5)


@pytest.mark.parametrize("head", ["softmax", "erf"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("has_metric", [True, False])
def test_gradient_is_the_finite_difference(rng, head, kind, has_metric):
    state = state_of(labelled_bags(rng, kind), settings_of(kind, head=head))
    metric = np.cov(rng.standard_normal((4, 9))) if has_metric else None
    attended = rng.standard_normal((1, 4))
    objective = replace(state, metric=metric, attended=attended).loss()
    flat = rng.standard_normal((1 + KINDS[kind]) * 4 + KINDS[kind])

    step = 1e-6 * np.eye(len(flat))
    numeric = [
        (objective(flat + shift)[0] - objective(flat - shift)[0]) / 2e-6
        for shift in step
    ]

    assert_allclose(objective(flat)[1], numeric, atol=GRADIENT_TOLERANCE)
    forward = approx_fprime(flat, lambda x: objective(x)[0], 1e-7)
    assert_allclose(objective(flat)[1], forward, atol=1e-4)


def test_whitened_tokens_are_white_up_to_the_shrinkage(rng):
    """Eigenvalue r of the correlation becomes 1.5 r / (r + .5)."""
    mixed = rng.standard_normal((2_000, 3)) @ np.array(
        [[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 9.0]]
    )
    bags = Bags(mixed + 5.0, np.arange(2_001))
    y = np.zeros(len(bags))
    batch = LabelledBags(bags, y, y[:, None], np.ones(len(bags)))
    state = state_of(batch, replace(settings_of(SQUARED), shrinkage=0.5))
    (white,) = state.data.read()
    eigenvalues = np.linalg.eigvalsh(np.cov(white.bags.tokens.T, bias=True))
    correlation = np.linalg.eigvalsh(np.corrcoef(mixed.T))
    # Standardised tokens are rounded to single precision.
    assert_allclose(eigenvalues, 1.5 * correlation / (correlation + 0.5), rtol=1e-6)


def test_sums_over_ragged_bags_are_those_bag_by_bag(rng):
    bags = ragged_bags(rng)
    weights = erf(rng.standard_normal(len(bags.tokens)))
    pairs = list(zip(bags.split(weights), bags.split(bags.tokens), strict=True))
    assert_allclose(bags.pooled(weights), [w @ tokens for w, tokens in pairs], RTOL)
    assert_allclose(bags.sums(weights), [w.sum() for w, _ in pairs], RTOL)
    assert_allclose(bags.largest(weights), [w.max() for w, _ in pairs], RTOL)
    assert_allclose(bags.means(), [tokens.mean(axis=0) for _, tokens in pairs], RTOL)
