"""Compare estimators of bags on one data set, with paired intervals."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats
from sklearn.base import BaseEstimator, clone, is_regressor
from sklearn.exceptions import UndefinedMetricWarning
from sklearn.metrics import check_scoring
from sklearn.model_selection import (
    GroupKFold,
    RepeatedKFold,
    RepeatedStratifiedKFold,
    StratifiedGroupKFold,
)
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.validation import has_fit_parameter

from eigenheads._checks import (
    check_array_like,
    check_choice,
    check_count,
    check_instance,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_pooling import (
    POOLINGS,
    PooledBagClassifier,
    PooledBagRegressor,
)
from eigenheads.estimators._bag_targets import read_targets
from eigenheads.estimators._bags import is_frame, read_bags
from eigenheads.estimators._location import (
    SingleLocationClassifier,
    SingleLocationRegressor,
)

_N_SPLITS, _N_REPEATS = 5, 2
_LEVEL = 0.95


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
        Scores per estimator, one per fold; NaN on a fold where the score is undefined.
    test_share
        Number of held-out bags per bag of the fit, which widens intervals: training
        sets of different folds overlap.
    """

    scoring: str
    reference: str
    scores: dict[str, FloatArray]
    test_share: float

    def table(self) -> list[dict[str, Any]]:
        """Return one row per estimator, best first and undefined scores last.

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
        return sorted(rows, key=lambda row: -np.nan_to_num(row["score"], nan=-np.inf))

    @property
    def undefined(self) -> str:
        """Sentence that says on how many folds the score does not exist, or ``""``."""
        values = np.array(list(self.scores.values()))
        n_undefined = int(np.isnan(values).any(axis=0).sum())
        if not n_undefined:
            return ""
        return (
            f"{self.scoring} is undefined on {n_undefined} of {values.shape[1]} folds: "
            "their bags have one class, or are too few. Use fewer folds or more bags."
        )

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
            if np.isnan(row["score"]):
                lines.append(f"{row['estimator']:{width}}  undefined")
                continue
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
        return "\n".join([*lines, self.undefined] if self.undefined else lines)


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
        Bags of one group, such as a patient, are kept on one side; a splitter given as
        `cv` decides that itself.

    cv : int, splitter or None, default=None
        Folds. A number of folds means shuffled ones, with equal shares of the classes.
        None means five, repeated twice if there are no groups, or fewer if a class or
        the groups are too few.

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
    named = _named(estimators)
    may_impute = any(map(_has_steps, named.values()))
    read = read_bags(_Reader(), bags, reset=True, allow_nan=may_impute)
    given = bags if is_frame(bags) else list(bags)
    targets = read_targets(y, read)
    are_numbers = type_of_target(targets).startswith("continuous")
    named = named or dict(bag_estimators(is_classifier=not are_numbers))
    # Whole numbers are classes only for classifiers.
    is_classified = not are_numbers and not all(map(is_regressor, named.values()))
    reference = next(iter(named)) if reference is None else reference
    check_choice("reference", reference, list(named))
    if groups is not None:
        groups = check_array_like("groups", groups, "one group per bag")
        if groups.shape != targets.shape:
            fail("groups", "one group per bag", groups)
    splitter = bag_folds(cv, targets, groups, is_classifier=is_classified)
    if scoring is None:
        of_classes = "roc_auc" if len(np.unique(targets)) == 2 else "accuracy"
        scoring = of_classes if is_classified else "r2"
    rows = np.zeros((len(targets), 1))
    scores: dict[str, list[float]] = {name: [] for name in named}
    shares = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of classes with too few bags
        folds = list(splitter.split(rows, targets, groups))
    for train, test in folds:
        shares.append(len(test) / len(train))
        has_classes = not is_classified or len(np.unique(targets[train])) > 1
        for name, estimator in named.items():
            if not has_classes:
                scores[name].append(np.nan)
                continue
            extra = {}
            if groups is not None and has_fit_parameter(estimator, "groups"):
                extra = {"groups": groups[train]}
            model = clone(estimator).fit(_taken(given, train), targets[train], **extra)
            score = check_scoring(model, scoring)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UndefinedMetricWarning)
                value = score(model, _taken(given, test), targets[test])
            scores[name].append(float(value))
    label = scoring if isinstance(scoring, str) else "score"
    return BagComparison(
        label,
        reference,
        {name: np.array(values) for name, values in scores.items()},
        float(np.mean(shares)),
    )


class _Reader(BaseEstimator):
    """Bears the name of the function in scikit-learn's errors about bags."""


_Reader.__name__ = "compare_bag_estimators"


def _named(estimators: Any) -> dict[str, Any]:
    """Return estimators by name; none for None."""
    if estimators is None:
        return {}
    named = dict(check_instance("estimators", estimators, dict))
    if not named or not all(hasattr(one, "fit") for one in named.values()):
        fail("estimators", "at least one estimator by name", estimators)
    return named


def _has_steps(estimator: Any) -> bool:
    """Return whether this is a pipeline, or a search of one."""
    return any(name.endswith("steps") for name in estimator.get_params())


def bag_folds(
    cv: Any,
    targets: Any,
    groups: Any,
    *,
    is_classifier: bool,
    n_splits: int = _N_SPLITS,
    n_repeats: int = _N_REPEATS,
) -> Any:
    """Return `cv` if it is a splitter, else one that respects classes and groups.

    For None, folds are at most `n_splits`, each with a bag of every class if possible.
    """
    if hasattr(cv, "get_n_splits"):
        if not cv.get_n_splits(targets, targets, groups):
            fail("cv", "at least one split", cv)
        return cv
    if cv is not None and not isinstance(cv, Integral):
        contract = "an integer, a splitter of scikit-learn, or None"
        fail("cv", contract, cv, error=TypeError)
    units = np.arange(len(targets)) if groups is None else np.asarray(groups)
    classes = targets if is_classifier else np.zeros(len(targets))
    sizes = [len(np.unique(units[classes == label])) for label in np.unique(classes)]
    if cv is None:
        n_splits = max(2, min(n_splits, *sizes))
    else:
        n_repeats = 1
        n_splits = check_count("cv", cv, minimum=2, maximum=max(sizes))
    if groups is not None:
        of_groups = StratifiedGroupKFold if is_classifier else GroupKFold
        return of_groups(n_splits, shuffle=True, random_state=0)
    kind = RepeatedStratifiedKFold if is_classifier else RepeatedKFold
    return kind(n_splits=n_splits, n_repeats=n_repeats, random_state=0)


def _taken(bags: Any, rows: NDArray[np.int64]) -> Any:
    if is_frame(bags):  # rows are bags of one token
        return bags.iloc[rows] if hasattr(bags, "iloc") else bags[rows]
    return [bags[row] for row in rows]
