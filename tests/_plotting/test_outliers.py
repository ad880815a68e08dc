"""OutlierDisplay: outliers above the threshold, wrong cells at their place."""

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.testing import assert_allclose

from eigenheads.estimators import RobustPCA
from eigenheads.report import OutlierDisplay

mpl.use("Agg")


def axes():
    return Figure().subplots()


@pytest.fixture
def fitted(rng):
    X = rng.standard_normal((80, 2)) @ rng.standard_normal((2, 12))
    X += 0.01 * rng.standard_normal(X.shape)
    model = RobustPCA(sparsity=1.0, false_positive_rate=0.05).fit(X[:60])
    X[70, 5] += 9.0
    return model, X[60:]


def test_outliers_are_above_the_line(fitted):
    model, X = fitted
    display = OutlierDisplay.from_estimator(model, X, ax=axes())
    others, outliers, line = display.ax_.get_lines()
    is_out = model.predict(X) == -1
    assert is_out[10]
    assert outliers.get_label() == f"outliers ({is_out.sum()})"
    assert_allclose(outliers.get_ydata(), -model.score_samples(X)[is_out])
    assert outliers.get_ydata().min() > line.get_ydata()[0] == -model.offset_
    assert others.get_ydata().max() <= line.get_ydata()[0]
    codes = model.transform(X) / np.sqrt(model.explained_variance_)
    assert_allclose(display.score_distances, np.linalg.norm(codes, axis=1))


def test_the_map_has_the_wrong_cell_of_the_most_outlying_row_first(fitted):
    model, X = fitted
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        X, columns=[f"name {k} of a long column" for k in "x" * 12]
    )
    display = OutlierDisplay.from_estimator(model, X, kind="cells", n_rows=4, ax=axes())
    cells = display.ax_.get_images()[0].get_array()
    assert cells.shape == (4, 12)
    assert np.abs(cells[0]).argmax() == 5
    assert display.ax_.get_yticklabels()[0].get_text() == "10"
    display.names = list(frame.columns)
    display.plot(kind="cells", n_rows=100, ax=axes())
    assert display.ax_.get_images()[0].get_array().shape == (20, 12)
    assert display.ax_.get_xticklabels()[0].get_text() == "name x of a long column"
    assert display.figure_ is display.ax_.get_figure()


def test_columns_of_a_data_frame_are_named(fitted):
    _, X = fitted
    pandas = pytest.importorskip("pandas")
    names = [f"c{k}" for k in range(12)]
    frame = pandas.DataFrame(X, columns=names)
    named = RobustPCA(sparsity=1.0, contamination=0.2).fit(frame)  # warns of nothing
    display = OutlierDisplay.from_estimator(named, frame, kind="cells")
    shown = [label.get_text() for label in display.ax_.get_xticklabels()]
    assert shown == names
    mpl.pyplot.close(display.figure_)


def test_says_what_is_wrong(fitted):
    model, X = fitted
    with pytest.raises(ValueError, match="`estimator` must be a fitted RobustPCA"):
        OutlierDisplay.from_estimator(RobustPCA(), X)
    with pytest.raises(ValueError, match="`kind` must be one of 'rows', 'cells'"):
        OutlierDisplay.from_estimator(model, X, kind="row", ax=axes())
    with pytest.raises(ValueError, match="`n_rows` must be an integer >= 1; got 0"):
        OutlierDisplay.from_estimator(model, X, n_rows=0, ax=axes())
    with pytest.raises(ValueError, match="`ax` must be axes of Matplotlib, or None"):
        OutlierDisplay.from_estimator(model, X, ax=3)
    display = OutlierDisplay.from_estimator(model, X, ax=axes())
    display.names = ["one"]
    with pytest.raises(ValueError, match="one name for each of 12 columns; got 1 name"):
        display.plot(ax=axes())
