"""Principal components of data with gross errors and missing values."""

import sys
import warnings
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import Tags, check_array
from sklearn.utils.validation import check_is_fitted, validate_data

from eigenheads._checks import (
    Got,
    check_count,
    check_positive,
    fail,
    without_traps,
)
from eigenheads.estimators._robust_pca_pursuit import (
    LowRankSplit,
    principal_component_pursuit,
    pursue_rows,
)


class RobustPCA(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    r"""Principal components of data with some grossly wrong entries.

    Principal component pursuit [1]_ with a free mean splits the data into
    :math:`X = L + S`, where :math:`L` has few principal components and :math:`S` has
    few non-zero entries of any size:

    .. math::

        \min_{L, S} \; \lVert L - \mathbf 1 \bar L^\top \rVert_*
        + \lambda \lVert S \rVert_1
        \quad \text{such that } L + S = X \text{ where } X \text{ is observed},

    with the column means :math:`\bar L`. Missing values (NaN) are left out.

    A row, of the training data or new, has the code

    .. math::

        z(x) = \arg\min_z \; \tfrac12 \sum_k \frac{z_k^2}{\sigma_k}
        + \lambda \sum_{j \text{ observed}} |x_j - \bar L_j - (W z)_j|,

    with all components :math:`W` and singular values :math:`\sigma` of the low-rank
    part: the pursuit of one row, with the components and the mean held fixed. For
    training rows it returns the codes of :math:`L` (see Notes).

    Parameters
    ----------
    n_components : int or None, default=None
        Largest number of components to keep; None keeps as many as the low-rank part
        has. The pursuit itself finds the rank and does not depend on this number.

    sparsity : float, default=1.0
        Penalty of :math:`S`: :math:`\lambda` is `sparsity` divided by
        :math:`\sqrt{q \max(n, d)}`, for `n` rows, `d` columns and the share `q` of
        observed entries. With 1.0, the choice of [1]_, exact recovery is proved. Larger
        values leave more of the data in :math:`L`, for data with dense noise.

    tol : float, default=1e-06
        The pursuit stops when both relative residuals are smaller; see Notes.

    max_iter : int, default=1000
        Largest number of iterations of `fit`. `transform`, whose iterations are cheap
        and stop row by row, may take ten times as many.

    verbose : int, default=0
        If positive, print the residuals every 10 iterations.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal rows :math:`W^\top`, by decreasing singular value; the entry of
        largest magnitude of each is positive.

    mean_ : ndarray of shape (n_features,)
        Column means of the low-rank part.

    low_rank_ : ndarray of shape (n_samples, n_features)
        :math:`L`, with its mean; also where values are missing.

    sparse_ : ndarray of shape (n_samples, n_features)
        :math:`S`; exactly zero at entries considered correct, and at missing ones.

    singular_values_ : ndarray of shape (n_components,)
        Of the centred low-rank part.

    explained_variance_ : ndarray of shape (n_components,)
        Variance of the low-rank part along each component.

    explained_variance_ratio_ : ndarray of shape (n_components,)
        Its share in the variance of the low-rank part.

    n_components_ : int
        Number of components kept, at most `rank_`.

    rank_ : int
        Rank of the centred low-rank part.

    sparsity_ : float
        :math:`\lambda`.

    objective_ : ndarray of shape (n_iter,)
        The objective at every iterate :math:`L`, with :math:`S = X - L`.

    residual_ : ndarray of shape (n_iter,)
        The larger relative residual per iteration, which is compared with `tol`.

    duality_gap_ : float
        Relative distance of the last objective from a lower bound of the minimum.

    n_iter_ : int
        Number of iterations.

    n_features_in_ : int
        Number of features seen during `fit`.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, if the data had any.

    See Also
    --------
    sklearn.decomposition.PCA : For data without gross errors.
    eigenheads.functional.singular_value_threshold : The step that reduces the rank.
    eigenheads.functional.soft_threshold : The step that yields the sparse part.

    Notes
    -----
    *Codes of training rows.* The nuclear norm of a centred matrix is the least value of
    :math:`\tfrac12 \lVert A \rVert_F^2 + \tfrac12 \lVert B \rVert_F^2` over its
    factorisations :math:`A B^\top`, reached at :math:`B = W \Sigma^{1/2}`. With that
    :math:`B` fixed, the pursuit separates into one strictly convex problem per row, the
    one of :math:`z`. So ``fit_transform(X)`` and ``fit(X).transform(X)`` agree up to
    `tol`.

    *Convergence.* Both problems are solved by Douglas-Rachford splitting, which
    converges to a minimum for every fixed penalty, with a residual that never grows
    [2]_; the penalty is balanced finitely often. The two residuals are
    :math:`\lVert X - L - S \rVert_F / \lVert L \rVert_F` and the relative step of
    :math:`S` in units of the multiplier; both vanish only at a minimum. A rule that
    uses the first alone, as is common with growing penalties, stops at points that are
    not a minimum. See the theory page on the pursuit.

    An iteration costs O(n d min(n, d)). Computations are in double precision, results
    have the precision of `X`. The result scales with `X`, but depends on the units of
    the features relative to each other, as that of PCA does.

    References
    ----------
    .. [1] Candès, Li, Ma, Wright, Robust principal component analysis?, J. ACM 58
       (2011), Theorems 1.1 and 1.2.
    .. [2] Eckstein, Bertsekas, On the Douglas-Rachford splitting method and the
       proximal point algorithm for maximal monotone operators, Math. Program. 55
       (1992), Theorem 8.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.estimators import RobustPCA
    >>> rng = np.random.default_rng(0)
    >>> clean = rng.standard_normal((100, 2)) @ rng.standard_normal((2, 40))
    >>> X = np.where(rng.random(clean.shape) < 0.05, 100.0, clean)
    >>> model = RobustPCA().fit(X)
    >>> model.rank_
    2
    >>> bool(np.abs(model.low_rank_ - clean).max() < 1e-4)
    True
    >>> cleaned = model.inverse_transform(model.transform(X[:5]))
    >>> bool(np.abs(cleaned - clean[:5]).max() < 1e-4)
    True
    """

    components_: NDArray[np.floating]
    mean_: NDArray[np.floating]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        sparsity: float = 1.0,
        tol: float = 1e-6,
        max_iter: int = 1000,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.sparsity = sparsity
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Split the data and keep the principal components of the low-rank part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training data; NaN where a value is missing.

        y : Ignored
            Not used, present for consistency.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._fit(X)
        return self

    def fit_transform(self, X: ArrayLike, y: object = None) -> NDArray[np.floating]:
        """Fit, and return the codes of the training rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training data; NaN where a value is missing.

        y : Ignored
            Not used, present for consistency.

        Returns
        -------
        codes : ndarray of shape (n_samples, n_components)
            Codes of the low-rank part.
        """
        self._fit(X)
        return (self.low_rank_ - self.mean_) @ self.components_.T

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
        check_is_fitted(self)
        rows = self._read(X, reset=False)
        codes, n_unfinished = pursue_rows(
            rows.astype(np.float64),
            self._pursuit,
            tol=float(self.tol),
            max_iter=10 * int(self.max_iter),
        )
        if n_unfinished:
            what = f"{n_unfinished} of {len(rows)} rows did not converge"
            self._warn(what, 10 * int(self.max_iter), stacklevel=4)
        return codes[:, : self.n_components_].astype(rows.dtype)

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
        X = without_traps("X", X, owner=type(self).__name__)
        codes = check_array(X, dtype=[np.float64, np.float32], ensure_min_features=0)
        if codes.shape[1] != self.n_components_:
            contract = f"codes of shape (n_samples, {self.n_components_})"
            fail("X", contract, Got(codes.shape), owner=type(self).__name__)
        return codes @ self.components_ + self.mean_

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _n_features_out(self) -> int:
        return self.n_components_

    def _fit(self, X: ArrayLike) -> None:
        self._check_parameters()
        data = self._read(X, reset=True)
        if self.n_components is not None:
            largest, owner = min(data.shape), type(self).__name__
            check_count("n_components", self.n_components, owner=owner, maximum=largest)
        pursuit = principal_component_pursuit(
            data.astype(np.float64),
            relative_sparsity=float(self.sparsity),
            tol=float(self.tol),
            max_iter=int(self.max_iter),
            report=self._report,
        )
        self._keep(pursuit, data.dtype)

    def _keep(self, pursuit: LowRankSplit, dtype: np.dtype[Any]) -> None:
        rank = len(pursuit.singular_values)
        kept = rank if self.n_components is None else min(rank, int(self.n_components))
        sizes = pursuit.singular_values
        variances = sizes**2 / (len(pursuit.low_rank) - 1)
        shares = (sizes / np.linalg.norm(sizes)) ** 2 if rank else sizes
        # `transform` cleans with all components, whatever number it returns.
        self._pursuit = pursuit.without_data()
        self.n_components_, self.rank_ = kept, rank
        self.components_ = pursuit.components[:kept].astype(dtype)
        self.mean_ = pursuit.mean.astype(dtype)
        self.low_rank_ = pursuit.low_rank.astype(dtype)
        self.sparse_ = pursuit.sparse.astype(dtype)
        self.singular_values_ = pursuit.singular_values[:kept].astype(dtype)
        self.explained_variance_ = variances[:kept].astype(dtype)
        self.explained_variance_ratio_ = shares[:kept].astype(dtype)
        self.sparsity_ = pursuit.sparsity
        self.objective_, self.residual_ = pursuit.objective, pursuit.residual
        self.duality_gap_, self.n_iter_ = pursuit.duality_gap, len(pursuit.residual)
        if pursuit.residual[-1] > self.tol:
            what = f"the residual is {pursuit.residual[-1]:.1e}"
            self._warn(what, self.n_iter_, stacklevel=5)
        if not rank:
            why = "no value varies"
            if pursuit.sparse.any():
                why = "the sparse part contains all variation. Raise `sparsity`"
            warnings.warn(
                f"{type(self).__name__}: no components; {why}.",
                UserWarning,
                stacklevel=4,
            )

    def _read(self, X: ArrayLike, *, reset: bool) -> NDArray[np.floating]:
        X = without_traps("X", X, owner=type(self).__name__)
        data: NDArray[np.floating] = validate_data(
            self,
            X,
            dtype=[np.float64, np.float32],
            ensure_all_finite="allow-nan",
            ensure_min_samples=2 if reset else 1,
            reset=reset,
        )
        if reset:
            empty = np.flatnonzero(np.isnan(data).all(axis=0))
            if len(empty):
                got = Got(f"no value at all in column {empty[0]}")
                owner, hint = type(self).__name__, "Drop such columns."
                contract = "data with a value in every column"
                fail("X", contract, got, owner=owner, hint=hint)
        return data

    def _check_parameters(self) -> None:
        owner = type(self).__name__
        check_positive("sparsity", self.sparsity, owner=owner)
        check_positive("tol", self.tol, owner=owner)
        check_count("max_iter", self.max_iter, owner=owner)

    def _report(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")

    def _warn(self, what: str, n_iter: int, *, stacklevel: int) -> None:
        warnings.warn(
            f"{type(self).__name__}: {what} after {n_iter} iterations, "
            f"above tol={self.tol:g}. Raise `max_iter` or `tol`.",
            ConvergenceWarning,
            stacklevel=stacklevel,
        )
