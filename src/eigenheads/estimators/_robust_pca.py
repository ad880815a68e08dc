"""Principal components of data with gross errors and missing values."""

import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_number,
    check_positive,
    fail,
)
from eigenheads._rng import random_source
from eigenheads.estimators._parameters import check_verbose
from eigenheads.estimators._robust_pca_pursuit import LowRankSplit, Pursuit, prepare
from eigenheads.estimators._robust_pca_rows import RobustRows, stored
from eigenheads.estimators._robust_pca_selection import (
    central_rows,
    choose_sparsity,
    estimate_noise,
    fitting_rows,
)
from eigenheads.estimators._robust_pca_splitting import ErrorPenalty
from eigenheads.estimators._signal_search import conformal_threshold, hold_out

# Share of the training rows that are called outliers if nothing is given.
_CONTAMINATION = 0.1


class RobustPCA(RobustRows):
    r"""Principal components of data with wrong or missing cells, and outlier detection.

    Robust PCA, PCA with missing values, and a detector of cellwise outliers that names
    the wrong cells, in new rows too. Principal component pursuit [1]_ with a free mean
    splits the data into :math:`X = L + S`, where :math:`L` has few principal components
    and :math:`S` has few non-zero entries of any size:

    .. math::

        \min_{L, S} \; \lVert L - \mathbf 1 \bar L^\top \rVert_*
        + \lambda \lVert S \rVert_1
        \quad \text{such that } L + S = X \text{ where } X \text{ is observed},

    with the column means :math:`\bar L`. Missing values (NaN) are left out. A row, of
    the training data or new, has the code

    .. math::

        z(x) = \arg\min_z \; \tfrac12 \sum_k \frac{z_k^2}{\sigma_k}
        + \lambda \sum_{j \text{ observed}} |x_j - \bar L_j - (W z)_j|,

    with all components :math:`W` and singular values :math:`\sigma` of the low-rank
    part: the pursuit of one row, with the components and the mean held fixed.

    *When plain PCA residuals find wrong cells better.* If wrong cells have values that
    are usual in their column, as when rows are mixed up, residuals of PCA rank them
    better: on digits with 3 % of the cells taken from other rows their average
    precision is 0.15, that of :meth:`sparse_of` 0.05. On digits with cells shifted by
    three deviations it is 0.45 against 0.67.

    Parameters
    ----------
    n_components : int, float or None, default=None
        Largest number of components to keep; None keeps as many as the low-rank part
        has. A number between 0 and 1 keeps as many as explain this share of its
        variance. The pursuit itself finds the rank and does not depend on this number.

    sparsity : float or "auto", default="auto"
        Penalty of :math:`S`: :math:`\lambda` is `sparsity` divided by
        :math:`\sqrt{q \max(n, d)}`, for `n` rows, `d` columns and the share `q` of
        observed entries (3 `sparsity` over :math:`\sqrt{q n}` for rows). 1.0 is the
        choice of [1]_ for which exact recovery is proved. Larger ones leave more of the
        data in :math:`L`; ``inf`` leaves all: PCA with missing values, exact for data
        of low rank with holes (for noisy data see `noise`). ``"auto"`` takes the value
        that best removes errors like those of the data (see Notes); it is 1.0 if the
        data are exactly low-rank up to errors, for errors in rows and for fewer than
        2000 entries.

    errors : {"entries", "rows"}, default="entries"
        Whether single entries are wrong, or whole rows. For rows :math:`\lVert S
        \rVert_1` is replaced by the sum of the lengths of the rows (outlier pursuit
        [3]_), and outlying rows are left out of the last fit. They are found by the
        lengths of their errors under a first fit to the three quarters of the rows that
        are least outlying (Stahel and Donoho), so at most a quarter may be outlying.

    noise : float or "auto", default=0.0
        Standard deviation of dense noise in all entries, beside the errors. If it is
        positive, :math:`X = L + S + E` with :math:`\lVert E \rVert_F^2 / (2 \nu)` in
        the objective (stable pursuit); :math:`\nu` is this number times
        :math:`\sqrt n + \sqrt d`, so that pure noise has no components. ``"auto"``
        estimates it robustly.

    contamination : float or None, default=None
        Share of the training rows that :meth:`predict` calls outliers. None is a tenth
        by the distances of the fit, which differ from those of :meth:`score_samples`
        by its accuracy; a number costs the codes of the training rows. Rows that the
        low-rank part fits exactly are never outliers.

    false_positive_rate : float or None, default=None
        If given, it replaces `contamination`: a new ordinary row is called an outlier
        with at most this probability (the false-alarm rate), whatever the distribution
        is, on average over draws of the rows. For that a fifth of the rows, up to half
        if fewer than one over the rate, is held out of the pursuit, and the threshold
        is a conformal quantile of their scores. Outliers among them make it cautious.

    tol : float or "auto", default="auto"
        The pursuit stops when both relative residuals are smaller; see Notes.
        ``"auto"`` is 1e-6, but stops earlier on data that are not low-rank up to errors
        if ten iterations change the objective by less than 0.05 %. `transform` then
        stops at about a tenth of the residual of the fit.

    max_iter : int, default=1000
        Largest number of iterations of `fit`. `transform`, whose iterations are cheap
        and stop row by row, may take ten times as many.

    verbose : int, default=0
        If positive, print the residuals at least every 10 iterations, also of the
        pursuits that choose `sparsity` and the noise.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal rows :math:`W^\top`, by decreasing singular value; the entry of
        largest magnitude of each is positive.

    mean_ : ndarray of shape (n_features,)
        Column means of the low-rank part.

    low_rank_ : ndarray of shape (n_samples, n_features)
        :math:`L`, with its mean; also where values are missing. It is computed from its
        factors on every access.

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

    relative_sparsity_ : float
        `sparsity`, given or chosen.

    sparsity_ : float
        :math:`\lambda`.

    noise_ : float
        Standard deviation of the noise, given or estimated.

    offset_ : float
        Rows whose score is lower are called outliers.

    support_ : ndarray of shape (n_samples,)
        Which rows the fit used: not those held out and, for errors in rows, not the
        outlying ones.

    candidates_ : ndarray of shape (n_candidates, 2)
        Values of `sparsity` that were tried last, and the root mean squared errors of
        their low-rank parts after errors were planted. Empty if nothing was chosen or
        the data are exactly low-rank up to errors.

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
    sklearn.ensemble.IsolationForest : Outliers that no linear relation shows.
    eigenheads.report.OutlierDisplay : Outlying rows and their wrong cells, drawn.

    Notes
    -----
    *Codes of training rows.* ``fit_transform(X)`` and ``fit(X).transform(X)`` agree up
    to `tol`, or to the last `residual_` if that is larger: with the components fixed
    the pursuit separates into the problems of the rows (Proposition 6 of the theory
    page on the pursuit).

    *Choice of the sparsity.* A pursuit with `sparsity` 1 finds errors, of which the
    larger class (Otsu's threshold) is hidden and planted into other rows, at the same
    columns. The candidate, a power of :math:`\sqrt 2`, whose low-rank part is nearest
    to the data before planting finds errors in turn, once; the result is the vertex of
    a parabola through the best three. Dense noise makes it too large (use
    ``noise="auto"``). Data without errors lose their largest deviations from the
    low-rank part, as with every fixed value.

    *Convergence.* Over-relaxed Douglas-Rachford splitting converges to a minimum [2]_.
    The two residuals are :math:`\lVert X - L - S \rVert_F / \lVert L \rVert_F` and the
    relative step of :math:`S` in units of the multiplier; both vanish only there.

    *Cost.* While the rank is below an eighth of the shorter side, an iteration costs
    O(n d rank), otherwise O(n d min(n, d)). Beside `X`, two arrays of its size are
    held, in its precision; choosing `sparsity` takes about ten arrays of at most
    400 000 entries. The result scales with `X`, but depends on the units of the
    features relative to each other, as that of PCA does.

    References
    ----------
    .. [1] Candès, Li, Ma, Wright, Robust principal component analysis?, J. ACM 58
       (2011), Theorems 1.1 and 1.2.
    .. [2] Eckstein, Bertsekas, On the Douglas-Rachford splitting method and the
       proximal point algorithm for maximal monotone operators, Math. Program. 55
       (1992), Theorem 8.
    .. [3] Xu, Caramanis, Sanghavi, Robust PCA via outlier pursuit, IEEE Trans. Inf.
       Theory 58 (2012).

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
    >>> row = clean[:1].copy()
    >>> row[0, 7] += 10
    >>> int(np.abs(model.sparse_of(row)).argmax())
    7
    """

    def __init__(
        self,
        n_components: int | float | None = None,
        *,
        sparsity: float | str = "auto",
        errors: str = "entries",
        noise: float | str = 0.0,
        contamination: float | None = None,
        false_positive_rate: float | None = None,
        tol: float | str = "auto",
        max_iter: int = 1000,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.sparsity = sparsity
        self.errors = errors
        self.noise = noise
        self.contamination = contamination
        self.false_positive_rate = false_positive_rate
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Split the data and keep the principal components of the low-rank part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training data; NaN where a value is missing. Sparse matrices are made
            dense.

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
        return self._codes[:, : self.n_components_].copy()

    def _fit(self, X: ArrayLike) -> None:
        self._check_parameters()
        data = self._read(X, reset=True)
        self._check_n_components(min(data.shape))
        used, held = np.ones(len(data), dtype=bool), self._held_out(len(data))
        used[held] = False
        empty = np.flatnonzero(np.isnan(data[used]).all(axis=0))
        if len(empty):
            got = Got(f"no value at all in column {empty[0]}")
            contract = "data with a value in every column"
            fail("X", contract, got, hint="Drop such columns.")
        if self.errors == "rows":
            # Many outlying rows would attract components, so the first fit is to the
            # central rows. It then decides about all.
            core = used.copy()
            core[used] = central_rows(data[used])
            self._pursue_all(data[core])
            lengths = self._pursue_read(data[used])[2].astype(np.float64)
            used[used] = fitting_rows(lengths, core[used])
            self._report(f"{used.sum()} of {len(used)} rows are fitted")
        distances = self._pursue_all(data if used.all() else data[used])
        self.support_ = used
        if not used.all():
            # Rows that were left out are coded as new ones are.
            fitted = self._codes, self.sparse_, distances
            others = self._pursue_read(data[~used])
            codes, sparse, distances = (
                _interleaved(used, *parts) for parts in zip(fitted, others, strict=True)
            )
            self._codes, self._sparse = codes, stored(sparse)
        self._null_scores = np.sort(-distances[held].astype(np.float64))
        if self.false_positive_rate is not None:
            rate = float(self.false_positive_rate)
            self.offset_ = -conformal_threshold(distances[held], rate)
            return
        share = _CONTAMINATION
        if self.contamination is not None:
            share, distances = float(self.contamination), self._pursue_read(data)[2]
        # Smaller distances than this are within the accuracy of the fit.
        size = float(np.linalg.norm(self._split.singular_values))
        least = float(self.residual_[-1]) * size / len(data) ** 0.5
        self.offset_ = -max(float(np.quantile(distances, 1 - share)), least)

    def _held_out(self, n: int) -> NDArray[np.int64]:
        """Return the rows that only set the threshold."""
        if self.false_positive_rate is None:
            return np.empty(0, dtype=np.int64)
        rate = float(self.false_positive_rate)
        least = 1 / (n // 2 + 1)
        if rate < least:
            contract = f"at least {least:.3g} for {n} rows"
            fail("false_positive_rate", contract, self.false_positive_rate)
        return hold_out(n, rate, random_source(0))[1]

    def _pursue_all(self, data: NDArray[np.floating]) -> NDArray[np.floating]:
        """Fit these rows; return their distances from the low-rank part."""
        prepared, of_rows = prepare(data), self.errors == "rows"
        # Hidden entries of outlying rows would speak for keeping them.
        is_chosen = self.sparsity == "auto" and not of_rows
        relative = 1.0 if self.sparsity == "auto" else float(self.sparsity)
        if self.noise == "auto":
            level = estimate_noise(prepared, relative, of_rows, self._report)
            self._report(f"noise of standard deviation {level * prepared.unit:.4g}")
        else:
            level = float(self.noise) / prepared.unit
        self.candidates_ = np.empty((0, 2))
        if is_chosen:
            chosen = choose_sparsity(prepared, level, self._report)
            relative, self.candidates_ = chosen
        price, nu = relative * prepared.price(of_rows), prepared.noise_penalty(level)
        pursuit = Pursuit(prepared, ErrorPenalty(price, nu, of_rows), self._report)
        tol, settled = self._tolerances()
        split = pursuit.result(pursuit.run(tol, int(self.max_iter), settled))
        self.relative_sparsity_, self.noise_ = relative, level * prepared.unit
        del prepared, pursuit
        self._keep(split, data.dtype)
        return split.distances

    def _keep(self, split: LowRankSplit, dtype: np.dtype[Any]) -> None:
        sizes = split.singular_values
        rank, n = len(sizes), len(split.left)
        shares = (sizes / np.linalg.norm(sizes)) ** 2 if rank else sizes
        n_kept = rank
        if self.n_components is not None and self.n_components < 1:
            within = np.cumsum(shares) < self.n_components
            n_kept = min(rank, int(within.sum()) + 1)
        elif self.n_components is not None:
            n_kept = min(rank, int(self.n_components))
        self._codes, self._sparse = split.left.astype(dtype), stored(split.sparse)
        # `transform` cleans with all components, also if it returns fewer.
        nothing = np.empty((0, 0))
        self._split = replace(split, left=nothing, sparse=nothing, distances=nothing)
        self.n_components_, self.rank_ = n_kept, rank
        self.components_ = split.components[:n_kept].astype(dtype)
        self.mean_ = split.mean.astype(dtype)
        self.singular_values_ = sizes[:n_kept].astype(dtype)
        self.explained_variance_ = (sizes[:n_kept] ** 2 / max(n - 1, 1)).astype(dtype)
        self.explained_variance_ratio_ = shares[:n_kept].astype(dtype)
        self.sparsity_ = split.errors.sparsity
        self.objective_, self.residual_ = split.objective, split.residual
        self.duality_gap_, self.n_iter_ = split.duality_gap, len(split.residual)
        if not split.has_converged:
            what = f"the residual is {split.residual[-1]:.1e}"
            self._warn(what, self.n_iter_, self._tolerances()[0], stacklevel=6)
        if not rank:
            why = "no value varies"
            if split.sparse.any():
                why = "the sparse part contains all variation. Raise `sparsity`"
            warnings.warn(
                f"{type(self).__name__}: no components; {why}.",
                UserWarning,
                stacklevel=5,
            )

    def _check_n_components(self, largest: int) -> None:
        value = self.n_components
        is_share = isinstance(value, float | np.floating) and 0 < value < 1
        if value is not None and not is_share:
            hint = "A number between 0 and 1 is a share of the variance."
            check_count("n_components", value, maximum=largest, hint=hint)

    def _check_parameters(self) -> None:
        for name in ("sparsity", "tol"):
            value = getattr(self, name)
            is_infinite = name == "sparsity" and isinstance(value, float)
            is_infinite = is_infinite and value == np.inf
            if not is_infinite and not (isinstance(value, str) and value == "auto"):
                check_positive(name, value)
        if not (isinstance(self.noise, str) and self.noise == "auto"):
            check_number("noise", self.noise, minimum=0.0)
        check_choice("errors", self.errors, ("entries", "rows"))
        if self.errors == "rows" and self.sparsity == np.inf:
            contract, hint = (
                "finite for errors='rows'",
                "It means: there are no errors.",
            )
            fail("sparsity", contract, self.sparsity, hint=hint)
        share, rate = self.contamination, self.false_positive_rate
        if share is not None and check_positive("contamination", share) > 0.5:
            fail("contamination", "at most 0.5, or None", share)
        if rate is not None and check_positive("false_positive_rate", rate) >= 1:
            fail("false_positive_rate", "a number below 1, or None", rate)
        check_count("max_iter", self.max_iter)
        check_verbose(self.verbose)


def _interleaved(
    is_first: NDArray[np.bool_], first: NDArray[Any], second: NDArray[Any]
) -> NDArray[Any]:
    """Return the rows of two arrays in the order of a mask."""
    rows = np.empty((len(is_first), *second.shape[1:]), dtype=second.dtype)
    rows[is_first], rows[~is_first] = first, second
    return rows
