"""The heads by hand, their losses and gradients; the principal subspace."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import NotIdentifiedWarning, pca_head, principal_subspace
from eigenheads.functional._pca import HEADS, pca_prompt_loss

RTOL = 1e-12


def as_numpy(array):
    return np.asarray(array)


@pytest.mark.parametrize("head", HEADS)
def test_two_tokens_by_hand(as_array, head):
    tokens, mu = np.array([[1.0, 2.0], [3.0, -4.0]]), np.array([0.5, 0.25])
    y = tokens @ mu
    scores = 0.7 * y[0] * y
    by_hand = {
        "softmax": np.exp(scores) / np.exp(scores).sum(),
        "linear": scores,
        "sigmoid": 1 / (1 + np.exp(-scores)) / 2,
        "erf": np.array([math.erf(score) for score in scores]) / 2,
        "relu": np.maximum(scores, 0) / 2,
    }[head]
    output = pca_head(
        as_array(tokens), as_array(mu), inverse_temperature=0.7, head=head
    )
    assert_allclose(as_numpy(output), by_hand @ tokens, rtol=RTOL)


@pytest.mark.parametrize("head", HEADS)
def test_other_tokens_permute_and_directions_rotate(rng, as_array, head):
    tokens, m = rng.standard_normal((3, 6, 4)), rng.standard_normal((4, 2))
    rotation = np.linalg.qr(rng.standard_normal((2, 2)))[0]
    order = [0, 3, 5, 1, 4, 2]
    one = pca_head(as_array(tokens), as_array(m), inverse_temperature=0.3, head=head)
    two = pca_head(
        as_array(tokens[:, order]),
        as_array(m @ rotation),
        inverse_temperature=0.3,
        head=head,
    )
    assert_allclose(as_numpy(one), as_numpy(two), rtol=1e-9, atol=1e-9)


def test_no_temperature_attends_to_all_alike(rng):
    tokens = rng.standard_normal((2, 5, 3))
    output = pca_head(tokens, rng.standard_normal(3), inverse_temperature=0.0)
    assert_allclose(output, tokens.mean(axis=1), rtol=RTOL)


def test_one_direction_is_rank_one(rng):
    tokens, mu = rng.standard_normal((2, 5, 3)), rng.standard_normal(3)
    for head in HEADS:
        options = {"inverse_temperature": 0.4, "head": head}
        assert_allclose(
            pca_head(tokens, mu, **options), pca_head(tokens, mu[:, None], **options)
        )


def test_large_scores_do_not_overflow():
    tokens = np.array([[100.0], [90.0], [-100.0]])
    for head in ("softmax", "sigmoid", "erf"):
        output = pca_head(tokens, np.ones(1), inverse_temperature=10.0, head=head)
        assert np.isfinite(output).all()


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"head": "soft"}, "`head` must be one of .* Did you mean 'softmax'"),
        ({"inverse_temperature": -1.0}, "`inverse_temperature` must be"),
        (
            {"directions": np.ones(4)},
            r"`directions` must be of shape \(3,\) or \(3, k\)",
        ),
        ({"directions": np.ones(3, dtype=np.float32)}, "of the dtype of `tokens`"),
        ({"tokens": np.ones(3)}, "`tokens` must be of shape"),
        ({"tokens": np.ones((2, 3), dtype=int)}, "an array of floats"),
        ({"tokens": [[1.0]]}, "`tokens` must be an array of NumPy or"),
    ],
)
def test_bad_input_is_named(change, match):
    arguments = {
        "tokens": np.ones((2, 3)),
        "directions": np.ones(3),
        "inverse_temperature": 1.0,
        "head": "softmax",
    } | change
    tokens, directions = arguments.pop("tokens"), arguments.pop("directions")
    with pytest.raises((ValueError, TypeError), match=f"pca_head: .*{match}"):
        pca_head(tokens, directions, **arguments)


def test_alignment_is_the_cosine_for_one_direction(rng):
    subspace = principal_subspace(np.diag([3.0, 2.0, 1.0]))
    mu = rng.standard_normal(3)
    expected = abs(mu[0]) / np.linalg.norm(mu)
    assert_allclose(subspace.alignment(mu[:, None]), expected, rtol=RTOL)


def test_alignment_of_a_subspace_is_that_of_its_principal_angles(rng):
    from scipy.linalg import subspace_angles

    subspace = principal_subspace(np.diag([4.0, 3.0, 2.0, 1.0]), 2)
    m = rng.standard_normal((4, 2))
    cosines = np.cos(subspace_angles(m, np.eye(4)[:, :2]))
    assert_allclose(subspace.alignment(m), np.sqrt(np.mean(cosines**2)), rtol=1e-9)


def test_a_repeated_eigenvalue_counts_its_eigenspace():
    subspace = principal_subspace(np.diag([3.0, 2.0, 2.0, 1.0]), 2)
    assert not subspace.is_identified
    inside = np.array([[1.0, 0, 0, 0], [0, 0.6, 0.8, 0]]).T
    assert_allclose(subspace.alignment(inside), 1.0)
    # Both tied directions but not the certain one: half of the subspace is missing.
    missing = np.eye(4)[:, 1:3]
    assert_allclose(subspace.alignment(missing), np.sqrt(0.5))
    with pytest.warns(NotIdentifiedWarning, match="2 eigenvalues equal 2, so the"):
        subspace.warn_if_not_identified()


@pytest.mark.parametrize(
    ("matrix", "match"),
    [
        ([[1.0, 0.5], [0.0, 1.0]], "a symmetric matrix; got entries that differ"),
        ([[1.0, 2.0], [2.0, 1.0]], "positive semi-definite matrix; got smallest"),
        ([[1.0, 0.0]], r"a square matrix \(d, d\)"),
        ([[0.0]], "a matrix that is not zero"),
        ([[float("nan")]], "finite numbers"),
    ],
)
def test_a_covariance_is_checked(matrix, match):
    with pytest.raises(ValueError, match=f"`covariance` must be .*{match}|{match}"):
        principal_subspace(matrix)


@pytest.fixture
def prompts():
    return np.random.default_rng(0).standard_normal((3, 7, 4))


@pytest.mark.parametrize("head", ["softmax", "linear"])
def test_loss_is_the_mean_over_queries_of_the_heads_error(prompts, head):
    M = np.random.default_rng(1).standard_normal((4, 2)) / 2
    squares = []
    for first in range(7):
        turned = np.roll(prompts, -first, axis=1)
        output = pca_head(turned, M, inverse_temperature=0.3, head=head)
        squares.append(np.sum((turned[:, 0] - output) ** 2, axis=-1))
    result = pca_prompt_loss(prompts, M, inverse_temperature=0.3, head=head)
    assert_allclose(result.loss, np.mean(squares), rtol=1e-12)


@pytest.mark.parametrize("head", ["softmax", "linear"])
def test_gradient_is_the_derivative_of_the_loss(prompts, head):
    rng = np.random.default_rng(2)
    M, along = rng.standard_normal((2, 4, 2)) / 2
    loss = [
        pca_prompt_loss(prompts, M + h * along, inverse_temperature=0.3, head=head).loss
        for h in (1e-5, -1e-5)
    ]
    gradient = pca_prompt_loss(prompts, M, inverse_temperature=0.3, head=head).gradient
    # Central differences: error h² times a third derivative of order 1e3 here.
    assert_allclose((loss[0] - loss[1]) / 2e-5, np.sum(gradient * along), rtol=1e-6)


def test_other_heads_are_refused(prompts):
    with pytest.raises(ValueError, match=r"`head` must be one of 'softmax', 'linear'"):
        pca_prompt_loss(prompts, np.ones((4, 1)), inverse_temperature=1.0, head="relu")
    with pytest.raises(ValueError, match="pca_prompt_loss: `directions`"):
        pca_prompt_loss(prompts, np.ones((3, 1)), inverse_temperature=1.0)
