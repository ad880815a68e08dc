"""Each primitive against a Gaussian matrix that is really built."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from eigenheads.models._engine import (
    combine,
    reframe,
    reveal,
    reveal_along,
    sphere_step,
)

# Total false-failure probability of a test made of several comparisons.
FALSE_ALARM = 1e-4
ROUNDING = 1e-14


def assert_same_law(left, right):
    """Two-sample Kolmogorov-Smirnov tests of all columns, Bonferroni."""
    p_values = [
        stats.ks_2samp(one, other, method="asymp").pvalue
        for one, other in zip(left.T, right.T, strict=True)
    ]
    assert min(p_values) * len(p_values) > FALSE_ALARM


def test_reveal_draws_the_generators_own_normals():
    out = np.empty((3, 5))
    reveal(np.random.default_rng(3), np.empty((0, 5)), out)
    expected = np.random.default_rng(3).standard_normal((3, 5))
    np.testing.assert_array_equal(out, expected)


def test_revealed_column_is_projected_off_what_is_spent(rng):
    spent = np.linalg.qr(rng.standard_normal((6, 2)))[0].T.copy()
    draws = np.empty((4000, 6))
    reveal(rng, spent, draws)
    np.testing.assert_allclose(draws @ spent.T, 0.0, atol=1e-14)
    # The squared length of (I - ĉĉᵀ)g is chi-squared with 4 degrees of freedom.
    squares = np.sum(draws**2, axis=1)
    assert stats.kstest(squares, stats.chi2(4).cdf).pvalue > FALSE_ALARM


def combined(rng, weights, *, dof, r=2):
    coordinates = np.empty((r, weights.shape[1]))
    none = np.empty((0, weights.shape[1]))
    reveal(rng, none, coordinates)
    out = np.empty((len(weights), r + len(weights)))
    combine(rng, coordinates, weights, none, float(dof), out)
    np.testing.assert_allclose(out[:, :r], weights @ coordinates.T, atol=1e-13)
    return out


def gram_statistics(part):
    gram = part @ part.T
    return [*gram[np.triu_indices(len(gram))], np.linalg.det(gram)]


@pytest.mark.parametrize("dof", [1, 2, 3, 8])
def test_combinations_have_a_wishart_gram_matrix(rng, dof):
    weights = np.array([[1.0, 2.0, 0.0, -1.0], [0.5, 0.0, 1.0, 0.0], [1, 1, 1, 1]])
    ours = np.array(
        [gram_statistics(combined(rng, weights, dof=dof)[:, 2:]) for _ in range(4000)]
    )
    real = np.array(
        [
            gram_statistics(weights @ rng.standard_normal((4, dof)))
            for _ in range(len(ours))
        ]
    )
    if dof < 3:  # the determinant is zero, up to rounding
        assert np.abs(ours[:, -1]).max() < 1e-9
        ours, real = ours[:, :-1], real[:, :-1]
    assert_same_law(ours, real)


def test_combination_is_lower_triangular_outside_the_frame(rng):
    out = combined(rng, rng.standard_normal((3, 7)), dof=9)[:, 2:]
    np.testing.assert_array_equal(np.triu(out, 1), 0.0)
    assert (np.diag(out) > 0).all()


def test_combinations_with_dependent_weights_are_dependent(rng):
    c = rng.standard_normal(7)
    out = combined(rng, np.array([c, 2 * c, 0 * c, c]), dof=9)
    np.testing.assert_allclose(out[1], 2 * out[0], rtol=1e-13)
    np.testing.assert_array_equal(out[2], 0.0)
    np.testing.assert_allclose(out[3], out[0], rtol=1e-13)


@pytest.mark.parametrize("dof", [0, 1])
def test_no_combination_leaves_the_space(rng, dof):
    out = combined(rng, rng.standard_normal((2, 7)), dof=dof)[:, 2:]
    np.testing.assert_array_equal(out[:, dof:], 0.0)


def built_chain(rng, n, d):
    """Three combinations in a row, each depending on the last, with a real matrix."""
    z = rng.standard_normal((n, d))
    u = np.eye(d)[0]
    p = np.exp(z @ u)
    o = z.T @ p
    h = np.tanh(z @ o)
    g = z.T @ h
    f = z.T @ (p * (z @ g))
    return [o @ o, g @ g, g @ o, f @ f, f @ g, g @ u, p @ h]


def unbuilt_chain(rng, n, d, extra=0):
    """The same with the primitives; `extra` degrees of freedom make it wrong."""
    z, spent = np.zeros((3, n)), np.zeros((2, n))
    reveal(rng, spent[:0], z[:1])
    p = np.exp(z[0])
    o, g, f = np.zeros((1, 4)), np.zeros((1, 4)), np.zeros((1, 4))
    combine(rng, z[:1], p[None], spent[:0], d - 1.0 + extra, o[:, :2])
    reveal_along(rng, p, o[0, 1], spent[:1], z[1])
    h = np.tanh(o[0, :3] @ z)
    combine(rng, z[:2], h[None], spent[:1], d - 2.0 + extra, g[:, :3])
    reveal_along(rng, h, g[0, 2], spent, z[2])
    combine(rng, z, (p * (g[0, :3] @ z))[None], spent, d - 3.0 + extra, f)
    o, g, f = o[0], g[0], f[0]
    return [o @ o, g @ g, g @ o, f @ f, f @ g, g[0], p @ h]


def chain_samples(rng, chain, *arguments):
    return np.array([chain(rng, *arguments) for _ in range(3000)])


@pytest.mark.parametrize("d", [3, 4, 12])
def test_chained_combinations_have_the_law_of_a_built_matrix(rng, d):
    built = chain_samples(rng, built_chain, 5, d)
    assert_same_law(chain_samples(rng, unbuilt_chain, 5, d), built)


def test_comparison_of_chains_sees_one_degree_of_freedom(rng):
    # Lengths χ_3 for χ_2: their distributions differ by 0.2 or more, and the test
    # rejects from 0.07 on.
    built = chain_samples(rng, built_chain, 5, 3)
    with pytest.raises(AssertionError):
        assert_same_law(chain_samples(rng, unbuilt_chain, 5, 3, 1), built)


def test_reveal_along_agrees_with_the_combination(rng):
    # c·(Z e) is the combination's coordinate along e, by the meaning of both.
    n = 8
    c, spent, column = rng.standard_normal(n), np.empty((1, n)), np.empty(n)
    reveal_along(rng, c, 2.5, spent, column)
    assert c @ column == pytest.approx(2.5, abs=1e-13)
    np.testing.assert_allclose(spent[0], c / np.linalg.norm(c), rtol=1e-15)


def test_reveal_along_nothing_is_a_fresh_direction():
    n = 8
    spent, column = np.empty((1, n)), np.empty(n)
    reveal_along(np.random.default_rng(2), np.zeros(n), 0.0, spent, column)
    expected = np.random.default_rng(2).standard_normal(n)
    np.testing.assert_array_equal(column, expected)
    np.testing.assert_array_equal(spent, 0.0)


def test_combination_of_spent_weights_stays_in_the_frame(rng):
    # Zᵀc is known once Z e was revealed along it: no new direction is needed.
    n = 6
    z, spent, out = np.empty((2, n)), np.empty((1, n)), np.empty((1, 3))
    reveal(rng, np.empty((0, n)), z[:1])
    c = rng.standard_normal((1, n))
    combine(rng, z[:1], c, np.empty((0, n)), 20.0, out[:, :2])
    reveal_along(rng, c[0], out[0, 1], spent, z[1])
    again = np.empty((1, 3))
    combine(rng, z, 3.0 * c, spent, 19.0, again)
    np.testing.assert_allclose(again[0, :2], 3.0 * out[0, :2], rtol=1e-13)
    assert abs(again[0, 2]) < ROUNDING * np.abs(again).max()


numbers = st.floats(-1e3, 1e3).map(lambda x: 0.0 if abs(x) < 1e-100 else x)


@given(arrays(float, (2, 6), elements=numbers), st.integers(0, 3))
@settings(max_examples=200, deadline=None)
def test_reframe_keeps_lengths_and_angles(vectors, n_planted):
    turned = vectors.copy()
    reframe(turned, n_planted)
    scale = 1 + np.sum(vectors**2)
    np.testing.assert_allclose(
        turned @ turned.T / scale, vectors @ vectors.T / scale, atol=ROUNDING
    )
    np.testing.assert_array_equal(turned[:, :n_planted], vectors[:, :n_planted])
    np.testing.assert_array_equal(np.triu(turned[:, n_planted:], 1), 0.0)
    assert (np.diag(turned[:, n_planted:]) >= 0).all()
    again = turned.copy()
    reframe(again, n_planted)
    np.testing.assert_allclose(again / scale, turned / scale, atol=ROUNDING)


def test_reframe_of_a_planted_vector_leaves_it_alone():
    vectors = np.array([[-1.0, 0, 0, 0, 0, 0], [0, 0.6, 0, 0, 0.8, 0]])
    reframe(vectors, 2)
    np.testing.assert_allclose(vectors[0], [-1, 0, 0, 0, 0, 0])
    np.testing.assert_allclose(vectors[1], [0, 0.6, 0, 0.8, 0, 0], atol=1e-16)


def test_reframe_of_more_vectors_is_the_factor_of_their_gram(rng):
    vectors = rng.standard_normal((4, 9))
    expected = np.linalg.cholesky(vectors @ vectors.T)
    reframe(vectors, 0)
    np.testing.assert_allclose(vectors[:, :4], expected, atol=1e-13)
    np.testing.assert_array_equal(vectors[:, 4:], 0.0)


def test_sphere_step_by_hand():
    vector = np.array([1.0, 0.0])
    assert sphere_step(vector, np.array([5.0, -3.0]), 0.25)
    np.testing.assert_allclose(vector, np.array([1.0, 0.75]) / 1.25, rtol=1e-15)


def test_sphere_step_moves_along_the_negative_tangent(rng):
    vector = rng.standard_normal(6)
    vector /= np.linalg.norm(vector)
    gradient = rng.standard_normal(6)
    tangent = gradient - (vector @ gradient) * vector
    moved = vector.copy()
    sphere_step(moved, gradient, 1e-7)
    # The second-order term is 1e-14 |tangent|² / 2, divided by 1e-7.
    np.testing.assert_allclose((moved - vector) / 1e-7, -tangent, atol=1e-5)


@pytest.mark.parametrize("gradient", [1e200, np.inf, np.nan])
def test_sphere_step_tells_an_overflow(gradient):
    assert not sphere_step(np.array([1.0, 0.0]), np.array([0.0, gradient]), 1.0)


def test_sphere_step_of_nothing_is_no_step():
    assert not sphere_step(np.zeros(2), np.zeros(2), 1.0)


@pytest.mark.parametrize("dof", [np.nan, np.inf, -np.inf])
def test_degrees_of_freedom_are_finite(rng, dof):
    one = np.ones((1, 3))
    with pytest.raises(ValueError, match="combine: `dof` must be a finite number"):
        combine(rng, one, one, one[:0], dof, np.empty((1, 2)))


def test_shapes_that_do_not_fit_get_a_sentence(rng):
    def empty(*shape):
        return np.zeros(shape)

    with pytest.raises(ValueError, match="reveal: `spent` must be of shape"):
        reveal(rng, empty(1, 4), empty(2, 5))
    for shapes in (((2, 5), (1, 4), (0, 5)), ((2, 5), (1, 5), (1, 6))):
        with pytest.raises(ValueError, match="combine: `weights` and `spent` must be"):
            combine(rng, *(empty(*s) for s in shapes), 9.0, empty(1, 3))
    for shape in ((1, 2), (1, 4), (2, 3)):
        with pytest.raises(ValueError, match=r"combine: `out` must be of shape \(q, r"):
            combine(rng, empty(2, 5), empty(1, 5), empty(0, 5), 9.0, empty(*shape))
    for spent, out in (((0, 5), 5), ((1, 4), 5), ((1, 5), 4)):
        with pytest.raises(ValueError, match="reveal_along: `spent` and `out` must be"):
            reveal_along(rng, empty(5), 1.0, empty(*spent), empty(out))
    for n_planted in (3, -1, 2**63 - 1):
        with pytest.raises(ValueError, match="reframe: `vectors` must be of shape"):
            reframe(empty(2, 4), n_planted)
    with pytest.raises(
        ValueError, match="sphere_step: `gradient` must be of the shape"
    ):
        sphere_step(empty(3), empty(2), 1.0)


side = st.integers(0, 3)


@given(sides=st.lists(side, min_size=10, max_size=10), dof=st.floats())
@settings(max_examples=150, deadline=None)
def test_any_shapes_give_a_result_or_a_sentence(sides, dof):
    rng = np.random.default_rng(0)
    a, b, c, d, e, f, g, h, i, j = sides
    calls = {
        "reveal": (reveal, rng, np.ones((a, b)), np.ones((c, d))),
        "combine": (
            combine,
            rng,
            np.ones((a, b)),
            np.ones((c, d)),
            np.ones((e, f)),
            dof,
            np.ones((g, h)),
        ),
        "reveal_along": (
            reveal_along,
            rng,
            np.ones(a),
            dof,
            np.ones((b, c)),
            np.ones(d),
        ),
        "reframe": (reframe, np.ones((i, j)), a - 1),
        "sphere_step": (sphere_step, np.ones(a), np.ones(b), dof),
    }
    for name, (primitive, *arguments) in calls.items():
        try:
            primitive(*arguments)
        except ValueError as error:
            assert str(error).startswith(f"{name}: `")
            assert " must be " in str(error)
