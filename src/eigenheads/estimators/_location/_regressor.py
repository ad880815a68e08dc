"""Regression in which one token per bag decides."""

from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import RegressorMixin

from eigenheads._typing import FloatArray
from eigenheads.estimators._location._base import AbstractSingleLocation
from eigenheads.estimators._location._problem import StandardisedNumbers, read_numbers


class SingleLocationRegressor(RegressorMixin, AbstractSingleLocation):
    r"""Regression in which one token of a bag, at an unknown place, decides.

    A bag :math:`x_1, \dots, x_L` is read by one attention head,

    .. math::

        \hat y = \sum_l p_l \; x_l \cdot v + b, \qquad
        p_l = \frac{e^{x_l \cdot k}}{\sum_m e^{x_m \cdot k}}
        \quad \text{or} \quad p_l = \operatorname{erf}(x_l \cdot k),

    so the key :math:`k` says which token matters and the value :math:`v` what it says.
    The penalised squared loss is minimised by L-BFGS from starts that the moments of
    the data determine; the fit does not depend on luck.

    Parameters
    ----------
    head : {"softmax", "radial", "erf"}, default="softmax"
        How tokens get their weights. ``"radial"`` is a softmax of scores that know
        the size of a token too, see Notes: for a deciding token that spreads less or
        more than the others, or others that no direction tells apart from it.
        ``"erf"`` is the head of [1]_, for tokens centred at 0. Its weights do not sum
        to 1, and where scores are small it is a bilinear form that the exchange of key
        and value leaves unchanged: to locate, prefer ``"softmax"``.

    alpha : float, default=3e-05
        Strength of the penalty on key and value, beside the mean loss of a
        standardised target, or beside its logarithm where the length of the key is
        chosen, see Notes.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty. The rest
        is half the variance of the scores and readouts of the tokens, plus `shrinkage`
        times the squared norm of the standardised coefficients. With a positive share
        coefficients become exactly zero.

    coherence : float, default=0.1
        Weight of a penalty on the part of the key that is not along the mean attended
        token, both whitened. Where tokens have an elliptical law the two directions
        agree and the mean is the steadier estimate; 0 trusts the targets alone.

    shrinkage : float or None, default=None
        Added to the diagonal of the pooled correlation of the features, by whose root
        tokens are whitened: so much of the squared norm of standardised coefficients
        is in the penalty. None: 0.01, or a third of the features a bag if that is more.

    fit_intercept : bool, default=True
        Whether to fit :math:`b`.

    n_random_starts : int, default=0
        Random directions of the key to try beside the starts from moments.

    max_iter : int, default=500
        Largest number of iterations of each stage of the optimiser.

    tol : float, default=0.0001
        The optimiser stops when no entry of the gradient, in whitened coordinates, is
        larger.

    random_state : int, RandomState instance or None, default=None
        Source of the random starts.

    verbose : int, default=0
        Whether to print the objective of every start.

    Attributes
    ----------
    coef_key_ : ndarray of shape (n_features,)
        :math:`k`; its length is the inverse temperature.

    coef_value_ : ndarray of shape (n_features,)
        :math:`v`.

    intercept_ : float
        :math:`b`.

    coef_radius_ : float
        :math:`c`; only for ``head="radial"``, as the next two.

    center_ : ndarray of shape (n_features,)
        :math:`m`, the pooled mean of the tokens; 0 without intercept.

    precision_ : ndarray of shape (n_features, n_features) or (n_features,)
        :math:`P`, the inverse of their pooled covariance, to whose diagonal
        `shrinkage` times itself is added; above 2 000 features, of the variances.

    objective_ : float
        Penalised loss at the solution; without the term of `coherence` where the
        length of the key is chosen last, see Notes.

    start_ : str
        Name of the start that won.

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

    Larger than memory: a Dask array with its `y`, or batches ``(bags, targets)`` or
    ``(bags, targets, weights)`` without `y`: a callable that returns a fresh iterator,
    an object that can be iterated again, or an iterator, which is kept in temporary
    files. Each of some tens of passes has one batch in memory, and the tokens that
    count if these are less than 32 MB; up to the order of sums the solution is that of
    all bags at once.

    With ``head="radial"`` the score :math:`x_l \cdot k` becomes

    .. math::

        x_l \cdot k - \tfrac{c}{2} (x_l - m)^\top P (x_l - m).

    Deciding tokens :math:`N(\mu, \gamma^2 \Sigma)` among others :math:`N(0, \Sigma)`
    have a log likelihood ratio of this form, with :math:`P = \Sigma^{-1}` and
    :math:`c = 1 / \gamma^2 - 1`: only for :math:`\gamma = 1` is the best score linear.

    A pass over the data costs O(tokens × features), the radii once its square. Most
    passes read only the tokens whose weights count, within :math:`3 - \log(\text{tol})`
    of the largest score of their bag: the result is kept if the gradient over all
    tokens differs from theirs by less than `tol`, else tokens are chosen again, and
    after three times, or where they are many, all are read.
    Starts: with whitened tokens and centred targets, ``moments`` takes :math:`v` from
    the regression of :math:`y` on the sum of the bag and :math:`k` from the mean of
    :math:`y (x \cdot v) x`;
    ``spectral`` takes both from the extreme eigenvectors of the mean of
    :math:`y \, x x^\top`; ``principal`` is the pooled principal direction; ``value``
    uses :math:`v` itself as the key; for the radial head, ``radius`` uses the radius
    alone, and the others begin without it. Given a key, values are a ridge regression.

    Last, softmax and radial heads without L1 penalty keep the direction of the key and
    choose its length: the one that minimises :math:`n \log(\text{loss})` plus half the
    variance of the scores, times `alpha` over its default. Where targets have no noise
    the head so becomes as sharp as the tokens allow.

    References
    ----------
    .. [1] Marion, Berthier, Biau, Boyer (2025). Attention layers provably solve
       single-location regression.

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

        y : array-like of shape (n_bags,)
            Targets; None when batches bring their own.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        encoding = StandardisedNumbers(bool(self.fit_intercept))
        solution = self._fit_head(X, y, sample_weight, encoding)
        value = encoding.scale * solution.values[0, : self.n_features_in_]
        self.coef_value_ = value.astype(self.coef_key_.dtype)
        self.intercept_ = float(
            encoding.shift + encoding.scale * solution.intercepts[0]
        )
        return self

    def _check_targets(self, targets: NDArray[Any]) -> FloatArray:
        return read_numbers(targets, owner=type(self).__name__)

    def predict(self, X: Any) -> NDArray[np.floating]:
        """Return the output of the head on each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        y_pred : ndarray of shape (n_bags,)
            Predictions.
        """
        return self._outputs(X)[:, 0]
