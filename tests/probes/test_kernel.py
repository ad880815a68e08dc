"""The kernel-PCA probe: its numbers are the formulas', whatever the batch."""

import numpy as np
import pytest
from benchmarks._probe_loop import value_statistics
from numpy.testing import assert_allclose

from eigenheads._parallel import reporting, threads
from eigenheads._rng import stream
from eigenheads.functional import kernel_pca, log_feature_norms
from eigenheads.probes import (
    NotAttentionWarning,
    _kernel,
    kernel_pca_probe,
    planted_heads,
)
from eigenheads.probes._nulls import PERMUTATIONS, permutations
from eigenheads.probes._statistics import KERNEL, statistic_names

# Rounding of two paths to one number; the ridge of the inverse moves 1e-10.
RTOL = 1e-7


@pytest.fixture
def heads(rng):
    queries, keys = rng.standard_normal((2, 3, 2, 14, 5))
    return queries, keys, rng.standard_normal((3, 2, 14, 4))


def same(first, second):
    for name in statistic_names(KERNEL):
        a, b = first.statistics[name], second.statistics[name]
        assert_allclose(a.observed, b.observed, rtol=1e-9, err_msg=name)
        assert a.nulls.keys() == b.nulls.keys()
        for null in a.nulls:
            assert_allclose(a.nulls[null], b.nulls[null], rtol=1e-8, err_msg=name)


def test_observed_and_permuted_are_the_formulas(heads):
    """The loop of the benchmark computes each draw anew from functional."""
    queries, keys, values = heads
    result = kernel_pca_probe(*heads, n_permutations=3, seed=7)
    orders = [permutations(stream(7, PERMUTATIONS, i), 3, 14) for i in range(3)]
    for head in range(2):
        for draw in range(4):
            each = [
                value_statistics(
                    queries[i, head], keys[i, head], values[i, head][orders[i][draw]]
                )
                for i in range(3)
            ]
            for name in each[0]:
                statistic = result.statistics[name]
                expected = np.mean([one[name] for one in each])
                if draw == 0:
                    found = statistic.observed[head]
                elif "permuted_tokens" in statistic.nulls:
                    found = statistic.nulls["permuted_tokens"][head, draw - 1]
                else:
                    continue
                assert_allclose(found, expected, rtol=RTOL, err_msg=name)


@pytest.mark.parametrize(("least", "rtol"), [(1.0, RTOL), (1e-5, 1e-6)])
def test_redrawn_values_are_measured_by_the_same_formulas(heads, rng, least, rtol):
    """A draw of random projections, put in as values, gives its own null's number.

    Tokens with a weak direction make ill-conditioned draws, which take another path.
    """
    from eigenheads.probes._nulls import PROJECTIONS

    queries, keys, _ = heads
    tokens = rng.standard_normal((3, 14, 6)) * np.r_[1, 1, 1, least, least, least]
    result = kernel_pca_probe(*heads, tokens=tokens, n_permutations=19, seed=3)
    matrices = stream(3, PROJECTIONS).standard_normal((6, 19, 4))
    values = np.einsum("bnd,dv->bnv", tokens, matrices[:, 2])
    values = np.repeat(values[:, None], 2, axis=1)
    again = kernel_pca_probe(queries, keys, values, n_permutations=0)
    for name, statistic in result.statistics.items():
        draws = statistic.nulls.get("random_projections")
        if draws is not None:
            found = again.statistics[name].observed
            assert_allclose(draws[:, 2], found, rtol=rtol, err_msg=name)
    assert "random_projections" not in result.statistics["norm_ratio"].nulls
    assert "random_projections" in result.statistics["matching_cosine"].nulls


def test_a_head_does_not_depend_on_its_neighbours_or_on_threads(heads):
    whole = kernel_pca_probe(*heads, n_permutations=19, seed=1)
    with threads(1):
        alone = kernel_pca_probe(*(x[:, 1:] for x in heads), n_permutations=19, seed=1)
    for name, statistic in whole.statistics.items():
        other = alone.statistics[name]
        assert_allclose(statistic.observed[1:], other.observed, rtol=1e-12)
        for null, draws in statistic.nulls.items():
            assert_allclose(draws[1:], other.nulls[null], rtol=1e-12)


