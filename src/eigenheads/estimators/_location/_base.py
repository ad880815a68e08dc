"""Base class of the single-location regressor and classifier."""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted
from threadpoolctl import threadpool_limits

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_number,
    check_positive,
    fail,
)
from eigenheads._limits import check_largest
from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import (
    Bags,
    check_is_no_groupby,
    check_is_no_table,
    read_bags,
)
from eigenheads.estimators._batches import Batches, is_dask, is_stream, row_blocks
from eigenheads.estimators._feature_maps import (
    MOST_TOKENS,
    FittedFeatureMap,
    check_feature_map,
    fit_feature_map,
)
from eigenheads.estimators._location._fit import OPTIMISATION, PREPARATION
from eigenheads.estimators._location._head import (
    HEADS,
    RELATIVE,
    attention_weights,
    deciding_tokens,
    head_outputs,
    token_scores,
)
from eigenheads.estimators._location._losses import AbstractLoss
from eigenheads.estimators._location._objective import squared_radii
from eigenheads.estimators._location._problem import (
    HeadSettings,
    LabelledBags,
    LocationData,
    data_in_memory,
    streamed_data,
)
from eigenheads.estimators._location._selection import (
    PenaltyChoice,
    choose_penalty,
    fit_chosen,
)
from eigenheads.estimators._location._state import (
    FitState,
    HeadSolution,
    run_stages,
    solution_of,
)
from eigenheads.estimators._location._targets import (
    Encoding,
    class_weights,
    read_targets,
    read_weights,
)
from eigenheads.estimators._parameters import check_verbose

# The penalty of the coherence must not drown the loss.
_MOST_COHERENT = 1e9


