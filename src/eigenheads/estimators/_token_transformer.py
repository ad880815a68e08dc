"""Apply a scikit-learn transformer to the tokens of bags."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from sklearn import get_config
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import check_choice, check_items, check_text
from eigenheads._errors import require
from eigenheads.estimators._bags import (
    as_given,
    check_is_no_groupby,
    is_frame,
    read_bags,
)
from eigenheads.estimators._batches import (
    Batch,
    is_dask,
    is_stream,
    read_stream,
    row_blocks,
)
from eigenheads.estimators._feature_maps import MOST_TOKENS
from eigenheads.estimators._parameters import check_has_fit


def check_feature_names(names: object) -> None:
    """Raise unless names of features are texts, or None."""
    contract = "names of features, or None"
    if names is not None:
        for name in check_items("input_features", names, contract):
            check_text("input_features", name)


class TokenTransformer(TransformerMixin, BaseEstimator, auto_wrap_output_keys=None):  # type: ignore[call-arg]
    """Apply a transformer to every token, and keep the bags.

    The tokens of all bags are the rows on which the transformer is fitted; each bag is
    then transformed to a bag of the same length. Use it in front of an estimator of
    bags in a pipeline.

    Parameters
    ----------
    transformer : estimator
        Transformer of rows, such as ``StandardScaler()``. It is cloned.

    Attributes
    ----------
    transformer_ : estimator
        Fitted transformer.

    n_features_in_ : int
        Width of a token.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when the bags were DataFrames.

    See Also
    --------
    SingleLocationRegressor : Regression in which one token per bag decides.
    group_bags : Cut a long table into bags.

    Notes
    -----
    Bags are given in any layout that the estimators of bags take, and returned as a
    list of arrays. An array with two axes, whose rows are bags of one token, stays one.
    Targets belong to bags and not to tokens, so the transformer is fitted without them.
    If bags are DataFrames, the transformer gets one too, so that a
    ``ColumnTransformer`` can name columns.

    Batches ``(bags, targets)`` or ``(bags, targets, weights)``, from a callable or an
    object that can be iterated repeatedly, are transformed to such a callable. A
    transformer with ``partial_fit`` sees all of them, another one the first 100 000
    tokens.

    With ``set_output(transform="pandas")``, or ``transform_output="pandas"`` in the
    configuration of scikit-learn, bags are DataFrames.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from eigenheads.estimators import SingleLocationClassifier, TokenTransformer
    >>> rng = np.random.default_rng(0)
    >>> bags = [rng.standard_normal((n, 3)) for n in (2, 4, 3, 5)]
    >>> model = make_pipeline(
    ...     TokenTransformer(StandardScaler()), SingleLocationClassifier(alpha=0.1)
    ... )
    >>> model.fit(bags, [0, 1, 0, 1]).predict(bags).shape
    (4,)
    """

    _output: str | None = None
    _frame: Any = None

    def __init__(self, transformer: Any) -> None:
        self.transformer = transformer

    def fit(self, X: Any, y: object = None) -> Self:
        """Fit the transformer to the tokens of all bags.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags; NaN are passed on to the transformer.

        y : Ignored
            Present for consistency.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        check_has_fit("transformer", self.transformer)
        check_is_no_groupby(X)
        transformer = clone(self.transformer)
        if is_stream(X, y):
            self.transformer_ = self._fit_batches(transformer, X)
            return self
        tokens = read_bags(self, X, reset=True, allow_nan=True).tokens
        self._keep_frame(X)
        self.transformer_ = transformer.fit(self._rows(tokens))
        return self

    def _keep_frame(self, X: Any) -> None:
        """Keep the type of bags that are DataFrames with names."""
        first = X[0] if isinstance(X, list | tuple) else X
        is_named = is_frame(first) and hasattr(self, "feature_names_in_")
        self._frame = type(first) if is_named else None

    def _rows(self, tokens: NDArray[Any]) -> Any:
        """Return tokens as the transformer gets them: with names, if bags have."""
        if self._frame is None:
            return tokens
        names_of = "columns" if hasattr(self._frame, "iloc") else "schema"
        return self._frame(tokens, **{names_of: list(self.feature_names_in_)})

    def _fit_batches(self, transformer: Any, X: Any) -> Any:
        """Fit to all batches, or to the first tokens if the transformer must."""
        blocks, n_kept = [], 0
        for index, (batch, *_) in enumerate(self._batches(X)):
            bags = read_bags(self, batch, reset=index == 0, allow_nan=True)
            if index == 0:
                self._keep_frame(batch)
            if hasattr(transformer, "partial_fit"):
                transformer.partial_fit(self._rows(bags.tokens))
                continue
            blocks.append(bags.tokens)
            n_kept += len(bags.tokens)
            if n_kept >= MOST_TOKENS:
                break
        if blocks:
            transformer.fit(self._rows(np.concatenate(blocks)))
        return transformer

    def transform(self, X: Any) -> Any:
        """Transform the tokens of each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags; NaN are passed on to the transformer.

        Returns
        -------
        bags : list of ndarray of shape (n_tokens, n_features_out), or ndarray
            Transformed bags.
        """
        check_is_fitted(self)
        check_is_no_groupby(X)
        if is_dask(X):
            blocks = [self.transform(block) for block in row_blocks(X)]
            return list(chain(*blocks)) if X.ndim == 3 else np.concatenate(blocks)
        if is_stream(X, None):
            return lambda: self._transformed_batches(X)
        bags = read_bags(self, X, reset=False, allow_nan=True)
        transformed = self.transformer_.transform(self._rows(bags.tokens))
        if issparse(transformed):
            transformed = transformed.toarray()
        split = as_given(X, bags, np.asarray(transformed))
        if (self._output or get_config()["transform_output"]) != "pandas":
            return split
        frame = require("pandas", "pandas", extra="frame").DataFrame
        names = list(self.get_feature_names_out())
        if not isinstance(split, list):
            return frame(split, columns=names)
        return [frame(bag, columns=names) for bag in split]

    def _batches(self, X: Any) -> Iterator[Batch]:
        if is_dask(X):
            return ((block,) for block in row_blocks(X))
        return read_stream(X)

    def _transformed_batches(self, X: Any) -> Iterator[Batch]:
        for bags, *labels in self._batches(X):
            yield (self.transform(bags), *labels)

    def set_output(self, *, transform: str | None = None) -> Self:
        """Choose whether bags are returned as arrays or as DataFrames.

        Parameters
        ----------
        transform : {"default", "pandas"} or None, default=None
            ``"pandas"`` returns DataFrames; None changes nothing.

        Returns
        -------
        self : object
            The transformer.
        """
        if transform is not None:
            check_choice("transform", transform, ("default", "pandas"))
            self._output = transform
        return self

    def __sklearn_clone__(self) -> Self:
        cloned = super().__sklearn_clone__()
        cloned._output = self._output  # as other transformers of scikit-learn
        return cloned

    def get_feature_names_out(self, input_features: Any = None) -> Any:
        """Return the names of the features of transformed tokens.

        Parameters
        ----------
        input_features : array-like of str or None, default=None
            Names of the features; None means those of `fit`.

        Returns
        -------
        names : ndarray of str
            Names that the transformer gives.
        """
        check_is_fitted(self)
        check_feature_names(input_features)
        if input_features is None:
            input_features = getattr(self, "feature_names_in_", None)
        return self.transformer_.get_feature_names_out(input_features)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags
