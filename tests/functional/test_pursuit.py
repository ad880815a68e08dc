r"""Shrinkage and principal attention pursuit: values by hand, limits, invariances."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from eigenheads.functional import (
    attention_pursuit,
    singular_value_threshold,
    soft_threshold,
)
from eigenheads.functional._pursuit import pursuit_steps

# Float64 rounding through four softmaxes whose keys grow with the iterations.
RTOL = 1e-10


def draw(rng, shape=(2, 3, 12, 8), scale=1.0):
    return scale * rng.standard_normal(shape), rng.standard_normal(shape)


def loop_pursuit(keys, values, n_iter, threshold_of_mu, width, sign=-1, queries=None):
    """The paper's loop with Y and mu written out, one head, plain NumPy."""
    n, d = keys.shape
    mu = n * width / (4 * np.abs(keys).sum())
    L = Y = np.zeros_like(keys)
    for _ in range(n_iter):
        S = keys - L + Y / mu
        S = np.sign(S) * np.maximum(np.abs(S) - threshold_of_mu(mu), 0)
        cleaned = keys - S + sign * Y / mu
        rows = cleaned if queries is None else queries
        weights = np.exp(rows @ cleaned.T / math.sqrt(d))
        L = weights / weights.sum(1, keepdims=True) @ values
        Y = Y + mu * (keys - L - S)
    return L, S


def test_shrinkage_by_hand(as_array):
    x = as_array(np.array([-3.0, -1.0, 0.0, 0.5, 2.0]))
    assert_array_equal(soft_threshold(x, 1.0), [-2.0, 0.0, 0.0, 0.0, 1.0])
    assert_array_equal(soft_threshold(x, math.inf), np.zeros(5))
    assert_array_equal(soft_threshold(x, 0.0), x)


def test_shrinkage_minimises_its_proximal_objective(rng):
    x, tau = rng.standard_normal(20), 0.7
    grid = np.linspace(-4, 4, 80_001)  # step 1e-4
    objective = 0.5 * (grid - x[:, None]) ** 2 + tau * np.abs(grid)
    assert_allclose(soft_threshold(x, tau), grid[objective.argmin(1)], atol=1e-4)


def test_what_shrinkage_leaves_is_the_clipped_part(rng, as_array):
    x = rng.standard_normal((4, 5))
    left = as_array(x) - soft_threshold(as_array(x), 0.6)
    assert_allclose(left, np.clip(x, -0.6, 0.6), atol=1e-15)


@pytest.mark.parametrize("n_iter", [1, 2, 5])
@pytest.mark.parametrize(
    ("rule", "width", "threshold_of_mu"),
    [("paper", 8, lambda mu: 0.5 / mu), ("reference", 40, lambda mu: 0.5 * mu)],
)
def test_follows_the_loop_with_multipliers(
    rng, as_array, n_iter, rule, width, threshold_of_mu
):
    keys, values = draw(rng)
    found = attention_pursuit(
        as_array(keys),
        as_array(values),
        n_iter=n_iter,
        sparsity=0.5,
        threshold=rule,
        width=width,
    )
    for b in range(2):
        for h in range(3):
            L, S = loop_pursuit(
                keys[b, h], values[b, h], n_iter, threshold_of_mu, width
            )
            assert_allclose(found.output[b, h], L, rtol=RTOL, atol=RTOL)
            assert_allclose(found.sparse[b, h], S, rtol=RTOL, atol=RTOL)


@pytest.mark.parametrize("multiplier", ["paper", "admm"])
@pytest.mark.parametrize("query_steps", ["last", "every"])
def test_signs_and_asymmetric_models_follow_the_loop(
    rng, as_array, multiplier, query_steps
):
    keys, values = draw(rng, (12, 8))
    queries = rng.standard_normal((12, 8))
    is_every = query_steps == "every"
    found = attention_pursuit(
        as_array(keys),
        as_array(values),
        queries=as_array(queries) if is_every else None,
        n_iter=3,
        sparsity=0.5,
        multiplier=multiplier,
        query_steps=query_steps,
    )
    L, S = loop_pursuit(
        keys,
        values,
        3,
        lambda mu: 0.5 / mu,
        8,
        sign=1 if multiplier == "admm" else -1,
        queries=queries if is_every else None,
    )
    assert_allclose(found.output, L, rtol=RTOL, atol=RTOL)
    assert_allclose(found.sparse, S, rtol=RTOL, atol=RTOL)


def planted_matrix(rng):
    """A 60 x 50 matrix of rank 3, and the same with 5 % gross errors."""
    low_rank = rng.standard_normal((60, 3)) @ rng.standard_normal((3, 50))
    hit = rng.random((60, 50)) < 0.05
    return low_rank, low_rank + np.where(hit, rng.choice([-20.0, 20.0], (60, 50)), 0)