def test_progress_is_reported(heads):
    done = []
    with reporting(done.append):
        kernel_pca_probe(*heads, n_permutations=0)
    assert sum(done) == 6  # heads times sequences


def test_padding_is_left_out(heads):
    """Ragged sequences, garbage where there is padding, and one that is too short."""
    lengths = [14, 9, 2]
    mask = np.arange(14) < np.array(lengths)[:, None]
    dirty = [np.where(mask[:, None, :, None], x, np.nan) for x in heads]
    found = kernel_pca_probe(*dirty, mask=mask, n_permutations=19)
    assert found.settings["n_sequences"] == 2
    one = kernel_pca_probe(*(x[:1] for x in heads), n_permutations=0)
    two = kernel_pca_probe(*(x[1:2, :, :9] for x in heads), n_permutations=0)
    for name in statistic_names(KERNEL):
        parts = [r.statistics[name].observed for r in (one, two)]
        observed = found.statistics[name].observed
        assert_allclose(observed, np.mean(parts, axis=0), rtol=1e-9, err_msg=name)


def test_tokens_may_be_fewer_than_the_width(rng):
    heads = rng.standard_normal((3, 2, 2, 5, 12))
    result = kernel_pca_probe(*heads, n_permutations=19)
    captured = result.statistics["captured_variance"]
    assert_allclose(captured.observed, 1, rtol=1e-4)  # four axes of four
    # All draws are 1, too, up to the ridge: nothing is found.
    assert np.isfinite(result.statistics["matching_cosine"].observed).all()


@pytest.mark.parametrize("size", [0.3, 1.0, 2.0, 4.0])
@pytest.mark.parametrize("worst", [1.0, 1e-3])
def test_captured_variance_whatever_the_condition(rng, size, worst):
    """Normalisers over up to ten orders of magnitude, and values of any scale.

    Against an orthonormal basis from a singular value decomposition.
    """
    queries, keys, values = rng.standard_normal((3, 1, 1, 16, 5))
    keys = size * keys + size * np.linspace(0, 2, 16)[:, None]
    values = values * np.geomspace(1, worst, 5)
    found = kernel_pca_probe(queries, keys, values, n_permutations=0)
    cloud = kernel_pca(keys[0, 0])
    a = np.exp(cloud.log_normaliser - cloud.log_normaliser.max())[:, None]
    basis = np.linalg.svd(
        a * values[0, 0] - (a * values[0, 0]).mean(0), full_matrices=False
    )[0]
    expected = np.trace(basis.T @ cloud.gram @ basis) / cloud.eigenvalues[:5].sum()
    captured = found.statistics["captured_variance"].observed[0]
    assert_allclose(captured, expected, rtol=1e-4)


def test_columns_that_repeat_add_no_axis(rng):
    queries, keys, values = rng.standard_normal((3, 1, 1, 16, 3))
    twice = np.concatenate([values, 2 * values], axis=-1)
    found = kernel_pca_probe(queries, keys, twice, n_permutations=0)
    once = kernel_pca_probe(queries, keys, values, n_permutations=0)
    levels = kernel_pca(keys[0, 0]).eigenvalues
    ratio = levels[:3].sum() / levels[:6].sum()  # the most that six axes could capture
    a, b = (r.statistics["captured_variance"].observed for r in (found, once))
    assert_allclose(a, b * ratio, rtol=1e-6)


def test_causal_norms_have_their_own_normalisers_and_values_see_all_keys(heads):
    queries, keys, values = heads
    plain = kernel_pca_probe(*heads, n_permutations=0)
    causal = kernel_pca_probe(*heads, is_causal=True, n_permutations=0)
    logs = log_feature_norms(queries, keys, is_causal=True).mean((0, 2)) / np.log(10)
    assert_allclose(causal.statistics["feature_norm"].observed, logs)
    for name in ("gamma_difference", "captured_variance", "linear_cka", "kernel_rank"):
        a, b = (r.statistics[name].observed for r in (plain, causal))
        assert_allclose(a, b, rtol=1e-12)
    first = kernel_pca_probe(
        queries, keys, values * (np.arange(14) == 0)[:, None], is_causal=True
    )
    assert np.isfinite(first.statistics["output_norm"].observed).all()


