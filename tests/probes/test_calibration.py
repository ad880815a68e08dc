"""Statistics are calibrated: level on random heads, power on planted ones."""

import numpy as np
import pytest

from eigenheads.probes import HeadStatistic, Null, calibrate, kernel_pca_probe
from eigenheads.probes._statistics import head_statistics


@pytest.mark.parametrize(
    ("statistic", "plant"),
    [
        ("previous_token", "previous_token"),
        ("sink_mass", "first_token"),
        ("duplicate_token", "duplicate_token"),
        ("induction", "induction"),
        ("entropy", "self"),
    ],
)
def test_built_in_statistics_find_what_is_planted(statistic, plant):
    found = calibrate(statistic, plant=plant, n_heads=100, strengths=(0.5, 1.0))
    assert set(found.power) == {
        n.name for n in head_statistics()[statistic].drawn_nulls
    }
    for null, power in found.power.items():
        # Five standard deviations above 0.05 of 100 independent heads.
        assert found.false_positive_rate[null] < 0.16, null
        assert power[-1] > 0.9, null


def test_a_wrong_null_has_too_many_false_positives():
    """Values of another scale are no null for a statistic of the scale."""

    def larger(head, rng):
        return head.with_changes(values=0.1 * rng.permutation(head.values))

    def norm(head):
        return np.linalg.norm(head.output)

    statistic = HeadStatistic("norm", norm, [Null("smaller", larger)], "greater")
    assert calibrate(statistic, n_heads=20).false_positive_rate["smaller"] == 1


def test_own_plants_are_called_with_random_heads():
    def longer_values(q, k, v, ids, strength, rng):
        assert q.shape == (1, 20, 6, 3)
        assert ids.shape == (1, 6)
        return q, k, v * np.where(np.arange(6) == 2, 1 + 99 * strength, 1)[:, None]

    found = calibrate(
        "value_outliers", plant=longer_values, n_heads=20, size=(1, 6, 3), strengths=[1]
    )
    assert found.power["random_values"].tolist() == [1.0]
    assert [row["strength"] for row in found.to_records()] == [0.0, 1.0]


def test_kernel_pca_is_planted_as_in_the_controls():
    seen = []

    def look(head):
        seen.append(head)
        return 0.0

    calibrate(HeadStatistic("look", look, nulls=()), n_heads=1, strengths=[1.0])
    head = seen[-1]
    arrays = (x[None, None] for x in (head.queries, head.keys, head.values))
    found = kernel_pca_probe(*arrays, n_permutations=0)
    np.testing.assert_allclose(found.statistics["captured_variance"].observed, 1)


def test_bad_settings_are_refused():
    with pytest.raises(ValueError, match="Did you mean 'self'"):
        calibrate("entropy", plant="selv")
    with pytest.raises(ValueError, match="`strengths` must be"):
        calibrate("entropy", strengths=[2.0])
