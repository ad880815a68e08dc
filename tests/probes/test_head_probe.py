"""Any statistic of a head has valid null distributions."""

import numpy as np
import pytest

from eigenheads.probes import Head, HeadStatistic, Null, head_probe, planted_heads
from eigenheads.probes._covariance import subspace_affinity
from eigenheads.probes._nulls import NULLS
from eigenheads.probes._statistics import head_statistics

BUILT_IN = head_statistics()


@pytest.fixture
def head(rng):
    queries, keys, values = rng.standard_normal((3, 7, 4))
    tokens = rng.standard_normal((7, 9))
    return Head(queries, keys, values, 0.5, tokens=tokens)


def test_weights_are_softmax_over_visible_keys(rng, head):
    scores = head.queries @ head.keys.T / 2
    expected = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(head.weights, expected)
    causal = head.with_changes(visible=np.tri(7, dtype=bool))
    expected = np.tril(np.exp(scores))
    expected /= expected.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(causal.weights, expected)
    np.testing.assert_allclose(causal.output, expected @ head.values)


@pytest.mark.parametrize("name", NULLS)
def test_batched_draws_are_heads(head, name):
    """Weights that a null takes over are those of the drawn queries and keys."""
    (block,) = NULLS[name].blocks(head, 5, seed=0, place=0)
    for index in range(5):
        one = block.draw(index)
        again = Head(one.queries, one.keys, one.values, one.scale)
        np.testing.assert_allclose(one.weights, again.weights)
    again = next(NULLS[name].blocks(head, 5, seed=0, place=0))
    np.testing.assert_array_equal(block.keys, again.keys)
    np.testing.assert_array_equal(block.values, again.values)


def test_blocks_continue_the_stream(head, monkeypatch):
    whole = next(NULLS["random_keys"].blocks(head, 6, seed=1, place=2))
    monkeypatch.setattr("eigenheads.probes._nulls._BLOCK", 2 * 7 * 7)
    parts = list(NULLS["random_keys"].blocks(head, 6, seed=1, place=2))
    assert len(parts) == 3
    np.testing.assert_allclose(np.concatenate([p.keys for p in parts]), whole.keys)


def test_redrawn_clouds_keep_mean_and_covariance(head):
    (block,) = NULLS["random_keys"].blocks(head, 3, seed=0, place=0)
    np.testing.assert_allclose(block.keys.mean(axis=1), [head.keys.mean(axis=0)] * 3)
    for keys in block.keys:
        np.testing.assert_allclose(np.cov(keys.T), np.cov(head.keys.T))


@pytest.mark.parametrize("name", BUILT_IN)
def test_batched_statistics_are_those_of_single_draws(rng, head, name):
    statistic = BUILT_IN[name]
    ids = rng.integers(0, 3, size=7)
    (block,) = NULLS["random_keys"].blocks(
        head.with_changes(token_ids=ids), 4, seed=0, place=0
    )
    together = statistic.observe_draws(block, 4)
    alone = [statistic.observe(block.draw(index)) for index in range(4)]
    np.testing.assert_allclose(together, alone)


def test_scores_on_repeated_tokens_by_hand():
    """Ids a b a b: token 2 repeats 0 and follows it with 1; token 3 repeats 1."""
    weights = np.array(
        [
            [1.0, 0.0, 0.0, 0.0],
            [0.5, 0.5, 0.0, 0.0],
            [0.1, 0.6, 0.3, 0.0],
            [0.2, 0.3, 0.4, 0.1],
        ]
    )
    zeros = np.zeros((4, 2))
    head = Head(zeros, zeros, zeros, 1.0, token_ids=np.array([5, 6, 5, 6]))
    head = head.with_changes(weights=weights)
    assert BUILT_IN["duplicate_token"].observe(head) == pytest.approx((0.1 + 0.3) / 2)
    assert BUILT_IN["induction"].observe(head) == pytest.approx((0.6 + 0.4) / 2)
    assert BUILT_IN["previous_token"].observe(head) == pytest.approx(1.5 / 3)
    assert BUILT_IN["sink_mass"].observe(head) == pytest.approx(0.8 / 3)
    assert np.isnan(BUILT_IN["induction"].observe(head.with_changes(token_ids=None)))


def test_entropy_is_one_for_uniform_and_zero_for_one_key():
    zeros = np.zeros((3, 2))
    head = Head(zeros, zeros, zeros, 1.0)
    assert BUILT_IN["entropy"].observe(head) == pytest.approx(1)
    assert BUILT_IN["entropy"].observe(head.with_changes(weights=np.eye(3))) == 0
    causal = head.with_changes(visible=np.tri(3, dtype=bool))
    assert BUILT_IN["entropy"].observe(causal) == pytest.approx(1)