def test_matching_has_no_null_of_permuted_tokens_because_it_would_be_constant(heads):
    queries, keys, values = heads
    found = kernel_pca_probe(*heads, n_permutations=19)
    assert "permuted_tokens" not in found.statistics["matching_cosine"].nulls
    moved = kernel_pca_probe(queries, keys, values[:, :, ::-1], n_permutations=0)
    a, b = (r.statistics["matching_cosine"].observed for r in (found, moved))
    assert_allclose(a, b, rtol=1e-12)


def test_spectrum_and_its_bound(heads):
    result = kernel_pca_probe(*heads, n_permutations=0)
    expected = kernel_pca(heads[1]).eigenvalues.mean(0)
    assert_allclose(result.spectra["eigenvalues"], expected, atol=1e-12)
    top = result.statistics["top_eigenvalue"].observed
    assert (top <= result.statistics["kernel_trace"].observed).all()


def test_standardize_touches_the_feature_norms_only(heads):
    plain = kernel_pca_probe(*heads, n_permutations=0)
    other = kernel_pca_probe(*heads, standardize=True, n_permutations=0)
    assert other.settings["standardize"] is True
    for name in statistic_names(KERNEL):
        a, b = (r.statistics[name].observed for r in (plain, other))
        assert np.allclose(a, b) == (name not in ("norm_ratio", "feature_norm")), name


def test_outputs_are_checked(heads):
    queries, keys, values = heads
    scores = np.exp(queries @ np.swapaxes(keys, 2, 3) / np.sqrt(5))
    outputs = scores / scores.sum(-1, keepdims=True) @ values
    kernel_pca_probe(*heads, outputs=outputs.astype(np.float32), n_permutations=0)
    with pytest.warns(NotAttentionWarning, match="differ from softmax"):
        kernel_pca_probe(*heads, outputs=2 * outputs, n_permutations=0)


def test_records_are_one_row_a_statistic_null_and_head(heads):
    copy = dict(zip(("queries", "keys", "values"), heads, strict=True))
    result = kernel_pca_probe(*heads, n_permutations=40, untrained=[copy, copy])
    rows = result.to_records()
    kinds = {(r["statistic"], r["null"]): r["n_draws"] for r in rows}
    assert len(rows) == 2 * len(kinds)
    assert kinds["linear_cka", "permuted_tokens"] == 40
    assert kinds["linear_cka", "random_values"] == 39
    assert kinds["top_eigenvalue", "random_keys"] == 39
    assert kinds["top_eigenvalue", "untrained"] == 4  # two models of two heads
    row = next(r for r in rows if r["null"] == "untrained" and r["head"] == 1)
    draws = result.statistics[row["statistic"]].nulls["untrained"][1]
    assert row["null_mean"] == pytest.approx(draws.mean())
    assert 1 / 5 <= row["p_value"] <= 1
    observed = result.statistics["linear_cka"].observed
    assert set(np.round(observed, 12)) <= set(
        np.round(result.statistics["linear_cka"].nulls["untrained"][0], 12)
    )


def test_untrained_heads_that_share_keys_and_values_are_one_draw(rng):
    """Grouped queries: equal draws of one group would make a p-value too small."""
    q = rng.standard_normal((2, 4, 8, 3))
    k, v = (np.repeat(rng.standard_normal((2, 2, 8, 3)), 2, axis=1) for _ in "kv")
    copy = {"queries": q, "keys": k, "values": v}
    result = kernel_pca_probe(q, k, v, n_permutations=0, untrained=[copy, copy])
    drawn = {x: s.nulls["untrained"].shape[1] for x, s in result.statistics.items()}
    seeing = {"norm_ratio", "output_norm", "feature_norm"}
    assert {x for x, n in drawn.items() if n == 8} == seeing
    assert {n for x, n in drawn.items() if x not in seeing} == {4}


def test_without_draws_there_are_numbers_and_no_nulls(heads):
    result = kernel_pca_probe(*heads, n_permutations=0)
    assert all(row["null"] is None for row in result.to_records())


