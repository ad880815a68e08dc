"""Find the token that matters: the single-location head as two estimators."""

import sys
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array, check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from eigenheads._checks import (
    check_choice,
    check_count,
    check_number,
    check_positive,
)
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags, read_bags
from eigenheads.estimators._batches import Batches, is_dask, is_stream, row_blocks
from eigenheads.estimators._location_data import checked_targets, checked_weights
from eigenheads.estimators._location_fit import Problem, Solution, fit_head
from eigenheads.estimators._location_head import (
    HEADS,
    attention_weights,
    deciding_tokens,
    head_outputs,
)
from eigenheads.estimators._location_loss import SQUARED
from eigenheads.estimators._location_stream import Standard, streamed_problem


class AbstractSingleLocation(BaseEstimator):
    """What the regressor and the classifier share: bags, the head, the fit."""

    coef_key_: NDArray[np.floating]
    coef_value_: NDArray[np.floating]
    intercept_: Any

    def __init__(
        self,
        *,
        head: str = "softmax",
        alpha: float = 3e-5,
        l1_ratio: float = 0.0,
        coherence: float = 0.1,
        fit_intercept: bool = True,
        n_random_starts: int = 0,
        max_iter: int = 500,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.coherence = coherence
        self.fit_intercept = fit_intercept
        self.n_random_starts = n_random_starts
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def attention(self, X: Any) -> list[NDArray[np.floating]]:
        """Return the weights that the head gives to the tokens of each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        weights : list of ndarray of shape (n_tokens,)
            For ``head="softmax"`` non-negative with sum 1 in every bag; for ``"erf"``
            between -1 and 1.
        """
        bags = self._read_fitted(X)
        scores = bags.tokens @ self.coef_key_
        return bags.split(attention_weights(bags, scores, head=self.head))

    def locate(self, X: Any) -> NDArray[np.int64]:
        """Return the index of the token that decides each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        index : ndarray of shape (n_bags,)
            Position within the bag of the token with the largest weight; for
            ``head="erf"``, largest in absolute value.
        """
        if is_dask(X):
            return np.concatenate([self.locate(block) for block in row_blocks(X)])
        bags = self._read_fitted(X)
        return deciding_tokens(bags, bags.tokens @ self.coef_key_, head=self.head)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read_fitted(self, X: Any) -> Bags:
        check_is_fitted(self)
        return read_bags(self, X, reset=False)

    def _outputs(self, X: Any) -> NDArray[np.floating]:
        if is_dask(X):  # one chunk in memory at a time
            return np.concatenate([self._outputs(block) for block in row_blocks(X)])
        bags = self._read_fitted(X)
        values = np.atleast_2d(self.coef_value_)
        outputs = head_outputs(bags, self.coef_key_, values, head=self.head)
        return outputs + np.atleast_1d(self.intercept_).astype(outputs.dtype)

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        check_choice("head", self.head, HEADS, owner=owner)
        check_number("alpha", self.alpha, owner=owner, minimum=0.0)
        check_number("l1_ratio", self.l1_ratio, owner=owner, minimum=0.0, maximum=1.0)
        check_number("coherence", self.coherence, owner=owner, minimum=0.0)
        check_count("n_random_starts", self.n_random_starts, owner=owner, minimum=0)
        check_count("max_iter", self.max_iter, owner=owner)
        check_positive("tol", self.tol, owner=owner)

    def _solve(
        self,
        bags: Bags,
        targets: FloatArray,
        responses: FloatArray,
        weights: FloatArray,
        *,
        kind: int,
    ) -> Solution:
        """Fit the head; bags of weight zero are as if they were not there."""
        kept = np.flatnonzero(weights > 0)
        problem = Problem(
            bags=bags,
            targets=targets,
            responses=responses,
            weights=weights,
            **self._settings(kind),
        )
        if len(kept) < len(bags):
            problem = problem.on(kept)
        return self._solve_problem(problem)

    def _settings(self, kind: int) -> dict[str, Any]:
        return {
            "head": self.head,
            "kind": kind,
            "alpha": float(self.alpha),
            "l1_ratio": float(self.l1_ratio),
            "coherence": float(self.coherence),
            "has_intercept": bool(self.fit_intercept),
            "max_iter": int(self.max_iter),
            "tol": float(self.tol),
        }

    def _solve_problem(self, problem: Problem) -> Solution:
        tokens, random = problem.bags.tokens, check_random_state(self.random_state)
        shape = int(self.n_random_starts), tokens.shape[1]
        # Many small products: threads of the linear algebra would wait for each other.
        with threadpool_limits(limits=1, user_api="blas"):
            solution = fit_head(problem, random.standard_normal(shape), self._report)
        self._keep(solution, tokens.dtype)
        return solution

    def _keep(self, solution: Solution, dtype: np.dtype[Any]) -> None:
        self.coef_key_ = solution.key.astype(dtype)
        self.n_iter_ = solution.n_iter
        self.objective_ = solution.objective
        self.start_ = solution.start
        if not solution.converged:
            warnings.warn(
                f"{type(self).__name__}: the optimiser stopped after "
                f"{solution.n_iter} iterations without converging. Raise `max_iter`, "
                "`tol` or `alpha`.",
                ConvergenceWarning,
                stacklevel=5,
            )

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")


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
    head : {"softmax", "erf"}, default="softmax"
        How scores become weights. ``"erf"`` is the head of [1]_, for tokens centred
        at 0. Its weights do not sum to 1, and where scores are small it is a bilinear
        form that the exchange of key and value leaves unchanged: to locate, prefer
        ``"softmax"``.

    alpha : float, default=3e-05
        Strength of the penalty on key and value, beside the mean loss of a
        standardised target.

    l1_ratio : float, default=0.0
        Share of the L1 norm of the standardised coefficients in the penalty. The rest
        is half the variance of the scores and readouts of the tokens, plus one
        percent of the squared norm of the standardised coefficients. With a
        positive share coefficients become exactly zero.

    coherence : float, default=0.1
        Weight of a penalty on the part of the key that is not along the mean attended
        token, both whitened. Where tokens have an elliptical law the two directions
        agree and the mean is the steadier estimate; 0 trusts the targets alone.

    fit_intercept : bool, default=True
        Whether to fit :math:`b`.

    n_random_starts : int, default=0
        Random directions of the key to try beside the starts from moments.

    max_iter : int, default=500
        Largest number of iterations of the optimiser.

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

    objective_ : float
        Penalised loss at the solution.

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
    files. Each of some tens of passes has one batch in memory; up to the order of sums
    the solution is that of all bags at once.

    A pass over the data costs O(tokens × features). Starts: with whitened tokens and
    centred targets, ``moments`` takes :math:`v` from the regression of :math:`y` on
    the sum of the bag and :math:`k` from the mean of :math:`y (x \cdot v) x`;
    ``spectral`` takes both from the extreme eigenvectors of the mean of
    :math:`y \, x x^\top`; ``principal`` is the pooled principal direction; ``value``
    uses :math:`v` itself as the key. Given a key, values are a ridge regression.

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
        if is_stream(X, y):
            with Batches(X, y, sample_weight, owner=type(self).__name__) as batches:
                return self._fit_batches(batches)
        bags, targets, weights = self._read_batch(X, y, sample_weight, reset=True)
        shift = np.average(targets, weights=weights) if self.fit_intercept else 0.0
        spread = float(np.sqrt(np.average((targets - shift) ** 2, weights=weights)))
        scale = spread or 1.0
        unit = (targets - shift) / scale
        solution = self._solve(bags, unit, unit[:, None], weights, kind=SQUARED)
        return self._keep_value(solution, shift, scale)

    def _read_batch(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Bags, FloatArray, FloatArray]:
        bags = read_bags(self, X, reset=reset)
        targets = checked_targets(y, bags, owner=type(self).__name__)
        targets = check_array(targets, ensure_2d=False, dtype=float, input_name="y")
        weights = checked_weights(sample_weight, bags, owner=type(self).__name__)
        return bags, targets, weights

    def _fit_batches(self, batches: Batches) -> Self:
        """Fit with one batch in memory at a time."""

        def read() -> Iterator[tuple[Bags, FloatArray, FloatArray]]:
            for index, (X, y, weights) in enumerate(batches):
                yield self._read_batch(X, y, weights, reset=index == 0)

        tally = Standard(bool(self.fit_intercept))
        problem = streamed_problem(
            read, tally, lambda: self._settings(SQUARED), owner=type(self).__name__
        )
        solution = self._solve_problem(problem)
        return self._keep_value(solution, tally.shift, tally.scale)

    def _keep_value(self, solution: Solution, shift: float, scale: float) -> Self:
        self.coef_value_ = (scale * solution.values[0]).astype(self.coef_key_.dtype)
        self.intercept_ = float(shift + scale * solution.intercepts[0])
        return self

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
