"""Find tokens that do not fit the others, at fixed positions."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from eigenheads._checks import (
    Got,
    check_callable,
    check_count,
    check_finite_array,
    check_number,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.functional._screening import (
    flag_tokens,
    imputed_tokens,
    unchecked_distances,
)

_ROWS = 256  # rows per block, where all are in memory
_FEWEST = 20  # rows on either side of the split
# Positions whose tokens hardly vary between inputs are class tokens or registers.
_CONSTANT = 1e-10
Blocks = Callable[[], Iterable[NDArray[Any]]]


class TokenScreen(BaseEstimator):
    r"""Screen for tokens that do not fit the other tokens of their sequence.

    Each token is reduced to `n_components` numbers by a PCA over all positions. A joint
    Gaussian over positions, fitted on clean sequences, predicts each token from all
    others; tokens farther from their prediction than a quantile of *held-out* clean
    distances are flagged.

    Parameters
    ----------
    n_components
        Numbers per token after the PCA.
    false_flag_rate
        Share of clean tokens that the first round flags.
    held_out
        Share of the sequences that set the thresholds instead of the covariance.
    ridge
        Added to the diagonal of the covariance, in units of its mean.
    max_share
        Largest share of tokens to flag. Sequences with more are left alone: they are
        unusual as a whole.

    Attributes
    ----------
    mean_
        Mean token of each position, ``(n_tokens, n_features)``.
    components_
        Projection to whitened coordinates, ``(n_features, n_components)``.
    precision_
        Inverse covariance of the coordinates of all positions.
    thresholds_
        Threshold of each position; infinite for positions that never vary, such as
        class tokens.
    n_samples_fit_, n_samples_held_out_
        Numbers of sequences on either side of the split.

    See Also
    --------
    eigenheads.adapters.screen_tokens : Hide such tokens from a model's attention.

    Notes
    -----
    Positions must have a fixed meaning, as patches of images have. Moments are
    collected block by block, and of the held-out distances only the largest are kept,
    which decide on the thresholds: memory hardly grows with the number of sequences.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> cause = rng.standard_normal((300, 1, 4))
    >>> clean = cause + 0.3 * rng.standard_normal((300, 9, 4))
    >>> screen = TokenScreen(n_components=4).fit(clean)
    >>> odd = clean[:1].copy()
    >>> odd[0, 3] += 5.0
    >>> screen.predict(odd)
    array([[ 1,  1,  1, -1,  1,  1,  1,  1,  1]])
    """

    def __init__(
        self,
        n_components: int = 8,
        *,
        false_flag_rate: float = 0.02,
        held_out: float = 0.3,
        ridge: float = 0.05,
        max_share: float = 0.5,
    ) -> None:
        self.n_components = n_components
        self.false_flag_rate = false_flag_rate
        self.held_out = held_out
        self.ridge = ridge
        self.max_share = max_share

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Fit the Gaussian and the thresholds on clean sequences.

        Parameters
        ----------
        X
            Tokens, ``(n_samples, n_tokens, n_features)``.
        y : Ignored
            Present for consistency.
        """
        tokens = _read(X)

        def blocks() -> Iterator[FloatArray]:
            for first in range(0, len(tokens), _ROWS):
                yield tokens[first : first + _ROWS]

        return self.fit_blocks(blocks)

    def fit_blocks(self, blocks: Blocks) -> Self:
        """Fit on blocks of sequences, in three passes.

        Parameters
        ----------
        blocks
            Function that returns an iterable of arrays ``(n, n_tokens, n_features)``;
            it is called three times and must give the same each time.
        """
        self._check_parameters()
        contract = "a function that returns blocks of tokens"
        check_callable("blocks", blocks, contract)
        # Pass 1: the mean of each position, and the covariance of tokens around it.
        n_fit, n_held, total, squares = 0, 0, None, None
        for rows, held in self._split(blocks):
            n_fit, n_held = n_fit + len(rows), n_held + len(held)
            total = rows.sum(0) + (0.0 if total is None else total)
            flat = rows.reshape(-1, rows.shape[-1])
            squares = flat.T @ flat + (0.0 if squares is None else squares)
        if n_fit < _FEWEST or total is None or squares is None:
            contract = f"at least {_FEWEST} sequences to fit, and as many held out"
            fail("X", contract, Got(f"{n_fit} to fit"))
        if n_held < _FEWEST:
            contract = f"at least {_FEWEST} sequences held out"
            fail("X", contract, Got(f"{n_held}"))
        n_tokens, width = total.shape
        self.mean_ = total / n_fit
        covariance = squares / (n_fit * n_tokens) - self.mean_.T @ self.mean_ / n_tokens
        if not np.isfinite(covariance).all() or not covariance.any():
            contract = "tokens that vary, and whose squares are finite"
            got = Got("a covariance that is zero or overflows")
            fail("X", contract, got)
        values, vectors = np.linalg.eigh(covariance)
        r = min(int(self.n_components), width)
        top = np.maximum(values[-r:], _CONSTANT * max(values[-1], 1e-300))
        self.components_ = vectors[:, -r:] / np.sqrt(top)
        # Pass 2: the covariance between all positions.
        moments = np.zeros((n_tokens * r, n_tokens * r))
        for rows, _ in self._split(blocks):
            flat = self._coordinates(rows).reshape(len(rows), -1)
            moments += flat.T @ flat
        moments /= n_fit
        variance = np.diag(moments).reshape(n_tokens, r).sum(1)
        varies = variance > _CONSTANT * max(variance.max(), 1e-300)
        moments += self.ridge * np.diag(moments).mean() * np.eye(n_tokens * r)
        self.precision_ = np.linalg.inv(moments)
        # Pass 3: thresholds from sequences that the covariance has not seen.
        limits = upper_quantile(
            (
                unchecked_distances(self._coordinates(held), self.precision_)
                for _, held in self._split(blocks)
            ),
            1 - self.false_flag_rate,
            n_held,
        )
        self.thresholds_ = np.where(varies, limits, np.inf)
        self.n_samples_fit_, self.n_samples_held_out_ = n_fit, n_held
        self.n_features_in_ = width
        return self

    def score_samples(self, X: ArrayLike) -> FloatArray:
        """Return minus the distance over the threshold: below -1 does not fit.

        Parameters
        ----------
        X
            Tokens, ``(n_samples, n_tokens, n_features)``.

        Returns
        -------
        scores
            ``(n_samples, n_tokens)``.
        """
        coordinates = self._checked(X)
        return -unchecked_distances(coordinates, self.precision_) / self.thresholds_

    def predict(self, X: ArrayLike) -> NDArray[np.int64]:
        """Return -1 for tokens that do not fit, else 1.

        Parameters
        ----------
        X
            Tokens, ``(n_samples, n_tokens, n_features)``.

        Returns
        -------
        labels
            ``(n_samples, n_tokens)``.
        """
        flagged = flag_tokens(
            self._checked(X),
            self.precision_,
            self.thresholds_,
            max_share=self.max_share,
        )
        return np.where(flagged, -1, 1)

    def impute(self, X: ArrayLike) -> FloatArray:
        """Replace tokens that do not fit by what the other tokens predict.

        Parameters
        ----------
        X
            Tokens, ``(n_samples, n_tokens, n_features)``.

        Returns
        -------
        imputed
            Of the same shape; tokens that fit are unchanged.
        """
        flagged = self.predict(X) < 0
        imputed: FloatArray = imputed_tokens(
            _read(X), self.mean_, self.components_, self.precision_, flagged
        )
        return imputed

    def _checked(self, X: ArrayLike) -> FloatArray:
        check_is_fitted(self)
        tokens = _read(X)
        if tokens.shape[1:] != self.mean_.shape:
            contract = f"of shape (n_samples, {', '.join(map(str, self.mean_.shape))})"
            fail("X", contract, Got(tokens.shape))
        return self._coordinates(tokens)

    def _coordinates(self, tokens: FloatArray) -> FloatArray:
        coordinates: FloatArray = (tokens - self.mean_) @ self.components_
        return coordinates

    def _split(self, blocks: Blocks) -> Iterator[tuple[FloatArray, FloatArray]]:
        """Yield the rows to fit and those held out, which depends on their index."""
        first = 0
        source = blocks()
        if not isinstance(source, Iterable):
            contract = "a function that returns an iterable of arrays"
            fail("blocks", contract, source, error=TypeError)
        for block in source:
            rows = _read(block)
            index = np.arange(first, first + len(rows))
            held = np.floor((index + 1) * self.held_out) > np.floor(
                index * self.held_out
            )
            first += len(rows)
            yield rows[~held], rows[held]

    def _check_parameters(self) -> None:
        check_count("n_components", self.n_components)
        for name in ("false_flag_rate", "held_out", "max_share"):
            value = getattr(self, name)
            check_number(name, value, minimum=1e-6, maximum=1 - 1e-6)
        check_number("ridge", self.ridge, minimum=1e-9)

    def __sklearn_tags__(self) -> Any:
        tags: Any = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        return tags


def upper_quantile(blocks: Iterable[FloatArray], level: float, n: int) -> FloatArray:
    """Return the quantile of each column of `n` rows, as :func:`numpy.quantile` does.

    The rows come in blocks, and only those above the quantile are kept.
    """
    place = level * (n - 1)
    below = int(place)
    largest: FloatArray | None = None
    for block in blocks:
        rows = block if largest is None else np.concatenate([largest, block])
        surplus = len(rows) - (n - below)
        largest = np.partition(rows, surplus, axis=0)[surplus:] if surplus > 0 else rows
    assert largest is not None
    low, high = np.sort(largest, axis=0)[[0, min(1, len(largest) - 1)]]
    weight = place - below
    # Of the two forms of the line, NumPy takes the one from the nearer end.
    quantile: FloatArray = (
        low + weight * (high - low)
        if weight < 0.5
        else high - (1 - weight) * (high - low)
    )
    return quantile


def _read(X: ArrayLike) -> FloatArray:
    tokens = check_finite_array("X", X)
    if tokens.ndim != 3 or 0 in tokens.shape:
        contract = "of shape (n_samples, n_tokens, n_features), without empty axes"
        fail("X", contract, Got(tokens.shape))
    return tokens
