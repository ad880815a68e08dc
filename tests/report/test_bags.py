"""Displays of attention, and the page on a fit to bags."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, KFold, LeaveOneOut
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenheads._plotting.svg import render_svg
from eigenheads.datasets import SingleLocation
from eigenheads.estimators import (
    SingleLocationClassifier,
    SingleLocationRegressor,
    TokenTransformer,
)
from eigenheads.report import AttentionDisplay, write_bag_summary


@pytest.fixture(scope="module")
def fitted():
    law = SingleLocation(d=4, n_tokens=6, noise=0.1)
    X, y, _ = law.sample(90, np.random.default_rng(0))
    return SingleLocationRegressor(alpha=1e-3).fit(X, y), X, y


def axes():
    return Figure().subplots()


def test_bars_have_the_height_of_the_weights(fitted):
    model, X, _ = fitted
    display = AttentionDisplay.from_estimator(model, X[0], ax=axes())
    heights = [bar.get_height() for bar in display.ax_.patches]
    np.testing.assert_allclose(heights, model.attention(X[:1])[0])
    assert f"token {model.locate(X[:1])[0]}" in display.ax_.get_title()


def test_a_folder_is_refused_before_anything_is_fitted(fitted, tmp_path):
    with pytest.raises(ValueError, match="`path` must be a file; got the folder"):
        write_bag_summary(*fitted, tmp_path)


def test_words_and_patches(fitted):
    model, X, _ = fitted
    words = ["one", "two", "three", "four", "five", "six"]
    text = AttentionDisplay.from_estimator(
        model, X[0], kind="text", labels=words, ax=axes()
    )
    assert [drawn.get_text() for drawn in text.ax_.texts] == words
    top = words[model.locate(X[:1])[0]]
    assert f"({top})" in text.ax_.get_title()
    words[0] = "a word that is longer than the bars are high"
    bars = AttentionDisplay.from_estimator(model, X[0], labels=words, ax=axes())
    shown = [drawn.get_text() for drawn in bars.ax_.get_xticklabels()]
    assert shown == ["a word that is lo…", *words[1:]]
    image = AttentionDisplay.from_estimator(
        model, X[0], kind="image", patches=(2, 3), ax=axes()
    )
    (heat,) = image.ax_.get_images()
    np.testing.assert_allclose(heat.get_array().ravel(), image.weights)
    assert f"token {model.locate(X[:1])[0]}" in image.ax_.get_title()
    over = AttentionDisplay.from_estimator(
        model, X[0], kind="image", patches=(2, 3), image=np.zeros((4, 6)), ax=axes()
    )
    _, heat = over.ax_.get_images()
    opacity = heat.to_rgba(heat.get_array())[..., 3]
    assert np.argmax(opacity) == model.locate(X[:1])[0]
    assert opacity.max() < 1


@pytest.mark.parametrize("kind", ["bars", "text", "image"])
def test_no_token_is_painted_if_none_decides(rng, kind):
    X = rng.standard_normal((60, 3, 2))
    model = SingleLocationRegressor().fit(X, rng.standard_normal(60))
    assert model.pooling_ != "attention"
    display = AttentionDisplay.from_estimator(
        model, X[0], kind=kind, labels=["a", "b", "c"], patches=(1, 3), ax=axes()
    )
    assert display.ax_.get_title() == "No token decides: each has weight 0.33"
    marks = [bar.get_facecolor() for bar in display.ax_.patches]
    marks += [drawn.get_bbox_patch().get_alpha() for drawn in display.ax_.texts]
    assert len(set(marks)) == (kind != "image")
    assert all(mark == 0.0 for mark in marks if isinstance(mark, float))


@pytest.mark.parametrize("kind", ["bars", "text"])
def test_dollars_are_drawn_as_dollars(fitted, kind):
    model, X, _ = fitted
    words = ["$5", "$x_{$", "from $5 to $6", "a", "\\$", "b"]

    def draw(figure):
        display = AttentionDisplay.from_estimator(
            model, X[0], kind=kind, labels=words, ax=figure.subplots()
        )
        display.output = "logit of $x^{$"
        display.plot(kind=kind, ax=display.ax_)

    drawn = render_svg(draw, size=(6.0, 3.0)).decode()
    for word in (*words, "to the logit of $x^{$"):
        assert f"{word}</text>" in drawn


def test_marked_words_do_not_overlap(fitted):
    model, X, _ = fitted
    words = ["electrocardiographically", "it", "a", "wwwwwwwwwwwwwwww", "w", "w"]
    display = AttentionDisplay.from_estimator(model, X[0], kind="text", labels=words)
    display.figure_.draw_without_rendering()
    boxes = [drawn.get_window_extent() for drawn in display.ax_.texts]
    for left, right in pairwise(boxes):
        # One space between words of a line, up to the rounding of widths to pixels.
        gap = (right.x0 - left.x1) * 72 / display.figure_.dpi
        assert 3 < gap < 15
    plt.close(display.figure_)


def test_pipelines_and_searches_are_read_through(fitted, tmp_path):
    model, X, y = fitted
    pipeline = make_pipeline(TokenTransformer(StandardScaler()), model)
    search = GridSearchCV(pipeline, {"singlelocationregressor__alpha": [1e-3]}, cv=2)
    search.fit(list(X), y)
    read = search.best_estimator_
    display = AttentionDisplay.from_estimator(search, X[0], ax=axes())
    scaled = read[:-1].transform(X[:1])
    np.testing.assert_allclose(display.weights, read[-1].attention(scaled)[0])
    path = write_bag_summary(read, X, y, tmp_path / "fit.html", n_shuffles=1, cv=2)
    assert "mean pooling" in path.read_text()


def test_errors_say_what_is_missing(fitted):
    model, X, _ = fitted
    with pytest.raises(ValueError, match="`labels` must be the words"):
        AttentionDisplay.from_estimator(model, X[0], kind="text", ax=axes())
    with pytest.raises(ValueError, match="`patches` must be rows and columns of 6"):
        AttentionDisplay.from_estimator(
            model, X[0], kind="image", patches=(2, 2), ax=axes()
        )
    with pytest.raises(ValueError, match="`head` must be"):
        AttentionDisplay.from_estimator(model, X[0], head=1, ax=axes())
    with pytest.raises(ValueError, match="`estimator` must be a fitted"):
        AttentionDisplay.from_estimator(object(), X[0], ax=axes())


def test_the_page_compares_with_mean_pooling_and_shuffled_targets(tmp_path):
    law = SingleLocation(d=4, n_tokens=6, noise=0.1)
    X, y, _ = law.sample(200, np.random.default_rng(0))
    model = SingleLocationRegressor(alpha=1e-3).fit(X, y)
    path = write_bag_summary(model, X, y, tmp_path / "fit.html")
    page = path.read_text()
    assert "mean pooling" in page
    assert "in 19 trials" in page
    assert "(p = 0.05)" in page
    assert "Does one token decide?" in page
    assert "<strong>Yes: attention predicts better than mean pooling" in page
    assert '<img src="data:image/svg+xml;base64,' in page
    assert "http" not in page.replace("http-equiv", "").replace("http://www.w3.org", "")


def test_too_few_shuffles_give_no_verdict(fitted, tmp_path):
    model, X, y = fitted
    path = write_bag_summary(model, X, y, tmp_path / "fit.html", n_shuffles=9, cv=3)
    page = path.read_text()
    assert "<strong>Cannot tell: 9 shuffles cannot give p ≤ 0.05. Pass n_shu" in page
    assert "(p = 0.1)" in page


def test_counts_without_a_law_are_not_predicted(rng, tmp_path):
    # Whole numbers are numbers for a regressor, not classes.
    X, y = rng.standard_normal((60, 3, 2)), rng.integers(4, size=60)
    model = SingleLocationRegressor().fit(X, y)
    page = write_bag_summary(model, X, y, tmp_path / "fit.html").read_text()
    assert "<strong>No: the targets are not predicted better than shuffled" in page
    assert "The fit itself predicts a constant: no token decides." in page
    assert ">R²</th>" in page


# Each leaves a held-out fold on which the score does not exist.
UNDEFINED = {
    "one positive bag": (lambda y: np.arange(60) == 7, None),
    "single bags, R²": (lambda y: y, LeaveOneOut()),
    "classes in order": (lambda y: np.sort(y) > 0, KFold(5)),
    "one class to fit": (lambda y: np.sort(y) > np.median(y), KFold(2)),
}


@pytest.mark.parametrize("case", UNDEFINED)
def test_undefined_scores_give_no_verdict(case, tmp_path):
    law = SingleLocation(d=3, n_tokens=4)
    X, y, _ = law.sample(60, np.random.default_rng(0))
    target, cv = UNDEFINED[case]
    y = target(y)
    is_number = y.dtype.kind == "f"
    kind = SingleLocationRegressor if is_number else SingleLocationClassifier
    model = kind(alpha=0.1).fit(X, y)
    page = write_bag_summary(model, X, y, tmp_path / "fit.html", cv=cv).read_text()
    assert "<strong>Cannot tell: " in page
    assert "their bags have one class, or are too few" in page
    assert "nan" not in page.split("<main>")[1]
    assert "p = " not in page


def test_few_bags_of_a_class_are_spread_over_the_folds(rng, tmp_path):
    X, y = rng.standard_normal((60, 4, 3)), np.arange(60) < 4
    X[y, 0] += 9.0
    model = SingleLocationClassifier(alpha=0.01).fit(X, y)
    page = write_bag_summary(model, X, y, tmp_path / "fit.html").read_text()
    assert "(p = 0.05)" in page


def test_bags_with_holes_are_imputed_for_mean_pooling_too(fitted, tmp_path):
    _, X, y = fitted
    X = X.copy()
    X[3, 1, 2] = np.nan
    model = SingleLocationRegressor(alpha=1e-3)
    model = make_pipeline(TokenTransformer(SimpleImputer()), model).fit(X, y)
    page = write_bag_summary(
        model, X, y, tmp_path / "fit.html", n_shuffles=1
    ).read_text()
    assert "mean pooling" in page


def test_groups_stay_together_in_folds_and_shuffles(rng, tmp_path):
    # Bags of a patient are copies, and targets belong to patients: a patient on both
    # sides gives them away, and targets shuffled bag by bag would not.
    patients = np.repeat(np.arange(20), 6)
    verdicts = []
    for _ in range(3):
        X = rng.standard_normal((20, 4, 30))[patients]
        y = rng.standard_normal(20)[patients]
        model = SingleLocationRegressor(alpha=0.1).fit(X, y)
        path = write_bag_summary(model, X, y, tmp_path / "fit.html", groups=patients)
        no = "<strong>No: the targets are not predicted"
        verdicts.append(no in path.read_text())
    # With 19 shuffles one data set of 20 is a false alarm: two of three, one of 138.
    assert sum(verdicts) >= 2
