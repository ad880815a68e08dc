"""The public estimators: regression and classification by one token, and searches."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import wraps
from itertools import product
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import expit, log_expit, log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.model_selection import check_cv
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import (
    Got,
    check_array_like,
    check_choice,
    check_flag,
    check_items,
    check_number,
    fail,
    without_traps,
)
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import (
    ClassLabels,
    LabelIndicators,
    StandardisedNumbers,
    check_class_weight,
    read_labels,
    read_numbers,
)
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._batches import is_stream
from eigenheads.estimators._location._base import AbstractSingleLocation
from eigenheads.estimators._location._stack import Stack
from eigenheads.estimators._parameters import check_verbose


class SingleLocationRegressor(RegressorMixin, AbstractSingleLocation):
    r"""Regression in which one token per bag, at an unknown position, decides.

    A bag :math:`x_1, \dots, x_L` is read by one attention head,

    .. math::

        \hat y = \sum_l p_l \; x_l \cdot v + b, \qquad
        p_l = \frac{e^{x_l \cdot k}}{\sum_m e^{x_m \cdot k}}
        \quad \text{or} \quad p_l = \operatorname{erf}(x_l \cdot k),

    The key :math:`k` selects the token, the value :math:`v` reads the target from it.
    The penalised squared loss is minimised by L-BFGS from starts that are computed from
    moments of the data, so the fit is deterministic.

    Parameters
    ----------
    head : {"auto", "softmax", "radial", "erf", "sigmoid"}, default="auto"
        Weights of the tokens. ``"auto"`` is the softmax. ``"radial"`` is a softmax of
        scores that also depend on the distance of a token from the mean (see Notes):
        for deciding tokens with a smaller or larger spread than the others, or that no
        direction separates from them. ``"erf"`` is the head of [1]_, for tokens centred
        at 0. Its weights do not sum to 1, and for small scores it is a bilinear form
        that does not change if key and value are exchanged; use ``"softmax"`` to locate
        tokens. ``"sigmoid"`` is for sums and counts over the tokens that are marked:
        its weights are :math:`1 / (1 + e^{-x_l \cdot k - a})` and its values :math:`x_l
        \cdot v + c`, with :math:`(a, c)` in ``coef_offset_``.

    alpha : float or "auto", default="auto"
        Weight of the penalty on key and value, relative to the mean loss of the
        standardised target, or to its logarithm when the length of the key is chosen
        (see Notes). ``"auto"`` adds heads with several penalties and mean pooling, with
        non-negative weights by what they predict on held-out bags.

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

    extrapolation : float or None, default=0.1
        Largest distance of predictions from the range of the training targets, in
        units of that range, and of each feature from its own: tokens are moved to the
        nearest point of that box before they are read, because the coefficient of a
        feature that hardly varied in training says nothing on large values. None limits
        neither.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty. The
        remainder is half a mean of the variance of the scores and readouts of the
        tokens and, with weight `shrinkage`, of the squared norm of the standardised
        coefficients. A positive share makes coefficients exactly zero.

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
        Whether to fit :math:`b`.

    max_iter : int, default=1000
        Largest number of iterations of each stage of the optimiser.

    tol : float, default=0.0001
        The optimiser stops when no entry of the gradient, in whitened coordinates, is
        larger.

    verbose : int, default=0
        If positive, print the objective of every start.

    Attributes
    ----------
    coef_key_ : ndarray of shape (n_features,) or (n_heads, n_features)
        :math:`k`; its length is the inverse temperature.

    coef_value_ : ndarray of shape (n_features,)
        :math:`v`, with axes for heads and outputs before it if there are several.

    intercept_, baseline_ : float or ndarray of shape (n_outputs,)
        :math:`b`, and the prediction of a bag whose :meth:`contributions` are zero.

    center_ : ndarray of shape (n_features,)
        :math:`m`, the pooled mean of the tokens; 0 without intercept and for the heads
        ``"erf"`` and ``"sigmoid"``.

    coef_offset_ : ndarray of shape (1 + n_outputs,) or (n_heads, 1 + n_outputs)
        Only for ``head="sigmoid"``: :math:`a` and :math:`c`.

    coef_radius_ : float or ndarray of shape (n_heads,)
        :math:`c`. This attribute and the next exist only for ``head="radial"``.

    precision_ : ndarray of shape (n_features, n_features) or (n_features,)
        :math:`P`, the inverse of the mean of the pooled covariance and its diagonal,
        with weights 1 and `shrinkage`; above 2 000 features, that of the variances.

    target_range_, feature_range_ : tuple of float or ndarray
        Least and largest training target per output, and value per feature.

    pooling_ : {"attention", "mean", "none"}
        ``"mean"`` if most of the output is that of mean pooling (the key is zero), so
        that the data do not say which token decides; ``"none"`` if the mean target is
        predicted.

    alpha_, output_scale_ : float
        Penalty and weight of the head whose coefficients are kept: with
        ``alpha="auto"`` the one with the largest share of the output.
        :meth:`attention` and :meth:`locate` are its; :meth:`contributions` and
        predictions are those of all. If no head is part of the output, `alpha_` and
        `objective_` are NaN.

    selection_ : list of dict
        Candidates of ``alpha="auto"`` with their out-of-fold scores, weights and shares
        of the output.

    feature_map_ : transformer
        The fitted map; exists only if `feature_map` is not None.

    objective_ : float
        Penalised loss at the solution, without the `coherence` term if the length of
        the key is chosen last (see Notes).

    start_, n_iter_ : str, int
        Name of the start that was refined, and iterations from it.

    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)
        Width of a token, and names of the features of a DataFrame.

    See Also
    --------
    SingleLocationClassifier : The same head for classes.
    group_bags : Cut a long table into bags.
    eigenheads.functional.location_predictor : The head on plain arrays.

    Notes
    -----
    `X` is a list of arrays (n_tokens, n_features) of any lengths, an array (n_bags,
    n_tokens, n_features), or an array (n_bags, n_features) whose rows are bags of one
    token. The fit is invariant to the units of features and target.

    Data larger than memory are given as a Dask array with its `y`, or without `y` as
    batches ``(bags, targets)`` or ``(bags, targets, weights)``: a callable that returns
    a new iterator, an object that can be iterated repeatedly, or an iterator, whose
    batches are kept in temporary files. A fit takes some tens of passes with one batch
    in memory at a time.

    With ``alpha="auto"`` the candidates are the head and mean pooling (a key of zero),
    on the features and on kernel features, with several penalties. Their outputs on
    held-out bags (five folds) are added with the non-negative weights that minimise
    minus the log likelihood plus a price per weight, the non-negative garrote [2]_:
    weights of zero predict the mean, and equally good candidates share their weight.
    For numbers, heads that start at the principal direction and at the mean of
    :math:`\lVert x \rVert^2 x`, which need no targets, are candidates, too. Large data
    are represented by a sample of bags. Bags that belong together, such as several of
    one patient, need :class:`SingleLocationRegressorCV` with groups.

    The fit does not depend on the order of bags, tokens and columns, nor on names of
    classes and units: bags are sorted by content first. A stream is not sorted.

    With ``head="radial"`` the score :math:`x_l \cdot k` becomes

    .. math::

        x_l \cdot k - \tfrac{c}{2} (x_l - m)^\top P (x_l - m).

    Deciding tokens :math:`N(\mu, \gamma^2 \Sigma)` among others :math:`N(0, \Sigma)`
    have a log likelihood ratio of this form, with :math:`P = \Sigma^{-1}` and
    :math:`c = 1 / \gamma^2 - 1`: only for :math:`\gamma = 1` is the best score linear.

    Softmax and radial heads without L1 penalty finally keep the direction of the key
    and choose its length: it minimises :math:`n \log(\text{loss})` plus half the
    variance of the scores times `alpha` / 3e-5. Without noise in the targets the
    attention becomes as concentrated as the tokens allow.

    References
    ----------
    .. [1] Marion, Berthier, Biau, Boyer (2025). Attention layers provably solve
       single-location regression.
    .. [2] Breiman (1995). Better subset regression using the nonnegative garrote.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SingleLocation
    >>> from eigenheads.estimators import SingleLocationRegressor
    >>> bags, y, places = SingleLocation(d=40).sample(900, np.random.default_rng(0))
    >>> model = SingleLocationRegressor().fit(bags[:600], y[:600])
    >>> bool(model.score(bags[600:], y[600:]) > 0.9)
    True
    >>> bool(np.mean(model.locate(bags[600:]) == places[600:]) > 0.95)
    True
    """

    _heads = ("softmax", "radial", "erf", "sigmoid")
    target_range_: tuple[Any, Any]
    feature_range_: tuple[NDArray[np.floating], NDArray[np.floating]]

    def __init__(
        self,
        *,
        head: str = "auto",
        alpha: float | str = "auto",
        feature_map: Any = "auto",
        n_heads: int = 1,
        extrapolation: float | None = 0.1,
        l1_ratio: float = 0.0,
        coherence: float = 1.0,
        shrinkage: float | None = None,
        fit_intercept: bool = True,
        max_iter: int = 1000,
        tol: float = 1e-4,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.feature_map = feature_map
        self.n_heads = n_heads
        self.l1_ratio = l1_ratio
        self.coherence = coherence
        self.shrinkage = shrinkage
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.extrapolation = extrapolation

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.extrapolation is not None:
            check_number("extrapolation", self.extrapolation, minimum=0.0)

    def _keep_targets(self, encoding: Any) -> None:
        self.target_range_ = (encoding.least, encoding.largest)
        if len(encoding.least) == 1:
            self.target_range_ = (float(encoding.least[0]), float(encoding.largest[0]))

    def _keep_values(self, values: FloatArray, intercepts: FloatArray) -> None:
        # Axes of heads and of outputs exist only if there are several.
        n_heads, n_outputs, d = values.shape
        shape = [n for n in (n_heads, n_outputs) if n > 1]
        self.coef_value_ = values.reshape(*shape, d)
        self.intercept_ = float(intercepts[0]) if n_outputs == 1 else intercepts

    def _encoding(self, y: Any) -> StandardisedNumbers:
        del y
        is_centred = check_flag("fit_intercept", self.fit_intercept)
        return StandardisedNumbers(is_centred)

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Bags, NDArray[Any], FloatArray]:
        bags, targets, weights = super()._read(X, y, sample_weight, reset=reset)
        tokens = bags.tokens
        if not weights.all():
            tokens = tokens[np.repeat(weights > 0, bags.lengths)]
        low, high = (
            tokens.min(axis=0, initial=np.inf),
            tokens.max(axis=0, initial=-np.inf),
        )
        if not reset:
            low = np.minimum(low, self.feature_range_[0])
            high = np.maximum(high, self.feature_range_[1])
        self.feature_range_ = (low, high)
        return bags, targets, weights

    def _check_targets(self, targets: NDArray[Any]) -> FloatArray:
        return read_numbers(targets)

    def _limited(self, bags: Bags) -> Bags:
        if self.extrapolation is None:
            return bags
        low, high = self.feature_range_
        room = float(self.extrapolation) * (high - low)
        tokens = np.clip(bags.tokens, low - room, high + room)
        return replace(bags, tokens=tokens.astype(bags.tokens.dtype, copy=False))

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return the output of the head on each bag, within the allowed range.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        y_pred : ndarray of shape (n_bags,) or (n_bags, n_outputs)
            Predictions.
        """
        outputs = self._outputs(X)
        if outputs.shape[1] == 1:
            outputs = outputs[:, 0]
        if self.extrapolation is None:
            return outputs
        low, high = self.target_range_
        room = float(self.extrapolation) * (high - low)
        return np.clip(outputs, low - room, high + room)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags


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
        Functions of the features that key and value read: ``"auto"``, None,
        ``"rbf"``, ``"quadratic"``, ``"quantile"``, ``"bins"`` or a transformer of
        rows; see :class:`SingleLocationRegressor`.

    n_heads : int, default=1
        Number of heads, whose outputs are added.

    class_weight : dict, "balanced" or None, default=None
        Factors of the weights of bags by class; ``"balanced"`` gives every class the
        same total weight. Not for several labels per bag.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty.

    coherence : float, default=1.0
        Weight of the penalty that holds the key to the mean attended token.

    shrinkage : float or None, default=None
        Weight of the identity beside the correlation in the metric; None means 3.

    fit_intercept : bool, default=True
        Whether to fit :math:`b_c`.

    max_iter : int, default=1000
        Largest number of iterations of each stage of the optimiser.

    tol : float, default=0.0001
        The optimiser stops when no entry of the gradient is larger.

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

    baseline_, center_, coef_offset_, coef_radius_, precision_, feature_map_
        As in :class:`SingleLocationRegressor`; outputs are logits.

    alpha_, pooling_, output_scale_, selection_, objective_, start_, n_iter_
        As in :class:`SingleLocationRegressor`; `output_scale_` shrinks logits.

    n_features_in_, feature_names_in_
        Width of a token, and names of the features of a DataFrame.

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
        max_iter: int = 1000,
        tol: float = 1e-4,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.feature_map = feature_map
        self.n_heads = n_heads
        self.l1_ratio = l1_ratio
        self.coherence = coherence
        self.shrinkage = shrinkage
        self.fit_intercept = fit_intercept
        self.max_iter = max_iter
        self.tol = tol
        self.verbose = verbose
        self.class_weight = class_weight

    def _keep_targets(self, encoding: Any) -> None:
        self._has_several_labels = isinstance(encoding, LabelIndicators)
        if self._has_several_labels:
            self.classes_ = np.arange(len(self.intercept_))
        else:
            self.classes_ = np.asarray(encoding.classes)

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
        """Return the logarithm of :meth:`predict_proba`, finite where it underflows."""
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


