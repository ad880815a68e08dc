"""Base class of the single-location regressor and classifier."""

import sys
import warnings
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
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
from eigenheads._typing import FloatArray
from eigenheads.estimators._bag_targets import (
    LOGISTIC,
    AbstractLoss,
    Encoding,
    class_weights,
    read_targets,
    read_weights,
)
from eigenheads.estimators._bags import (
    Bags,
    check_is_no_groupby,
    check_is_no_table,
    read_bags,
)
from eigenheads.estimators._batches import Batches, is_dask, is_stream, row_blocks
from eigenheads.estimators._feature_maps import (
    MOST_TOKENS,
    KernelFeatures,
    check_feature_map,
    fit_feature_map,
)
from eigenheads.estimators._location._data import (
    HeadSettings,
    LabelledBags,
    LocationData,
    data_in_memory,
    in_class_order,
    streamed_data,
)
from eigenheads.estimators._location._fit import prepare_tokens
from eigenheads.estimators._location._head import (
    HEADS,
    attention_weights,
    deciding_tokens,
    head_outputs,
)
from eigenheads.estimators._location._prepare import (
    FitState,
    sort_bags,
    squared_radii,
    standardise,
)
from eigenheads.estimators._location._stack import (
    Stack,
    View,
    choose,
    fit_stack,
    one_head,
)
from eigenheads.estimators._parameters import check_verbose

