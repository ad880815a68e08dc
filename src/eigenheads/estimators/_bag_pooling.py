"""Baselines for bags: pool the tokens to one row, then use any tabular estimator."""

import warnings
from abc import abstractmethod
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    RegressorMixin,
    TransformerMixin,
    clone,
)
from sklearn.ensemble import RandomForestClassifier, RandomForestRegressor
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeCV
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Normalizer, StandardScaler
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import check_choice
from eigenheads._limits import check_largest
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_order import orders_by_content
from eigenheads.estimators._bag_targets import (
    read_labels,
    read_numbers,
    read_targets,
    read_weights,
)
from eigenheads.estimators._bags import Bags, check_is_no_table, read_bags
from eigenheads.estimators._feature_maps import RBFFeatures
from eigenheads.estimators._parameters import check_has_fit

POOLINGS = ("mean", "max", "logsumexp", "statistics", "kernel")
_QUANTILES = (0.25, 0.5, 0.75)
_N_TREES = 200
_N_LANDMARKS = 300
_MOST_TOKENS = 20_000
# Penalties that the linear models choose from.
_RIDGES = np.logspace(-3, 4, 15)
_INVERSE_RIDGES = tuple(np.logspace(-4, 1, 6))
_N_FOLDS, _MAX_ITER = 5, 1000


class BagPooling(TransformerMixin, BaseEstimator):
    r"""Pool the tokens of each bag to one row.

    Parameters
    ----------
    pooling : {"mean", "max", "logsumexp", "statistics", "kernel"}, default="mean"
        Per feature, over the tokens of a bag: ``"mean"``; ``"max"``;
        ``"logsumexp"``, :math:`\log \frac1L \sum_l e^{z_l}` of standardised features
        :math:`z`; ``"statistics"``, mean, standard deviation, least, largest and
        quartiles, and the number of tokens. ``"kernel"`` is the mean of 300 Gaussian
        kernel features, normalised: a linear model of it is the set kernel [1]_, up to
        the approximation of the kernel by landmarks.

    Attributes
    ----------
    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were DataFrames.

    References
    ----------
    .. [1] Gärtner, Flach, Kowalczyk, Smola (2002). Multi-instance kernels.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.estimators import BagPooling
    >>> bags = [np.array([[1.0, 2.0], [3.0, 0.0]]), np.array([[5.0, 5.0]])]
    >>> BagPooling().fit_transform(bags)
    array([[2., 1.],
           [5., 5.]])
    """

    def __init__(self, pooling: str = "mean") -> None:
        self.pooling = pooling

    def fit(self, X: Any, y: object = None) -> Self:
        """Learn the scale of the features, and the landmarks of the kernel.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        y : Ignored
            Present for consistency.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        check_choice("pooling", self.pooling, POOLINGS)
        self._fit_tokens(read_bags(self, X, reset=True).tokens)
        return self

    def _fit_tokens(self, tokens: NDArray[Any]) -> None:
        if self.pooling == "logsumexp":
            self.scaler_ = StandardScaler().fit(tokens)
        if self.pooling == "kernel":
            some = np.linspace(0, len(tokens) - 1, min(len(tokens), _MOST_TOKENS))
            self.kernel_ = RBFFeatures(_N_LANDMARKS).fit(tokens[some.astype(np.int64)])

    def transform(self, X: Any) -> FloatArray:
        """Return one row per bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        Returns
        -------
        rows : ndarray of shape (n_bags, n_pooled)
            Pooled features.
        """
        check_is_fitted(self)
        return self._pooled(read_bags(self, X, reset=False))

    def _pooled(self, bags: Bags) -> FloatArray:
        if self.pooling == "mean":
            return _means(bags, bags.tokens)
        if self.pooling == "max":
            return np.maximum.reduceat(bags.tokens, bags.starts, axis=0)
        if self.pooling == "logsumexp":
            scaled = self.scaler_.transform(bags.tokens)
            tops = np.maximum.reduceat(scaled, bags.starts, axis=0)
            powers = np.exp(scaled - np.repeat(tops, bags.lengths, axis=0))
            return np.asarray(np.log(_means(bags, powers)) + tops)
        if self.pooling == "kernel":
            features = self.kernel_.transform(bags.tokens)[:, self.n_features_in_ :]
            return np.asarray(Normalizer().transform(_means(bags, features)))
        return _statistics(bags)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "n_features_in_")


def _means(bags: Bags, rows: NDArray[Any]) -> FloatArray:
    return Bags(rows, bags.offsets).means()


def _statistics(bags: Bags) -> FloatArray:
    means = _means(bags, bags.tokens)
    centred = bags.tokens - np.repeat(means, bags.lengths, axis=0)
    columns = [
        means,
        np.sqrt(_means(bags, centred**2)),
        np.minimum.reduceat(bags.tokens, bags.starts, axis=0),
        np.maximum.reduceat(bags.tokens, bags.starts, axis=0),
    ]
    for quantile in _QUANTILES:
        columns.append(
            np.stack(
                [np.quantile(bag, quantile, axis=0) for bag in bags.split(bags.tokens)]
            )
        )
    return np.column_stack([*columns, bags.lengths])


class AbstractPooledBags(BaseEstimator):
    """Pooling and the tabular estimator of both baselines."""

    def __init__(self, pooling: str = "mean", *, estimator: Any = None) -> None:
        self.pooling = pooling
        self.estimator = estimator

    def _fit(self, X: Any, y: Any, sample_weight: Any) -> None:
        check_choice("pooling", self.pooling, POOLINGS)
        bags = read_bags(self, X, reset=True)
        check_largest("X", bags.tokens)
        self._rows_are_bags = bool((bags.lengths == 1).all())
        targets = read_targets(y, bags)
        targets = self._check_targets(targets)
        weights = read_weights(sample_weight, bags)
        counted = np.flatnonzero(weights > 0)
        bags, targets, weights = bags.take(counted), targets[counted], weights[counted]
        # Landmarks and folds must not depend on the order of tokens and bags.
        spread = bags.tokens.std(axis=0)
        scale = np.where(spread > 0, spread, 1.0)
        codes = np.unique(targets, return_inverse=True)[1]
        within, ranks = orders_by_content(bags, codes, bags.tokens.mean(axis=0), scale)
        bags = Bags(bags.tokens[within], bags.offsets).take(ranks)
        targets, weights = targets[ranks], weights[ranks]
        self.pooling_ = BagPooling(self.pooling)
        self.pooling_.n_features_in_ = self.n_features_in_
        self.pooling_._fit_tokens(bags.tokens)
        rows = self.pooling_._pooled(bags)
        if self.estimator is None:
            model = self._default(targets)
        else:
            check_has_fit("estimator", self.estimator)
            model = clone(self.estimator)
        given = {}
        if sample_weight is not None:
            step = f"{model.steps[-1][0]}__" if hasattr(model, "steps") else ""
            given = {f"{step}sample_weight": weights}
        with warnings.catch_warnings():
            # Some versions of LogisticRegressionCV announce changes of attributes.
            warnings.simplefilter("ignore", FutureWarning)
            self.estimator_ = model.fit(rows, targets, **given)

    @abstractmethod
    def _check_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets if they suit the estimator, or raise."""

    @abstractmethod
    def _default(self, targets: NDArray[Any]) -> Any:
        """Return the tabular estimator that is used if none is given."""

    def _rows(self, X: Any) -> FloatArray:
        check_is_fitted(self)
        if not self._rows_are_bags:
            check_is_no_table(X)
        return self.pooling_._pooled(read_bags(self, X, reset=False))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the predictions of the tabular estimator on pooled bags.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        Returns
        -------
        y_pred : ndarray of shape (n_bags,)
            Predictions.
        """
        rows = self._rows(X)
        return np.asarray(self.estimator_.predict(rows))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags


class PooledBagRegressor(RegressorMixin, AbstractPooledBags):
    """Regression on pooled bags: a baseline for bags in which one token decides.

    Parameters
    ----------
    pooling : {"mean", "max", "logsumexp", "statistics", "kernel"}, default="mean"
        See :class:`BagPooling`.

    estimator : estimator or None, default=None
        Regressor of rows. None means ridge regression of standardised features with the
        penalty chosen by leave-one-out, for ``"statistics"`` a forest of 200 trees.

    Attributes
    ----------
    estimator_ : estimator
        Fitted regressor of rows.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were DataFrames.

    See Also
    --------
    compare_bag_estimators : Compare all of them on one data set.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.estimators import PooledBagRegressor
    >>> rng = np.random.default_rng(0)
    >>> bags = [rng.standard_normal((n, 3)) for n in (2, 4, 3, 5, 6)]
    >>> model = PooledBagRegressor("max").fit(bags, [1.0, 2.0, 0.0, 1.0, 2.0])
    >>> model.predict(bags).shape
    (5,)
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Pool the bags and fit the regressor.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        y : array-like of shape (n_bags,)
            Targets.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._fit(X, y, sample_weight)
        return self

    def _check_targets(self, targets: NDArray[Any]) -> FloatArray:
        return read_numbers(targets)

    def _default(self, targets: NDArray[Any]) -> Any:
        if self.pooling == "statistics":
            return RandomForestRegressor(_N_TREES, random_state=0)
        return make_pipeline(StandardScaler(), RidgeCV(_RIDGES))


