"""Risks against Monte Carlo, gradients against autodiff, critical points, descent."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.datasets import (
    GaussianPrompts,
    SpikedWishartPrompts,
    random_covariance,
)
from eigenheads.functional import NotIdentifiedWarning, pca_head
from eigenheads.theory import PCALandscape


def softmax_landscape(covariance, **options):
    return PCALandscape(GaussianPrompts(covariance), **options)


def linear_landscape(covariance, n_tokens, **options):
    return PCALandscape(GaussianPrompts(covariance, n_tokens), head="linear", **options)


def landscapes(rank=1, d=4, seed=0):
    covariance = random_covariance(d, np.random.default_rng(seed))
    return {
        "softmax": softmax_landscape(covariance, inverse_temperature=0.3, rank=rank),
        "linear": linear_landscape(
            covariance, n_tokens=5, inverse_temperature=0.05, rank=rank
        ),
        "in_context": PCALandscape(
            SpikedWishartPrompts(d, degrees_of_freedom=6),
            inverse_temperature=0.002,
            rank=rank,
            scale_matrix=covariance,
        ),
    }


KINDS = list(landscapes())


def mean_and_error(losses):
    return losses.mean(), losses.std() / np.sqrt(len(losses))


@pytest.mark.parametrize(("d", "n_tokens", "rank"), [(2, 1, 1), (4, 3, 1), (3, 7, 2)])
def test_linear_risk_is_the_mean_loss(d, n_tokens, rank):
    """Four standard errors: fails by chance with probability 6e-5."""
    rng = np.random.default_rng(1)
    covariance = random_covariance(d, rng)
    m = rng.standard_normal((d, rank)) * 0.5
    tokens = GaussianPrompts(covariance, n_tokens).sample(200_000, rng)
    sharp = 0.3 / (n_tokens * np.trace(covariance))
    error = tokens[:, 0] - pca_head(tokens, m, inverse_temperature=sharp, head="linear")
    mean, se = mean_and_error(np.sum(error**2, axis=1))
    landscape = linear_landscape(
        covariance, n_tokens=n_tokens, inverse_temperature=sharp, rank=rank
    )
    assert abs(mean - landscape.risk(m[:, 0] if rank == 1 else m)) < 4 * se


@pytest.mark.parametrize(("d", "rank"), [(2, 1), (5, 1), (5, 3)])
def test_softmax_risk_is_the_mean_loss_of_the_tilt(d, rank):
    """L → ∞: the softmax average becomes λ Σ M M' x₁."""
    rng = np.random.default_rng(2)
    covariance = random_covariance(d, rng)
    m = rng.standard_normal((d, rank)) * 0.3
    x = GaussianPrompts(covariance, 1).sample(100_000, rng)[:, 0]
    error = x - 0.4 * x @ m @ m.T @ covariance
    mean, se = mean_and_error(np.sum(error**2, axis=1))
    landscape = softmax_landscape(covariance, inverse_temperature=0.4, rank=rank)
    assert abs(mean - landscape.risk(m[:, 0] if rank == 1 else m)) < 4 * se


def test_a_long_prompt_has_nearly_the_softmax_risk():
    """And a short one does not: the limit is a limit."""
    rng = np.random.default_rng(3)
    covariance, mu = np.diag([1.0, 0.5]), np.array([0.6, 0.3])
    risk = softmax_landscape(covariance, inverse_temperature=1.0).risk(mu)
    gaps = []
    for n_tokens, n in ((4, 20_000), (2000, 2000)):
        tokens = GaussianPrompts(covariance, n_tokens).sample(n, rng)
        error = tokens[:, 0] - pca_head(tokens, mu, inverse_temperature=1.0)
        gaps.append(abs(np.sum(error**2, axis=1).mean() - risk))
    # Standard error of the second: about 1.5/√2000 = 0.034.
    assert gaps[1] < 0.15
    assert gaps[0] > 0.2


@pytest.mark.parametrize(("d", "n", "rank"), [(2, 1, 1), (4, 6, 1), (3, 4, 2)])
def test_in_context_risk_is_the_mean_loss(d, n, rank):
    rng = np.random.default_rng(4)
    law = SpikedWishartPrompts(d, 1, degrees_of_freedom=n)
    m = rng.standard_normal((d, rank)) * 0.5
    tokens, covariances = law.sample(200_000, rng)
    sharp = 0.3 / (n * d)
    error = tokens[:, 0] - sharp * np.einsum(
        "nij,jk,lk,nl->ni", covariances, m, m, tokens[:, 0], optimize=True
    )
    mean, se = mean_and_error(np.sum(error**2, axis=1))
    landscape = PCALandscape(law, inverse_temperature=sharp, rank=rank)
    assert abs(mean - landscape.risk(m[:, 0] if rank == 1 else m)) < 4 * se


