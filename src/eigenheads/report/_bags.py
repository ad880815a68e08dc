"""One page on a fit to bags: how well it predicts, and whether one token decides."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier

import eigenheads
from eigenheads._checks import Got, as_numpy, check_count, check_path, fail
from eigenheads._files import write_atomically
from eigenheads._plotting.bags import draw_weights, last_estimator
from eigenheads._plotting.svg import data_address, render_svg
from eigenheads._rng import generator
from eigenheads.estimators import (
    BagComparison,
    PooledBagClassifier,
    PooledBagRegressor,
    compare_bag_estimators,
)
from eigenheads.estimators._compare import bag_folds

_SHOWN = 4
# Level of the test against shuffled targets, its folds, and the fewest shuffles that
# can reach the level: the least p-value is 1 / (1 + n_shuffles).
_LEVEL, _N_FOLDS, _FEWEST = 0.05, 3, 19
_THIS, _MEAN = "this estimator", "mean pooling"
_NAMES = {
    "r2": "R²",
    "roc_auc": "the area under the ROC curve",
    "accuracy": "the accuracy",
}
# By what the fit has chosen.
_WEIGHTS = {
    "attention": "The token with the largest weight has {peak:.0%} of the weight of "
    "its bag (median over bags).",
    "mean": "Most of the fit is mean pooling: the data do not say which token of a bag "
    "decides.",
    "none": "The fit itself predicts a constant: no token decides.",
}


def write_bag_summary(
    estimator: Any,
    bags: Any,
    y: ArrayLike,
    path: str | PathLike[str],
    *,
    groups: ArrayLike | None = None,
    cv: Any = None,
    n_shuffles: int = 19,
    seed: int = 0,
) -> Path:
    """Write an HTML page that describes the fit of an estimator to bags.

    The page compares cross-validated scores with those of mean pooling, and with those
    of the same estimator after the targets are shuffled, and shows where the attention
    lies.

    Parameters
    ----------
    estimator
        Fitted single-location estimator, a search of them, or a pipeline that ends with
        one.
    bags, y
        Bags and targets.
    path
        File to write.
    groups, cv
        Groups and folds, as in :func:`eigenheads.estimators.compare_bag_estimators`.
        Targets are shuffled together with the others of their group.
    n_shuffles
        Number of times that targets are shuffled. At least 19 are needed for a p-value
        of 0.05 and so for a verdict. Each takes three fits, or one per fold of `cv`,
        with the choice of the penalty; of a search, only the best setting is fitted.
    seed
        Seed of the shuffles.

    Returns
    -------
    path
        Path of the page: one file that needs no network.
    """
    target = check_path("path", path)
    if target.is_dir():
        got = Got(f"the folder {str(target)!r}")
        fail("path", "a file", got, hint="Such as bags.html.")
    n_shuffles = check_count("n_shuffles", n_shuffles)
    seed = check_count("seed", seed, minimum=0)
    model, read = last_estimator(estimator, bags)
    if not hasattr(model, "coef_key_"):
        contract = "a fitted single-location estimator"
        fail("estimator", contract, estimator)
    pooled = PooledBagClassifier() if is_classifier(model) else PooledBagRegressor()
    fitted = getattr(estimator, "best_estimator_", estimator)
    if hasattr(fitted, "steps"):  # the same preparation of tokens, such as an imputer
        pooled = clone(fitted).set_params(**{fitted.steps[-1][0]: pooled})
    named = {_THIS: clone(estimator), _MEAN: pooled}
    comparison = compare_bag_estimators(bags, y, estimators=named, groups=groups, cv=cv)
    scores = _shuffled_scores(
        fitted,
        bags,
        as_numpy("y", y),
        groups=groups,
        cv=cv,
        scoring=comparison.scoring,
        rng=generator(seed),
        n=n_shuffles,
    )
    weights = [np.abs(one).reshape(len(one), -1)[:, 0] for one in model.attention(read)]
    verdict, sentences = _findings(comparison, scores, weights, model.pooling_)
    environment = Environment(
        loader=PackageLoader("eigenheads.report"),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("bags.html.jinja").render(
        title="Which token decides?",
        model=repr(estimator),
        version=eigenheads.__version__,
        n_bags=len(weights),
        n_tokens=sum(map(len, weights)),
        rows=comparison.table(),
        scoring=_NAMES.get(comparison.scoring, comparison.scoring).removeprefix("the "),
        verdict=verdict,
        sentences=sentences,
        figure=data_address(_drawing(weights)),
    )
    write_atomically(target, lambda file: _write(file, page.encode()))
    return target


def _write(file: Any, page: bytes) -> None:
    file.write(page)


def _shuffled_scores(
    model: Any,
    bags: Any,
    y: NDArray[Any],
    *,
    groups: Any,
    cv: Any,
    scoring: str,
    rng: np.random.Generator,
    n: int,
) -> list[float]:
    """Return the mean score with the targets as given, then with shuffled ones.

    All are computed alike, so that without any relation each is the best equally often.
    """
    units = np.arange(len(y)) if groups is None else np.asarray(groups)
    _, codes = np.unique(units, return_inverse=True)
    rows = np.argsort(codes, kind="stable")
    scores = []
    for trial in range(n + 1):
        shuffled = y.copy()
        if trial:
            places = rng.permutation(codes.max() + 1)
            shuffled[rows] = y[np.argsort(places[codes], kind="stable")]
        comparison = compare_bag_estimators(
            bags,
            shuffled,
            estimators={_THIS: model},
            groups=groups,
            cv=bag_folds(
                cv,
                shuffled,
                groups,
                is_classifier=is_classifier(model),
                n_splits=_N_FOLDS,
                n_repeats=1,
            ),
            scoring=scoring,
        )
        scores.append(float(comparison.scores[_THIS].mean()))
    return scores


def _findings(
    comparison: BagComparison,
    scores: list[float],
    weights: list[NDArray[Any]],
    pooling: str,
) -> tuple[str, list[str]]:
    """Return the verdict and the numbers it rests on, as sentences."""
    mean = next(row for row in comparison.table() if row["estimator"] == _MEAN)
    gap, low, high = (
        -float(mean[name])
        for name in ("difference", "difference_high", "difference_low")
    )
    unshuffled, *shuffled = scores
    n = len(shuffled)
    p_value = (1 + sum(score >= unshuffled for score in shuffled)) / (1 + n)
    peak = float(np.median([one.max() / max(one.sum(), 1e-300) for one in weights]))
    name = _NAMES.get(comparison.scoring, comparison.scoring)
    sentences = [_WEIGHTS[pooling].format(peak=peak)]
    if comparison.undefined:
        return f"Cannot tell: {comparison.undefined}", sentences
    if np.isnan(scores).any():
        reason = f"{name} is undefined on folds of the shuffled targets."
        return f"Cannot tell: {reason} Use fewer folds or more bags.", sentences
    if np.isnan(low):
        return "Cannot tell: a single fold has no error. Use more folds.", sentences
    sentences = [
        f"On held-out bags, {name} differs from that of mean pooling by {gap:+.3f} "
        f"(95 % interval {low:+.3f} to {high:+.3f}).",
        f"With the targets as given, {name} is {unshuffled:.3f}; with shuffled "
        f"targets, on as many folds, at most {max(shuffled):.3f} in {n} "
        f"{'trial' if n == 1 else 'trials'} (p = {p_value:.2g}).",
        *sentences,
    ]
    return _verdict(p_value, n, low, gap, peak), sentences


def _verdict(p_value: float, n: int, low: float, gap: float, peak: float) -> str:
    if n < _FEWEST:
        return (
            f"Cannot tell: {n} shuffles cannot give p ≤ {_LEVEL}. "
            f"Pass n_shuffles={_FEWEST} or more."
        )
    if p_value > _LEVEL:
        return "No: the targets are not predicted better than shuffled ones."
    if low > 0 and peak > 0.5:
        return (
            "Yes: attention predicts better than mean pooling, and rests on one token."
        )
    if low > 0:
        return (
            "In part: attention predicts better than mean pooling, but is spread over "
            "several tokens."
        )
    if gap > 0:
        return "Undecided: attention is ahead of mean pooling by less than the error."
    return "There is no sign that single tokens decide: mean pooling is as good."


def _drawing(weights: list[NDArray[Any]]) -> bytes:
    """Return the weights of some bags, evenly spaced over all, as SVG."""
    count = min(_SHOWN, len(weights))
    chosen = np.linspace(0, len(weights) - 1, count).astype(int)
    titles = [f"bag {index}" for index in chosen]
    shown = [weights[index] for index in chosen]
    return render_svg(
        lambda figure: draw_weights(figure, shown, titles), size=(6.4, 1.4 * count)
    )
