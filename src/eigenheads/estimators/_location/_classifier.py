"""Classification in which one token per bag decides."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import ClassifierMixin
from sklearn.utils import Tags

from eigenheads._checks import check_array_like, check_flag, fail
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import (
    ClassLabels,
    LabelIndicators,
    check_class_weight,
    read_labels,
)
from eigenheads.estimators._location._base import AbstractSingleLocation


class SingleLocationClassifier(ClassifierMixin, AbstractSingleLocation):
    r"""Classification in which one token per bag, at an unknown position, decides.

    The head of :class:`SingleLocationRegressor` gives the logit of each class,

    .. math::

        z_c = \sum_l p_l \; x_l \cdot v_c + b_c,

    with one key for all classes. Two classes have one logit, that of the second class;
    labels of which a bag may have several have one logit each.

    Parameters
    ----------
    head : {"auto", "softmax", "radial", "erf", "sigmoid", "logsumexp"}, default="auto"
        Weights of the tokens; see :class:`SingleLocationRegressor`. ``"auto"`` weighs
        softmax heads and, for two classes, log-sum-exp heads of either class by what
        they predict; with a given `alpha` it is the softmax. ``"logsumexp"``,
        for two classes, is standard multiple-instance learning: the logit is
        :math:`\log \frac1L \sum_l e^{x_l \cdot v} + b`, so that a token can make the
        second class more probable, but hardly less; key and value are equal.

    alpha : float or "auto", default="auto"
        Weight of the penalty on key and values, relative to the mean logistic loss.
        ``"auto"`` adds heads with several penalties and mean pooling, with non-negative
        weights by what they predict on held-out bags (five folds); see the Notes of
        :class:`SingleLocationRegressor`.

    feature_map : str, transformer or None, default="auto"
        Functions of the features of a token that key and value read instead of the
        features. ``"auto"``: the features and, if `head` and `alpha` are ``"auto"``,
        too, 300 Gaussian kernel features (up to 50 000 tokens). ``"rbf"``: the
        standardised features and 300 Gaussian kernel features, for deciding tokens of
        several kinds and nonlinear readouts; ``"quadratic"``: the features, their
        squares and products; ``"quantile"``: each feature mapped to normal quantiles,
        for skewed features; ``"bins"``: indicators of five bins per feature. Any
        scikit-learn transformer of rows is cloned and fitted to all tokens. The
        coefficients then belong to its features.

    n_heads : int, default=1
        Number of heads, whose outputs are added: for targets that depend on several
        tokens, each found by its own key. Heads are added one by one, each started on
        what the others leave unexplained, and then fitted together.

    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of bags by class; ``"balanced"`` gives every class the
        same total weight. Not for several labels per bag.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty. The
        remainder is half a mean of the variance of the scores and readouts of the
        tokens and, with weight `shrinkage`, of the squared norm of the standardised
        coefficients. A positive
        share makes coefficients exactly zero.

    coherence : float, default=1.0
        Weight of a penalty on the component of the key that is orthogonal, in whitened
        coordinates, to the inverse covariance times the mean attended token. For tokens
        with an elliptical law the two directions agree, and the mean has the smaller
        variance; 0 disables the penalty.

    shrinkage : float or None, default=None
        Weight of the identity beside the pooled correlation in the metric in which
        tokens are whitened and coefficients penalised. None means 3: the correlation
        contains what decides, so that whitening by it alone would penalise the key
        along itself.

    fit_intercept : bool, default=True
        Whether to fit :math:`b_c`.

    n_random_starts : int, default=0
        Number of random directions of the key to try, in addition to the starts from
        moments.

    max_iter : int, default=1000
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
        Labels; the numbers of the columns if bags have several labels.

    coef_key_ : ndarray of shape (n_features,) or (n_heads, n_features)
        :math:`k`.

    coef_value_ : ndarray of shape (1, n_features) or (n_classes, n_features)
        Rows :math:`v_c`, one row for two classes, with an axis for heads before it if
        there are several.

    intercept_ : ndarray of shape (1,) or (n_classes,)
        :math:`b_c`.

    baseline_, center_, coef_offset_, coef_radius_
        As in :class:`SingleLocationRegressor`.

    precision_ : ndarray of shape (n_features, n_features) or (n_features,)
        :math:`P`, the inverse of the mean of the pooled covariance and its diagonal,
        with weights 1 and `shrinkage`; above 2 000 features, that of the variances.

    alpha_, pooling_, output_scale_, selection_
        As in :class:`SingleLocationRegressor`; logits are shrunk towards those of the
        class frequencies.

    feature_map_ : transformer
        The fitted map; exists only if `feature_map` is not None.

    objective_ : float
        Penalised loss at the solution; NaN if no head is part of the output.

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

    def __init__(
        self,
        *,
        head: str = "auto",
        alpha: float | str = "auto",
        feature_map: Any = "auto",
        n_heads: int = 1,
        class_weight: Any = None,
        l1_ratio: float = 0.0,
        coherence: float = 1.0,
        shrinkage: float | None = None,
        fit_intercept: bool = True,
        n_random_starts: int = 0,
        max_iter: int = 1000,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            head=head,
            alpha=alpha,
            feature_map=feature_map,
            n_heads=n_heads,
            l1_ratio=l1_ratio,
            coherence=coherence,
            shrinkage=shrinkage,
            fit_intercept=fit_intercept,
            n_random_starts=n_random_starts,
            max_iter=max_iter,
            tol=tol,
            random_state=random_state,
            verbose=verbose,
        )
        self.class_weight = class_weight

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

        y : array-like of shape (n_bags,) or (n_bags, n_labels)
            Labels, or zeros and ones with one column per label; None when batches bring
            their own.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        labels = self._encoding(y)
        self._fit_head(X, y, sample_weight, labels)
        if isinstance(labels, LabelIndicators):
            self.classes_ = np.arange(len(self.intercept_))
        else:
            self.classes_ = np.asarray(labels.classes)
        self._has_several_labels = isinstance(labels, LabelIndicators)
        return self

    def _keep_values(self, values: FloatArray, intercepts: FloatArray) -> None:
        n_heads, n_outputs, d = values.shape
        shape = (n_outputs, d) if n_heads == 1 else (n_heads, n_outputs, d)
        self.coef_value_ = values.reshape(shape)
        self.intercept_ = intercepts

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_class_weight(self.class_weight)

    def _encoding(self, y: Any) -> ClassLabels | LabelIndicators:
        is_centred = check_flag("fit_intercept", self.fit_intercept)
        if y is not None:
            given = check_array_like("y", y, "one target per bag")
            if given.ndim == 2 and given.shape[1] > 1:
                return LabelIndicators(is_centred)
        return ClassLabels(is_centred)

    def _check_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        labels = read_labels(targets)
        if labels.ndim == 2 and not np.isin(labels, (0, 1)).all():
            hint = "Encode several labels with `MultiLabelBinarizer`."
            contract = "of zeros and ones, if it has a column per label"
            fail("y", contract, labels, hint=hint)
        return labels

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
        if self._has_several_labels:
            return np.asarray(expit(logits))
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
        if self._has_several_labels:
            return np.asarray(log_expit(logits))
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
        if self._has_several_labels:
            return (logits > 0).astype(np.int64)
        chosen = logits > 0 if logits.ndim == 1 else logits.argmax(axis=1)
        return np.asarray(self.classes_[chosen.astype(np.int64)])

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags
