"""One page on a fit to bags: how well it predicts, and whether one token decides."""

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from sklearn.base import clone, is_classifier
from sklearn.model_selection import cross_val_score

import eigenheads
from eigenheads._checks import Got, check_count, check_path, fail
from eigenheads._files import write_atomically
from eigenheads._plotting.bags import draw_weights
from eigenheads._plotting.svg import embedded_svg, render_svg
from eigenheads.estimators import (
    BagComparison,
    PooledBagClassifier,
    PooledBagRegressor,
    compare_bag_estimators,
)

_OWNER = "write_bag_summary"
_SHOWN = 4
_THIS, _MEAN = "this estimator", "mean pooling"


def write_bag_summary(
    estimator: Any,
    bags: Any,
    y: ArrayLike,
    path: str | PathLike[str],
    *,
    cv: Any = None,
    n_shuffles: int = 9,
    seed: int = 0,
) -> Path:
    """Write an HTML page that describes the fit of an estimator to bags.

    The page compares cross-validated scores with those of mean pooling, and with those
    of the same estimator after the targets are shuffled, and shows where the attention
    lies.

    Parameters
    ----------
    estimator
        Fitted single-location estimator, or a search of them.
    bags, y
        Bags and targets.
    path
        File to write.
    cv
        Folds, as in :func:`eigenheads.estimators.compare_bag_estimators`.
    n_shuffles
        Number of times that targets are shuffled. With 19 the least p-value is 0.05.
    seed
        Seed of the shuffles.

    Returns
    -------
    path
        Path of the page: one file that needs no network.
    """
    target = check_path("path", path, owner=_OWNER)
    if target.is_dir():
        got = Got(f"the folder {str(target)!r}")
        fail("path", "a file", got, owner=_OWNER, hint="Such as bags.html.")
    n_shuffles = check_count("n_shuffles", n_shuffles, owner=_OWNER)
    seed = check_count("seed", seed, owner=_OWNER, minimum=0)
    model = getattr(estimator, "best_estimator_", estimator)
    if not hasattr(model, "coef_key_"):
        fail("estimator", "a fitted single-location estimator", model, owner=_OWNER)
    pooled = PooledBagClassifier() if is_classifier(model) else PooledBagRegressor()
    named = {_THIS: clone(estimator), _MEAN: pooled}
    comparison = compare_bag_estimators(bags, y, estimators=named, cv=cv)
    shuffled = _shuffled_scores(model, bags, y, comparison.scoring, n_shuffles, seed)
    weights = [np.abs(one).reshape(len(one), -1)[:, 0] for one in model.attention(bags)]
    facts = _facts(comparison, shuffled, weights)
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
        shuffled=shuffled,
        svg=Markup(_drawing(weights)),  # drawn here, from numbers alone
        **facts,
    )
    write_atomically(target, lambda file: _write(file, page.encode()))
    return target


def _write(file: Any, page: bytes) -> None:
    file.write(page)


def _shuffled_scores(
    model: Any, bags: Any, y: Any, scoring: str, n_shuffles: int, seed: int
) -> list[float]:
    """Return mean scores with shuffled targets, at the penalty of the fit."""
    rng = np.random.default_rng(seed)
    fixed = clone(model).set_params(alpha=model.alpha_)
    given, targets = list(bags), np.asarray(y)
    scores = []
    for _ in range(n_shuffles):
        shuffled = targets[rng.permutation(len(targets))]
        found = cross_val_score(fixed, given, shuffled, cv=3, scoring=scoring)
        scores.append(float(found.mean()))
    return scores


def _facts(
    comparison: BagComparison, shuffled: list[float], weights: list[NDArray[Any]]
) -> dict[str, Any]:
    """Return the findings as sentences."""
    rows = {row["estimator"]: row for row in comparison.table()}
    own = float(rows[_THIS]["score"])
    gap = -float(rows[_MEAN]["difference"])
    low, high = -rows[_MEAN]["difference_high"], -rows[_MEAN]["difference_low"]
    p_value = (1 + sum(score >= own for score in shuffled)) / (1 + len(shuffled))
    peak = float(np.median([one.max() / max(one.sum(), 1e-300) for one in weights]))
    predicts = own > max(shuffled)
    sentences = [
        f"The cross-validated score ({comparison.scoring}) is {own:.3f}; with shuffled "
        f"targets it is at most {max(shuffled):.3f} (p = {p_value:.2g}).",
        f"Its difference to that of mean pooling is {gap:.3f} (95 % interval {low:.3f} "
        f"to {high:.3f}).",
        f"The largest weight of a bag is {peak:.2f} of all, in the median.",
    ]
    if not predicts:
        verdict = "The targets are not predicted better than shuffled ones."
    elif low > 0 and peak > 0.5:
        verdict = (
            "Yes: attention predicts better than the mean, and rests on one token."
        )
    elif low > 0:
        verdict = (
            "In part: attention beats the mean, but is spread over several tokens."
        )
    elif gap > 0:
        verdict = "Undecided: attention is ahead of the mean by less than the error."
    else:
        verdict = "There is no sign that single tokens decide: the mean is as good."
    return {"sentences": sentences, "verdict": verdict}


def _drawing(weights: list[NDArray[Any]]) -> str:
    """Return the weights of some bags, evenly spaced over all, as SVG."""
    count = min(_SHOWN, len(weights))
    chosen = np.linspace(0, len(weights) - 1, count).astype(int)
    titles = [f"bag {index}" for index in chosen]
    shown = [weights[index] for index in chosen]
    drawn = render_svg(
        lambda figure: draw_weights(figure, shown, titles), size=(6.4, 1.4 * count)
    )
    return embedded_svg(drawn, "attention")
