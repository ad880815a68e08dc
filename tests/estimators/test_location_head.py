"""The fused loss equals the plain formula, its gradient finite differences."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.optimize import approx_fprime
from scipy.special import erf, log_softmax

from eigenheads._parallel import threads
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._head import (
    HeadLoss,
    attended_readouts,
    attention_weights,
    pool_tokens,
)
from eigenheads.estimators._location._losses import LOGISTIC, MULTINOMIAL, SQUARED
from eigenheads.estimators._location._objective import PenalisedLoss, pooled_whitening
from eigenheads.estimators._location._problem import (
    HeadSettings,
    LabelledBags,
    data_in_memory,
)
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


def head_outputs(bags, key, values, *, head):
    weights = attention_weights(bags, bags.tokens @ key, head=head)
    return attended_readouts(bags, weights, values)


@pytest.mark.parametrize("head", ["softmax", "erf"])
def test_ragged_head_is_the_functional_one_bag_by_bag(rng, head):
    bags = ragged_bags(rng)
    key, value = rng.standard_normal((2, 4))
    outputs = head_outputs(bags, key, value[None], head=head)[:, 0]
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
        head_outputs(bags, key, value[None], head=head)[:, 0],
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
def test_fused_loss_is_the_plain_one(rng, head, kind, dtype):
    bags = ragged_bags(rng, dtype=dtype)
    batch = labelled_bags(rng, kind, bags)
    rows = rng.standard_normal((1 + KINDS[kind], 4))
    intercepts = rng.standard_normal(KINDS[kind])
    wide = Bags(bags.tokens.astype(np.float64), bags.offsets)
    outputs = head_outputs(wide, rows[0], rows[1:], head=head) + intercepts
    targets, weights = batch.targets, batch.weights
    plain = {
        SQUARED: lambda: 0.5 * (outputs[:, 0] - targets) ** 2,
        LOGISTIC: lambda: np.logaddexp(0, (1 - 2 * targets) * outputs[:, 0]),
        MULTINOMIAL: lambda: (
            -log_softmax(outputs, axis=1)[np.arange(len(targets)), targets.astype(int)]
        ),
    }[kind]()

    total = weights.sum()
    loss = HeadLoss(bags, targets, weights, head=head, kind=kind, total=total)

    expected = np.average(plain, weights=weights)
    assert_allclose(loss(rows, intercepts)[0], expected, rtol=RTOL)


@pytest.mark.parametrize("head", ["softmax", "erf"])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize("is_whitened", [True, False])
def test_gradient_is_the_finite_difference(rng, head, kind, is_whitened):
    data = data_in_memory(labelled_bags(rng, kind))
    coordinates = pooled_whitening(data, center=head == "softmax")
    if not is_whitened:
        coordinates = coordinates.without_whitening()
    attended = rng.standard_normal(4)
    settings = settings_of(kind, head=head)
    objective = PenalisedLoss(data, settings, coordinates, attended)
    flat = rng.standard_normal((1 + KINDS[kind]) * 4 + KINDS[kind])

    step = 1e-6 * np.eye(len(flat))
    numeric = [
        (objective(flat + shift)[0] - objective(flat - shift)[0]) / 2e-6
        for shift in step
    ]

    assert_allclose(objective(flat)[1], numeric, atol=GRADIENT_TOLERANCE)
    forward = approx_fprime(flat, lambda x: objective(x)[0], 1e-7)
    assert_allclose(objective(flat)[1], forward, atol=1e-4)


def test_coordinates_do_not_change_the_objective(rng):
    """Whitened and standardised coordinates describe one function."""
    data, settings = data_in_memory(labelled_bags(rng, SQUARED)), settings_of(SQUARED)
    coordinates = pooled_whitening(data, center=True)
    plain = coordinates.without_whitening()
    whitened, attended = rng.standard_normal((2, 4)), rng.standard_normal(4)
    flat = np.concatenate([whitened.ravel(), [0.7]])
    other = np.concatenate([coordinates.standardised(whitened).ravel(), [0.7]])
    same = plain.measured(coordinates.standardised(attended))
    assert_allclose(
        PenalisedLoss(data, settings, coordinates, attended)(flat)[0],
        PenalisedLoss(data, settings, plain, same)(other)[0],
        rtol=RTOL,
    )


def test_whitened_tokens_are_white(rng):
    """Up to the ridge: eigenvalue r becomes r / (r + 0.01)."""
    mixed = rng.standard_normal((20_000, 3)) @ np.array(
        [[2.0, 1.0, 0.0], [0.0, 1.0, 0.5], [0.0, 0.0, 9.0]]
    )
    bags = Bags(mixed + 5.0, np.arange(20_001))
    y = np.zeros(len(bags))
    data = data_in_memory(LabelledBags(bags, y, y[:, None], np.ones(len(bags))))
    coordinates = pooled_whitening(data, center=True)
    white = coordinates.pulled_back(bags.tokens - coordinates.mean)
    eigenvalues = np.linalg.eigvalsh(np.cov(white.T, bias=True))
    correlation = np.linalg.eigvalsh(np.corrcoef(mixed.T))
    assert_allclose(eigenvalues, correlation / (correlation + 0.01), rtol=1e-9)


def test_threads_change_nothing(rng):
    bags = ragged_bags(rng, n=9_000, d=20, longest=3)  # several blocks
    y = rng.standard_normal(len(bags))
    weights, total = np.ones(len(bags)), float(len(bags))
    loss = HeadLoss(bags, y, weights, head="softmax", kind=SQUARED, total=total)
    rows, intercepts = rng.standard_normal((2, 20)), np.zeros(1)
    alone = loss(rows, intercepts)
    with threads(2), loss.threads():
        together = loss(rows, intercepts)
    assert alone[0] == together[0]
    assert (alone[1] == together[1]).all()


def test_pooled_tokens_are_weighted_sums(rng):
    bags = ragged_bags(rng)
    weights = erf(rng.standard_normal(len(bags.tokens)))
    expected = [
        w @ tokens
        for w, tokens in zip(bags.split(weights), bags.split(bags.tokens), strict=True)
    ]
    pooled = pool_tokens(bags.tokens, bags.offsets, weights)
    assert_allclose(pooled, expected, rtol=RTOL, atol=RTOL)