@pytest.mark.torch
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 3])
def test_gradient_is_that_of_autodiff(kind, rank, rng):
    import torch

    landscape = landscapes(rank)[kind]
    point = rng.standard_normal((4, rank))
    m = torch.tensor(point, requires_grad=True)
    s = torch.tensor(landscape.matrix)
    b = m @ m.T
    c, sharp = landscape.coefficients, landscape.inverse_temperature
    bs, bss = b @ s, b @ s @ s
    quartic = c.on_aa * bs.trace() ** 2 + c.on_f * (bs @ bs).trace()
    quartic = quartic + c.on_ab * bs.trace() * bss.trace() + c.on_g * (bs @ bss).trace()
    linear = c.on_a * bs.trace() + c.on_b * bss.trace()
    risk = c.null_risk - 2 * sharp * linear + sharp**2 * quartic
    risk.backward()
    given = point[:, 0] if rank == 1 else point
    assert_allclose(landscape.risk(given), risk.item(), rtol=1e-12)
    gradient = landscape.gradient(given).reshape(4, rank)
    assert_allclose(gradient, m.grad.numpy(), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_hessian_is_the_derivative_of_the_gradient(kind, rng):
    landscape, mu = landscapes()[kind], rng.standard_normal(4)
    step = 1e-5
    columns = [
        (landscape.gradient(mu + step * e) - landscape.gradient(mu - step * e))
        / (2 * step)
        for e in np.eye(4)
    ]
    scale = np.abs(columns).max()
    assert_allclose(landscape.hessian(mu), columns, atol=1e-7 * scale)


def test_critical_points_are_counted_and_of_their_kind():
    for landscape in landscapes().values():
        points = landscape.critical_points()
        kinds = [point.kind for point in points]
        assert kinds == ["minimum", *["strict saddle"] * 3, "maximum"]
        assert [point.n_negative for point in points] == [0, 1, 2, 3, 4]
        for point in points:
            gradient = landscape.gradient(point.location)
            assert_allclose(gradient, 0, atol=1e-9 * landscape.minimum)
        assert_allclose(points[0].risk, landscape.minimum)


def test_softmax_saddles_have_the_values_of_the_paper():
    values = np.array([4.0, 2.0, 1.0])
    landscape = softmax_landscape(np.diag(values), inverse_temperature=0.5)
    points = landscape.critical_points()[:-1]
    assert_allclose([point.risk for point in points], 7 - values)
    lengths = [np.linalg.norm(point.location) for point in points]
    assert_allclose(lengths, 1 / np.sqrt(0.5 * values))
    rates = landscape.descent_rates()
    assert_allclose(rates[1:], 2 * 0.5 * values[1:] * (4 - values[1:]))


def test_a_repeated_eigenvalue_has_a_sphere_of_minima():
    landscape = softmax_landscape(np.diag([2.0, 2.0, 1.0]), inverse_temperature=1.0)
    first = landscape.critical_points()[0]
    assert first.kind == "minimum"
    assert first.eigenspace.shape == (3, 2)
    with pytest.warns(NotIdentifiedWarning, match="2 eigenvalues equal 2"):
        landscape.minimiser()
    with pytest.warns(NotIdentifiedWarning, match="descend"):
        path = landscape.descend([0.3, 0.4, 0.1], step_size=0.05, n_steps=2000)
    assert_allclose(path.final("alignment"), 1.0)


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_the_softmax_minimum_is_the_pca_error(rank):
    s = random_covariance(4, np.random.default_rng(5))
    landscape = softmax_landscape(s, inverse_temperature=0.7, rank=rank)
    error = np.linalg.eigvalsh(s)[: 4 - rank].sum()
    assert abs(landscape.minimum - error) < 1e-10
    m = landscape.minimiser().reshape(4, rank)
    # M M' = U diag(1/(λσ)) U', so M' Σ M is I/λ.
    assert_allclose(m.T @ s @ m, np.eye(rank) / 0.7, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_descent_from_many_starts_reaches_the_minimum_never_a_saddle(kind, rank):
    landscape = landscapes(rank)[kind]
    shape = (20, 4) if rank == 1 else (20, 4, rank)
    size = np.linalg.norm(landscape.minimiser())
    start = 0.2 * size * np.random.default_rng(6).standard_normal(shape)
    path = landscape.descend(
        start,
        step_size=0.3 * landscape.largest_stable_step(),
        n_steps=100_000,
        record_every=100_000,
    )
    assert_allclose(path.final("risk"), landscape.minimum, rtol=1e-8)
    assert_allclose(path.final("alignment"), 1.0, atol=1e-6)


def test_descent_takes_the_gradient_step(rng):
    landscape = landscapes(2)["linear"]
    start = rng.standard_normal((4, 2))
    by_hand = start - 1e-3 * landscape.gradient(start)
    by_hand = by_hand - 2e-3 * landscape.gradient(by_hand)
    path = landscape.descend(start, step_size=lambda t: 1e-3 * (t + 1), n_steps=2)
    assert_allclose(path["norm"][0, -1], np.linalg.norm(by_hand), rtol=1e-12)
    assert_allclose(path["risk"][0, -1], landscape.risk(by_hand), rtol=1e-12)
    expected = landscape.subspace.alignment(by_hand)
    assert_allclose(path["alignment"][0, -1], expected, rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rank", [1, 2])
def test_the_largest_stable_step_is_just_that(kind, rank):
    """Next to the minimum, 1 % less converges and 1 % more moves away."""
    landscape = landscapes(rank)[kind]
    best, largest = landscape.minimiser(), landscape.largest_stable_step()
    shift = 1e-5 * np.random.default_rng(7).standard_normal(best.shape)
    gaps = [
        landscape.descend(best + shift, step_size=s * largest, n_steps=500)["risk"][0]
        - landscape.minimum
        for s in (0.99, 1.01)
    ]
    assert gaps[0][-1] < gaps[0][0]
    assert gaps[1][-1] > 10 * gaps[1][0]


def test_divergence_names_the_largest_stable_step():
    landscape = softmax_landscape(np.diag([2.0, 1.0]), inverse_temperature=0.5)
    with pytest.raises(ValueError, match=r"diverged at update .* below 0\.125 are"):
        landscape.descend([1.0, 1.0], step_size=2.0, n_steps=100)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (
            lambda s: softmax_landscape(s, inverse_temperature=0),
            "`inverse_temperature` must be a finite number > 0",
        ),
        (
            lambda s: linear_landscape(s, n_tokens=0, inverse_temperature=1),
            "`n_tokens` must be",
        ),
        (
            lambda s: PCALandscape(
                SpikedWishartPrompts(2), inverse_temperature=1, scale_matrix=s - 2
            ),
            "`scale_matrix` must be a positive",
        ),
        (
            lambda s: softmax_landscape(s, inverse_temperature=1, rank=3),
            "`rank` must be an integer from 1 to 2",
        ),
        (
            lambda s: softmax_landscape(s, inverse_temperature=1).risk([1.0]),
            r"`point` must be of shape \(..., 2\)",
        ),
        (
            lambda s: softmax_landscape(
                s, inverse_temperature=1, rank=2
            ).critical_points(),
            "`landscape` must be one of rank 1",
        ),
        (
            lambda s: softmax_landscape(s, inverse_temperature=1).hessian(np.eye(2)),
            "hessian: `point` must be one vector",
        ),
        (
            lambda s: softmax_landscape(s, inverse_temperature=1).descend(
                [1.0],
                step_size=1,
                n_steps=2,
            ),
            r"`start` must be of shape \(2,\) or \(n_runs, 2\)",
        ),
        (
            lambda s: softmax_landscape(s, inverse_temperature=1).descend(
                np.ones((2**20, 2)),
                step_size=1,
                n_steps=2**12,
            ),
            "`record_every` must be large enough",
        ),
    ],
)
def test_bad_input_is_named(call, match):
    with pytest.raises(ValueError, match=match):
        call(np.diag([2.0, 1.0]))


def test_laws_and_heads_without_a_closed_form_are_refused():
    with pytest.raises(TypeError, match="`law` must be a GaussianPrompts or a Spiked"):
        PCALandscape(np.eye(2), inverse_temperature=1)
    with pytest.raises(ValueError, match="`head` must be 'softmax' for prompts in con"):
        PCALandscape(SpikedWishartPrompts(2), inverse_temperature=1, head="linear")
    with pytest.raises(ValueError, match="`scale_matrix` must be None for prompts of"):
        PCALandscape(
            GaussianPrompts(np.eye(2)), inverse_temperature=1, scale_matrix=np.eye(2)
        )
