"""Search over feature maps, heads and penalties of the single-location estimators."""

from collections.abc import Callable, Sequence
from functools import wraps
from itertools import product
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import check_cv
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import Got, check_choice, check_items, fail, without_traps
from eigenheads.estimators._batches import is_stream
from eigenheads.estimators._location._base import AbstractSingleLocation
from eigenheads.estimators._location._classifier import SingleLocationClassifier
from eigenheads.estimators._location._regressor import SingleLocationRegressor
from eigenheads.estimators._location._stack import Stack
from eigenheads.estimators._parameters import check_verbose

Result = TypeVar("Result")

_PARAMETERS = """
    Parameters
    ----------
    feature_maps : sequence, default=("auto", "quantile", "rbf")
        Values of `feature_map` to compare.

    heads : sequence of str, default=("auto", "radial")
        Values of `head` to compare. The radial head is tried without feature map only.

    cv : int, splitter or None, default=None
        Folds; None means five. Splitters that need groups get those of `fit`.

    verbose : int, default=0
        If positive, print the best score of every setting.

    Attributes
    ----------
    best_estimator_ : estimator
        The best setting, fitted to all bags.

    best_params_ : dict
        Its `feature_map` and `head`.

    best_score_ : float
        Its out-of-fold score: the share of the loss of the best constant that is
        removed, for squared loss R². The best of several scores is optimistic.

    cv_results_ : list of dict
        All candidates: `feature_map`, `head`, `pooling`, `alpha` and `score`.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were DataFrames.

    Notes
    -----
    Every setting is compared on the same folds, with penalties along a path of warm
    starts. Feature maps and whitening see the tokens of all bags, but no targets.
"""
_NOTES = "    Notes\n"
_CLASSES = """    classes_ : ndarray of shape (n_classes,)
        Labels.

"""


def _of_best(method: Callable[[Any, Any], Result]) -> Callable[[Any, Any], Result]:
    """Return the method of a search that calls that of its best estimator."""

    @wraps(method)
    def of_best(self: Any, X: Any) -> Result:
        return cast("Result", getattr(self._best(), method.__name__)(X))

    return of_best


