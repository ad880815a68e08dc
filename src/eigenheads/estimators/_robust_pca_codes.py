"""Codes, errors and scores of rows under a fitted low-rank part."""

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import Got, fail, without_traps
from eigenheads._rng import random_source
from eigenheads.estimators._robust_pca_pursuit import (
    AUTO_TOL,
    SETTLED,
    LowRankSplit,
    pursue_rows,
)
from eigenheads.estimators._robust_pca_selection import HIDDEN


class RobustCodes(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Methods of :class:`RobustPCA` that need no training data."""

    components_: NDArray[np.floating]
    mean_: NDArray[np.floating]
    residual_: NDArray[np.floating]
    n_components_: int
    tol: float | str
    max_iter: int
    verbose: int
    _codes: NDArray[np.floating]
    _sparse: Any
    _split: LowRankSplit

    def transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the codes of rows, robust to wrong and missing entries.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing. A row without any value gets the code 0.

        Returns
        -------
        codes : ndarray of shape (n_samples, n_components)
            The minimisers :math:`z` that the class describes.
        """
        codes, _ = self._pursue(X)
        return codes[:, : self.n_components_]

    def sparse_of(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the errors of rows: how wrong each entry is.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        Returns
        -------
        sparse : ndarray of shape (n_samples, n_features)
            Difference from the low-rank part; zero at entries considered correct, and
            at missing ones.
        """
        return self._pursue(X)[1]

    def score_samples(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return minus the length of the errors of each row; lower is more outlying.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            At most zero.
        """
        scores: NDArray[np.floating] = -np.linalg.norm(self._pursue(X)[1], axis=1)
        return scores

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return minus the mean absolute error of hidden entries.

        A tenth of the known entries, the same for all data of one shape, is hidden and
        predicted from the others. Use it with ``GridSearchCV``, but not for `sparsity`
        if errors are connected: the rest of a wrong block predicts its hidden entry.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        y : Ignored
            Not used, present for consistency.

        Returns
        -------
        score : float
            At most zero; larger is better.
        """
        check_is_fitted(self)
        rows = self._read(X, reset=False)
        chance = random_source(0).random_sample(rows.shape)
        hidden = (chance < HIDDEN) & ~np.isnan(rows)
        if not hidden.any():
            return 0.0
        codes = self._pursue(np.where(hidden, np.nan, rows))[0]
        guess = codes[:, : self.n_components_] @ self.components_ + self.mean_
        return -float(np.abs(guess - rows)[hidden].mean(dtype=np.float64))

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the rows without errors that have the given codes.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_components)
            Codes.

        Returns
        -------
        rows : ndarray of shape (n_samples, n_features)
            ``X @ components_ + mean_``.
        """
        check_is_fitted(self)
        X = without_traps("X", X)
        codes = check_array(X, dtype=[np.float64, np.float32], ensure_min_features=0)
        if codes.shape[1] != self.n_components_:
            contract = f"codes of shape (n_samples, {self.n_components_})"
            fail("X", contract, Got(codes.shape))
        return codes @ self.components_ + self.mean_

    @property
    def low_rank_(self) -> NDArray[np.floating]:
        """Low-rank part of the training data."""
        check_is_fitted(self)
        right = self._split.components.astype(self.mean_.dtype)
        return self._codes @ right + self.mean_

    @property
    def sparse_(self) -> NDArray[np.floating]:
        """Sparse part of the training data."""
        check_is_fitted(self)
        stored = self._sparse
        return stored.toarray() if issparse(stored) else stored

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _pursue(
        self, X: ArrayLike
    ) -> tuple[NDArray[np.floating], NDArray[np.floating]]:
        """Return all codes and the sparse parts of rows."""
        check_is_fitted(self)
        rows = self._read(X, reset=False)
        tol, most = self._row_tolerance(), 10 * int(self.max_iter)
        codes, sparse, n_unfinished = pursue_rows(
            rows, self._split, tol=tol, max_iter=most
        )
        if n_unfinished:
            what = f"{n_unfinished} of {len(rows)} rows did not converge"
            self._warn(what, most, tol, stacklevel=5)
        return codes.astype(rows.dtype), sparse.astype(rows.dtype)

    def _read(self, X: Any, *, reset: bool) -> NDArray[np.floating]:
        X = without_traps("X", X)
        data: NDArray[np.floating] = validate_data(
            self,
            X.toarray() if issparse(X) else X,
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
            reset=reset,
        )
        if reset:
            empty = np.flatnonzero(np.isnan(data).all(axis=0))
            if len(empty):
                got = Got(f"no value at all in column {empty[0]}")
                hint = "Drop such columns."
                contract = "data with a value in every column"
                fail("X", contract, got, hint=hint)
        return data

    def _tolerances(self) -> tuple[float, float | None]:
        """Return the bound of the residuals, and of the change of the objective."""
        if self.tol == "auto":
            return AUTO_TOL, SETTLED
        return float(self.tol), None

    def _row_tolerance(self) -> float:
        """Return the bound of the residuals of rows.

        If the fit has settled at a larger residual, its components are not more
        accurate than that, and rows stop at a tenth of it (at least 1e-5, at most
        1e-3).
        """
        tol, reached = self._tolerances()[0], float(self.residual_[-1])
        if self.tol == "auto" and reached > tol:
            return min(max(reached / 10, 1e-5), 1e-3)
        return tol

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")

    def _warn(self, what: str, n_iter: int, tol: float, *, stacklevel: int) -> None:
        warnings.warn(
            f"{type(self).__name__}: {what} after {n_iter} iterations, "
            f"above tol={tol:g}. Raise `max_iter` or `tol`.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )


def stored(sparse: NDArray[np.floating]) -> Any:
    """Return a matrix in the smaller of two forms."""
    # A stored entry has an index of 4 bytes.
    share = sparse.dtype.itemsize / (sparse.dtype.itemsize + 4)
    is_sparse = np.count_nonzero(sparse) < 0.9 * share * sparse.size
    return csr_array(sparse) if is_sparse else sparse
