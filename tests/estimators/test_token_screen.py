"""The token screen: thresholds hold out of sample, blocks and arrays agree."""

import numpy as np
import pytest
from sklearn.base import clone

from eigenheads.estimators import TokenScreen
from eigenheads.estimators._token_screen import upper_quantile


def sequences(rng, n=600, n_tokens=12, d=6):
    """Tokens that share a hidden cause; the first position is a class token."""
    cause = rng.standard_normal((n, 1, d))
    tokens = cause + 0.4 * rng.standard_normal((n, n_tokens, d))
    tokens[:, 0] = 7.0
    return tokens + np.arange(n_tokens)[None, :, None]


def test_false_flags_are_as_rare_as_promised(rng):
    screen = TokenScreen(6, false_flag_rate=0.05).fit(sequences(rng, 2000))
    scores = screen.score_samples(sequences(rng, 2000))
    assert abs((scores[:, 1:] < -1).mean() - 0.05) < 0.01
    assert (scores[:, 0] == 0).all()  # the class token


def test_replaced_tokens_are_found_and_class_tokens_never_flagged(rng):
    screen = TokenScreen(6).fit(sequences(rng, 1000))
    test = sequences(rng, 200)
    other = rng.permutation(test)
    replaced = rng.random(test.shape[:2]) < 0.2
    replaced[:, 0] = False
    mixed = np.where(replaced[..., None], other, test)
    labels = screen.predict(mixed)
    assert set(np.unique(labels)) == {-1, 1}
    assert (labels[replaced] == -1).mean() > 0.7
    assert (labels[~replaced] == -1).mean() < 0.05
    mixed[:, 0] = 1e3
    assert (screen.predict(mixed)[:, 0] == 1).all()
    # Dense noise: nothing is flagged.
    noisy = test + 5 * rng.standard_normal(test.shape)
    assert (screen.predict(noisy) == -1).mean() < 0.05


def test_blocks_of_any_size_give_the_same_fit(rng):
    tokens = sequences(rng, 300)

    def blocks():
        return np.array_split(tokens, 17)

    one, other = TokenScreen(4).fit(tokens), TokenScreen(4).fit_blocks(blocks)
    np.testing.assert_allclose(one.thresholds_, other.thresholds_, rtol=1e-8)
    np.testing.assert_allclose(one.precision_, other.precision_, rtol=1e-6, atol=1e-8)
    assert (one.n_samples_fit_, one.n_samples_held_out_) == (210, 90)


def test_it_is_an_estimator_and_says_what_it_wants(rng):
    screen = clone(TokenScreen(3, held_out=0.4))
    assert screen.get_params()["held_out"] == 0.4
    with pytest.raises(ValueError, match="`X` must be of shape"):
        screen.fit(np.zeros((5, 4)))
    with pytest.raises(ValueError, match="at least 20 sequences"):
        screen.fit(sequences(rng, 25))
    with pytest.raises(ValueError, match="finite"):
        screen.fit(np.full((100, 2, 2), np.nan))
    with pytest.raises(ValueError, match="`false_flag_rate`"):
        TokenScreen(false_flag_rate=2.0).fit(sequences(rng, 100))
    fitted = screen.fit(sequences(rng, 100))
    with pytest.raises(ValueError, match=r"of shape \(n_samples, 12, 6\)"):
        fitted.predict(np.zeros((2, 3, 6)))


@pytest.mark.parametrize("n", [20, 21, 997])
@pytest.mark.parametrize("level", [0.5, 0.9, 0.98, 0.9999])
def test_thresholds_are_numpys_quantiles_whatever_the_blocks(rng, n, level):
    rows = rng.standard_normal((n, 3))
    expected = np.quantile(rows, level, axis=0)
    for size in (1, 7, n):
        blocks = (rows[first : first + size] for first in range(0, n, size))
        np.testing.assert_allclose(
            upper_quantile(blocks, level, n), expected, rtol=1e-14
        )


def test_calibration_keeps_few_distances(rng, monkeypatch):
    """Of the held-out distances only those above the threshold stay in memory."""
    sizes = []

    def partition(rows, surplus, axis):
        sizes.append(len(rows) - surplus)
        return np.sort(rows, axis=axis)

    monkeypatch.setattr(np, "partition", partition)
    TokenScreen(n_components=2).fit(rng.standard_normal((4000, 3, 4)))
    # 1200 rows are held out, and 2 % of them are above the threshold.
    assert set(sizes) == {25}


def test_masked_arrays_in_a_list_are_refused(rng):
    screen = TokenScreen().fit(rng.standard_normal((200, 4, 3)))
    rows = np.ma.masked_array(rng.standard_normal((4, 3)), mask=np.eye(4, 3))
    with pytest.raises(ValueError, match="`X` must be an array without masked entries"):
        screen.score_samples([rows, rows])
