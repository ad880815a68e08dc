"""Classification in which one token per bag decides."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets

from eigenheads.estimators._location._base import AbstractSingleLocation
from eigenheads.estimators._location._problem import ClassLabels


class SingleLocationClassifier(ClassifierMixin, AbstractSingleLocation):
    r"""Classification in which one token per bag, at an unknown position, decides.

    The head of :class:`SingleLocationRegressor` gives the logit of each class,

    .. math::

        z_c = \sum_l p_l \; x_l \cdot v_c + b_c,

    with one key for all classes. Two classes have one logit, that of the second class.

    Parameters
    ----------
    head : {"softmax", "radial", "erf"}, default="softmax"
        Weights of the tokens; see :class:`SingleLocationRegressor`.

    alpha : float or "auto", default="auto"
        Weight of the penalty on key and values, relative to the mean logistic loss.
        ``"auto"`` chooses it, and mean pooling or a constant if they predict held-out
        bags better; see the Notes of :class:`SingleLocationRegressor`.

    feature_map : {"rbf", "quadratic", "quantile", "bins"}, transformer or None, \
            default=None
        Functions of the features of a token that key and value read instead of the
        features. ``"rbf"``: the standardised features and 300 Gaussian kernel features,
        for deciding tokens of several kinds and nonlinear readouts; ``"quadratic"``:
        the features, their squares and products; ``"quantile"``: each feature mapped to
        normal quantiles, for skewed features; ``"bins"``: indicators of five bins per
        feature. Any scikit-learn transformer of rows is cloned and fitted to all
        tokens. The coefficients then belong to its features.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty. The
        remainder is half the variance of the scores and readouts of the tokens, plus
        `shrinkage` times the squared norm of the standardised coefficients. A positive
        share makes coefficients exactly zero.

    coherence : float, default=0.1
        Weight of a penalty on the component of the key that is orthogonal to the mean
        attended token, both whitened. For tokens with an elliptical law the two
        directions agree, and the mean has the smaller variance; 0 disables the penalty.

    shrinkage : float or None, default=None
        Number added to the diagonal of the pooled correlation of the features before
        tokens are whitened; equivalently, weight of the squared norm of standardised
        coefficients in the penalty. None means
        ``max(0.01, n_features / (3 * n_bags))``.

    fit_intercept : bool, default=True
        Whether to fit :math:`b_c`.

    n_random_starts : int, default=0
        Number of random directions of the key to try, in addition to the starts from
        moments.

    max_iter : int, default=500
        Largest number of iterations of each stage of the optimiser.

    tol : float, default=0.0001
        The optimiser stops when no entry of the gradient, in whitened coordinates, is
        larger.

    random_state : int, RandomState instance or None, default=None
        Source of the random starts.

    verbose : int, default=0
        If positive, print the objective of every start.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels.

    coef_key_ : ndarray of shape (n_features,)
        :math:`k`.

    coef_value_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Rows :math:`v_c`; one row for two classes.

    intercept_ : ndarray of shape (1,) or (n_classes,)
        :math:`b_c`.

    coef_radius_ : float
        :math:`c`. This attribute and the next two exist only for ``head="radial"``.

    center_ : ndarray of shape (n_features,)
        :math:`m`, the pooled mean of the tokens; 0 without intercept.

    precision_ : ndarray of shape (n_features, n_features) or (n_features,)
        :math:`P`, the inverse of the pooled covariance with `shrinkage` times its
        diagonal added; above 2 000 features, the inverse of the variances.

    alpha_, pooling_, output_scale_, selection_
        As in :class:`SingleLocationRegressor`; logits are shrunk towards those of the
        class frequencies.

    feature_map_ : transformer
        The fitted map; exists only if `feature_map` is not None.

    objective_ : float
        Penalised loss at the solution.

    start_ : str
        Name of the start that was refined.

    n_iter_ : int
        Iterations from that start.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were rows of a DataFrame.

    See Also
    --------
    SingleLocationRegressor : The same head for numbers, with more notes.
    group_bags : Cut a long table into bags.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SingleLocation
    >>> from eigenheads.estimators import SingleLocationClassifier
    >>> bags, y, places = SingleLocation(d=40).sample(900, np.random.default_rng(0))
    >>> model = SingleLocationClassifier().fit(bags[:600], y[:600] > 0)
    >>> model.predict_proba(bags[600:]).shape
    (300, 2)
    >>> bool(model.score(bags[600:], y[600:] > 0) > 0.85)
    True
    """

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit key, values and intercepts.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), array, or batches
            Bags; see the Notes of :class:`SingleLocationRegressor`, also for data
            larger than memory. A first pass finds the classes.

        y : array-like of shape (n_bags,)
            Labels; None when batches bring their own.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        labels = self._encoding()
        solution = self._fit_head(X, y, sample_weight, labels)
        self.classes_ = np.asarray(labels.classes)
        values = solution.values
        self.coef_value_ = values.astype(self.coef_key_.dtype)
        self.intercept_ = solution.intercepts.astype(self.coef_key_.dtype)
        return self

    def _encoding(self) -> ClassLabels:
        return ClassLabels(type(self).__name__, bool(self.fit_intercept))

    def _check_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        labels = check_array(targets, ensure_2d=False, dtype=None, input_name="y")
        check_classification_targets(labels)
        return np.asarray(labels)

    def decision_function(self, X: Any) -> NDArray[np.floating]:
        """Return the logits.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        logits : ndarray of shape (n_bags,) or (n_bags, n_classes)
            Of the second class for two classes, else of every class.
        """
        outputs = self._outputs(X)
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict_proba(self, X: Any) -> NDArray[np.floating]:
        """Return the probability of each class.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        probabilities : ndarray of shape (n_bags, n_classes)
            In the order of ``classes_``.
        """
        logits = self.decision_function(X)
        if logits.ndim == 1:
            return np.column_stack([expit(-logits), expit(logits)])
        return np.asarray(softmax(logits, axis=1))

    def predict_log_proba(self, X: Any) -> NDArray[np.floating]:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        log_probabilities : ndarray of shape (n_bags, n_classes)
            In the order of ``classes_``; finite where a probability underflows.
        """
        logits = self.decision_function(X)
        if logits.ndim == 1:
            return np.column_stack([log_expit(-logits), log_expit(logits)])
        return np.asarray(log_softmax(logits, axis=1))

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        labels : ndarray of shape (n_bags,)
            Entries of ``classes_``.
        """
        logits = self.decision_function(X)
        chosen = logits > 0 if logits.ndim == 1 else logits.argmax(axis=1)
        return np.asarray(self.classes_[chosen.astype(np.int64)])
