"""Feature maps of tokens: nonlinear functions in which a linear head reads more."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import issparse
from scipy.special import ndtri
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.feature_selection import VarianceThreshold
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    PolynomialFeatures,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_finite_array,
    check_positive,
    fail,
)

FEATURE_MAPS = ("rbf", "quadratic", "quantile", "bins")
# Maps are fitted to at most this many tokens, evenly spaced over all.
MOST_TOKENS = 100_000
# Tokens whose distances give the width of the kernel.
_PAIRS = 500
_N_LANDMARKS = 300
# Least eigenvalue of the kernel of the landmarks, as a share of the largest.
_RESOLVED = 1e-5
# Tokens that show whether a kernel feature varies.
_FEW_TOKENS = 10_000
# Rows whose kernel values are computed together.
_CHUNK = 2_048
_N_BINS = 5
# The quadratic map of this many features has 5 150 products.
_WIDEST_QUADRATIC = 100


def read_rows(X: Any) -> NDArray[Any]:
    """Return tokens as rows of finite numbers, in single precision if they were."""
    rows = check_finite_array("X", X)
    if rows.ndim != 2 or not rows.size:
        got = Got(f"shape {rows.shape}")
        fail("X", "rows of features, an array of two axes", got)
    return np.asarray(X) if getattr(X, "dtype", None) == np.float32 else rows


class RBFFeatures(TransformerMixin, BaseEstimator):
    r"""Standardised features, and beside them Gaussian kernel features.

    Scores and readouts that are linear in these features are, up to the approximation
    by landmarks, functions :math:`w \cdot x + \sum_j c_j
    e^{-\gamma \lVert x - z_j \rVert^2}`.

    Parameters
    ----------
    n_components : int, default=300
        Number of landmarks :math:`z_j`, which are tokens.

    gamma : float or None, default=None
        :math:`\gamma`, for standardised features. None means the inverse of the median
        squared distance between tokens.

    random_state : int or RandomState, default=0
        Source of the landmarks.
    """

    def __init__(
        self,
        n_components: int = _N_LANDMARKS,
        *,
        gamma: float | None = None,
        random_state: int | np.random.RandomState = 0,
    ) -> None:
        self.n_components = n_components
        self.gamma = gamma
        self.random_state = random_state

    def fit(self, X: Any, y: object = None) -> "RBFFeatures":
        """Choose width and landmarks.

        Parameters
        ----------
        X : array-like of shape (n_tokens, n_features)
            Tokens.

        y : Ignored
            Present for consistency.

        Returns
        -------
        self : object
            The fitted transformer.
        """
        del y
        n_components = check_count("n_components", self.n_components)
        if self.gamma is not None:
            check_positive("gamma", self.gamma)
        X = read_rows(X)
        self.scaler_ = StandardScaler().fit(X)
        rows = self.scaler_.transform(X)
        self.gamma_ = _median_gamma(rows) if self.gamma is None else float(self.gamma)
        self.nystroem_ = Nystroem(
            gamma=self.gamma_,
            n_components=min(n_components, len(rows)),
            random_state=self.random_state,
        ).fit(rows)
        # Directions in which landmarks hardly differ are rounding errors.
        landmarks = self.nystroem_.components_
        kernel = rbf_kernel(landmarks, gamma=self.gamma_)
        eigenvalues, vectors = np.linalg.eigh(kernel)
        roots = np.sqrt(np.maximum(eigenvalues, _RESOLVED * eigenvalues[-1]))
        self.nystroem_.normalization_ = (vectors / roots) @ vectors.T
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the standardised features and the kernel features.

        Parameters
        ----------
        X : array-like of shape (n_tokens, n_features)
            Tokens.

        Returns
        -------
        features : ndarray of shape (n_tokens, n_features + n_landmarks)
            Features.
        """
        check_is_fitted(self)
        X = read_rows(X)
        if X.shape[1] != self.scaler_.n_features_in_:
            contract = f"rows of {self.scaler_.n_features_in_} features, as in `fit`"
            fail("X", contract, Got(f"shape {X.shape}"))
        return self._mapped(X, X.dtype if X.dtype == np.float32 else np.float64)

    def _mapped(self, X: NDArray[Any], dtype: Any) -> NDArray[Any]:
        """Return kernel features in a floating type; tokens are standardised before."""
        landmarks = np.asarray(self.nystroem_.components_, dtype=dtype)
        root = np.asarray(self.nystroem_.normalization_.T, dtype=dtype)
        gamma = np.dtype(dtype).type(self.gamma_)
        sizes = gamma * np.einsum("ij,ij->i", landmarks, landmarks)
        directions = 2 * gamma * landmarks.T
        d = landmarks.shape[1]
        features = np.empty((len(X), d + len(landmarks)), dtype=dtype)
        # Chunks of kernel values stay in the cache. Squared distances are from one
        # product of matrices; rounding must not make them negative.
        for start in range(0, len(X), _CHUNK):
            rows = self.scaler_.transform(X[start : start + _CHUNK])
            rows = rows.astype(dtype, copy=False)
            exponents = rows @ directions
            exponents -= gamma * np.einsum("ij,ij->i", rows, rows)[:, None]
            exponents -= sizes
            np.minimum(exponents, 0.0, out=exponents)
            kernel = np.exp(exponents, out=exponents)
            features[start : start + _CHUNK, :d] = rows
            np.matmul(kernel, root, out=features[start : start + _CHUNK, d:])
        return features

    def varying(self, X: NDArray[Any]) -> NDArray[np.int64]:
        """Return the columns that vary over the tokens.

        For kernel features, whose computation is the larger part, some tokens decide.
        """
        some = self.transform(X[:: max(1, len(X) // _FEW_TOKENS)])
        own = _varying(X)
        return np.append(own, X.shape[1] + _varying(some[:, X.shape[1] :]))


def _varying(rows: NDArray[Any]) -> NDArray[np.int64]:
    """Return the columns that are not constant up to rounding."""
    spread = rows.max(axis=0) - rows.min(axis=0)
    size = np.abs(rows).max(axis=0)
    return np.flatnonzero(spread > 1e-6 * np.maximum(size, 1e-300))


def _median_gamma(rows: NDArray[Any]) -> float:
    """Return the inverse of the median squared distance of some pairs of rows."""
    some = rows[np.linspace(0, len(rows) - 1, 2 * _PAIRS).astype(np.int64)]
    # Rows that are half the table apart: neighbours belong to one bag.
    squares = ((some[:_PAIRS, None] - some[None, _PAIRS::10]) ** 2).sum(axis=2)
    median = float(np.median(squares))
    return 1 / median if median > 0 else 1 / rows.shape[1]


class FittedFeatureMap:
    """A transformer fitted to tokens, applied in their floating type.

    Columns of its output that are constant over the tokens of the fit are left out, and
    of kernel features those before `first`.
    """

    def __init__(
        self, transformer: Any, tokens: NDArray[Any], *, first: int = 0
    ) -> None:
        self.transformer = transformer
        with warnings.catch_warnings():
            # Bins of equal edges are merged, fewer quantiles than tokens are taken.
            warnings.simplefilter("ignore", UserWarning)
            warnings.simplefilter("ignore", FutureWarning)
            transformer.fit(tokens)
            if isinstance(transformer, RBFFeatures):
                varying = transformer.varying(tokens)
                self.kept = varying[varying >= first]
            else:
                self.kept = _varying(_dense(transformer.transform(tokens)))
            if not len(self.kept):
                width = _dense(transformer.transform(tokens[:1])).shape[1]
                self.kept = np.arange(first, width)
        self.width = len(self.kept)

    def __call__(self, tokens: NDArray[Any], *, in_fit: bool = False) -> NDArray[Any]:
        """Return the features of tokens.

        A fit has kernel features in single precision: passes over them take half the
        time.
        """
        dtype = tokens.dtype
        if isinstance(self.transformer, RBFFeatures):
            dtype = np.dtype(np.float32) if in_fit else dtype
            mapped = self.transformer._mapped(tokens, dtype)
        else:
            mapped = _dense(self.transformer.transform(tokens))
        if len(self.kept) < mapped.shape[1]:
            mapped = mapped[:, self.kept]
        return np.ascontiguousarray(mapped, dtype=dtype)


def _dense(rows: Any) -> NDArray[Any]:
    return rows.toarray() if issparse(rows) else np.asarray(rows)


def _normal_scores(ranks: NDArray[Any]) -> NDArray[Any]:
    """Return the normal quantiles of ranks from 0 to 1, finite at both ends."""
    return np.asarray(ndtri(np.clip(ranks, 1e-7, 1 - 1e-7)))


def check_feature_map(feature_map: Any) -> None:
    """Raise unless this is None, the name of a map, or a transformer."""
    if feature_map is None or hasattr(feature_map, "transform"):
        return
    if isinstance(feature_map, str):
        check_choice("feature_map", feature_map, FEATURE_MAPS)
        return
    contract = f"None, one of {FEATURE_MAPS}, or a transformer"
    fail("feature_map", contract, feature_map)


class KernelFeatures:
    """Gaussian kernel features without the features beside them.

    Parameters
    ----------
    standardised
        Function that standardises tokens.
    tokens
        Tokens of the fit, standardised.
    """

    def __init__(
        self, standardised: Callable[..., NDArray[Any]], tokens: NDArray[Any]
    ) -> None:
        d = tokens.shape[1]
        self._standardised = standardised
        # Repeated tokens count once: they are weights in disguise.
        codes = np.ascontiguousarray(tokens).view(f"V{tokens.itemsize * d}")
        tokens = tokens[np.sort(np.unique(codes.ravel(), return_index=True)[1])]
        self._map = FittedFeatureMap(RBFFeatures(), tokens, first=d)
        self.transformer, self.width = self._map.transformer, self._map.width

    def __call__(self, tokens: NDArray[Any], *, in_fit: bool = False) -> NDArray[Any]:
        """Return the features of tokens; in single precision for a fit."""
        rows = self._standardised(tokens, is_rounded=in_fit)
        return self._map(rows, in_fit=in_fit)


def fit_feature_map(feature_map: Any, tokens: NDArray[Any]) -> FittedFeatureMap:
    """Return the map, fitted to the tokens."""
    if not isinstance(feature_map, str):
        return FittedFeatureMap(clone(feature_map), tokens)
    n_tokens, d = tokens.shape
    if feature_map == "quadratic" and d > _WIDEST_QUADRATIC:
        hint = 'Use `feature_map="rbf"`, or reduce the features first.'
        contract = f"at most {_WIDEST_QUADRATIC} features wide for the quadratic map"
        fail("X", contract, Got(f"{d} features"), hint=hint)
    # Ranks have no unit. The normal output of the transformer and the bins merge values
    # that differ by less than 1e-7 and 1e-8.
    ranks = QuantileTransformer(
        n_quantiles=min(1000, n_tokens), subsample=MOST_TOKENS, random_state=0
    )
    transformers: dict[str, Callable[[], Any]] = {
        "rbf": lambda: RBFFeatures(),
        "quadratic": lambda: make_pipeline(
            StandardScaler(), PolynomialFeatures(2, include_bias=False)
        ),
        "quantile": lambda: make_pipeline(ranks, FunctionTransformer(_normal_scores)),
        "bins": lambda: make_pipeline(
            VarianceThreshold() if np.ptp(tokens, axis=0).max() > 0 else "passthrough",
            ranks,
            KBinsDiscretizer(
                min(_N_BINS, n_tokens),
                encode="onehot-dense",
                strategy="quantile",
                subsample=None,
            ),
        ),
    }
    return FittedFeatureMap(transformers[feature_map](), tokens)
