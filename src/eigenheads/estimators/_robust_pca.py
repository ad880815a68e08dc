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
from eigenheads._typing import FloatArray
from eigenheads.estimators._parameters import check_verbose, read_row_weights
from eigenheads.estimators._robust_pca_codes import RobustCodes, stored
from eigenheads.estimators._robust_pca_pursuit import LowRankSplit, Pursuit, prepare
from eigenheads.estimators._robust_pca_selection import (
    Selection,
    central_rows,
    estimate_noise,
    fitting_rows,
    noise_penalty,
    select,
)
from eigenheads.estimators._robust_pca_splitting import ErrorPenalty


class RobustPCA(RobustCodes):
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
    n_components : int, float, "auto" or None, default=None
        Largest number of components to keep; None keeps as many as the low-rank part
        has. A number between 0 and 1 keeps as many as explain this share of its
        variance, ``"auto"`` as many as predict hidden entries best. The pursuit itself
        finds the rank and does not depend on this number.

    sparsity : float or "auto", default="auto"
        Penalty of :math:`S`: :math:`\lambda` is `sparsity` divided by
        :math:`\sqrt{q \max(n, d)}`, for `n` rows, `d` columns and the share `q` of
        observed entries (3 `sparsity` over :math:`\sqrt{q n}` for rows). 1.0 is the
        choice of [1]_ for which exact recovery is proved. Larger ones leave more of the
        data in :math:`L`. ``"auto"`` takes the value that best removes errors like
        those of the data (see Notes); it is 1.0 if the data are exactly low-rank up to
        errors, for errors in rows and for fewer than 2000 entries.

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
        pursuits that choose `sparsity`, the number of components and the noise.

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

    support_ : ndarray of shape (n_samples,)
        Which rows the fit used: not those of weight zero and, for errors in rows, not
        the outlying ones.

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
    eigenheads.functional.singular_value_threshold : The step that reduces the rank.
    eigenheads.functional.soft_threshold : The step that yields the sparse part.

    Notes
    -----
    *Codes of training rows.* The nuclear norm of a centred matrix is the least value of
    :math:`\tfrac12 \lVert A \rVert_F^2 + \tfrac12 \lVert B \rVert_F^2` over its
    factorisations :math:`A B^\top`, reached at :math:`B = W \Sigma^{1/2}`. With that
    :math:`B` fixed, the pursuit separates into one strictly convex problem per row, the
    one of :math:`z`. So ``fit_transform(X)`` and ``fit(X).transform(X)`` agree up to
    `tol`, or to the last `residual_` if that is larger.

    *Choice of the sparsity.* A pursuit with `sparsity` 1 finds errors, of which the
    larger class (Otsu's threshold) is hidden and planted into other rows, at the same
    columns and with the same values. Blocks of wrong pixels thus remain blocks. Each
    candidate, a power of :math:`\sqrt 2`, is fitted to these data; its error is the
    distance of its low-rank part from the data before planting. The best candidate
    finds errors in turn, once, and the value at the vertex of a parabola through the
    best three candidates is taken. With dense noise the choice is too large, since
    noise that is kept does not count as an error: use ``noise="auto"``. Data without
    errors lose their largest deviations from the low-rank part, as with every fixed
    value.

    *Convergence.* Both problems are solved by over-relaxed Douglas-Rachford splitting,
    which converges to a minimum for every fixed penalty, with a residual that never
    grows [2]_; the penalty is balanced finitely often. The two residuals are
    :math:`\lVert X - L - S \rVert_F / \lVert L \rVert_F` and the relative step of
    :math:`S` in units of the multiplier; both vanish only at a minimum. A rule that
    uses the first alone, as is common with growing penalties, stops at points that are
    not a minimum. See the theory page on the pursuit.

    *Cost.* While the rank is below an eighth of the shorter side, an iteration costs
    O(n d rank): the singular vectors of the last iteration are improved. Otherwise it
    costs O(n d min(n, d)). Beside `X`, two arrays of its size are held, in its
    precision; choosing `sparsity` takes about ten arrays of at most 400 000
    entries. The result scales with `X`, but depends on the units of the features
    relative to each other, as that of PCA does.

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
    >>> cleaned = model.inverse_transform(model.transform(X[:5]))
    >>> bool(np.abs(cleaned - clean[:5]).max() < 1e-4)
    True
    """

    def __init__(
        self,
        n_components: int | float | str | None = None,
        *,
        sparsity: float | str = "auto",
        errors: str = "entries",
        noise: float | str = 0.0,
        tol: float | str = "auto",
        max_iter: int = 1000,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.sparsity = sparsity
        self.errors = errors
        self.noise = noise
        self.tol = tol
        self.max_iter = max_iter
        self.verbose = verbose

    def fit(self, X: ArrayLike, y: object = None, sample_weight: Any = None) -> Self:
        """Split the data and keep the principal components of the low-rank part.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training data; NaN where a value is missing. Sparse matrices are made
            dense.

        y : Ignored
            Not used, present for consistency.

        sample_weight : array-like of shape (n_samples,), default=None
            Weights of rows: a weight of 2 counts like two equal rows.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        self._fit(X, sample_weight)
        return self

    def fit_transform(
        self, X: ArrayLike, y: object = None, sample_weight: Any = None
    ) -> NDArray[np.floating]:
        """Fit, and return the codes of the training rows.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_features)
            Training data; NaN where a value is missing.

        y : Ignored
            Not used, present for consistency.

        sample_weight : array-like of shape (n_samples,), default=None
            Weights of rows.

        Returns
        -------
        codes : ndarray of shape (n_samples, n_components)
            Codes of the low-rank part.
        """
        self._fit(X, sample_weight)
        return self._codes[:, : self.n_components_].copy()

    def _fit(self, X: ArrayLike, sample_weight: Any) -> None:
        self._check_parameters()
        data = self._read(X, reset=True)
        self._check_n_components(min(data.shape))
        weights = read_row_weights(sample_weight, len(data))
        used = np.ones(len(data), dtype=bool) if weights is None else weights > 0
        if used.sum() < 2:
            got = Got(f"{used.sum()} positive weights")
            fail("sample_weight", "at least 2 positive weights", got)
        if self.errors == "rows":
            # Many outlying rows would attract components, so the first fit is to the
            # central rows. It then decides about all.
            core = used.copy()
            used_weights = None if weights is None else weights[used]
            core[used] = central_rows(data[used], used_weights)
            self._pursue_all(data, core, weights)
            lengths = np.linalg.norm(self._pursue(data)[1], axis=1)
            floor = 1e-5 * float(np.median(lengths[used]))
            used &= fitting_rows(lengths, core, floor, weights)
            self._report(f"{used.sum()} of {len(used)} rows are not outlying")
        self._pursue_all(data, used, weights)
        self.support_ = used
        if not used.all():
            # Rows that were left out are coded as new ones are.
            codes, sparse = self._pursue(data)
            codes[used], sparse[used] = self._codes, self.sparse_
            self._codes, self._sparse = codes, stored(sparse)

    def _pursue_all(
        self,
        data: NDArray[np.floating],
        used: NDArray[np.bool_],
        weights: FloatArray | None,
    ) -> None:
        if not used.all():
            data = data[used]
        prepared = prepare(data, None if weights is None else weights[used])
        of_rows = self.errors == "rows"
        is_chosen = self.n_components == "auto"
        fixed = None if self.sparsity == "auto" else float(self.sparsity)
        if fixed is None and of_rows:
            fixed = 1.0  # hidden entries of outlying rows would speak for keeping them
        level = None if self.noise == "auto" else float(self.noise) / prepared.unit
        if level is None:
            start = 1.0 if fixed is None else fixed
            level = estimate_noise(
                prepared, sparsity=start, of_rows=of_rows, report=self._report
            )
            self._report(f"noise of standard deviation {level * prepared.unit:.4g}")
        chosen = Selection(fixed or 1.0, None, np.empty((0, 2)))
        if fixed is None or is_chosen:
            chosen = select(
                prepared,
                sparsity=fixed,
                noise=level,
                of_rows=of_rows,
                needs_rank=is_chosen,
                report=self._report,
            )
        price = chosen.sparsity * prepared.price(of_rows)
        errors = ErrorPenalty(price, noise_penalty(level, prepared), of_rows)
        pursuit = Pursuit(prepared, errors, self._report)
        tol, settled = self._tolerances()
        split = pursuit.result(pursuit.run(tol, int(self.max_iter), settled))
        self.relative_sparsity_, self.candidates_ = chosen.sparsity, chosen.candidates
        self.noise_ = level * prepared.unit
        n_rows = prepared.n_rows
        del prepared, pursuit
        self._keep(split, data.dtype, n_rows, chosen.n_components)

    def _keep(
        self,
        split: LowRankSplit,
        dtype: np.dtype[Any],
        n_rows: float,
        chosen: int | None,
    ) -> None:
        sizes = split.singular_values
        rank = len(sizes)
        variances = sizes**2 / max(n_rows - 1, 1e-300)
        shares = (sizes / np.linalg.norm(sizes)) ** 2 if rank else sizes
        n_kept = rank
        if isinstance(self.n_components, str):
            n_kept = rank if chosen is None else min(rank, chosen)
        elif self.n_components is not None and self.n_components < 1:
            within = np.cumsum(shares) < self.n_components
            n_kept = min(rank, int(within.sum()) + 1)
        elif self.n_components is not None:
            n_kept = min(rank, int(self.n_components))
        self._codes, self._sparse = split.left.astype(dtype), stored(split.sparse)
        # `transform` cleans with all components, also if it returns fewer.
        nothing = np.empty((0, 0))
        self._split = replace(split, left=nothing, sparse=nothing)
        self.n_components_, self.rank_ = n_kept, rank
        self.components_ = split.components[:n_kept].astype(dtype)
        self.mean_ = split.mean.astype(dtype)
        self.singular_values_ = sizes[:n_kept].astype(dtype)
        self.explained_variance_ = variances[:n_kept].astype(dtype)
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
        if value is None or (isinstance(value, str) and value == "auto"):
            return
        is_share = isinstance(value, float | np.floating) and 0 < value < 1
        if not is_share:
            hint = 'A number between 0 and 1 is a share of the variance; also "auto".'
            check_count("n_components", value, maximum=largest, hint=hint)

    def _check_parameters(self) -> None:
        for name in ("sparsity", "tol"):
            value = getattr(self, name)
            if not (isinstance(value, str) and value == "auto"):
                check_positive(name, value)
        if not (isinstance(self.noise, str) and self.noise == "auto"):
            check_number("noise", self.noise, minimum=0.0)
        check_choice("errors", self.errors, ("entries", "rows"))
        check_count("max_iter", self.max_iter)
        check_verbose(self.verbose)
