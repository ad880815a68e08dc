"""Principal components from a trained attention head."""

import math
import warnings
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse
from sklearn.exceptions import ConvergenceWarning

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_flag,
    check_positive,
    fail,
)
from eigenheads._rng import random_source
from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_rows import (
    PrincipalCoordinates,
    RowMoments,
    Rows,
    RowsInMemory,
    StreamedRows,
    StreamMemory,
    WeightedRows,
    moments_of,
    no_moments,
)
from eigenheads.estimators._attention_pca_training import (
    PcaTraining,
    PrincipalSpan,
    RowSource,
    TrainedHead,
    train_on_prompts,
)
from eigenheads.estimators._batches import RowBatches, batches_of_rows, is_stream
from eigenheads.estimators._parameters import (
    check_verbose,
    read_row_weights,
)

# Iterations per batch of a stream: one batch changes little after many.
_STREAM_ITERATIONS = 20
_HEADS = ("softmax", "linear")
# Rank at which the search for a share of the variance begins.
_FIRST_RANK = 8


class AttentionPCA(PrincipalCoordinates):
    r"""Streaming PCA: principal components from batches of rows, by an attention head.

    It drops in for :class:`sklearn.decomposition.IncrementalPCA` (of which it lacks
    `var_` and `get_precision`), reads sparse batches, too, and :meth:`fit` is more
    accurate, as it reads rows repeatedly.

    A head with scores :math:`x^\top M M^\top x_j` and the tokens as values is trained
    to reconstruct its query, on prompts drawn from the rows. At the minimum its outputs
    span the first principal components, and its error is that of PCA [1]_.

    The rows may be an array, a sparse matrix, a Dask array (also of sparse chunks), or
    batches that are read one at a time (:meth:`fit` reads them repeatedly,
    :meth:`partial_fit` once). Memory is O(n_features · n_components + batch_size ·
    n_features) beside the data, and no matrix larger than (n_components, n_components)
    is decomposed. If the data fit in memory, :class:`sklearn.decomposition.PCA` is
    exact and often faster.

    Parameters
    ----------
    n_components : int or float, default=2
        Rank of the head. A number between 0 and 1 is the share of the variance that the
        components explain: the rank is doubled until it is reached, and the components
        beyond are dropped (not with :meth:`partial_fit`).

    head : {"softmax", "linear"}, default="softmax"
        Map from scores to weights. In the limit of long prompts both are the same.

    n_tokens : int or None, default=None
        Length of the prompts. None is the limit of long prompts, in which the head is
        :math:`T(x) = \Sigma M M^\top x` with the covariance :math:`\Sigma` of the rows,
        and training is gradient descent on its risk. With a number, training is
        stochastic gradient descent on prompts of that many random rows, with each row
        as the query in turn. This is less accurate; it starts from the solution of the
        limit for the first batch. A softmax over few tokens gives most weight to the
        query itself: keep `n_tokens` well above ``exp(n_components)``.

    batch_size : int, default=1024
        Number of rows read at once.

    whiten : bool, default=False
        Whether `transform` divides coordinates by their standard deviations.

    tol : float, default=0.001
        Training stops when :math:`\lVert \Sigma u - \sigma u \rVert \le` ``tol``
        :math:`\sigma` for every component; with `n_tokens`, when no component of the
        average has turned by more than this angle during an epoch.

    max_iter : int, default=200
        Largest number of iterations on all rows; with `n_tokens`, of epochs.

    random_state : int, RandomState instance or None, default=None
        Source of the start and of the prompts.

    verbose : int, default=0
        If positive, print the progress of training.

    Attributes
    ----------
    components_ : ndarray of shape (n_components, n_features)
        Orthonormal directions, largest variance first; the entry of largest absolute
        value is positive.

    explained_variance_ : ndarray of shape (n_components,)
        Variance along each component, with ``n_samples_seen_ - 1`` degrees of freedom.

    explained_variance_ratio_ : ndarray of shape (n_components,)
        Share of each component in the variance of all features.

    singular_values_ : ndarray of shape (n_components,)
        Lengths of the columns of coordinates of the fitted rows, not whitened.

    noise_variance_ : float
        Mean variance in the directions beyond the components, of which there are
        ``min(n_samples, n_features) - n_components``; 0 if there is none.

    mean_ : ndarray of shape (n_features,)
        Mean of the rows.

    total_variance_ : float
        Sum of the variances of the features.

    n_samples_seen_ : int
        Rows read by :meth:`fit` or by all calls of :meth:`partial_fit`.

    n_components_ : int
        Number of components.

    n_iter_ : int
        Iterations on all rows; epochs with `n_tokens`; batches of :meth:`partial_fit`.

    n_features_in_ : int
        Number of features.

    feature_names_in_ : ndarray of shape (n_features,)
        Names of the features, when they are all strings.

    See Also
    --------
    sklearn.decomposition.PCA : Exact, from a decomposition of all the data.
    sklearn.decomposition.IncrementalPCA : From decompositions of batches.
    eigenheads.models.simulate_pca : The training of such heads, simulated.

    Notes
    -----
    The head, its loss, the random start and training by gradient descent, on infinite
    and on finite prompts, are those of [1]_ at rank one. This implementation adds rank
    k, steps scaled by k × k matrices to the variances of the columns, momentum, prompts
    that grow to all rows, and whitened scores (the exact minimum over M for a given
    span): plain gradient descent needs a step size to be chosen and slows down with the
    squared ratio of variances. The
    components are an orthonormal basis of the outputs, :math:`\Sigma M`. The formula
    of the limit holds for Gaussian rows; for others the trained head is its
    second-moment part, which PCA depends on.

    :meth:`partial_fit` keeps only the variance along the components and the total
    variance of past rows; like :class:`~sklearn.decomposition.IncrementalPCA` it
    reads each row once and is less accurate than :meth:`fit`.

    For data larger than memory, :meth:`fit` takes a Dask array, a callable that returns
    a new iterator over arrays of rows, an object that can be iterated repeatedly, or an
    iterator, whose arrays are kept in temporary files. A fit takes some tens of passes
    with one batch in memory at a time, plus an initial sample of the same size. The
    residual bound `tol` holds for all rows, as in memory.

    References
    ----------
    .. [1] maulensoto2026: Attention-based PCA, arXiv 2605.18315.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.estimators import AttentionPCA
    >>> X = np.array([[-1.0, -1.0], [-2, -1], [-3, -2], [1, 1], [2, 1], [3, 2]])
    >>> model = AttentionPCA(n_components=1, random_state=0).fit(X)
    >>> model.components_.round(2)
    array([[0.84, 0.54]])
    >>> float(model.explained_variance_ratio_[0].round(4))
    0.9924
    """

    def __init__(
        self,
        n_components: int | float = 2,
        *,
        head: str = "softmax",
        n_tokens: int | None = None,
        batch_size: int = 1024,
        whiten: bool = False,
        tol: float = 1e-3,
        max_iter: int = 200,
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        self.n_components = n_components
        self.head = head
        self.n_tokens = n_tokens
        self.batch_size = batch_size
        self.whiten = whiten
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:
        """Train the head on the rows of `X`.

        Parameters
        ----------
        X : array-like or sparse matrix (n_samples, n_features), Dask array or batches
            Rows; see Notes for rows that do not fit in memory. A sparse matrix is not
            made dense.

        y : Ignored
            For scikit-learn's pipelines.

        sample_weight : array-like of shape (n_samples,), default=None
            Weights of rows in memory: a weight of 2 counts like two equal rows. Not
            with `n_tokens`.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        if is_stream(X, None):
            if sample_weight is not None:
                got = Got("weights of a stream")
                fail("sample_weight", "None for batches", got)
            with RowBatches(X) as batches:
                return self._fit(self._streamed(batches))
        rows = self._read(X, reset=True, ensure_min_samples=2, accept_sparse="csr")
        self._check_parameters(*rows.shape)
        weights = read_row_weights(sample_weight, rows.shape[0])
        if weights is None and not issparse(rows):
            return self._fit(RowsInMemory(rows, int(self.batch_size)))
        self._check_unweighted_prompts(weights)
        return self._fit(WeightedRows(rows, weights))

    def _streamed(self, batches: RowBatches) -> StreamedRows:
        def read() -> Iterator[Rows]:
            for index, batch in enumerate(batches):
                rows = self._read(batch, reset=index == 0, accept_sparse="csr")
                self._check_parameters(None, rows.shape[1])
                # A sparse batch is made dense a few rows at a time.
                step = size if issparse(rows) else max(len(rows), 1)
                for start in range(0, rows.shape[0], step):
                    yield _dense(rows[start : start + step])

        size = check_count("batch_size", self.batch_size)
        source = StreamedRows(read, size)
        if source.n < 2:
            got = Got(f"{source.n} in all batches")
            fail("X", "at least 2 rows", got)
        self._check_parameters(source.n, len(source.moments.mean))
        return source

    def _fit(self, source: RowSource) -> Self:
        random = random_source(self.random_state)
        d = len(source.moments.mean)
        share = float(self.n_components) if self._is_share() else None
        total = source.moments.squares / source.moments.n
        # The weights of rows may be small numbers, which do not limit the rank.
        most = d if isinstance(source, WeightedRows) else min(d, int(source.n))
        rank = int(self.n_components) if share is None else min(_FIRST_RANK, most)
        start = random.standard_normal((d, rank))
        while True:
            span = self._training().fit(source, start, random)
            reached = np.cumsum(span.variances) >= (share or 0.0) * total
            if share is None or reached.any() or rank == most:
                break
            rank = min(2 * rank, most)
            fresh = random.standard_normal((d, rank - span.directions.shape[1]))
            start = np.concatenate([span.directions, fresh / math.sqrt(d)], axis=1)
        if share is not None:
            n_kept = int(np.argmax(reached)) + 1 if reached.any() else rank
            span = span._replace(
                directions=span.directions[:, :n_kept],
                variances=span.variances[:n_kept],
            )
        self.n_iter_ = span.n_iter
        if not span.converged:
            warnings.warn(
                f"AttentionPCA: training stopped after {span.n_iter} iterations "
                "without converging. Raise `max_iter` or `tol`.",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._keep(span, source.moments, source.dtype)
        return self

    def _is_share(self) -> bool:
        value = self.n_components
        return isinstance(value, float | np.floating) and 0 < value < 1

    def partial_fit(self, X: Any, y: object = None, sample_weight: Any = None) -> Self:
        """Read one more batch of a stream, or a stream.

        Parameters
        ----------
        X : array-like or sparse matrix (n_samples, n_features), Dask array or batches
            Rows; all of them are held at once. Of a Dask array one chunk of rows at a
            time, of an iterable (not a list) or a callable that returns one, each
            array in turn: one of them is held at a time.

        y : Ignored
            For scikit-learn's pipelines.

        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the rows of one batch: a weight of 2 counts like two equal rows.
            Not with `n_tokens`.

        Returns
        -------
        self : object
            The fitted estimator.
        """
        if sample_weight is not None and is_stream(X, None):
            got = Got("weights of a stream")
            hint = "Call `partial_fit` per batch."
            fail("sample_weight", "None for batches", got, hint=hint)
        for batch in batches_of_rows(X):
            self._partial_fit(batch, sample_weight)
        return self

    def _partial_fit(self, X: ArrayLike, sample_weight: Any) -> None:
        is_first = not hasattr(self, "components_")
        rows = self._read(X, reset=is_first, accept_sparse="csr")
        if self._is_share():
            contract = "an integer for `partial_fit`"
            fail("n_components", contract, self.n_components)
        self._check_parameters(None, rows.shape[1])
        weights = read_row_weights(sample_weight, rows.shape[0])
        self._check_unweighted_prompts(weights)
        if is_first:
            self._begin(rows)
        elif len(self.components_) != self.n_components:
            contract = f"{len(self.components_)}, as in earlier calls"
            fail("n_components", contract, self.n_components)
        if self.n_tokens is None:
            self._remember(rows, weights)
        else:
            self._train_on(_dense(rows))
        self.n_iter_ += 1

    def _training(self) -> PcaTraining:
        return PcaTraining(
            head=self.head,
            n_tokens=self.n_tokens,
            batch_size=int(self.batch_size),
            tol=self.tol,
            max_iter=int(self.max_iter),
            report=self._report,
        )

    def _check_parameters(self, n_samples: int | None, d: int) -> None:
        hint = f"The data have n_features={d}."
        maximum = d
        if n_samples is not None and n_samples < d:
            maximum, hint = n_samples, f"The data have n_samples={n_samples}."
        if not self._is_share():
            check_count(
                "n_components",
                self.n_components,
                maximum=maximum,
                hint=f"{hint} A number between 0 and 1 is a share of the variance.",
            )
        check_choice("head", self.head, _HEADS)
        if self.n_tokens is not None:
            hint = "None is the limit of long prompts."
            check_count("n_tokens", self.n_tokens, minimum=2, hint=hint)
        check_count("batch_size", self.batch_size)
        check_flag("whiten", self.whiten)
        check_count("max_iter", self.max_iter)
        check_positive("tol", self.tol)
        check_verbose(self.verbose)

    def _check_unweighted_prompts(self, weights: FloatArray | None) -> None:
        if weights is not None and self.n_tokens is not None:
            got = Got("weights with `n_tokens`")
            fail("sample_weight", "None for finite prompts", got)

    def _begin(self, rows: Rows) -> None:
        random = random_source(self.random_state)
        start = random.standard_normal((rows.shape[1], int(self.n_components)))
        self.n_iter_ = 0
        self._moments = no_moments(rows.shape[1])
        self._variances = np.zeros(int(self.n_components))
        self._directions = np.linalg.qr(start)[0]
        self._trained = TrainedHead(start, start, 0)

    def _remember(self, rows: Rows, weights: FloatArray | None) -> None:
        memory = StreamMemory(self._moments, self._directions, self._variances)
        moments, times = memory.covariance_with(rows, weights)
        iterations = min(int(self.max_iter), _STREAM_ITERATIONS)
        start = self._directions
        span = self._training().descend(
            times, start, moments, rows.dtype, moments.n, max_iter=iterations
        )
        self._keep(span, moments, rows.dtype)

    def _train_on(self, rows: Rows) -> None:
        moments = self._moments.merged(moments_of(rows, int(self.batch_size)))
        for prompts in self._training().prompts(rows, np.arange(len(rows))):
            self._trained = train_on_prompts(
                self._trained, prompts, moments.mean, head=self.head
            )
        memory = StreamMemory(self._moments, self._directions, self._variances)
        times = memory.covariance_with(rows)[1]
        average = self._trained.average
        span = self._training().descend(
            times, average, moments, rows.dtype, moments.n, max_iter=1
        )
        trained = self._trained
        self._keep(span, moments, rows.dtype)
        self._trained = trained

    def _keep(
        self, span: PrincipalSpan, moments: RowMoments, dtype: np.dtype[Any]
    ) -> None:
        if not (np.isfinite(span.variances).all() and math.isfinite(moments.squares)):
            got = Got(f"numbers whose variance overflows in {dtype}")
            contract = "numbers whose squares are finite"
            fail("X", contract, got, hint="Rescale X.")
        self._moments, self._variances = moments, span.variances
        self._directions = _signed(span.directions)
        self._trained = TrainedHead(self._directions, self._directions, 0)
        unbiased = moments.n / max(moments.n - 1, 1)
        total = moments.squares / moments.n
        self.components_ = np.ascontiguousarray(self._directions.T, dtype=dtype)
        self.n_components_ = len(self.components_)
        self.explained_variance_ = (unbiased * span.variances).astype(dtype)
        share = span.variances / total if total > 0 else 0 * span.variances
        self.explained_variance_ratio_ = share.astype(dtype)
        self.total_variance_ = unbiased * total
        self.singular_values_ = np.sqrt(moments.n * span.variances).astype(dtype)
        n_others = min(round(moments.n), len(moments.mean)) - self.n_components_
        lost = max(total - float(span.variances.sum()), 0.0)
        self.noise_variance_ = unbiased * lost / n_others if n_others > 0 else 0.0
        self.mean_ = moments.mean.astype(dtype)
        self.n_samples_seen_ = round(moments.n)


def _dense(batch: Any) -> Rows:
    """Return the rows of one batch of a stream as an array."""
    rows: Rows = batch.toarray() if issparse(batch) else batch
    return rows


def _signed(directions: FloatArray) -> FloatArray:
    """Turn each column so that its entry of largest absolute value is positive."""
    largest = np.argmax(np.abs(directions), axis=0)
    signs = np.sign(directions[largest, np.arange(directions.shape[1])])
    return directions * np.where(signs == 0, 1.0, signs)