# --- Searches ------------------------------------------------------------------------

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

    n_features_in_, feature_names_in_ : int, ndarray of shape (n_features,)
        Width of a token, and names of the features of a DataFrame.

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
        choices, self.cv_results_ = list[Stack](), list[dict[str, Any]]()
        for setting in settings:
            model = self._estimator(**setting)
            choice = model._choose(X, y, sample_weight, folds)
            choices.append(choice)
            for one in choice.candidates:
                row = {"pooling": one.pooling, "alpha": one.alpha, "score": one.score}
                self.cv_results_.append(setting | row)
            model.verbose = self.verbose
            model._report(f"{setting}: out-of-fold score {choice.score:.4f}")
        # The first of equal scores: the simplest settings are named first.
        best = max(range(len(choices)), key=lambda i: (choices[i].score, -i))
        model = self._estimator(**settings[best])
        model._given_choice = choices[best]
        self.best_estimator_ = model.fit(X, y, sample_weight)
        model._given_choice = None
        self.best_params_, self.best_score_ = settings[best], choices[best].score
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
        try:
            every = splitter.split(rows, targets, groups)
            splits = [np.arange(len(rows))[held_out] for _, held_out in every]
        except (TypeError, IndexError):
            contract = "None, an integer, a splitter, or pairs of rows (train, test)"
            fail("cv", contract, self.cv)
        folds = np.full(len(targets), -1, dtype=np.int64)
        for fold, held_out in enumerate(splits):
            folds[held_out] = fold
        is_partition = folds.min() >= 0 and sum(map(len, splits)) == len(folds)
        if not is_partition or len(splits) < 2:
            hint = "Use KFold, StratifiedKFold or GroupKFold."
            contract = "a partition: at least two folds, each bag held out once"
            fail("cv", contract, Got(repr(splitter)), hint=hint)
        return folds

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
