"""Intervals of models with different numbers of seeds."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from scipy import stats

from eigenheads_papers._drawing import draw_gaps, draw_intervals


def drawn(gaps):
    """Return the ends of the intervals that are drawn, by row."""
    axes = Figure().subplots()
    draw_intervals(axes, gaps)
    found = {}
    for container in axes.containers:
        for (low, at), (high, _) in container[2][0].get_segments():
            found[round(at)] = (low, high)
    return found


def test_intervals_are_those_of_the_seeds_that_a_model_has():
    """Scipy's interval for the mean of five and of thirteen differences."""
    gaps = np.random.default_rng(0).normal(0.3, 1.0, (3, 13))
    gaps[0] = 0.0  # the baseline has no interval
    gaps[2, 5:] = np.nan
    found = drawn(gaps)
    assert sorted(found) == [1, 2]
    for row, n in ((1, 13), (2, 5)):
        expected = stats.ttest_1samp(gaps[row, :n], 0.0).confidence_interval(0.95)
        assert found[row] == pytest.approx((expected.low, expected.high)), row


def test_one_seed_has_an_interval_without_length():
    found = drawn(np.array([[0.0, np.nan], [2.0, np.nan]]))
    assert found == {1: (2.0, 2.0)}


def test_baseline_with_fewer_seeds_is_still_the_baseline():
    assert 0 not in drawn(np.array([[0.0, 0.0, np.nan], [1.0, 2.0, np.nan]]))


def test_measurements_that_a_model_does_not_have_are_not_drawn():
    figure = Figure()
    gaps = np.array([[0.0, 0.0], [1.0, 2.0]])
    shares = np.array([[np.nan, np.nan], [0.2, 0.4]])
    table = {"flagged": shares, "self_weight": shares}
    names = ["one", "other"]
    draw_gaps(figure, {"clean": gaps}, table, names, label="points", layers="layer 2")
    assert figure.axes[-1].get_title() == "layer 2, as trained"
    lines = figure.axes[-1].get_lines()
    for line in lines[:2]:
        np.testing.assert_allclose(line.get_xdata(), [np.nan, 0.3])