def split_by_singular_values(matrix, multiplier, n_iter):
    """The pursuit with the proximal map of the nuclear norm as its low-rank step."""
    mu = matrix.size / (4 * np.abs(matrix).sum())
    *_, last = pursuit_steps(
        matrix,
        lambda cleaned: singular_value_threshold(cleaned, 1 / mu),
        lambda argument: len(matrix) ** -0.5 / mu,
        n_iter,
        multiplier=multiplier,
    )
    return last


def test_with_the_sign_of_admm_it_is_principal_component_pursuit(rng):
    low_rank, matrix = planted_matrix(rng)
    found = split_by_singular_values(matrix, "admm", 300)
    size = np.abs(low_rank).max()
    assert np.abs(found.low_rank - low_rank).max() <= 1e-10 * size
    assert np.abs(found.low_rank + found.sparse - matrix).max() <= 1e-10 * size


def test_with_the_printed_sign_principal_component_pursuit_diverges(rng):
    low_rank, matrix = planted_matrix(rng)
    errors = [
        np.abs(split_by_singular_values(matrix, "paper", n).low_rank - low_rank).max()
        for n in (50, 100, 200)
    ]
    assert errors[2] > 1.5 * errors[1] > 2.25 * errors[0] > np.abs(low_rank).max()


def test_without_flags_the_sign_only_changes_the_multiple_of_the_keys(rng):
    """Up to its sign K' is (t-2)K (paper) or tK (ADMM) less the sum of earlier L."""
    keys, values = draw(rng, (12, 8), scale=0.3)
    for multiplier, multiple in (("paper", 1), ("admm", 3)):
        options = {"sparsity": math.inf, "multiplier": multiplier}
        past = [
            attention_pursuit(keys, values, n_iter=n, **options).output for n in (1, 2)
        ]
        third = attention_pursuit(keys, values, n_iter=3, **options).cleaned
        sign = 1 if multiplier == "paper" else -1
        assert_allclose(third, -sign * multiple * keys + sign * sum(past))


@pytest.mark.parametrize("query_steps", ["last", "every"])
def test_in_the_second_iteration_the_printed_sign_cancels_the_keys(rng, query_steps):
    """Without flags K' is L of the first iteration; with the sign of ADMM, 2K - L."""
    keys, values = draw(rng, (12, 8), scale=0.3)
    queries = rng.standard_normal(keys.shape)
    # In the first of two iterations queries are used only if they are in all.
    first = attention_pursuit(
        keys,
        values,
        queries=queries if query_steps == "every" else None,
        n_iter=1,
        sparsity=math.inf,
    ).output
    for multiplier, expected in (("paper", first), ("admm", 2 * keys - first)):
        second = attention_pursuit(
            keys,
            values,
            queries=queries,
            n_iter=2,
            sparsity=math.inf,
            multiplier=multiplier,
            query_steps=query_steps,
        )
        assert_allclose(second.cleaned, expected, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"multiplier": "dual"}, "`multiplier` must be one of 'paper', 'admm'"),
        ({"query_steps": "all"}, "`query_steps` must be one of 'last', 'every'"),
        ({"query_steps": "every"}, "`queries` must be given for query_steps='every'"),
    ],
)
def test_wrong_settings_of_the_pursuit_are_refused(rng, options, message):
    with pytest.raises(ValueError, match=message):
        attention_pursuit(*draw(rng), **options)


def test_one_iteration_without_flags_is_symmetric_attention(rng):
    keys, values = draw(rng)
    weights = np.exp(keys @ keys.swapaxes(-1, -2) / math.sqrt(8))
    weights /= weights.sum(-1, keepdims=True)
    found = attention_pursuit(keys, values, n_iter=1, sparsity=1e6)
    assert_allclose(found.output, weights @ values, rtol=RTOL)
    assert_allclose(found.weights, weights, rtol=RTOL)
    assert_array_equal(found.flagged, np.zeros((1, 2, 3)))


def test_permuting_tokens_permutes_the_output(rng):
    keys, values = draw(rng)
    order = rng.permutation(12)
    straight = attention_pursuit(keys, values, sparsity=0.5).output
    permuted = attention_pursuit(
        keys[..., order, :], values[..., order, :], sparsity=0.5
    )
    assert_allclose(permuted.output, straight[..., order, :], rtol=RTOL, atol=RTOL)