def test_p_values_of_random_heads_are_uniform():
    """Given Gaussian heads, every built-in null is exact: P(p <= 0.2) = 0.2.

    600 heads in groups that share draws; the bound is six standard deviations of
    independent tests.
    """
    rng = np.random.default_rng(0)
    arrays = rng.standard_normal((3, 1, 600, 8, 3))
    ids = rng.integers(0, 4, size=(1, 8))
    result = head_probe(*arrays, token_ids=ids, n_draws=19, seed=3)
    for name, statistic in result.statistics.items():
        for null, p_values in statistic.p_value.items():
            share = np.mean(p_values <= 0.2)
            assert abs(share - 0.2) < 6 * np.sqrt(0.16 / 600), (name, null)


def test_a_null_of_the_users_own_is_drawn_per_sequence(rng):
    calls = []

    def flip(head, rng):
        calls.append(head.index)
        return head.with_changes(values=head.values * rng.choice([-1.0, 1.0]))

    def mean_output(head):
        return head.output.mean()

    statistic = HeadStatistic("mean", mean_output, nulls=[Null("flipped", flip)])
    result = head_probe(*planted_heads(3, 2), statistics=[statistic], n_draws=5)
    assert len(calls) == 3 * 2 * 5
    drawn = result.statistics["mean"].nulls["flipped"]
    assert drawn.shape == (2, 5)
    # Heads share the random numbers: signs are equal over heads, not over sequences.
    again = head_probe(*planted_heads(3, 2), statistics=[statistic], n_draws=5)
    np.testing.assert_array_equal(drawn, again.statistics["mean"].nulls["flipped"])


def test_numbers_of_a_head_do_not_depend_on_others():
    arrays = planted_heads(2, 3, n_tokens=10, d_head=4)
    whole = head_probe(*arrays, n_draws=9).statistics
    alone = head_probe(*(x[:, 1:2] for x in arrays), n_draws=9).statistics
    for name, statistic in alone.items():
        for null, draws in statistic.nulls.items():
            np.testing.assert_allclose(whole[name].nulls[null][1], draws[0], rtol=1e-12)


def test_masks_and_causality_reach_the_statistic():
    arrays = planted_heads(2, 2, n_tokens=10, d_head=4)
    mask = np.ones((2, 10), dtype=bool)
    mask[1, 6:] = False

    def future(head):
        return np.triu(head.weights, 1).sum()

    def length(head):
        return head.n_tokens

    none = [HeadStatistic(f.__name__, f, nulls=()) for f in (future, length)]
    found = head_probe(*arrays, statistics=none, mask=mask, is_causal=True).statistics
    np.testing.assert_array_equal(found["future"].observed, 0)
    np.testing.assert_array_equal(found["length"].observed, 8)


def test_untrained_heads_are_pooled():
    arrays = planted_heads(2, 3, n_tokens=10, d_head=4)
    names = ("queries", "keys", "values")
    copies = [
        dict(zip(names, planted_heads(2, 3, seed=s), strict=True)) for s in (1, 2)
    ]
    found = head_probe(*arrays, untrained=copies, n_draws=0)
    assert found.statistics["entropy"].nulls["untrained"].shape == (3, 6)


def test_affinity_is_one_for_equal_subspaces_and_chance_for_random_ones(rng):
    same = np.tile(rng.standard_normal((20, 3)), (4, 1, 1))
    found = subspace_affinity(same, 39, 0)
    np.testing.assert_allclose(found.observed, 1)
    assert (found.p_value["random_subspaces"] == 1 / 40).all()
    other = subspace_affinity(rng.standard_normal((40, 20, 3)), 99, 0)
    assert abs(other.observed.mean() - 3 / 20) < 0.01
    assert abs(other.nulls["random_subspaces"].mean() - 3 / 20) < 0.01
    assert subspace_affinity(same[:1], 5, 0) is None


@pytest.mark.parametrize("is_batched", [False, True])
def test_an_error_of_a_statistic_names_it(rng, is_batched):
    def broken(head):
        raise KeyError("no such thing")

    arrays = rng.standard_normal((3, 1, 2, 5, 4))
    statistic = HeadStatistic("ratio", broken, is_batched=is_batched)
    with pytest.raises(KeyError, match="no such thing") as caught:
        head_probe(*arrays, statistics=[statistic], n_draws=3)
    assert caught.value.__notes__ == ["Raised by the statistic 'ratio'."]