class AbstractSingleLocationCV(BaseEstimator):
    """Search and delegation of both estimators."""

    def __init__(
        self,
        *,
        feature_maps: Sequence[Any] = ("auto", "quantile", "rbf"),
        heads: Sequence[str] = ("auto", "radial"),
        cv: Any = None,
        verbose: int = 0,
    ) -> None:
        self.feature_maps = feature_maps
        self.heads = heads
        self.cv = cv
        self.verbose = verbose

    _estimator: type[SingleLocationRegressor] | type[SingleLocationClassifier]

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Self:
        """Compare all settings and fit the best to all bags.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags in memory.

        y : array-like of shape (n_bags,)
            Targets.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        groups : array-like of shape (n_bags,), default=None
            Bags of one group, such as a patient, for a splitter such as ``GroupKFold``.

        Returns
        -------
        self : object
            The fitted search.
        """
        check_verbose(self.verbose)
        if is_stream(X, y):
            hint = "Fit one setting with the estimator without search."
            fail("X", "bags in memory", Got("batches"), hint=hint)
        settings = self._settings()
        folds = self._folds(X, y, groups)
        found: list[tuple[AbstractSingleLocation, Stack]] = []
        self.cv_results_ = []
        for setting in settings:
            model = self._estimator(**setting)
            choice = model._choose(X, y, sample_weight, folds)
            found.append((model, choice))
            self.cv_results_ += [
                {
                    **setting,
                    "pooling": candidate.pooling,
                    "alpha": candidate.alpha,
                    "score": candidate.score,
                }
                for candidate in choice.candidates
            ]
            model.verbose = self.verbose
            model._report(f"{setting}: out-of-fold score {choice.score:.4f}")
            model.verbose = 0
        # The first of equal scores: the simplest settings are named first.
        best = max(range(len(found)), key=lambda i: (_score(found[i][1]), -i))
        model, choice = found[best]
        model._given_choice = choice
        self.best_estimator_ = model.fit(X, y, sample_weight)
        model._given_choice = None
        self.best_params_, self.best_score_ = settings[best], _score(choice)
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(model, name):
                setattr(self, name, getattr(model, name))
        return self

    def _settings(self) -> list[dict[str, Any]]:
        contract = "a sequence of feature maps, None among them"
        maps = check_items("feature_maps", self.feature_maps, contract)
        contract = "a sequence of names of heads"
        heads = check_items("heads", self.heads, contract)
        for head in heads:
            check_choice("heads", head, ("auto", *self._estimator._heads))
        settings = [
            {"feature_map": feature_map, "head": head}
            for feature_map, head in product(maps, heads)
            if head != "radial" or _is_plain(feature_map)
        ]
        if not settings:
            got = Got(f"feature_maps={self.feature_maps!r}, heads={self.heads!r}")
            fail("heads", "at least one setting", got)
        return settings

    def _folds(self, X: Any, y: Any, groups: Any) -> NDArray[np.int64]:
        """Return the fold of each bag; equal for all settings."""
        model = self._estimator(alpha=1.0)
        _, targets, _ = model._read(X, y, None, reset=True)
        rows = np.zeros((len(targets), 1))
        is_classifier = isinstance(self, ClassifierMixin)
        given = without_traps("cv", self.cv)
        splitter = check_cv(given, targets, classifier=is_classifier)
        folds = np.full(len(targets), -1, dtype=np.int64)
        splits = self._held_out(splitter, rows, targets, groups)
        for fold, held_out in enumerate(splits):
            if (folds[held_out] >= 0).any():
                hint = "Use KFold, StratifiedKFold or GroupKFold."
                got = Got(f"{splitter!r}, which holds bags out repeatedly")
                fail("cv", "a partition", got, hint=hint)
            folds[held_out] = fold
        if not folds.any():
            got = Got(f"{splitter!r}, which has one fold")
            fail("cv", "at least two folds", got)
        if (folds < 0).any():
            got = Got(f"{splitter!r}, which never holds out some bags")
            fail("cv", "a partition", got)
        return folds

    def _held_out(
        self, splitter: Any, rows: Any, targets: Any, groups: Any
    ) -> list[NDArray[np.int64]]:
        """Return the numbers of the bags that each split holds out, or raise."""
        try:
            every = splitter.split(rows, targets, groups)
            found = [np.arange(len(rows))[held_out] for _, held_out in every]
        except (TypeError, IndexError):
            contract = "None, an integer, a splitter, or pairs of rows (train, test)"
            fail("cv", contract, self.cv)
        return found

    attention = _of_best(AbstractSingleLocation.attention)
    locate = _of_best(AbstractSingleLocation.locate)
    contributions = _of_best(AbstractSingleLocation.contributions)

    def _best(self) -> Any:
        check_is_fitted(self)
        return self.best_estimator_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


def _is_plain(feature_map: Any) -> bool:
    """Return whether a radial head with this map reads the features as given."""
    return feature_map is None or (
        isinstance(feature_map, str) and feature_map == "auto"
    )


def _score(choice: Stack) -> float:
    return choice.score


class SingleLocationRegressorCV(RegressorMixin, AbstractSingleLocationCV):
    __doc__ = f"""Regression by one token, with map and head chosen from data.
{_PARAMETERS}
    See Also
    --------
    SingleLocationRegressor : One setting, with the penalty chosen from the data.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SingleLocation
    >>> from eigenheads.estimators import SingleLocationRegressorCV
    >>> law, rng = SingleLocation(d=8, n_tokens=5), np.random.default_rng(0)
    >>> bags, y, _ = law.sample(150, rng)
    >>> search = SingleLocationRegressorCV(feature_maps=(None, "quantile")).fit(bags, y)
    >>> len(search.predict(bags[:2])), sorted(search.best_params_)
    (2, ['feature_map', 'head'])
    """

    _estimator = SingleLocationRegressor
    predict = _of_best(SingleLocationRegressor.predict)


class SingleLocationClassifierCV(ClassifierMixin, AbstractSingleLocationCV):
    __doc__ = f"""Classification by one token, with map and head chosen from data.
{_PARAMETERS.replace(_NOTES, _CLASSES + _NOTES)}
    See Also
    --------
    SingleLocationClassifier : One setting, with the penalty chosen from the data.
    """

    _estimator = SingleLocationClassifier
    predict = _of_best(SingleLocationClassifier.predict)
    decision_function = _of_best(SingleLocationClassifier.decision_function)
    predict_proba = _of_best(SingleLocationClassifier.predict_proba)
    predict_log_proba = _of_best(SingleLocationClassifier.predict_log_proba)
