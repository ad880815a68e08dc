"""Regression in which one token per bag decides."""

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin
from sklearn.utils import Tags

from eigenheads._checks import check_flag, check_number
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import StandardisedNumbers, read_numbers
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._base import AbstractSingleLocation


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
        Whether to fit :math:`b`.

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
    coef_key_ : ndarray of shape (n_features,) or (n_heads, n_features)
        :math:`k`; its length is the inverse temperature.

    coef_value_ : ndarray of shape (n_features,)
        :math:`v`, with axes for heads and outputs before it if there are several.

    intercept_ : float or ndarray of shape (n_outputs,)
        :math:`b`.

    baseline_ : float or ndarray of shape (n_outputs,)
        Prediction of a bag whose :meth:`contributions` are zero.

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

    target_range_ : tuple of float or ndarray
        Least and largest training target, per output.

    feature_range_ : tuple of ndarray of shape (n_features,)
        Least and largest value of each feature of the training tokens.

    alpha_ : float
        Penalty of the head whose coefficients are kept: with ``alpha="auto"`` the one
        with the largest share of the output. :meth:`attention` and :meth:`locate` are
        its; :meth:`contributions` and predictions are those of all. NaN, as
        `objective_`, if no head is part of the output.

    pooling_ : {"attention", "mean", "none"}
        ``"mean"`` if most of the output is that of mean pooling (the key is zero), so
        that the data do not say which token decides; ``"none"`` if the mean target is
        predicted.

    output_scale_ : float
        Weight of the head whose coefficients are kept; 1 for a given `alpha`.

    selection_ : list of dict
        Candidates of ``alpha="auto"`` with their out-of-fold scores, weights and shares
        of the output.

    feature_map_ : transformer
        The fitted map; exists only if `feature_map` is not None.

    objective_ : float
        Penalised loss at the solution, without the `coherence` term if the length of
        the key is chosen last (see Notes).

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
    in memory at a time, plus the attended tokens if they take less than 32 MB. The
    solution is that of all bags at once, up to the order of sums.

    With ``alpha="auto"`` the candidates are the head and mean pooling (a key of zero),
    on the features and on kernel features, with several penalties. Their outputs on
    held-out bags (five folds) are added with the non-negative weights that minimise
    minus the log likelihood plus a price per weight, the non-negative garrote [2]_:
    weights of zero predict the mean, and equally good candidates share their weight.
    Equal bags are in one fold. Large data are represented by a sample of bags for the
    choice. Bags that belong together, such as several of one patient, need
    :class:`SingleLocationRegressorCV` with groups instead.

    The fit does not depend on the order of bags, tokens and columns, on the names of
    the classes, nor on units: bags are sorted by content, and standardised tokens are
    rounded to single precision, before anything is computed. A stream is not sorted.

    With ``head="radial"`` the score :math:`x_l \cdot k` becomes

    .. math::

        x_l \cdot k - \tfrac{c}{2} (x_l - m)^\top P (x_l - m).

    Deciding tokens :math:`N(\mu, \gamma^2 \Sigma)` among others :math:`N(0, \Sigma)`
    have a log likelihood ratio of this form, with :math:`P = \Sigma^{-1}` and
    :math:`c = 1 / \gamma^2 - 1`: only for :math:`\gamma = 1` is the best score linear.

    A pass over the data costs O(n_tokens n_features); the radii cost
    O(n_tokens n_features²) once. Most passes read only the tokens whose score is within
    :math:`3 - \log(\text{tol})` of the largest in their bag. The result is accepted if
    the gradient over all tokens differs by less than `tol`; otherwise tokens are
    selected again, and after three rounds all are read.

    With more features than tokens in all bags, the fit is done in the span of the
    tokens, with equal result; its cost grows like n_tokens² n_features + n_tokens³.

    Starts of the optimiser: with whitened tokens and centred targets, ``moments`` takes
    :math:`v` from the regression of :math:`y` on the sum of the bag and :math:`k` from
    the mean of :math:`y (x \cdot v) x`;
    ``spectral`` takes both from the extreme eigenvectors of the mean of
    :math:`y \, x x^\top`; ``principal`` is the pooled principal direction; ``value``
    uses :math:`v` itself as the key; for the radial head, ``radius`` uses the radius
    alone, and the others start without it. Given a key, values are a ridge regression.

    Finally, softmax and radial heads without L1 penalty keep the direction of the key
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
        self.extrapolation = extrapolation

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.extrapolation is not None:
            check_number("extrapolation", self.extrapolation, minimum=0.0)

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit key, value and intercept.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), array, or batches
            Bags; see Notes.

        y : array-like of shape (n_bags,) or (n_bags, n_outputs)
            Targets; None when batches bring their own.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        encoding = self._encoding(y)
        self._fit_head(X, y, sample_weight, encoding)
        self.target_range_ = (encoding.least, encoding.largest)
        if len(encoding.least) == 1:
            self.target_range_ = (float(encoding.least[0]), float(encoding.largest[0]))
        return self

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