class AbstractSingleLocation(BaseEstimator):
    """Parameters, reading of bags, fit and attention of both estimators."""

    coef_key_: NDArray[np.floating]
    coef_value_: NDArray[np.floating]
    intercept_: Any
    coef_radius_: Any
    coef_offset_: NDArray[np.floating]
    center_: NDArray[np.floating]
    precision_: NDArray[np.floating]
    # A search over several estimators has chosen already.
    _given_choice: PenaltyChoice | None = None
    _heads: tuple[str, ...] = HEADS
    class_weight: Any = None

    def __init__(
        self,
        *,
        head: str = "softmax",
        alpha: float | str = "auto",
        feature_map: Any = None,
        n_heads: int = 1,
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
        self.n_heads = n_heads
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
        weights : list of ndarray of shape (n_tokens,) or (n_tokens, n_heads)
            For ``head="erf"`` between -1 and 1, for ``head="sigmoid"`` between 0 and 1;
            else non-negative with sum 1 in every bag.
        """
        bags = self._read_fitted(X)
        weights = self._weights(bags)
        return bags.split(weights[:, 0] if weights.shape[1] == 1 else weights)

    def locate(self, X: Any) -> NDArray[np.int64]:
        """Return the index of the token that decides each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        index : ndarray of shape (n_bags,) or (n_bags, n_heads)
            Position within the bag of the token with the largest weight; for
            ``head="erf"``, largest in absolute value. -1 if no token decides: the key
            is zero, as in mean pooling (see ``pooling_``), and all weights are equal.
        """
        if is_dask(X):
            return np.concatenate([self.locate(block) for block in row_blocks(X)])
        bags = self._read_fitted(X)
        places = np.column_stack(
            [
                deciding_tokens(bags, scores, head=self.head)
                for scores in self._scores(bags)
            ]
        )
        has_key = np.atleast_2d(self.coef_key_).any(axis=1)
        if self.head == "radial":
            has_key |= np.atleast_1d(self.coef_radius_) != 0
        places[:, ~has_key] = -1
        return places[:, 0] if places.shape[1] == 1 else places

    def contributions(self, X: Any) -> list[NDArray[np.floating]]:
        """Return what each token adds to the outputs of its bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags, in any layout that :meth:`fit` takes.

        Returns
        -------
        contributions : list of ndarray of shape (n_tokens,) or (n_tokens, n_outputs)
            Weight times readout of each token, relative to an average token; summed
            over the tokens of a bag and added to ``baseline_`` they give the
            prediction, before it is limited, or the logits.
        """
        bags = self._read_fitted(X)
        rows = self._rows()
        weights = self._weights(bags)
        n_outputs = len(np.atleast_1d(self.intercept_))
        parts = np.zeros((len(bags.tokens), n_outputs), dtype=bags.tokens.dtype)
        center, d = self._center(), bags.tokens.shape[1]
        lengths = np.repeat(bags.lengths, bags.lengths)
        for head in range(weights.shape[1]):
            base = head * (1 + n_outputs)
            values = rows[base + 1 : base + 1 + n_outputs, :d]
            readouts = bags.tokens @ values.T - (values @ center).astype(parts.dtype)
            if self.head == "logsumexp":
                # A mean of scores and their entropy give the log mean exponential.
                shares = np.maximum(weights[:, head] * lengths, 1e-300)
                readouts = readouts - np.log(shares)[:, None]
            parts += weights[:, [head]] * readouts
        return bags.split(parts[:, 0] if n_outputs == 1 else parts)

    @property
    def baseline_(self) -> Any:
        """Outputs of a bag whose contributions are zero."""
        check_is_fitted(self)
        intercepts = np.atleast_1d(self.intercept_)
        rows = np.delete(self._rows(), slice(None, None, 1 + len(intercepts)), axis=0)
        center = self._center()
        moved = (rows[:, : len(center)] @ center).reshape(-1, len(intercepts))
        outputs = intercepts + moved.sum(axis=0)
        return float(outputs[0]) if np.ndim(self.intercept_) == 0 else outputs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read_fitted(self, X: Any) -> Bags:
        check_is_fitted(self)
        if not self._rows_are_bags:
            check_is_no_table(X)
        bags = self._mapped(self._limited(read_bags(self, X, reset=False)))
        if self.head == "radial":
            radii = squared_radii(bags.tokens, self.center_, self.precision_)
            return replace(bags, radii=-0.5 * radii)
        if self.head == "sigmoid":
            ones = np.ones((len(bags.tokens), 1), dtype=bags.tokens.dtype)
            return replace(bags, tokens=np.hstack([bags.tokens, ones]))
        return bags

    def _limited(self, bags: Bags) -> Bags:
        """Return the bags with features that are not far from those of training."""
        return bags

    def _mapped(self, bags: Bags, *, in_fit: bool = False) -> Bags:
        """Return the bags in the features of the map."""
        if self._map is None:
            return bags
        return replace(bags, tokens=self._map(bags.tokens, in_fit=in_fit))

    def _rows(self) -> NDArray[np.floating]:
        """Return keys and values as compiled code has them, head after head."""
        keys = np.atleast_2d(self.coef_key_)
        n_outputs, (n_heads, d) = len(np.atleast_1d(self.intercept_)), keys.shape
        values = self.coef_value_.reshape(n_heads, n_outputs, d)
        rows = np.concatenate([keys[:, None], values], axis=1)
        if self.head == "radial":
            rows = np.pad(rows, ((0, 0), (0, 0), (0, 1)))
            rows[:, 0, -1] = self.coef_radius_
        if self.head == "sigmoid":
            offsets = np.atleast_2d(self.coef_offset_)
            rows = np.concatenate([rows, offsets.reshape(n_heads, -1, 1)], axis=2)
        return rows.reshape(n_heads * (1 + n_outputs), -1)

    def _center(self) -> NDArray[np.floating]:
        """Return the token that contributions are relative to, or zero."""
        if self.head in RELATIVE:
            return self.center_
        return np.zeros(self._rows().shape[1])

    def _scores(self, bags: Bags) -> list[NDArray[np.floating]]:
        """Return the scores of all tokens, per head."""
        per_head = 1 + len(np.atleast_1d(self.intercept_))
        return [
            self._finite(token_scores(bags, key.astype(bags.tokens.dtype)))
            for key in self._rows()[::per_head]
        ]

    def _finite(self, numbers: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return finite numbers, or raise: the tokens were too large."""
        if not np.isfinite(numbers).all():
            contract = "so small that scores and outputs stay finite"
            got = Got("tokens whose products overflow")
            fail("X", contract, got, hint="Rescale them.")
        return numbers

    def _weights(self, bags: Bags) -> NDArray[np.floating]:
        return np.column_stack(
            [
                attention_weights(bags, scores, head=self.head)
                for scores in self._scores(bags)
            ]
        )

    def _outputs(self, X: Any) -> NDArray[np.floating]:
        if is_dask(X):  # one chunk in memory at a time
            return np.concatenate([self._outputs(block) for block in row_blocks(X)])
        bags = self._read_fitted(X)
        intercepts = np.atleast_1d(self.intercept_)
        rows = self._rows().astype(bags.tokens.dtype)
        return self._finite(head_outputs(bags, rows, intercepts, head=self.head))

    def _check_parameters(self) -> None:
        check_choice("head", self.head, self._heads)
        check_count("n_heads", self.n_heads)
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_number("alpha", self.alpha, minimum=0.0)
        check_feature_map(self.feature_map)
        check_number("l1_ratio", self.l1_ratio, minimum=0.0, maximum=1.0)
        check_number("coherence", self.coherence, minimum=0.0, maximum=_MOST_COHERENT)
        if self.shrinkage is not None:
            check_positive("shrinkage", self.shrinkage)
        check_count("n_random_starts", self.n_random_starts, minimum=0)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
        check_flag("fit_intercept", self.fit_intercept)
        check_verbose(self.verbose)

    def _fit_head(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        encoding: Encoding,
    ) -> HeadSolution:
        """Read the data, fit the head, and keep what both estimators share."""
        check_is_no_groupby(X)
        if is_stream(X, y):
            with Batches(X, y, sample_weight) as batches:

                def read() -> Iterator[tuple[Bags, NDArray[Any], FloatArray]]:
                    for index, (bags, targets, weights) in enumerate(batches):
                        yield self._read(bags, targets, weights, reset=index == 0)

                data = streamed_data(read, encoding, class_weight=self.class_weight)
                return self._solve(data, encoding.kind)
        batch = self._labelled(X, y, sample_weight, encoding)
        return self._solve(data_in_memory(batch), encoding.kind)

    def _labelled(
        self, X: Any, y: Any, sample_weight: Any, encoding: Encoding
    ) -> LabelledBags:
        """Return bags in memory with encoded targets."""
        bags, targets, weights = self._read(X, y, sample_weight, reset=True)
        encoding.add(targets, weights)
        encoded = encoding.encoder()(targets)
        weights = class_weights(targets, weights, self.class_weight, encoding)
        return LabelledBags(bags, *encoded, weights)

    def _choose(
        self, X: Any, y: Any, sample_weight: Any, folds: NDArray[np.int64]
    ) -> PenaltyChoice:
        """Return the choice of the penalty by given folds, without the final fit."""
        self._check_parameters()
        encoding = self._encoding(y)
        batch = replace(self._labelled(X, y, sample_weight, encoding), folds=folds)
        with threadpool_limits(limits=1, user_api="blas"):
            return choose_penalty(self._prepared(data_in_memory(batch), encoding.kind))

    @abstractmethod
    def _encoding(self, y: Any) -> Encoding:
        """Return a new encoding of the targets."""

    def _read(
        self, X: Any, y: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Bags, NDArray[Any], FloatArray]:
        """Return bags, targets and weights, checked."""
        bags = read_bags(self, X, reset=reset)
        check_largest("X", bags.tokens)
        if reset:
            self._rows_are_bags = bool((bags.lengths == 1).all())
        targets = self._check_targets(read_targets(y, bags, several=True))
        return bags, targets, read_weights(sample_weight, bags)

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
        self._map = fit_feature_map(self.feature_map, tokens)
        self.feature_map_ = self._map.transformer
        change = partial(self._mapped, in_fit=True)
        return replace(data.mapped(change), n_features=self._map.width)

    def _prepared(self, data: LocationData, kind: AbstractLoss) -> FitState:
        """Return the state of the fit before anything depends on the penalty."""
        if self.head == "logsumexp" and data.n_outputs > 1:
            got = Got(f"{data.n_outputs} outputs")
            hint = 'Use head="softmax" for more classes or labels.'
            contract = 'two classes for head="logsumexp"'
            fail("y", contract, got, hint=hint)
        data = self._map_data(data)
        shape = int(self.n_random_starts), data.n_features
        random = random_source(self.random_state)
        directions = random.standard_normal(shape)
        state = FitState(data, self._settings(kind), directions, self._report)
        return run_stages(state, PREPARATION)

    def _solve(self, data: LocationData, kind: AbstractLoss) -> HeadSolution:
        # Many small products: threads of the linear algebra would wait for each other.
        with threadpool_limits(limits=1, user_api="blas"):
            state = self._prepared(data, kind)
            if self.alpha == "auto":
                solution = self._fit_chosen(state)
            else:
                solution = solution_of(run_stages(state, OPTIMISATION))
                self.alpha_, self.output_scale_ = float(self.alpha), 1.0
                self.pooling_ = "attention"
        return self._keep(solution, data.dtype)

    def _fit_chosen(self, state: FitState) -> HeadSolution:
        """Choose the penalty and fit all bags with it."""
        choice = self._given_choice or choose_penalty(state)
        chosen = choice.best
        self.alpha_, self.output_scale_ = chosen.alpha, chosen.scale
        self.pooling_ = chosen.pooling if chosen.scale > 0 else "none"
        self.selection_ = [asdict(candidate) for candidate in choice.candidates]
        solution = solution_of(fit_chosen(state, choice))
        return solution.scaled(chosen.scale, choice.constant)

    def _settings(self, kind: AbstractLoss) -> HeadSettings:
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
            n_heads=int(self.n_heads),
        )

    def _keep(self, solution: HeadSolution, dtype: np.dtype[Any]) -> HeadSolution:
        """Keep what both estimators share; return all heads without added columns."""
        n_missing = int(self.n_heads) - len(solution.keys)
        keys = np.pad(solution.keys, ((0, n_missing), (0, 0)))
        values = np.pad(solution.values, ((0, n_missing), (0, 0), (0, 0)))
        self.center_ = solution.center.astype(dtype)
        if solution.precision is not None:
            radius = keys[:, -1].astype(dtype)
            self.coef_radius_ = float(radius[0]) if len(radius) == 1 else radius
            self.precision_ = solution.precision.astype(dtype)
            keys = keys[:, :-1]
        if self.head == "sigmoid":
            offsets = np.column_stack([keys[:, -1], values[:, :, -1]]).astype(dtype)
            self.coef_offset_ = offsets[0] if len(offsets) == 1 else offsets
            keys, values = keys[:, :-1], values[:, :, :-1]
            self.center_ = self.center_[:-1]
        if self.head == "logsumexp":
            keys = values[:, 0]
        self.coef_key_ = (keys[0] if len(keys) == 1 else keys).astype(dtype)
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
        return replace(solution, keys=keys, values=values)

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")
