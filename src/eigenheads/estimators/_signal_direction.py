"""Directions that few tokens carry, found by the query of an attention head."""

import sys
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_positive,
    fail,
)
from eigenheads._limits import check_largest
from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags, as_given, read_bags
from eigenheads.estimators._parameters import (
    check_verbose,
    read_row_weights,
    repeated_rows,
)
from eigenheads.estimators._robust_pca_pursuit import largest_signs
from eigenheads.estimators._signal_search import (
    FoundQuery,
    NoiseScaling,
    SearchSettings,
    conformal_threshold,
    gaussian_threshold,
    hold_out,
    noise_scaling,
    robust_scales,
    search_directions,
)

# For tokens of unit noise: each suits amplitudes of about 2.5 over itself.
_INVERSE_TEMPERATURES = (0.2, 0.4, 0.8, 1.2)
_CALIBRATIONS = ("conformal", "gaussian", "empirical")


class SignalDirection(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Directions that a few tokens share, among many noise tokens.

    A query on the unit sphere maximises the mean squared length of its attention
    output over prompts of tokens,

    .. math::

        J(q) = \mathbb E \Bigl\lVert \sum_i p_i x_i \Bigr\rVert^2, \qquad
        p = \operatorname{softmax}(\beta X q),

    by projected gradient ascent [1]_. Softmax gives single strong tokens a large
    weight, so a direction that is too rare to change the variance still changes J.
    Tokens that stand out along a direction are classified as informative.

    Parameters
    ----------
    n_components : int or "auto", default="auto"
        Number of directions. Each is searched in the orthogonal complement of those
        before, in the coordinates of the search. ``"auto"`` searches at most five, and
        stops if Gaussian noise of the same size has a direction with as large an
        objective.

    inverse_temperature : float or None, default=None
        :math:`\beta` for tokens of unit noise. None tries 0.2, 0.4, 0.8 and 1.2, and
        chooses the value whose objective exceeds that of a search with two starts in
        Gaussian noise of the same size by most.

    whiten : bool, default=False
        Whether to whiten the tokens first, with a robust covariance if there are at
        least five tokens per feature. Then the variance is the same in all
        directions, a direction is found by the shape of its distribution only, and many
        tokens per feature are needed. If False, tokens are divided by one scale, so
        that the median eigenvalue of the covariance is that of unit noise.

    n_tokens : int, default=128
        Length of the prompts, which are drawn at random from all tokens.

    false_positive_rate : float, default=0.01
        Share of nuisance tokens that :meth:`predict` may classify as informative.

    calibration : {"conformal", "gaussian", "empirical"}, default="conformal"
        Origin of the threshold. ``"conformal"``: a fifth of the tokens is held out of
        the search (up to half, if fewer than ``1 / false_positive_rate``), and the
        threshold is a quantile of their scores. A further token exceeds it with at most
        the stated probability under any distribution. With too few tokens it is
        infinite. As the quantile is over all kinds of tokens, at most this share is
        classified as informative, even if more tokens are; :meth:`calibrate` with known
        nuisance tokens has no such limit. ``"gaussian"``: nuisance tokens are Gaussian
        along each direction (centre and scale are the median and the median absolute
        deviation, on which informative tokens have little influence). ``"empirical"``:
        a quantile of the scores of all fitted tokens.

    n_starts : int, default=8
        Starts per inverse temperature: the longest tokens and random directions, half
        each.

    max_iter : int, default=500
        Largest number of updates per start; each reads all tokens.

    tol : float, default=1e-05
        A query has converged when :math:`1 - |\cos|` between two updates is smaller.

    random_state : int, RandomState instance or None, default=None
        Source of prompts and starts.

    verbose : int, default=0
        If positive, print the directions found.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Projection weights: ``transform`` is ``(X - mean_) @ components_.T``. Along
        each, nuisance tokens have about unit variance.

    directions_ : ndarray of shape (n_components, n_features)
        Unit vectors of the informative tokens; equal to the components up to their
        length unless the tokens are whitened. The entry of largest absolute value is
        positive.

    centers_, scales_ : ndarray of shape (n_components,)
        Median, and median absolute deviation times 1.4826, of the fitted tokens along
        the components.

    threshold_ : float
        Score above which a token is classified as informative. The score is two-sided,
        because the sign of a direction is arbitrary.

    inverse_temperatures_ : ndarray of shape (n_components,)
        :math:`\beta` with which each direction was found.

    mean_ : ndarray of shape (n_features,)
        Mean of the tokens.

    n_iter_ : int
        Updates from the best start; the largest number over the directions.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when they are all strings.

    See Also
    --------
    eigenheads.functional.signal_output : The head on plain arrays.
    eigenheads.models.simulate_signal : Simulation of the training of the query.
    sklearn.decomposition.FastICA : Directions of whitened data; misses those that about
        a third of the tokens share.
    sklearn.ensemble.IsolationForest : Use it if features have heavy tails or nuisance
        tokens form clusters; both lead this search away from rare tokens.

    Notes
    -----
    `X` is an array of tokens (n_tokens, n_features), one row per token, or bags: a list
    of arrays or an array (n_bags, n_tokens, n_features). Bags are pooled for the fit;
    for bags every method returns a list with one array per bag. Sparse matrices are
    made dense.

    The objective, its gradient and the projected ascent are those of [1]_, whose law
    has isotropic noise. This implementation adds updates that read all prompts, with
    the step :math:`1/(q \cdot g)`, starts at long tokens, the choice of the inverse
    temperature, whitening, deflation and the threshold. If there are more features than
    tokens, the search is among the first principal components, one for every eight
    tokens: otherwise each token stands out in a direction of its own. Fitted tokens
    then have larger scores than new ones, for which the threshold holds.

    References
    ----------
    .. [1] truong2026: Asymptotic signal subspace recovery in softmax attention
       models, arXiv 2606.22406.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.datasets import SignalTokens
    >>> from eigenheads.estimators import SignalDirection
    >>> law = SignalTokens(d=30, n_informative=20, n_nuisance=2980, strength=1.2)
    >>> tokens, signs = law.sample(1, np.random.default_rng(0))
    >>> model = SignalDirection(random_state=0).fit(tokens[0])
    >>> bool(abs(model.directions_[0] @ law.direction) > 0.95)
    True
    >>> called = model.predict(tokens[0])
    >>> bool(called[signs[0] != 0].mean() > 0.95), bool(called.mean() < 0.03)
    (True, True)
    """

    components_: NDArray[np.floating[Any]]
    directions_: NDArray[np.floating[Any]]

    def __init__(
        self,
        n_components: int | str = "auto",
        *,
        inverse_temperature: float | None = None,
        whiten: bool = False,
        n_tokens: int = 128,
        false_positive_rate: float = 0.01,
        calibration: str = "conformal",
        n_starts: int = 8,
        max_iter: int = 500,
        tol: float = 1e-5,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.inverse_temperature = inverse_temperature
        self.whiten = whiten
        self.n_tokens = n_tokens
        self.false_positive_rate = false_positive_rate
        self.calibration = calibration
        self.n_starts = n_starts
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:
        """Find the directions and set the threshold.

        Parameters
        ----------
        X : array of shape (n_tokens, n_features), or bags
            Tokens, or bags of tokens; see Notes.

        y : Ignored
            For scikit-learn's pipelines.

        sample_weight : array-like of shape (n_tokens,) or (n_bags,), default=None
            Weights of tokens; for bags, of all tokens of each bag. A weight of 2 counts
            like two equal tokens; weights that are not integers are rounded at random,
            so that they hold on average. A conformal threshold holds for tokens whose
            density relative to that of the given ones is proportional to the weights.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        bags = self._read(X, reset=True)
        check_largest("X", bags.tokens)
        weights = read_row_weights(sample_weight, len(bags))
        tokens = bags.tokens
        if weights is not None:
            weights = np.repeat(weights, bags.lengths)
            tokens, weights = tokens[weights > 0], weights[weights > 0]
        self._check_parameters(*tokens.shape)
        random = random_source(self.random_state)
        rate = float(self.false_positive_rate)
        fitted, held, held_weights = tokens, tokens, weights
        if self.calibration == "conformal":
            # Whole tokens are held out, so that no copy of one is fitted.
            inner, outer = hold_out(len(tokens), rate, random)
            fitted, held = tokens[inner], tokens[outer]
            if weights is not None:
                weights, held_weights = weights[inner], weights[outer]
        if weights is not None:
            fitted = fitted[repeated_rows(weights, random)]
        least = 1 if self.n_components == "auto" else int(self.n_components)
        scaling = noise_scaling(fitted, whiten=bool(self.whiten), least=least)
        queries = self._search(fitted, scaling, random)
        # Weights and patterns differ in direction only if the tokens are whitened.
        components = scaling.components(queries)
        patterns = scaling.patterns(queries)
        # The sign of a query is arbitrary, so the largest entry is made positive.
        signs = largest_signs(patterns)
        self.components_ = (signs * components).astype(tokens.dtype)
        self.directions_ = (signs * patterns).astype(tokens.dtype)
        self.mean_ = scaling.mean.astype(tokens.dtype)
        projected = self._projected(fitted).astype(np.float64)
        self.centers_, self.scales_ = robust_scales(projected)
        if self.calibration == "gaussian":
            self.threshold_ = gaussian_threshold(len(self.components_), rate)
        elif self.calibration == "empirical":
            self.threshold_ = float(np.quantile(self._scores(fitted), 1 - rate))
        else:
            self._calibrate(held, held_weights)
        return self

    def calibrate(self, X: Any) -> Self:
        """Set the threshold from tokens that are known to be nuisance.

        A new nuisance token from the same distribution is then classified as
        informative with at most the probability `false_positive_rate`, whatever the
        distribution is. The tokens must not have been used in :meth:`fit`.

        Parameters
        ----------
        X : array of shape (n_tokens, n_features), or bags
            Nuisance tokens.

        Returns
        -------
        self : object
            The estimator with another `threshold_`.
        """
        self._calibrate(self._read_fitted(X).tokens)
        return self

    def transform(self, X: Any) -> Any:
        """Return the coordinates of tokens along the directions.

        Parameters
        ----------
        X : array of shape (n_tokens, n_features), or bags
            Tokens, or bags of tokens.

        Returns
        -------
        X_new : ndarray of shape (n_tokens, n_components), or list of such
            Coordinates; a list for bags.
        """
        bags = self._read_fitted(X)
        answer = as_given(X, bags, self._projected(bags.tokens))
        config = getattr(self, "_sklearn_output_config", {})  # of `set_output`
        container = config.get("transform", get_config()["transform_output"])
        if isinstance(answer, list) and container != "default":
            contract, hint = "rows of tokens", "Bags have no such output."
            got = Got(f"bags with `set_output(transform={container!r})`")
            fail("X", contract, got, hint=hint)
        return answer

    def score_samples(self, X: Any) -> Any:
        """Return a score per token; larger is more informative.

        Parameters
        ----------
        X : array of shape (n_tokens, n_features), or bags
            Tokens, or bags of tokens.

        Returns
        -------
        scores : ndarray of shape (n_tokens,), or list of such
            Largest distance from the center over the directions, in units of the
            scale; a list for bags.
        """
        bags = self._read_fitted(X)
        return as_given(X, bags, self._scores(bags.tokens))

    def predict(self, X: Any) -> Any:
        """Classify tokens as informative (1) or nuisance (0).

        Parameters
        ----------
        X : array of shape (n_tokens, n_features), or bags
            Tokens, or bags of tokens.

        Returns
        -------
        informative : ndarray of shape (n_tokens,), or list of such
            1 where the score is above ``threshold_``; a list for bags.
        """
        bags = self._read_fitted(X)
        called = (self._scores(bags.tokens) > self.threshold_).astype(np.int64)
        return as_given(X, bags, called)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _read(self, X: Any, *, reset: bool) -> Bags:
        return read_bags(self, X.toarray() if issparse(X) else X, reset=reset)

    def _read_fitted(self, X: Any) -> Bags:
        check_is_fitted(self)
        return self._read(X, reset=False)

    def _projected(self, tokens: NDArray[Any]) -> NDArray[Any]:
        centred = tokens - self.mean_.astype(tokens.dtype)
        projected: NDArray[Any] = centred @ self.components_.T.astype(tokens.dtype)
        return projected

    def _scores(self, tokens: NDArray[Any]) -> NDArray[Any]:
        distances = np.abs(self._projected(tokens) - self.centers_) / self.scales_
        scores: NDArray[Any] = distances.max(axis=1).astype(tokens.dtype)
        return scores

    def _calibrate(
        self, tokens: NDArray[Any], weights: FloatArray | None = None
    ) -> None:
        rate, scores = float(self.false_positive_rate), self._scores(tokens)
        self.threshold_ = conformal_threshold(scores, rate, weights)

    def _search(
        self,
        tokens: NDArray[Any],
        scaling: NoiseScaling,
        random: np.random.RandomState,
    ) -> FloatArray:
        """Return one unit query per direction, each orthogonal to those before."""
        z = scaling.apply(tokens)
        inverse_temperatures: tuple[float, ...] = _INVERSE_TEMPERATURES
        if self.inverse_temperature is not None:
            inverse_temperatures = (float(self.inverse_temperature),)
        is_auto = self.n_components == "auto"
        how = SearchSettings(
            int(self.n_starts),
            int(self.max_iter),
            self.tol,
            int(self.n_tokens),
            is_auto,
        )
        n_directions = None if is_auto else int(self.n_components)
        rows, searches = search_directions(
            z, n_directions, inverse_temperatures, how, random
        )
        for index, search in enumerate(searches):
            self._say(index, search)
        self.n_iter_ = max(search.n_iter for search in searches)
        self.inverse_temperatures_ = np.array(
            [search.inverse_temperature for search in searches]
        )
        if not all(search.converged for search in searches):
            warnings.warn(
                f"SignalDirection: no convergence in {self.max_iter} updates. Raise "
                "`max_iter` or `tol`.",
                ConvergenceWarning,
                stacklevel=3,
            )
        return rows

    def _say(self, index: int, search: FoundQuery) -> None:
        if self.verbose:
            sys.stdout.write(
                f"{type(self).__name__}: direction {index}: inverse "
                f"temperature {search.inverse_temperature:g}, "
                f"objective {search.objective:.6g}, {search.n_iter} updates\n"
            )

    def _check_parameters(self, n: int, d: int) -> None:
        hint = f"The tokens have n_features={d}."
        if not (isinstance(self.n_components, str) and self.n_components == "auto"):
            check_count("n_components", self.n_components, maximum=d, hint=hint)
        if n < 2:
            got = Got(f"n_samples={n}" if n else "no token of positive weight")
            fail("X", "at least 2 tokens", got)
        if self.inverse_temperature is not None:
            check_positive("inverse_temperature", self.inverse_temperature)
        if not isinstance(self.whiten, bool | np.bool_):
            fail("whiten", "True or False", self.whiten)
        check_count("n_tokens", self.n_tokens, minimum=2)
        rate = self.false_positive_rate
        if check_positive("false_positive_rate", rate) >= 1:
            fail("false_positive_rate", "a number below 1", rate)
        check_choice("calibration", self.calibration, _CALIBRATIONS)
        check_verbose(self.verbose)
        check_count("n_starts", self.n_starts)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