def test_paper_threshold_is_scale_free_and_the_reference_one_is_not(rng):
    keys, values = draw(rng)

    def flagged(factor, **rule):
        # Scores stay the same, so that only the threshold can differ.
        return attention_pursuit(
            factor * keys, factor * values, scale=factor**-2, sparsity=0.5, **rule
        ).flagged

    assert_array_equal(flagged(8.0), flagged(1.0))
    small = flagged(1.0, threshold="reference", width=8)
    large = flagged(8.0, threshold="reference", width=8)
    assert large[0].mean() > small[0].mean() + 0.1


def test_measured_shares_of_the_reference_rule():
    """Threshold 1.875 on keys of sd 2: P(|g| > .9376) = .3484; for width 768, 0."""
    rng = np.random.default_rng(0)
    keys, values = draw(rng, (1, 3, 197, 64), scale=2.0)
    for width, share in ((192, 0.3484), (768, 1.8e-4)):
        flagged = attention_pursuit(
            keys, values, n_iter=1, threshold="reference", width=width
        ).flagged.mean()
        # 37 824 entries: five standard errors, plus the fluctuation of mean|K|.
        assert flagged == pytest.approx(share, abs=0.015)


def test_clean_keys_end_as_unmixed_tokens():
    """sd K = sd V = 1, four iterations: nothing mixed; sd K = .2: all mixed."""
    rng = np.random.default_rng(0)
    keys, values = draw(rng, (1, 3, 197, 64))
    own = attention_pursuit(keys, values, n_iter=5).self_weight[:, 0].mean(1)
    assert own[1] < own[0]
    assert own[4] > 0.98
    mixing = attention_pursuit(0.2 * keys, 0.2 * values, n_iter=4)
    assert mixing.self_weight[3].mean() < 0.1


@pytest.mark.parametrize("is_causal", [False, True])
def test_auto_flags_one_percent_of_clean_gaussian_keys(is_causal):
    rng = np.random.default_rng(0)
    keys, values = draw(rng, (1, 3, 197, 64), scale=3.0)
    found = attention_pursuit(keys, values, sparsity="auto", is_causal=is_causal)
    # Exact law at the first iteration: sd of the share of 37 824 entries is 5e-4, of
    # the scale estimate 0.6 % (times 7.4 relative): 7e-4 in all, here five of them.
    # A causal row early in the sequence has few tokens to measure the scale with.
    assert found.flagged[0].mean() == pytest.approx(0.01, abs=0.0035)
    # Later rounds add attention outputs to the Gaussian: same order.
    assert np.all(found.flagged.mean((1, 2)) > 0.004)
    assert np.all(found.flagged.mean((1, 2)) < 0.016)


def test_auto_finds_planted_entries_at_any_scale():
    rng = np.random.default_rng(0)
    keys, values = draw(rng, (1, 2, 100, 64))
    planted = rng.random(keys.shape) < 0.05
    corrupted = keys + 10 * planted * np.sign(keys)
    for factor in (1e-3, 1.0, 1e3):
        sparse = attention_pursuit(
            factor * corrupted, factor * values, scale=factor**-2, sparsity="auto"
        ).sparse
        # A planted entry has size above 10; the threshold is near 2.6 to 2.8.
        assert (sparse != 0)[planted].mean() > 0.99
        assert (sparse != 0)[~planted].mean() < 0.02


def test_auto_withstands_corrupted_tokens_where_the_mean_does_not():
    rng = np.random.default_rng(0)
    keys, values = draw(rng, (1, 1, 100, 64))
    keys[:, :, :20] *= 1e3  # a fifth of the tokens
    auto = attention_pursuit(keys, values, n_iter=1, sparsity="auto").sparse
    paper = attention_pursuit(keys, values, n_iter=1).sparse
    assert (auto[:, :, :20] != 0).mean() > 0.99
    assert (paper[:, :, :20] != 0).mean() < 0.05


def test_running_mu_by_hand():
    """Thresholds after one token 4 lambda 1 = 2, after two 4 lambda (1 + 3)/2 = 4."""
    keys = np.array([[1.0], [-3.0], [8.0]])
    found = attention_pursuit(keys, keys, n_iter=1, sparsity=0.5, is_causal=True)
    assert_allclose(found.sparse, [[0.0], [0.0], [0.0]])
    found = attention_pursuit(keys, keys, n_iter=1, sparsity=0.125, is_causal=True)
    # 4 lambda = 1/2 of the running means 1, 2, 4.
    assert_allclose(found.sparse, [[0.5], [-2.0], [6.0]])


