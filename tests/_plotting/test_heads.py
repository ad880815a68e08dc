"""Heat maps of heads: a panel a map, a dot a head that stands out."""

import numpy as np

from eigenheads._plotting.heads import HeadMap, draw_head_maps, head_maps_size
from eigenheads._plotting.svg import render_svg


def drawn(maps, layers):
    from matplotlib.figure import Figure

    figure = Figure()
    draw_head_maps(figure, maps, layers)
    return [axes for axes in figure.axes if axes.get_xlabel() == "head"]


def test_marks_and_labels_are_where_the_heads_are():
    values = np.arange(6.0).reshape(2, 3)
    found = np.zeros((2, 3), dtype=bool)
    found[1, 2] = True
    maps = [HeadMap("one", values), HeadMap("two", values - 3, found, is_effect=True)]
    one, two = drawn(maps, layers=[0, 7])
    assert not one.lines
    np.testing.assert_allclose(
        two.lines[0].get_xydata(), [[2.86, 1.2]]
    )  # in the corner
    assert [text.get_text() for text in two.get_yticklabels()] == ["0", "7"]
    # The first layer is on top.
    assert two.get_ylim() == (2.0, 0.0)


def test_effects_are_drawn_around_zero_and_end_at_ten():
    for largest, end in ((0.3, 1.0), (4.0, 4.0), (80.0, 10.0)):
        values = np.array([[0.0, largest]])
        (axes,) = drawn([HeadMap("", values, is_effect=True)], [0])
        assert axes.collections[0].get_clim() == (-end, end)


def test_missing_numbers_and_large_models_are_drawn():
    values = np.full((48, 64), np.nan)
    maps = [HeadMap("", values), HeadMap("", values, values > 0, is_effect=True)]
    svg = render_svg(
        lambda figure: draw_head_maps(figure, maps, range(48)),
        size=head_maps_size(maps),
    )
    assert svg.startswith(b"<?xml")


def test_cells_have_their_numbers_where_there_is_room():
    from eigenheads._plotting.heads import _short

    values = np.array([[0.034, np.nan, -2.31], [47.2, 3e-5, 12345.0]])
    (axes,) = drawn([HeadMap("x", values)], [0, 1])
    texts = [text.get_text() for text in axes.texts]
    assert texts == [_short(x) for x in values.ravel() if np.isfinite(x)]
    assert texts == [".03", "-2.3", "47", "0", "1.2e4"]
    (axes,) = drawn([HeadMap("x", np.ones((2, 17)))], [0, 1])
    assert not axes.texts
