"""Maps of sweeps show what is in the table."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from eigenheads_papers.sweeps._result import SweepAxis, SweepPanel, draw_sweep_panels


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
    mesh, *_ = figure.axes[0].collections
    assert isinstance(mesh.norm, LogNorm) == is_log
    np.testing.assert_array_equal(mesh.get_array().filled(np.nan), np.array(mean).T)
    figure.canvas.draw()


def drawn(means):
    """A figure of maps of one quantity, in the order of `means`."""
    figure = Figure()
    axes = [SweepAxis.of("d", [10, 100]), SweepAxis.of("x", [0.1, 0.2])]
    panels = [
        SweepPanel(f"panel {i}", "risk", np.array(mean), None, "", None, None)
        for i, mean in enumerate(means)
    ]
    draw_sweep_panels(figure, axes=axes, panels=panels, columns=2)
    return figure


def test_panels_of_one_quantity_share_their_scale_and_name_it():
    figure = drawn([[[0.0, 0.1], [0.2, 0.3]], [[0.5, 0.6], [0.7, 1.9]]])
    meshes = [axes.collections[0] for axes in figure.axes[:2]]
    assert {mesh.get_clim() for mesh in meshes} == {(0.0, 1.9)}
    assert [bar.get_ylabel() for bar in figure.axes[2:]] == ["risk", "risk"]


def test_points_without_a_value_are_explained():
    with_blank = drawn([[[np.nan, 0.1], [0.2, 0.3]]]).axes[0]
    assert "no value" in with_blank.get_legend().get_texts()[0].get_text()
    # They are drawn: a figure without a ground would show them white.
    blank = with_blank.collections[1].get_array()
    assert blank.mask.tolist() == [[False, True], [True, True]]
    assert drawn([[[0.4, 0.1], [0.2, 0.3]]]).axes[0].get_legend() is None


def test_cosines_and_shares_have_one_scale():
    (mesh,) = drawn([[[0.1, 0.2], [0.3, 0.9]]]).axes[0].collections
    assert mesh.get_clim() == (0.0, 1.0)
    (mesh,) = drawn([[[0.1, 0.11], [0.12, 0.13]]]).axes[0].collections
    assert mesh.get_clim() == (0.1, 0.13)


def test_ticks_are_short():
    labels = SweepAxis.of("d", [1e2, 1e4, 3e-5, 1e9]).labels
    assert labels == ("3·10⁻⁵", "100", "10⁴", "10⁹")