@pytest.mark.parametrize("sparsity", [0.5, "auto"])
def test_masks_agree_with_each_other(rng, as_array, sparsity):
    keys, values = (as_array(x) for x in draw(rng))
    causal = as_array(np.tril(np.ones((12, 12), dtype=bool)))
    added = as_array(np.where(np.asarray(causal), 0.0, -np.inf))
    runs = [
        attention_pursuit(keys, values, sparsity=sparsity, **mask).output
        for mask in (
            {"is_causal": True},
            {"attn_mask": causal},
            {"attn_mask": added},
            {"attn_mask": causal, "is_causal": True},
        )
    ]
    for run in runs[1:]:
        assert_allclose(run, runs[0], rtol=RTOL)


@pytest.mark.parametrize("sparsity", [0.5, "auto"])
def test_padding_equals_leaving_the_tokens_out(rng, as_array, sparsity):
    keys, values = draw(rng)
    shown = as_array(np.arange(12) < 9)
    padded = attention_pursuit(
        as_array(keys), as_array(values), sparsity=sparsity, attn_mask=shown
    )
    short = attention_pursuit(keys[..., :9, :], values[..., :9, :], sparsity=sparsity)
    assert_allclose(padded.output[..., :9, :], short.output, rtol=RTOL)
    assert_allclose(padded.flagged, short.flagged, rtol=RTOL)
    assert_allclose(padded.self_weight, short.self_weight, rtol=RTOL)
    assert_allclose(padded.residual, short.residual, rtol=RTOL)


def test_a_row_that_sees_nothing_returns_zeros(rng, as_array):
    keys, values = (as_array(x) for x in draw(rng))
    mask = np.ones((12, 12), dtype=bool)
    mask[3] = False
    for sparsity in (4.0, "auto"):
        found = attention_pursuit(
            keys, values, attn_mask=as_array(mask), sparsity=sparsity
        )
        assert_array_equal(found.output[..., 3, :], np.zeros((2, 3, 8)))
        assert np.isfinite(np.asarray(found.output)).all()


def test_zero_keys_average_the_values(rng, as_array):
    _, values = draw(rng)
    zeros = as_array(np.zeros_like(values))
    for rule in ({}, {"threshold": "reference", "width": 24}, {"sparsity": "auto"}):
        first = attention_pursuit(zeros, as_array(values), n_iter=1, **rule).output
        assert_allclose(
            first, np.broadcast_to(values.mean(-2, keepdims=True), first.shape)
        )
        later = attention_pursuit(zeros, as_array(values), **rule).output
        assert np.isfinite(np.asarray(later)).all()


def test_queries_meet_the_cleaned_keys_in_the_last_softmax(rng, as_array):
    keys, values = draw(rng)
    queries = rng.standard_normal((2, 3, 5, 8))
    plain = attention_pursuit(as_array(keys), as_array(values), sparsity=0.5)
    found = attention_pursuit(
        as_array(keys), as_array(values), queries=as_array(queries), sparsity=0.5
    )
    assert_allclose(found.cleaned, plain.cleaned, rtol=RTOL)
    scores = queries @ np.asarray(plain.cleaned).swapaxes(-1, -2) / math.sqrt(8)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    assert_allclose(found.output, weights @ values, rtol=1e-8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"n_iter": 0},
            r"attention_pursuit: `n_iter` must be an integer from 1 to 10000; got 0",
        ),
        ({"sparsity": -1.0}, r"`sparsity` must be a finite number >= 0; got -1.0"),
        ({"sparsity": "aut"}, r"`sparsity` must be a number >= 0 or 'auto'; got 'aut'"),
        ({"threshold": "papr"}, r"`threshold` must be one of .* Did you mean 'paper'"),
        ({"threshold": "reference"}, r"`width` must be the width of the model"),
        (
            {"threshold": "reference", "sparsity": "auto"},
            r"`threshold` must be 'paper' if `sparsity` is 'auto'",
        ),
        ({"values": np.ones((2, 3))}, r"`values` must be of the keys' shape \(2, 2\)"),
        ({"keys": np.ones(2)}, r"`keys` must be of shape \(..., n_keys, d\)"),
        ({"queries": np.ones((2, 3))}, r"`queries` must be of the keys' shape"),
        (
            {"attn_mask": np.ones((3, 2), dtype=bool)},
            r"`attn_mask` must be of a shape that broadcasts to \(2, 2\); got \(3, 2\)",
        ),
        ({"scale": math.nan}, r"`scale` must be a finite number; got nan"),
    ],
)
def test_says_what_is_wrong(options, message):
    given = {"keys": np.ones((2, 2)), "values": np.ones((2, 2))} | options
    with pytest.raises(ValueError, match=message):
        attention_pursuit(**given)


def test_shrinkage_says_what_is_wrong():
    with pytest.raises(
        ValueError, match=r"soft_threshold: `threshold` must be a number >= 0; got -1"
    ):
        soft_threshold(np.ones(2), -1.0)
