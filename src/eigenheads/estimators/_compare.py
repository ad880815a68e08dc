"""Compare estimators of bags on one data set, with paired intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.metrics import check_scoring
from sklearn.model_selection import (
    GroupKFold,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    check_cv,
)
from sklearn.utils.multiclass import type_of_target

from eigenheads._checks import check_array_like, check_choice, check_instance, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_pooling import (
    POOLINGS,
    PooledBagClassifier,
    PooledBagRegressor,
)
from eigenheads.estimators._bags import is_frame, read_bags
from eigenheads.estimators._location import (
    SingleLocationClassifier,
    SingleLocationRegressor,
)
from eigenheads.estimators._location._targets import read_targets

_N_SPLITS, _N_REPEATS = 5, 2
_LEVEL = 0.95
_OWNER = "compare_bag_estimators"


@dataclass(frozen=True)
class BagComparison:
    """Scores of estimators on the same folds.

    Attributes
    ----------
    scoring
        Name of the score; larger is better.
    reference
        Name of the estimator that the others are compared with.
    scores
        Scores per estimator, one per fold.
    test_share
        Number of held-out bags per bag of the fit, which widens intervals: training
        sets of different folds overlap.
    """

    scoring: str
    reference: str
    scores: dict[str, FloatArray]
    test_share: float

    def table(self) -> list[dict[str, Any]]:
        """Return one row per estimator, best first.

        Returns
        -------
        rows
            ``estimator``, mean ``score``, ``low`` and ``high`` ends of its 95 %
            interval, and the same for the ``difference`` from the reference on equal
            folds, with the variance of Nadeau and Bengio (2003).
        """
        rows = []
        for name, scores in self.scores.items():
            low, high = self._interval(scores)
            gaps = scores - self.scores[self.reference]
            below, above = self._interval(gaps)
            rows.append(
                {
                    "estimator": name,
                    "score": float(scores.mean()),
                    "low": low,
                    "high": high,
                    "difference": float(gaps.mean()),
                    "difference_low": below,
                    "difference_high": above,
                }
            )
        return sorted(rows, key=lambda row: -float(row["score"]))

    def _interval(self, values: FloatArray) -> tuple[float, float]:
        n = len(values)
        if n < 2:
            return np.nan, np.nan
        variance = (1 / n + self.test_share) * float(values.var(ddof=1))
        room = float(stats.t.ppf(0.5 + _LEVEL / 2, n - 1)) * np.sqrt(variance)
        mean = float(values.mean())
        return mean - room, mean + room

    def __str__(self) -> str:
        width = max(len(name) for name in self.scores)
        lines = [
            f"{'estimator':{width}}  {self.scoring:>8}  {'95 % interval':>16}  "
            f"minus {self.reference}"
        ]
        for row in self.table():
            line = (
                f"{row['estimator']:{width}}  {row['score']:8.3f}  "
                f"[{row['low']:6.3f}, {row['high']:6.3f}]"
            )
            if row["estimator"] != self.reference:
                line += (
                    f"  {row['difference']:+.3f} [{row['difference_low']:+.3f}, "
                    f"{row['difference_high']:+.3f}]"
                )
            lines.append(line)
        return "\n".join(lines)


def bag_estimators(*, is_classifier: bool) -> dict[str, BaseEstimator]:
    """Return the estimators that are compared by default."""
    ours = SingleLocationClassifier if is_classifier else SingleLocationRegressor
    pooled = PooledBagClassifier if is_classifier else PooledBagRegressor
    named: dict[str, BaseEstimator] = {
        "single location": ours(),
        "single location, quantile": ours(feature_map="quantile"),
        "single location, rbf": ours(feature_map="rbf"),
    }
    for pooling in POOLINGS:
        named[f"{pooling} pooling"] = pooled(pooling)
    return named


def compare_bag_estimators(
    bags: Any,
    y: ArrayLike,
    *,
    estimators: Mapping[str, Any] | None = None,
    reference: str | None = None,
    groups: ArrayLike | None = None,
    cv: Any = None,
    scoring: Any = None,
) -> BagComparison:
    """Compare estimators of bags by cross-validation on equal folds.

    Parameters
    ----------
    bags : list of arrays of shape (n_tokens, n_features), or array
        Bags.

    y : array-like of shape (n_bags,)
        Numbers, or classes. Whole numbers, such as counts, are classes unless all
        `estimators` are regressors.

    estimators : dict of str to estimator, default=None
        Estimators by name. None means the single-location estimator, also with quantile
        and RBF features, and pooling by mean, maximum, log-sum-exp, statistics and set
        kernel.

    reference : str, default=None
        Name of the estimator whose score is subtracted; None means the first.

    groups : array-like of shape (n_bags,), default=None
        Bags of one group, such as a patient, are kept on one side.

    cv : int, splitter or None, default=None
        Folds. None means five folds, repeated twice; with groups, five groups of folds.

    scoring : str, callable or None, default=None
        Score; None means R² for numbers, the area under the ROC curve for two classes,
        accuracy for more.

    Returns
    -------
    comparison : BagComparison
        Prints as a table; ``scores`` has the score of every fold.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SingleLocation
    >>> from eigenheads.estimators import compare_bag_estimators, PooledBagRegressor
    >>> from eigenheads.estimators import SingleLocationRegressor
    >>> law, rng = SingleLocation(d=8, n_tokens=5), np.random.default_rng(0)
    >>> bags, y, _ = law.sample(200, rng)
    >>> named = {"one token": SingleLocationRegressor(), "mean": PooledBagRegressor()}
    >>> comparison = compare_bag_estimators(bags, y, estimators=named, cv=3)
    >>> [row["estimator"] for row in comparison.table()]
    ['one token', 'mean']
    """
    read = read_bags(_Reader(), bags, reset=True)
    given = bags if is_frame(bags) else list(bags)
    targets = read_targets(y, read, owner=_OWNER)
    if groups is not None:
        groups = check_array_like("groups", groups, "one group per bag", owner=_OWNER)
    are_numbers = type_of_target(targets).startswith("continuous")
    named = _named(estimators, is_classifier=not are_numbers)
    # Whole numbers are classes only for classifiers.
    is_classified = not are_numbers and not all(map(is_regressor, named.values()))
    reference = next(iter(named)) if reference is None else reference
    check_choice("reference", reference, list(named), owner=_OWNER)
    splitter = _splitter(cv, targets, groups, is_classifier=is_classified)
    if scoring is None:
        scoring = "r2"
        if is_classified:
            n_classes = len(np.unique(targets))
            scoring = "roc_auc" if n_classes == 2 else "accuracy"
    rows = np.zeros((len(targets), 1))
    scores: dict[str, list[float]] = {name: [] for name in named}
    shares = []
    for train, test in splitter.split(rows, targets, groups):
        shares.append(len(test) / len(train))
        for name, estimator in named.items():
            model = clone(estimator).fit(_taken(given, train), targets[train])
            score = check_scoring(model, scoring)
            scores[name].append(float(score(model, _taken(given, test), targets[test])))
    label = scoring if isinstance(scoring, str) else "score"
    return BagComparison(
        label,
        reference,
        {name: np.array(values) for name, values in scores.items()},
        float(np.mean(shares)),
    )


class _Reader(BaseEstimator):
    """Bears the name of the function in errors about bags."""


_Reader.__name__ = _OWNER


def _named(estimators: Any, *, is_classifier: bool) -> dict[str, Any]:
    """Return estimators by name, the usual ones for None."""
    if estimators is None:
        return dict(bag_estimators(is_classifier=is_classifier))
    named = dict(check_instance("estimators", estimators, dict, owner=_OWNER))
    if not named or not all(hasattr(one, "fit") for one in named.values()):
        fail("estimators", "at least one estimator by name", estimators, owner=_OWNER)
    return named


def _splitter(cv: Any, targets: Any, groups: Any, *, is_classifier: bool) -> Any:
    if cv is not None:
        if not isinstance(cv, Integral) and not hasattr(cv, "get_n_splits"):
            contract = "an integer, a splitter of scikit-learn, or None"
            fail("cv", contract, cv, owner=_OWNER, error=TypeError)
        splitter = check_cv(cv, targets, classifier=is_classifier)
        if not splitter.get_n_splits(targets, targets, groups):
            fail("cv", "at least one split", cv, owner=_OWNER)
        return splitter
    if groups is not None:
        return GroupKFold(_N_SPLITS)
    kind = RepeatedStratifiedKFold if is_classifier else RepeatedKFold
    return kind(n_splits=_N_SPLITS, n_repeats=_N_REPEATS, random_state=0)


def _taken(bags: Any, rows: NDArray[np.int64]) -> Any:
    if is_frame(bags):  # rows are bags of one token
        return bags.iloc[rows] if hasattr(bags, "iloc") else bags[rows]
    return [bags[row] for row in rows]
