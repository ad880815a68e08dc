"""Apply a scikit-learn transformer to the tokens of bags."""

from typing import Any, Self

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.utils import Tags
from sklearn.utils.validation import check_is_fitted

from eigenheads.estimators._bags import as_given, read_bags


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
        tokens = read_bags(self, X, reset=True, allow_nan=True).tokens
        self.transformer_ = clone(self.transformer).fit(tokens)
        return self

    def transform(self, X: Any) -> Any:
        """Transform the tokens of each bag.

        Parameters
        ----------
        X : list of arrays of shape (n_tokens, n_features), or array
            Bags.

        Returns
        -------
        bags : list of ndarray of shape (n_tokens, n_features_out), or ndarray
            Transformed bags.
        """
        check_is_fitted(self)
        bags = read_bags(self, X, reset=False, allow_nan=True)
        transformed = self.transformer_.transform(bags.tokens)
        if issparse(transformed):
            transformed = transformed.toarray()
        return as_given(X, bags, np.asarray(transformed))

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags
