"""Maps of sweeps show what is in the table."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from eigenheads.experiments.sweeps._map import SweepAxis, SweepPanel, draw_sweep_panels


@pytest.mark.parametrize(
    ("mean", "is_log"),
    [
        ([[0.5, 0.7], [0.9, 4e5]], True),  # one run exploded
        ([[0.3, 0.5], [3e3, 4e5]], True),  # those of some values did
        ([[0.01, 0.02], [0.02, 1.0]], False),
        ([[1e-6, 0.5], [0.9, 1.0]], False),  # small numbers are just small
        ([[0.0, 0.5], [0.9, 4e5]], False),
        ([[np.nan, np.nan], [np.nan, np.nan]], False),
    ],
)
def test_one_huge_number_does_not_hide_the_others(mean, is_log):
    figure = Figure()
    axes = [SweepAxis.of("d", [10, 100]), SweepAxis.of("x", [0.1, 0.2])]
    panel = SweepPanel("risk", "risk", np.array(mean), None, "", None, None)
    draw_sweep_panels(figure, axes=axes, panels=[panel], columns=1)
    (mesh,) = figure.axes[0].collections
    assert isinstance(mesh.norm, LogNorm) == is_log
    np.testing.assert_array_equal(mesh.get_array().filled(np.nan), np.array(mean).T)
    figure.canvas.draw()
