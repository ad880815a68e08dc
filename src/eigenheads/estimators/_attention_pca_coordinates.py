"""Coordinates of rows along principal components."""

import sys
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import Got, fail, without_traps
from eigenheads.estimators._batches import is_dask, row_blocks


class PrincipalCoordinates(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """Methods of :class:`AttentionPCA` that need no training data."""

    components_: NDArray[np.floating[Any]]
    mean_: NDArray[np.floating[Any]]
    verbose: int

    def transform(self, X: Any) -> NDArray[np.floating[Any]]:
        """Return the coordinates of rows along the components.

        Parameters
        ----------
        X : array-like or sparse matrix of shape (n_samples, n_features), or Dask array
            Rows; of a Dask array one chunk is in memory at a time.

        Returns
        -------
        X_new : ndarray of shape (n_samples, n_components)
            Coordinates.
        """
        if is_dask(X):
            return np.concatenate([self.transform(block) for block in row_blocks(X)])
        check_is_fitted(self)
        rows = self._read(X, reset=False, accept_sparse="csr")
        turn = self.components_.T.astype(rows.dtype)
        mean = self.mean_.astype(rows.dtype)
        if issparse(rows):
            return np.asarray(rows @ turn) - mean @ turn
        projected: NDArray[np.floating[Any]] = (rows - mean) @ turn
        return projected

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating[Any]]:
        """Return the rows that have given coordinates.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Coordinates.

        Returns
        -------
        X_original : ndarray of shape (n_samples, n_features)
            Points of the span of the components.
        """
        check_is_fitted(self)
        X = without_traps("X", X, owner=type(self).__name__)
        scores = check_array(X, dtype=[np.float64, np.float32], input_name="X")
        k = len(self.components_)
        if scores.shape[1] != k:
            contract = f"of shape (n_samples, {k})"
            fail("X", contract, Got(scores.shape), owner=type(self).__name__)
        back: NDArray[np.floating[Any]] = scores @ self.components_.astype(
            scores.dtype
        ) + self.mean_.astype(scores.dtype)
        return back

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")

    def _read(self, X: ArrayLike, *, reset: bool, **options: Any) -> Any:
        X = without_traps("X", X, owner=type(self).__name__)
        return validate_data(
            self, X, dtype=[np.float64, np.float32], reset=reset, **options
        )