# The penalty of the coherence must not drown the loss.
_MOST_COHERENT = 1e9
# Kernel features of more tokens would take too long to be a default.
_KERNEL_TOKENS = 50_000


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
    _given_choice: Stack | None = None
    _heads: tuple[str, ...] = HEADS
    class_weight: Any = None

    head: str
    alpha: float | str
    feature_map: Any
    n_heads: int
    l1_ratio: float
    coherence: float
    shrinkage: float | None
    fit_intercept: bool
    max_iter: int
    tol: float
    verbose: int

    def fit(
        self,
        X: Any,
        y: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> Self:
        """Fit keys, values and intercepts.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), array, or batches
            Bags; see the Notes of :class:`SingleLocationRegressor`.

        y : array-like of shape (n_bags,) or (n_bags, n_outputs)
            Targets: numbers, or classes, or zeros and ones with one column per label;
            None when batches bring their own.

        sample_weight : array-like of shape (n_bags,), default=None
            Weights of the bags.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._check_parameters()
        check_is_no_groupby(X)
        encoding = self._encoding(y)
        if not is_stream(X, y):
            batch = self._labelled(X, y, sample_weight, encoding)
            self._solve(data_in_memory(batch), encoding)
            return self
        with Batches(X, y, sample_weight) as batches:

            def read() -> Iterator[tuple[Bags, NDArray[Any], FloatArray]]:
                for index, (bags, targets, weights) in enumerate(batches):
                    yield self._read(bags, targets, weights, reset=index == 0)

            data = streamed_data(read, encoding, class_weight=self.class_weight)
            self._solve(data, encoding)
        return self

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
        weights = self._weights(bags, self._leading)
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
        bags, member = self._read_fitted(X), self._leading
        scores = self._scores(bags, member)
        places = np.column_stack(
            [deciding_tokens(bags, column, head=member.head) for column in scores.T]
        )
        places[:, ~member.scoring_rows().any(axis=1)] = -1
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
            Weight times readout of each token, relative to an average token, added over
            all that was fitted; summed over the tokens of a bag and added to
            ``baseline_`` they give the prediction, before it is limited, or the logits.
        """
        bags = self._read_fitted(X)
        n_outputs = len(np.atleast_1d(self.intercept_))
        parts = np.zeros((len(bags.tokens), n_outputs))
        lengths = bags.spread(bags.lengths)
        for member in self._members:
            weights = self._weights(bags, member)
            products = self._seen(bags, member).products(member.rows)
            for index in range(weights.shape[1]):
                first = index * (1 + n_outputs) + 1
                values = member.rows[first : first + n_outputs]
                readouts = products[:, first : first + n_outputs]
                readouts = readouts - values[:, : len(member.center)] @ member.center
                if member.head == "logsumexp":
                    # A mean of scores and their entropy give the log mean exponential.
                    shares = np.maximum(weights[:, index] * lengths, 1e-300)
                    readouts = readouts - np.log(shares)[:, None]
                parts += member.scale * weights[:, [index]] * readouts
        parts = parts.astype(bags.tokens.dtype)
        return bags.split(parts[:, 0] if n_outputs == 1 else parts)

    @property
    def baseline_(self) -> Any:
        """Outputs of a bag whose contributions are zero."""
        check_is_fitted(self)
        outputs = np.array(np.atleast_1d(self.intercept_), dtype=np.float64)
        for member in self._members:
            rows = member.rows.reshape(-1, 1 + len(outputs), member.rows.shape[1])
            values = rows[:, 1:, : len(member.center)].sum(axis=0)
            outputs += member.scale * (values @ member.center)
        return float(outputs[0]) if np.ndim(self.intercept_) == 0 else outputs

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        return tags

    def _read_fitted(self, X: Any) -> Bags:
        check_is_fitted(self)
        if not self._rows_are_bags:
            check_is_no_table(X)
        return self._limited(read_bags(self, X, reset=False))

    def _limited(self, bags: Bags) -> Bags:
        """Return the bags with features that are not far from those of training."""
        return bags

    def _finite(self, numbers: NDArray[np.floating]) -> NDArray[np.floating]:
        """Return finite numbers, or raise: the tokens were too large."""
        if not np.isfinite(numbers).all():
            contract = "so small that scores and outputs stay finite"
            got = Got("tokens whose products overflow")
            fail("X", contract, got, hint="Rescale them.")
        return numbers

    def _seen(self, bags: Bags, member: "Member") -> Bags:
        """Return the bags in the features that a member reads."""
        tokens = bags.tokens
        feature_map = self._maps[member.view]
        if feature_map is not None:
            tokens = feature_map(tokens)
        if member.head == "radial":
            metric = np.asarray(member.precision)
            radii = squared_radii(tokens, member.center, metric)
            tokens = np.hstack([tokens, -0.5 * radii[:, None]])
        if member.head == "sigmoid":
            tokens = np.pad(tokens, ((0, 0), (0, 1)), constant_values=1)
        return replace(bags, tokens=tokens)

    def _scores(self, bags: Bags, member: "Member") -> NDArray[np.floating]:
        """Return the scores of all tokens, one column per head."""
        scores = self._seen(bags, member).products(member.scoring_rows())
        return self._finite(scores)

    def _weights(self, bags: Bags, member: "Member") -> NDArray[np.floating]:
        """Return the weights of all tokens, one column per head."""
        weights = [
            attention_weights(bags, column, head=member.head)
            for column in self._scores(bags, member).T
        ]
        return np.column_stack(weights).astype(bags.tokens.dtype, copy=False)

    def _outputs(self, X: Any) -> NDArray[np.floating]:
        if is_dask(X):  # one chunk in memory at a time
            return np.concatenate([self._outputs(block) for block in row_blocks(X)])
        bags, intercepts = self._read_fitted(X), np.atleast_1d(self.intercept_)
        outputs = np.zeros((len(bags), len(intercepts))) + intercepts
        for member in self._members:
            seen = self._seen(bags, member)
            part = head_outputs(seen, member.rows, len(intercepts), head=member.head)
            outputs += member.scale * part
        return self._finite(outputs).astype(bags.tokens.dtype, copy=False)

    def _check_parameters(self) -> None:
        check_choice("head", self.head, ("auto", *self._heads))
        check_count("n_heads", self.n_heads)
        if not (isinstance(self.alpha, str) and self.alpha == "auto"):
            check_number("alpha", self.alpha, minimum=0.0)
        if not (isinstance(self.feature_map, str) and self.feature_map == "auto"):
            check_feature_map(self.feature_map)
        check_number("l1_ratio", self.l1_ratio, minimum=0.0, maximum=1.0)
        check_number("coherence", self.coherence, minimum=0.0, maximum=_MOST_COHERENT)
        if self.shrinkage is not None:
            check_positive("shrinkage", self.shrinkage)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
        check_flag("fit_intercept", self.fit_intercept)
        check_verbose(self.verbose)

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
    ) -> Stack:
        """Return the choice by given folds, without the fit to all bags."""
        self._check_parameters()
        encoding = self._encoding(y)
        batch = replace(self._labelled(X, y, sample_weight, encoding), folds=folds)
        with threadpool_limits(limits=1, user_api="blas"):
            data, _ = self._ordered(data_in_memory(batch), encoding.kind)
            return choose(self._views(data, encoding.kind))

    @abstractmethod
    def _keep_targets(self, encoding: Any) -> None:
        """Keep what the fitted estimator tells about the targets."""

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

    def _map_names(self, data: LocationData) -> list[Any]:
        """Return the feature maps to choose from."""
        if not isinstance(self.feature_map, str) or self.feature_map != "auto":
            return [self.feature_map]
        is_open = self.head == "auto" and self.alpha == "auto"
        is_small = not data.is_stream and data.n_tokens <= _KERNEL_TOKENS
        return [None, "kernel"] if is_open and is_small else [None]

    def _fitted_map(self, name: Any, data: LocationData, views: list[View]) -> Any:
        """Return a feature map, fitted to the tokens."""
        if name is None:
            return None
        per_bag = data.n_tokens / data.n_bags
        tokens = data.sample(max(1, int(MOST_TOKENS / per_bag))).bags.tokens
        if views:  # kernel features beside the features as given
            standardised = views[0].plain.coordinates.standardised
            return KernelFeatures(standardised, standardised(tokens))
        return fit_feature_map(name, tokens)

    def _candidate_heads(self, data: LocationData, kind: AbstractLoss) -> Any:
        """Return the names of the heads to choose from, with signs of their outputs."""
        has_one_logit = kind == LOGISTIC and data.n_outputs == 1
        if self.head != "auto":
            return ((self.head, 1.0),)
        if self.alpha != "auto" or not has_one_logit:
            return (("softmax", 1.0),)
        return (("softmax", 1.0), ("logsumexp", 1.0), ("logsumexp", -1.0))

    def _ordered(
        self, data: LocationData, kind: AbstractLoss
    ) -> tuple[LocationData, NDArray[np.int64]]:
        """Return data that do not depend on orders, and the order of their outputs."""
        data = sort_bags(data)
        if self.head == "logsumexp":  # the second class needs a token
            return data, np.arange(data.n_outputs)
        return in_class_order(data, kind)

    def _views(self, data: LocationData, kind: AbstractLoss) -> list[View]:
        """Return the data in the features of each map, before the penalty counts."""
        if self.head == "logsumexp" and data.n_outputs > 1:
            got = Got(f"{data.n_outputs} outputs")
            hint = 'Use head="softmax" for more classes or labels.'
            contract = 'two classes for head="logsumexp"'
            fail("y", contract, got, hint=hint)
        self._maps, heads = [], self._candidate_heads(data, kind)
        views = list[View]()
        names = self._map_names(data)
        for name in names:
            feature_map, mapped = self._fitted_map(name, data, views), data
            self._maps.append(feature_map)
            if feature_map is not None:

                def change(bags: Bags, feature_map: Any = feature_map) -> Bags:
                    tokens = feature_map(bags.tokens, in_fit=True)
                    return replace(bags, tokens=tokens)

                mapped = replace(data.mapped(change), n_features=feature_map.width)
            settings = self._settings(kind, heads[0][0])
            if views:
                # No elliptical law: attended tokens do not show the key.
                settings = replace(settings, coherence=0.0)
            begun = FitState(mapped, settings, self._report)
            state = prepare_tokens(begun)
            centred = replace(begun, settings=replace(settings, head="softmax"))
            # On the last view, kernel features if there are any, also log-sum-exp.
            is_last = len(views) == len(names) - 1
            here = heads if is_last else heads[:1]
            views.append(View(state, here, standardise(centred)))
        return views

    def _solve(self, data: LocationData, encoding: Encoding) -> None:
        kind, dtype = encoding.kind, data.dtype
        # Many small products: threads of the linear algebra would wait for each other.
        with threadpool_limits(limits=1, user_api="blas"):
            data, order = self._ordered(data, kind)
            views = self._views(data, kind)
            if self.alpha == "auto":
                stack = fit_stack(views, self._given_choice or choose(views))
                self.selection_ = [asdict(one) for one in stack.candidates]
            else:
                stack = fit_stack(views, one_head(views, float(self.alpha)))
        self._keep(stack, order, encoding, dtype)
        self._keep_targets(encoding)

    def _settings(self, kind: AbstractLoss, head: str) -> HeadSettings:
        # Less than this is less than the rounding errors of a correlation.
        shrinkage = None if self.shrinkage is None else max(self.shrinkage, 1e-12)
        return HeadSettings(
            head=head,
            kind=kind,
            alpha=0.0 if self.alpha == "auto" else float(self.alpha),
            l1_ratio=float(self.l1_ratio),
            coherence=float(self.coherence),
            shrinkage=shrinkage,
            has_intercept=bool(self.fit_intercept),
            max_iter=int(self.max_iter),
            tol=float(self.tol),
            n_heads=int(self.n_heads),
        )

    def _keep(
        self,
        stack: Stack,
        order: NDArray[np.int64],
        encoding: Encoding,
        dtype: np.dtype[Any],
    ) -> None:
        """Keep what was fitted, in the units and the order of the targets."""
        is_exchanged = len(order) == 1 and order[0] == 1
        places = np.zeros(1, dtype=np.int64) if is_exchanged else order
        turn = -1.0 if is_exchanged else 1.0
        unit, shift = encoding.units()
        intercepts = np.zeros(len(order))
        intercepts[places] = turn * stack.intercepts
        self._members = []
        for candidate, solution in stack.members:
            ordered = solution.with_outputs(places, int(self.n_heads))
            scale = turn * candidate.sign * candidate.weight
            constant = np.zeros(len(order))
            constant[places] = stack.constant * candidate.sign
            intercepts += scale * (ordered.intercepts - constant)
            rows = ordered.rows.astype(dtype).astype(np.float64)
            self._members.append(
                Member(
                    candidate.view,
                    solution.head,
                    rows,
                    np.broadcast_to(scale * np.asarray(unit), (len(order),)),
                    solution.center,
                    solution.precision,
                )
            )
        intercepts = shift + unit * intercepts
        self._keep_leading(stack, intercepts, dtype)
        self._warn(stack)

    def _keep_leading(
        self, stack: Stack, intercepts: FloatArray, dtype: np.dtype[Any]
    ) -> None:
        """Keep the coefficients of the member with the largest share of the outputs."""
        chosen = [candidate for candidate, _ in stack.members]
        attention = sum(c.share for c in chosen if c.pooling == "attention")
        self.pooling_ = "attention" if attention >= 0.5 else chosen[-1].pooling
        of_kind = [i for i, c in enumerate(chosen) if c.pooling == self.pooling_]
        best = max(of_kind, key=lambda i: chosen[i].share)
        self.alpha_, self.output_scale_ = chosen[best].alpha, chosen[best].weight
        solution = stack.members[best][1]
        self.n_iter_, self.objective_ = solution.n_iter, solution.objective
        self.start_ = solution.start
        self._leading, n_outputs = self._members[best], len(intercepts)
        leading = self._leading
        if self._maps[leading.view] is not None:
            self.feature_map_ = self._maps[leading.view].transformer
        elif hasattr(self, "feature_map_"):
            del self.feature_map_
        self.center_ = leading.center.astype(dtype)
        rows = leading.rows.reshape(-1, 1 + n_outputs, leading.rows.shape[1])
        keys, values = rows[:, 0], leading.scale[:, None] * rows[:, 1:]
        if leading.head == "radial":
            radius = keys[:, -1].astype(dtype)
            self.coef_radius_ = float(radius[0]) if len(radius) == 1 else radius
            self.precision_ = np.asarray(leading.precision).astype(dtype)
            keys, values = keys[:, :-1], values[:, :, :-1]
        if leading.head == "sigmoid":
            offsets = np.column_stack([keys[:, -1], values[:, :, -1]]).astype(dtype)
            self.coef_offset_ = offsets[0] if len(offsets) == 1 else offsets
            keys, values = keys[:, :-1], values[:, :, :-1]
        if leading.head == "logsumexp":
            keys = rows[:, 1]
        self.coef_key_ = (keys[0] if len(keys) == 1 else keys).astype(dtype)
        self._keep_values(values.astype(dtype), intercepts)

    @abstractmethod
    def _keep_values(self, values: FloatArray, intercepts: FloatArray) -> None:
        """Keep values (heads, outputs, features) and intercepts in public shapes."""

    def _warn(self, stack: Stack) -> None:
        for _, solution in stack.members:
            if not solution.converged:
                warnings.warn(
                    f"{type(self).__name__}: the optimiser stopped after "
                    f"{solution.n_iter} iterations without converging. Raise "
                    "`max_iter`, `tol` or `alpha`.",
                    ConvergenceWarning,
                    stacklevel=5,
                )
                return

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")


@dataclass(frozen=True)
class Member:
    """A fitted part of the output: heads, in the features of a map, times a scale."""

    view: int
    head: str
    rows: FloatArray
    scale: FloatArray
    center: FloatArray
    precision: FloatArray | None

    def scoring_rows(self) -> FloatArray:
        """Return the coefficients of the scores, one row per head."""
        per_head = 1 + len(self.scale)
        return self.rows[(1 if self.head == "logsumexp" else 0) :: per_head]
