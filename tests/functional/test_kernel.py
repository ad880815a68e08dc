"""CKA, matching, effective rank, gamma: by hand, invariances, both libraries."""

import itertools
import math

import numpy as np
import pytest
from numpy.testing import assert_allclose

from eigenheads.functional import (
    effective_rank,
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    kernel_pca_values,
    linear_cka,
    log_feature_norms,
    matching_cosine,
    rbf_cka,
    relative_differences,
)
from eigenheads.functional._kernel import centred_gram
from eigenheads.functional._similarity import rbf_gram


def pairwise(ratios):
    """The definition, pair by pair."""
    pairs = itertools.combinations(ratios, 2)
    return np.mean([abs(x - y) / (max(abs(x), abs(y)) or 1) for x, y in pairs])


def test_relative_differences_are_the_mean_over_pairs(rng, as_array):
    ratios = rng.standard_normal((3, 11, 4)) ** 3
    ratios[0, :3, 0] = 0
    ratios[0, :, 1] = 0
    ratios[1, :, 2] = -2.5
    found = np.asarray(relative_differences(as_array(ratios)))
    expected = [[pairwise(column) for column in r.T] for r in ratios]
    assert_allclose(found, expected, atol=1e-12)


def test_both_libraries_agree(rng, as_array):
    keys, queries, values = rng.standard_normal((3, 2, 7, 4))

    def run(convert):
        k, q, v = convert(keys), convert(queries), convert(values)
        cloud = kernel_pca(k)
        target = kernel_pca_values(cloud, 9)
        return [
            cloud.eigenvalues,
            target**2,
            log_feature_norms(q, k, is_causal=True),
            log_feature_norms(q, k, standardize=True),
            gamma_ratios(cloud.gram, kernel_coefficients(cloud, v)),
            linear_cka(v, target),
            rbf_cka(v, target),
            effective_rank(cloud.eigenvalues),
            effective_rank(cloud.eigenvalues, kind="participation"),
        ]

    for ours, theirs in zip(run(as_array), run(np.asarray), strict=True):
        assert_allclose(np.asarray(ours), theirs, rtol=1e-7, atol=1e-9)


def test_causal_norms_see_the_past_only(rng):
    queries, keys = rng.standard_normal((2, 6, 3))
    found = log_feature_norms(queries, keys, is_causal=True)
    for i in range(6):
        alone = log_feature_norms(queries[i : i + 1], keys[: i + 1])
        assert_allclose(found[i], alone[0], rtol=1e-12)


def test_standardised_norm_by_hand():
    """Tokens ±1: already standardised, so q·q = D = 2 and the score is ±√2."""
    token = np.array([[3.0, 1.0]])  # becomes (1, -1)
    keys = np.array([[5.0, 1.0], [0.0, 2.0]])  # become (1, -1), (-1, 1)
    expected = 2 - 2 * math.log(math.exp(math.sqrt(2)) + math.exp(-math.sqrt(2)))
    assert_allclose(log_feature_norms(token, keys, standardize=True), [expected])


def test_missing_components_are_zero(rng):
    cloud = kernel_pca(rng.standard_normal((4, 3)))
    values = kernel_pca_values(cloud, 6)
    assert (np.abs(values[:, :3]).sum(0) > 0).all()
    assert (values[:, 3:] == 0).all()


def test_cka_does_not_see_shift_rotation_scale_and_common_order(rng):
    x, y = rng.standard_normal((2, 20, 5))
    rotation = np.linalg.qr(rng.standard_normal((5, 5)))[0]
    order = rng.permutation(20)
    for cka in (linear_cka, rbf_cka):
        expected = float(cka(x, y))
        assert 0 < expected < 1
        moved = cka((3 * x @ rotation + 2)[order], y[order])
        assert_allclose(moved, expected, rtol=1e-9)
        assert_allclose(cka(x, y), cka(y, x), rtol=1e-12)
        assert abs(float(cka(x[order], y)) - expected) > 1e-4


def test_linear_cka_is_the_cosine_of_centred_gram_matrices(rng):
    x, y = rng.standard_normal((20, 5)), rng.standard_normal((20, 3))
    a, b = centred_gram(x @ x.T), centred_gram(y @ y.T)
    expected = (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b)
    assert_allclose(linear_cka(x, y), expected, rtol=1e-12)


def test_constant_points_have_no_alignment():
    x = np.arange(6.0).reshape(3, 2)
    assert np.isnan(linear_cka(x, np.ones((3, 2))))
    assert np.isnan(rbf_cka(x, np.ones((3, 2))))


def test_bandwidth_is_the_median_distance():
    gram = rbf_gram(np.array([[0.0], [1.0], [3.0]]))  # distances 1, 2, 3
    assert_allclose(gram[0], np.exp([0, -1 / 8, -9 / 8]))


def test_matching_is_the_best_of_all(rng):
    x, y = rng.standard_normal((2, 5, 3))
    unit = [z / np.linalg.norm(z, axis=1, keepdims=True) for z in (x, y)]
    cosines = unit[0] @ unit[1].T
    best = max(
        np.mean([cosines[i, j] for i, j in enumerate(order)])
        for order in itertools.permutations(range(5))
    )
    assert_allclose(matching_cosine(x, y), best, rtol=1e-12)
    assert_allclose(matching_cosine(x[::-1], y), best, rtol=1e-12)


def test_effective_ranks_by_hand():
    spectrum = np.array([[1.0, 1.0, 1.0, 0.0], [3.0, 1.0, 0.0, -1e-20], [0, 0, 0, 0]])
    assert_allclose(
        effective_rank(spectrum),
        [3, math.exp(-0.75 * math.log(0.75) - 0.25 * math.log(0.25)), np.nan],
    )
    assert_allclose(effective_rank(spectrum, kind="participation"), [3, 1.6, np.nan])


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: kernel_pca(x[:1]), "`keys` must be two rows or more"),
        (lambda x: kernel_pca(x[0]), "`keys` must be an array of shape"),
        (lambda x: kernel_pca(x, scale=0), "`scale` must be a finite number > 0"),
        (lambda x: linear_cka(x, x[1:]), "`second` must be of as many tokens"),
        (lambda x: matching_cosine(x, x[:, 1:]), "`second` must be of the width"),
        (lambda x: effective_rank(x, kind="trace"), "`kind` must be one of"),
        (lambda x: kernel_coefficients(kernel_pca(x), x[1:]), "`values` must be of"),
        (lambda x: rbf_gram(x[:1]), "`points` must be two rows or more"),
    ],
)
def test_says_what_is_wrong(rng, call, match):
    with pytest.raises(ValueError, match=match):
        call(rng.standard_normal((4, 3)))


@pytest.mark.torch
def test_values_are_of_the_library_of_the_keys(rng):
    keys, torch = rng.standard_normal((4, 3)), pytest.importorskip("torch")
    with pytest.raises(TypeError, match="`values` must be an array of the same"):
        kernel_coefficients(kernel_pca(keys), torch.tensor(keys))


def test_integers_are_refused():
    with pytest.raises(TypeError, match="`keys` must be an array of floats"):
        kernel_pca(np.ones((3, 2), dtype=int))
