"""Base class of the single-location regressor and classifier."""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_random_state
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_number,
    check_positive,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags, read_bags
from eigenheads.estimators._batches import Batches, is_dask, is_stream, row_blocks
from eigenheads.estimators._feature_maps import (
    MOST_TOKENS,
    FittedFeatureMap,
    check_feature_map,
    fit_feature_map,
)
from eigenheads.estimators._location._fit import (
    OPTIMISATION,
    PREPARATION,
    FitState,
    HeadSolution,
    run_stages,
    solution_of,
)
from eigenheads.estimators._location._head import (
    HEADS,
    attended_readouts,
    attention_weights,
    deciding_tokens,
    squared_radii,
)
from eigenheads.estimators._location._problem import (
    ClassLabels,
    HeadSettings,
    LabelledBags,
    LocationData,
    StandardisedNumbers,
    data_in_memory,
    read_targets,
    read_weights,
    streamed_data,
)
from eigenheads.estimators._location._selection import (
    PenaltyChoice,
    choose_penalty,
    fit_chosen,
)

Encoding: TypeAlias = StandardisedNumbers | ClassLabels


class AbstractSingleLocation(BaseEstimator):
    """Parameters, reading of bags, fit and attention of both estimators."""

    coef_key_: NDArray[np.floating]
    coef_value_: NDArray[np.floating]
    intercept_: Any
    coef_radius_: float
    center_: NDArray[np.floating]
    precision_: NDArray[np.floating]
    # A search over several estimators has chosen already.
    _given_choice: PenaltyChoice | None = None

    def __init__(
        self,
        *,
        head: str = "softmax",
        alpha: float | str = "auto",
        feature_map: Any = None,
        l1_ratio: float = 0.0,
        coherence: float = 0.1,
        shrinkage: float | None = None,
        fit_intercept: bool = True,
        n_random_starts: int = 0,
        max_iter: int = 500,
        tol: float = 1e-4,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.head = head
        self.alpha = alpha
        self.feature_map = feature_map
        self.l1_ratio = l1_ratio
        self.coherence = coherence
        self.shrinkage = shrinkage
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
            For ``head="erf"`` between -1 and 1; else non-negative with sum 1 in every
            bag.
        """
        bags = self._read_fitted(X)
        return bags.split(attention_weights(bags, self._scores(bags), head=self.head))

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
        return deciding_tokens(bags, self._scores(bags), head=self.head)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read_fitted(self, X: Any) -> Bags:
        check_is_fitted(self)
        if not self._rows_are_bags and getattr(X, "ndim", 0) == 2:
            got = Got(f"one array of shape {tuple(X.shape)}")
            hint = "Pass `[bag]` for one bag."
            fail("X", "a list of bags", got, owner=type(self).__name__, hint=hint)
        return self._mapped(read_bags(self, X, reset=False))

    def _mapped(self, bags: Bags) -> Bags:
        """Return the bags in the features of the map."""
        if self._map is None:
            return bags
        return replace(bags, tokens=self._map(bags.tokens))

    def _scores(self, bags: Bags) -> NDArray[np.floating]:
        scores = bags.tokens @ self.coef_key_
        if self.head == "radial":
            radii = squared_radii(bags.tokens, self.center_, self.precision_)
            scores -= scores.dtype.type(0.5 * self.coef_radius_) * radii
        return np.asarray(scores)

    def _outputs(self, X: Any) -> NDArray[np.floating]:
        if is_dask(X):  # one chunk in memory at a time
            return np.concatenate([self._outputs(block) for block in row_blocks(X)])
        bags = self._read_fitted(X)
        values = np.atleast_2d(self.coef_value_)
        weights = attention_weights(bags, self._scores(bags), head=self.head)
        outputs = attended_readouts(bags, weights, values)
        return outputs + np.atleast_1d(self.intercept_).astype(outputs.dtype)

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        check_choice("head", self.head, HEADS, owner=owner)
        if self.alpha != "auto":
            check_number("alpha", self.alpha, owner=owner, minimum=0.0)
        check_feature_map(self.feature_map, owner=owner)
        check_number("l1_ratio", self.l1_ratio, owner=owner, minimum=0.0, maximum=1.0)
        check_number("coherence", self.coherence, owner=owner, minimum=0.0)
        if self.shrinkage is not None:
            check_positive("shrinkage", self.shrinkage, owner=owner)
        check_count("n_random_starts", self.n_random_starts, owner=owner, minimum=0)
        check_count("max_iter", self.max_iter, owner=owner)
        check_positive("tol", self.tol, owner=owner)

    def _fit_head(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        encoding: Encoding,
    ) -> HeadSolution:
        """Read the data, fit the head, and keep what both estimators share."""
        owner = type(self).__name__
        if is_stream(X, y):
            with Batches(X, y, sample_weight, owner=owner) as batches:

                def read() -> Iterator[tuple[Bags, NDArray[Any], FloatArray]]:
                    for index, (bags, targets, weights) in enumerate(batches):
                        yield self._read(bags, targets, weights, reset=index == 0)

                data = streamed_data(read, encoding, owner=owner)
                return self._solve(data, encoding.kind)
        batch = self._labelled(X, y, sample_weight, encoding)
        return self._solve(data_in_memory(batch), encoding.kind)

    def _labelled(
        self, X: Any, y: Any, sample_weight: Any, encoding: Encoding
    ) -> LabelledBags:
        """Return bags in memory with encoded targets."""
        bags, targets, weights = self._read(X, y, sample_weight, reset=True)
        encoding.add(targets, weights)
        return LabelledBags(bags, *encoding.encoder()(targets), weights)

    def _choose(
        self, X: Any, y: Any, sample_weight: Any, folds: NDArray[np.int64]
    ) -> PenaltyChoice:
        """Return the choice of the penalty by given folds, without the final fit."""
        self._check_parameters()
        encoding = self._encoding()
        batch = replace(self._labelled(X, y, sample_weight, encoding), folds=folds)
        with threadpool_limits(limits=1, user_api="blas"):
            return choose_penalty(self._prepared(data_in_memory(batch), encoding.kind))

    @abstractmethod
    def _encoding(self) -> Encoding:
        """Return a new encoding of the targets."""

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Bags, NDArray[Any], FloatArray]:
        """Return bags, targets and weights, checked."""
        bags, owner = read_bags(self, X, reset=reset), type(self).__name__
        if reset:
            self._rows_are_bags = bool((bags.lengths == 1).all())
        targets = self._check_targets(read_targets(y, bags, owner=owner))
        return bags, targets, read_weights(sample_weight, bags, owner=owner)

    @abstractmethod
    def _check_targets(self, targets: NDArray[Any]) -> NDArray[Any]:
        """Return the targets if they suit the estimator, or raise."""

    def _map_data(self, data: LocationData) -> LocationData:
        """Fit the feature map and return the data in its features."""
        self._map: FittedFeatureMap | None = None
        if self.feature_map is None:
            return data
        per_bag = data.n_tokens / data.n_bags
        tokens = data.sample(max(1, int(MOST_TOKENS / per_bag))).bags.tokens
        owner = type(self).__name__
        self._map = fit_feature_map(self.feature_map, tokens, owner=owner)
        self.feature_map_ = self._map.transformer
        return replace(data.mapped(self._mapped), n_features=self._map.width)

    def _prepared(self, data: LocationData, kind: int) -> FitState:
        """Return the state of the fit before anything depends on the penalty."""
        data = self._map_data(data)
        shape = int(self.n_random_starts), data.n_features
        directions = check_random_state(self.random_state).standard_normal(shape)
        state = FitState(data, self._settings(kind), directions, self._report)
        return run_stages(state, PREPARATION)

    def _solve(self, data: LocationData, kind: int) -> HeadSolution:
        # Many small products: threads of the linear algebra would wait for each other.
        with threadpool_limits(limits=1, user_api="blas"):
            state = self._prepared(data, kind)
            if self.alpha == "auto":
                solution = self._fit_chosen(state)
            else:
                solution = solution_of(run_stages(state, OPTIMISATION))
                self.alpha_, self.output_scale_ = float(self.alpha), 1.0
                self.pooling_ = "attention"
        self._keep(solution, data.dtype)
        return solution

    def _fit_chosen(self, state: FitState) -> HeadSolution:
        """Choose the penalty and fit all bags with it."""
        choice = self._given_choice or choose_penalty(state)
        chosen = choice.best
        self.alpha_, self.output_scale_ = chosen.alpha, chosen.scale
        self.pooling_ = chosen.pooling if chosen.scale > 0 else "none"
        self.selection_ = [asdict(candidate) for candidate in choice.candidates]
        solution = solution_of(fit_chosen(state, choice))
        return solution.scaled(chosen.scale, choice.constant)

    def _settings(self, kind: int) -> HeadSettings:
        return HeadSettings(
            head=self.head,
            kind=kind,
            alpha=0.0 if self.alpha == "auto" else float(self.alpha),
            l1_ratio=float(self.l1_ratio),
            coherence=float(self.coherence),
            shrinkage=None if self.shrinkage is None else float(self.shrinkage),
            has_intercept=bool(self.fit_intercept),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
        )

    def _keep(self, solution: HeadSolution, dtype: np.dtype[Any]) -> None:
        key = solution.key
        if solution.precision is not None:
            self.coef_radius_ = float(key[-1])
            self.center_ = solution.center.astype(dtype)
            self.precision_ = solution.precision.astype(dtype)
            key = key[:-1]
        self.coef_key_ = key.astype(dtype)
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