class PooledBagClassifier(ClassifierMixin, AbstractPooledBags):
    """Classification of pooled bags: a baseline for bags in which one token decides.

    Parameters
    ----------
    pooling : {"mean", "max", "logsumexp", "statistics", "kernel"}, default="mean"
        See :class:`BagPooling`.

    estimator : estimator or None, default=None
        Classifier of rows. None means logistic regression of standardised features with
        the penalty chosen by cross-validation, for ``"statistics"`` a forest of 200
        trees.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels.

    estimator_ : estimator
        Fitted classifier of rows.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were DataFrames.

    See Also
    --------
    compare_bag_estimators : Compare all of them on one data set.
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Pool the bags and fit the classifier.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        y : array-like of shape (n_bags,)
            Labels.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._fit(X, y, sample_weight)
        self.classes_ = self.estimator_.classes_
        return self

    def _check_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        return read_labels(targets)

    def _default(self, targets: NDArray[Any]) -> Any:
        if self.pooling == "statistics":
            return RandomForestClassifier(_N_TREES, random_state=0)
        fewest = int(np.unique(targets, return_counts=True)[1].min())
        if fewest < _N_FOLDS:
            return make_pipeline(
                StandardScaler(), LogisticRegression(max_iter=_MAX_ITER)
            )
        search = LogisticRegressionCV(
            Cs=_INVERSE_RIDGES,
            cv=StratifiedKFold(_N_FOLDS, shuffle=True, random_state=0),
            scoring="neg_log_loss",
            max_iter=_MAX_ITER,
        )
        return make_pipeline(StandardScaler(), search)

    def predict_proba(self, X: Any) -> NDArray[np.floating]:
        """Return the probability of each class.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        Returns
        -------
        probabilities : ndarray of shape (n_bags, n_classes)
            In the order of ``classes_``.
        """
        rows = self._rows(X)
        return np.asarray(self.estimator_.predict_proba(rows))