def test_float32_is_taken_as_it_is(heads):
    single = [x.astype(np.float32) for x in heads]
    double = [x.astype(np.float64) for x in single]
    same(
        kernel_pca_probe(*single, n_permutations=19),
        kernel_pca_probe(*double, n_permutations=19),
    )


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"keys": np.zeros((3, 2, 14))}, "`keys` must be of shape"),
        ({"queries": np.zeros((3, 2, 13, 5))}, "`queries` must be of the keys' shape"),
        ({"values": np.zeros((3, 1, 14, 4))}, "`values` must be of the keys' shape"),
        ({"values": np.full((3, 2, 14, 4), np.nan)}, "`values` must be finite"),
        ({"mask": np.ones((3, 13))}, r"`mask` must be of shape \(3, 14\)"),
        ({"mask": np.arange(14) < np.full((3, 1), 2)}, "a sequence of 3 real tokens"),
        ({"tokens": np.zeros((3, 13, 8))}, "`tokens` must be of shape"),
        ({"n_permutations": -1}, "`n_permutations` must be an integer >= 0"),
        ({"scale": -1.0}, "`scale` must be a finite number from 1e-50"),
        ({"seed": -1}, "`seed` must be an integer >= 0"),
        ({"outputs": np.zeros((3, 2, 14, 9))}, "`outputs` must be of the shape"),
        ({"untrained": [{"keys": 1}]}, "`untrained` must be"),
    ],
)
def test_says_what_is_wrong(heads, change, match):
    arguments = dict(zip(("queries", "keys", "values"), heads, strict=True))
    with pytest.raises(ValueError, match=match):
        kernel_pca_probe(**(arguments | change))


def test_controls_are_checked():
    with pytest.raises(ValueError, match="`strength` must be a finite number from 0"):
        planted_heads(1, 1, strength=2.0)


@pytest.mark.parametrize(
    ("n_permutations", "n_redraws", "expected"),
    [
        (300, None, (300, 60)),
        (30, None, (30, 30)),
        (60, None, (60, 39)),
        (7, None, (7, 7)),
        (3, 50, (3, 50)),
    ],
)
def test_costly_nulls_have_draws_of_their_own(
    heads, n_permutations, n_redraws, expected
):
    found = kernel_pca_probe(*heads, n_permutations=n_permutations, n_redraws=n_redraws)
    nulls = found.statistics["linear_cka"].nulls
    drawn = nulls["permuted_tokens"].shape[1], nulls["random_values"].shape[1]
    keys = found.statistics["kernel_rank"].nulls["random_keys"].shape[1]
    assert (*drawn, keys) == (*expected, expected[1])
    assert found.settings["n_redraws"] == expected[1]


def test_a_null_without_draws_is_left_out(heads):
    found = kernel_pca_probe(*heads, n_permutations=0, n_redraws=5)
    assert set(found.statistics["linear_cka"].nulls) == {"random_values"}
    found = kernel_pca_probe(*heads, n_permutations=5, n_redraws=0)
    assert set(found.statistics["linear_cka"].nulls) == {"permuted_tokens"}
    with pytest.raises(ValueError, match="`n_redraws` must be an integer >= 0; got -1"):
        kernel_pca_probe(*heads, n_redraws=-1)


def test_heads_of_long_sequences_are_measured_in_parts(monkeypatch):
    heads = planted_heads(2, 5, n_tokens=12, d_head=4, seed=0)
    options = {"n_permutations": 19, "seed": 3}
    whole = kernel_pca_probe(*heads, **options)
    # Two heads at a time.
    monkeypatch.setattr(_kernel, "_AT_ONCE", 2 * 12**2)
    parts = kernel_pca_probe(*heads, **options)
    for name, one in whole.statistics.items():
        np.testing.assert_array_equal(parts.statistics[name].observed, one.observed)
        for null, draws in one.nulls.items():
            np.testing.assert_array_equal(parts.statistics[name].nulls[null], draws)
    np.testing.assert_array_equal(
        parts.spectra["eigenvalues"], whole.spectra["eigenvalues"]
    )
