"""Codes, errors and outlier scores of rows under a fitted low-rank part."""

import sys
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import csr_array, issparse
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    OutlierMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import Got, fail, without_traps
from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._robust_pca_pursuit import (
    AUTO_TOL,
    SETTLED,
    LowRankSplit,
)
from eigenheads.estimators._robust_pca_splitting import RowFactors, SparseSplitting

# Rows that are worked on together: a few arrays of this many entries.
_BLOCK_ENTRIES = 2_000_000
# Share of the known entries that `score` hides.
_HIDDEN = 0.1


class RobustRows(
    ClassNamePrefixFeaturesOutMixin, TransformerMixin, OutlierMixin, BaseEstimator
):
    """Methods of :class:`RobustPCA` that need no training data."""

    components_: NDArray[np.floating]
    mean_: NDArray[np.floating]
    residual_: NDArray[np.floating]
    n_components_: int
    offset_: float
    tol: float | str
    max_iter: int
    verbose: int
    _codes: NDArray[np.floating]
    _sparse: Any
    _split: LowRankSplit
    _null_scores: FloatArray

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
        return self._pursue(X)[0][:, : self.n_components_]

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

    def sparse_of(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return the errors of rows: how wrong each cell is.

        Its absolute values rank the cells that make a row an outlier.

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
        """Return minus the distance of each row from its low-rank part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        Returns
        -------
        scores : ndarray of shape (n_samples,)
            At most zero; lower is more outlying. Without `noise` the distance is the
            length of the errors.
        """
        return -self._pursue(X)[2]

    def decision_function(self, X: ArrayLike) -> NDArray[np.floating]:
        """Return how far each row is from being called an outlier.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        Returns
        -------
        decisions : ndarray of shape (n_samples,)
            ``score_samples(X) - offset_``; negative for outliers.
        """
        return self.score_samples(X) - self.offset_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return -1 for outliers and 1 for other rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Rows; NaN where a value is missing.

        Returns
        -------
        signs : ndarray of shape (n_samples,)
            -1 where `decision_function` is negative.
        """
        return np.where(self.decision_function(X) < 0, -1, 1)

    def p_values(self, X: ArrayLike) -> FloatArray:
        """Return the probability that an ordinary row is as outlying, for each row.

        They are conformal: an ordinary row, exchangeable with the rows that the fit
        held out, has a value of at most `p` with at most this probability. To keep
        the expected share of ordinary rows among those reported below 10 %, report
        where ``scipy.stats.false_discovery_control(p_values) <= 0.1``.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            New rows; NaN where a value is missing.

        Returns
        -------
        p_values : ndarray of shape (n_samples,)
            At least one over the number of held-out rows plus one.
        """
        scores = self.score_samples(X)
        if not len(self._null_scores):
            hint = "Fit with it, so that rows are held out."
            fail("false_positive_rate", "a number below 1", None, hint=hint)
        n_lower = np.searchsorted(self._null_scores, scores, side="right")
        p_values: FloatArray = (1 + n_lower) / np.float64(1 + len(self._null_scores))
        return p_values

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
        hidden = (chance < _HIDDEN) & ~np.isnan(rows)
        if not hidden.any():
            return 0.0
        codes = self.transform(np.where(hidden, np.nan, rows))
        guess = codes @ self.components_ + self.mean_
        return -float(np.abs(guess - rows)[hidden].mean(dtype=np.float64))

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

    def _pursue(self, X: ArrayLike) -> tuple[NDArray[np.floating], ...]:
        """Return all codes, the sparse parts and the distances of rows."""
        check_is_fitted(self)
        return self._pursue_read(self._read(X, reset=False))

    def _pursue_read(self, rows: NDArray[np.floating]) -> tuple[NDArray[Any], ...]:
        tol, most = self._tolerances()[0], 10 * int(self.max_iter)
        if self.tol == "auto" and self.residual_[-1] > tol:
            # The components are not more accurate than this.
            tol = min(max(float(self.residual_[-1]) / 10, 1e-5), 1e-3)
        *found, n_open = pursue_rows(rows, self._split, tol=tol, max_iter=most)
        if n_open:
            what = f"{n_open} of {len(rows)} rows did not converge"
            self._warn(what, most, tol, stacklevel=6)
        return tuple(array.astype(rows.dtype) for array in found)

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
        return data

    def _tolerances(self) -> tuple[float, float | None]:
        """Return the bound of the residuals, and of the change of the objective."""
        if self.tol == "auto":
            return AUTO_TOL, SETTLED
        return float(self.tol), None

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


def pursue_rows(
    rows: NDArray[Any], split: LowRankSplit, *, tol: float, max_iter: int
) -> tuple[FloatArray, FloatArray, FloatArray, int]:
    """Return codes, sparse parts and distances of rows, and how many did not converge.

    NaN is an entry that was not observed.
    """
    codes = np.zeros((len(rows), len(split.components)))
    sparse, distances = np.empty(rows.shape), np.empty(len(rows))
    n_open = 0
    size = max(1, _BLOCK_ENTRIES // rows.shape[1])
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        block = rows[part].astype(np.float64)
        observed = ~np.isnan(block)
        centred = np.where(observed, block - split.mean, 0.0)
        if np.isinf(split.errors.sparsity):
            codes[part] = _least_squares(centred, observed, split)
            remainder = centred - codes[part] @ split.components
        else:
            codes[part], remainder, n_left = _pursue_block(
                centred, observed, split, tol, max_iter
            )
            n_open += n_left
        remainder *= observed
        sparse[part] = split.errors.sparse(remainder)
        distances[part] = np.linalg.norm(remainder, axis=1)
    return codes, sparse, distances, n_open


def _least_squares(
    centred: FloatArray, observed: NDArray[np.bool_], split: LowRankSplit
) -> FloatArray:
    """Return the codes of rows without errors, the limit of an infinite price."""
    root = np.sqrt(split.singular_values)
    factor = split.components.T * root
    largest = float(split.singular_values.max(initial=0.0))
    ridge = max(split.errors.noise, 1e-10 * largest) * np.eye(len(root))
    codes = np.zeros((len(centred), len(root)))
    for index, (row, is_known) in enumerate(zip(centred, observed, strict=True)):
        known = factor[is_known]
        codes[index] = root * np.linalg.solve(
            known.T @ known + ridge, known.T @ row[is_known]
        )
    return codes


def _pursue_block(
    centred: FloatArray,
    observed: NDArray[np.bool_],
    split: LowRankSplit,
    tol: float,
    max_iter: int,
) -> tuple[FloatArray, FloatArray, int]:
    w, sizes = split.components, split.singular_values
    codes, remainder = np.zeros((len(centred), len(w))), centred.copy()
    if not len(w):  # without components all that differs from the mean is an error
        return codes, remainder, 0

    def prox(x: FloatArray, penalty: FloatArray) -> RowFactors:
        """Of half the sum of squared codes over singular values, in the subspace."""
        shrunk = penalty * sizes / (1 + penalty * sizes)
        return RowFactors(shrunk * (x @ w.T), w)

    splitting = SparseSplitting(
        centred,
        None if observed.all() else observed,
        prox=prox,
        errors=split.errors,
        by_row=True,
    )
    going, n_left = np.arange(len(centred)), 0
    while len(going):
        splitting.step()
        is_open = splitting.residual[:, 0] > tol
        is_going = is_open & (splitting.n_iter < max_iter)
        # Rows that have converged leave the block, so that the others cost less.
        if not is_going.all():
            n_left = int(np.count_nonzero(is_open & ~is_going))
            done = going[~is_going]
            codes[done] = splitting.low_rank.left[~is_going]
            remainder[done] = splitting.remainder(slice(None))[~is_going]
            going = going[is_going]
            splitting.keep(is_going)
    return codes, remainder, n_left
