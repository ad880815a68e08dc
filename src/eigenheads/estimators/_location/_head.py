"""The single-location head on ragged bags: weights, outputs, loss and gradient.

On bags of one length this is :func:`eigenheads.functional.location_predictor`. The
functions with arrays per bag are the readable reference; the compiled loss at the end
computes the same numbers in one pass over the tokens, and a test compares the two.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, expit

from eigenheads._compile import njit
from eigenheads._parallel import RunPool
from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags
from eigenheads.estimators._location._losses import (
    AbstractLoss,
    columns,
    loss_and_slope,
)

HEADS = ("softmax", "radial", "erf", "sigmoid", "logsumexp")
# Heads whose weights sum to one in each bag: only their outputs move with the tokens.
RELATIVE = ("softmax", "radial", "logsumexp")
# How compiled code weighs tokens.
MODES = {"softmax": 0, "radial": 0, "erf": 1, "sigmoid": 2, "logsumexp": 3}

# A weight below this changes no sum of float64 numbers of size one.
_NEGLIGIBLE = 1e-18
# The number of blocks never depends on the number of threads, so neither do the sums.
_N_BLOCKS = 8
BLOCK_ENTRIES = 100_000

# Sums may be reordered (for SIMD); NaN and infinities keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def attention_weights(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.floating]:
    r"""Return the weight of each token in its bag.

    .. math::

        p_l = \frac{e^{s_l}}{\sum_m e^{s_m}} \ (\text{softmax}), \qquad
        p_l = \operatorname{erf}(s_l) \ (\text{erf}), \qquad
        p_l = \frac{1}{1 + e^{-s_l}} \ (\text{sigmoid}).

    Examples
    --------
    >>> bags = Bags(np.zeros((3, 1)), np.array([0, 2, 3]))
    >>> attention_weights(bags, np.array([5.0, 5.0, 1.0]), head="softmax")
    array([0.5, 0.5, 1. ])
    """
    if head == "erf":
        return np.asarray(erf(scores))
    if head == "sigmoid":
        return np.asarray(expit(scores))
    peaks = np.maximum.reduceat(scores, bags.starts)
    weights = np.exp(scores - np.repeat(peaks, bags.lengths))
    weights /= np.repeat(np.add.reduceat(weights, bags.starts), bags.lengths)
    return np.asarray(weights)


def token_scores(bags: Bags, key: NDArray[Any]) -> NDArray[np.floating]:
    """Return the score of each token; with radii the key has one entry for them."""
    d = bags.tokens.shape[1]
    # Equal types: otherwise NumPy would convert all tokens.
    key = key.astype(bags.tokens.dtype, copy=False)
    scores = bags.tokens @ key[:d]
    if bags.radii is not None:
        scores += key[d] * bags.radii
    return np.asarray(scores)


def attended_readouts(
    bags: Bags, weights: NDArray[Any], values: NDArray[Any]
) -> NDArray[np.floating]:
    """Return the weighted sum of readouts per bag (row) and value vector (column)."""
    readouts = bags.tokens @ values.T
    return np.add.reduceat(weights[:, None] * readouts, bags.starts, axis=0)


def head_outputs(
    bags: Bags, rows: NDArray[Any], intercepts: NDArray[Any], *, head: str
) -> NDArray[np.floating]:
    """Return the outputs of all heads together, one row per bag.

    `rows` has, for each head, its key and then one value per output. The head
    ``logsumexp`` reads the value only: its output is the logarithm of the mean
    exponential of the readouts.
    """
    n_outputs = len(intercepts)
    outputs = np.zeros((len(bags), n_outputs), dtype=bags.tokens.dtype)
    d = bags.tokens.shape[1]
    for base in range(0, len(rows), 1 + n_outputs):
        values = rows[base + 1 : base + 1 + n_outputs, :d]
        if head == "logsumexp":
            outputs += log_mean_exp(bags, bags.tokens @ values[0])[:, None]
            continue
        weights = attention_weights(bags, token_scores(bags, rows[base]), head=head)
        outputs += attended_readouts(bags, weights, values)
    return outputs + np.asarray(intercepts).astype(outputs.dtype)


def log_mean_exp(bags: Bags, scores: NDArray[Any]) -> NDArray[np.floating]:
    r"""Return :math:`\log \frac1L \sum_l e^{s_l}` of each bag."""
    tops = np.maximum.reduceat(scores, bags.starts)
    powers = np.exp(scores - np.repeat(tops, bags.lengths))
    return np.asarray(
        tops + np.log(np.add.reduceat(powers, bags.starts) / bags.lengths)
    )


def deciding_tokens(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.int64]:
    """Return the index, within each bag, of the token with the largest weight.

    For ``erf``, largest in absolute value. The index is read from the scores, because
    distinct large scores share the weight 1 in floating point. Ties go to the first
    token.
    """
    size = np.abs(scores) if head == "erf" else scores
    peaks = np.maximum.reduceat(size, bags.starts)
    is_peak = size == np.repeat(peaks, bags.lengths)
    rows = np.where(is_peak, np.arange(len(size)), len(size))
    return np.minimum.reduceat(rows, bags.starts) - bags.starts


class HeadLoss:
    r"""Weighted mean loss of :math:`T(X) = \sum_l p_l \, x_l \cdot v_c + b_c`.

    Several heads are added. ``kind`` is the loss; ``total`` is the weight of all bags,
    which differs from the sum of `weights` for a batch of a stream.
    """

    def __init__(
        self,
        bags: Bags,
        targets: FloatArray,
        weights: FloatArray,
        *,
        head: str,
        kind: AbstractLoss,
        total: float,
    ) -> None:
        self.bags = bags
        # Compiled code needs an array; an empty one stands for no radii.
        self._radii = bags.tokens[:0, 0] if bags.radii is None else bags.radii
        self.targets = columns(np.asarray(targets, dtype=np.float64))
        self.weights = weights / total
        self.head = head
        self.kind = kind
        self._bounds = _block_bounds(bags)
        self._pool: RunPool | None = None

    def compiled_arguments(self) -> Any:
        """Return the arguments of :func:`accumulate` for one block, else None."""
        if len(self._bounds) > 2:
            return None
        bags, codes = self.bags, (MODES[self.head], self.kind.code)
        arrays = bags.tokens, self._radii, bags.offsets, self._bounds
        return *arrays, self.targets, self.weights, *codes

    @contextmanager
    def threads(self) -> Iterator[None]:
        """Keep a pool of threads open inside this context."""
        with RunPool(len(self._bounds) - 1) as pool:
            self._pool = pool
            try:
                yield
            finally:
                self._pool = None

    def __call__(
        self, rows: FloatArray, intercepts: FloatArray
    ) -> tuple[float, FloatArray, FloatArray]:
        """Return the loss and its gradients by rows (key, values) and intercepts."""
        n_blocks = len(self._bounds) - 1
        losses = np.zeros(n_blocks)
        by_rows = np.zeros((n_blocks, *rows.shape))
        by_intercepts = np.zeros((n_blocks, *intercepts.shape))

        def work(block: int) -> None:
            losses[block] = accumulate(
                self.bags.tokens,
                self._radii,
                self.bags.offsets,
                self._bounds[block : block + 2],
                rows,
                intercepts,
                self.targets,
                self.weights,
                MODES[self.head],
                self.kind.code,
                by_rows[block],
                by_intercepts[block],
            )

        if self._pool is None or n_blocks == 1:
            for block in range(n_blocks):
                work(block)
        else:
            self._pool.each(work)
        return float(losses.sum()), by_rows.sum(axis=0), by_intercepts.sum(axis=0)


def _block_bounds(bags: Bags) -> NDArray[np.int64]:
    """Cut the bags into blocks with about the same number of tokens."""
    blocks = min(_N_BLOCKS, 1 + bags.tokens.size // BLOCK_ENTRIES)
    if blocks == 1:
        return np.array([0, len(bags)])
    cuts = np.linspace(0, bags.offsets[-1], blocks + 1)
    return np.unique(np.searchsorted(bags.offsets, cuts)).astype(np.int64)


# Rows are passed as (matrix, index): a slice would cost a reference count per token.
@njit(fastmath=_FASTMATH)
def _dot(tokens: Any, row: int, matrix: FloatArray, output: int) -> float:
    total = 0.0
    for j in range(tokens.shape[1]):
        total += tokens[row, j] * matrix[output, j]
    return total


@njit(fastmath=_FASTMATH)
def _two_dots(
    tokens: Any, row: int, matrix: FloatArray, base: int
) -> tuple[float, float]:
    """Return the products with two consecutive rows of `matrix`, reading once."""
    first, second = 0.0, 0.0
    for j in range(tokens.shape[1]):
        first += tokens[row, j] * matrix[base, j]
        second += tokens[row, j] * matrix[base + 1, j]
    return first, second


@njit(fastmath=_FASTMATH)
def _add_two_scaled(
    sums: FloatArray, base: int, first: float, second: float, tokens: Any, row: int
) -> None:
    for j in range(tokens.shape[1]):
        sums[base, j] += first * tokens[row, j]
        sums[base + 1, j] += second * tokens[row, j]


@njit(fastmath=_FASTMATH)
def _add_scaled(
    sums: FloatArray, output: int, factor: float, tokens: Any, row: int
) -> None:
    for j in range(tokens.shape[1]):
        sums[output, j] += factor * tokens[row, j]


@njit()
def _weigh(scores: FloatArray, length: int, mode: int, weights: FloatArray) -> float:
    """Write the weights; return the log mean exponential of the scores."""
    if mode == 1:
        for i in range(length):
            weights[i] = math.erf(scores[i])
        return 0.0
    if mode == 2:
        for i in range(length):
            small = math.exp(-abs(scores[i]))
            weights[i] = 1 / (1 + small) if scores[i] > 0 else small / (1 + small)
        return 0.0
    # As _arrays.stable_softmax: the maximum is subtracted against overflow.
    top = scores[:length].max()
    total = 0.0
    for i in range(length):
        weights[i] = math.exp(scores[i] - top)
        total += weights[i]
    for i in range(length):
        weights[i] /= total
    return top + math.log(total / length)


@njit()
def _read(
    tokens: Any,
    radii: Any,
    first: int,
    length: int,
    rows: FloatArray,
    base: int,
    scores: FloatArray,
    readouts: FloatArray,
) -> None:
    """Write score and readouts of the tokens of one bag, for the head at row `base`."""
    for i in range(length):
        scores[i], readouts[i, 0] = _two_dots(tokens, first + i, rows, base)
        for c in range(1, readouts.shape[1]):
            readouts[i, c] = _dot(tokens, first + i, rows, base + 1 + c)
    if radii.size:
        for i in range(length):
            scores[i] += rows[base, -1] * radii[first + i]


@njit()
def _attend(
    weights: FloatArray, length: int, readouts: FloatArray, part: FloatArray
) -> None:
    """Write the contribution of one head to the outputs of one bag."""
    part[:] = 0.0
    for i in range(length):
        for c in range(part.size):
            part[c] += weights[i] * readouts[i, c]


@njit()
def _push_back(
    tokens: Any,
    radii: Any,
    first: int,
    length: int,
    base: int,
    scores: FloatArray,
    weights: FloatArray,
    readouts: FloatArray,
    slope: FloatArray,
    centre: float,
    mode: int,
    by_rows: FloatArray,
) -> None:
    """Add the gradient of one head on one bag.

    The derivative of a softmax weight is proportional to the token's readout minus
    `centre`, the attended readout of the bag.
    """
    for i in range(length):
        if mode != 1 and weights[i] < _NEGLIGIBLE:
            continue
        if mode == 3:
            _add_scaled(by_rows, base + 1, slope[0] * weights[i], tokens, first + i)
            continue
        pull = -centre
        for c in range(slope.size):
            pull += slope[c] * readouts[i, c]
        if mode == 1:
            pull *= 2 / math.sqrt(math.pi) * math.exp(-(scores[i] ** 2))
        elif mode == 2:
            pull *= weights[i] * (1 - weights[i])
        else:
            pull *= weights[i]
        _add_two_scaled(by_rows, base, pull, slope[0] * weights[i], tokens, first + i)
        for c in range(1, slope.size):
            row = base + 1 + c
            _add_scaled(by_rows, row, slope[c] * weights[i], tokens, first + i)
        if radii.size:
            by_rows[base, -1] += pull * radii[first + i]


@njit()
def accumulate(
    tokens: Any,
    radii: Any,
    offsets: NDArray[np.int64],
    bounds: NDArray[np.int64],
    rows: FloatArray,
    intercepts: FloatArray,
    targets: FloatArray,
    bag_weights: FloatArray,
    mode: int,
    code: int,
    by_rows: FloatArray,
    by_intercepts: FloatArray,
) -> float:
    """Add the bags from ``bounds[0]`` to ``bounds[1]`` to loss and gradients.

    `rows` has, for each head, its key and then its values. With radii, the last entry
    of the key weighs the radius, and the last entry of a value is not read.
    """
    n_outputs = intercepts.size
    n_heads = len(rows) // (1 + n_outputs)
    longest = np.diff(offsets[bounds[0] : bounds[1] + 1]).max()
    scores, weights = np.empty((n_heads, longest)), np.empty((n_heads, longest))
    readouts = np.empty((n_heads, longest, n_outputs))
    parts = np.empty((n_heads, n_outputs))
    outputs, slope = np.empty(n_outputs), np.empty(n_outputs)
    loss = 0.0
    for bag in range(bounds[0], bounds[1]):
        first, length = offsets[bag], offsets[bag + 1] - offsets[bag]
        # Forward: scores and readouts of the tokens, weights, outputs of the bag.
        outputs[:] = intercepts
        for h in range(n_heads):
            base = h * (1 + n_outputs)
            _read(tokens, radii, first, length, rows, base, scores[h], readouts[h])
            if mode == 3:
                scores[h, :length] = readouts[h, :length, 0]
            top = _weigh(scores[h], length, mode, weights[h])
            _attend(weights[h], length, readouts[h], parts[h])
            if mode == 3:
                parts[h, 0] = top
            outputs += parts[h]
        loss += bag_weights[bag] * loss_and_slope(code, outputs, targets, bag, slope)
        # Backward: from the outputs to keys and values, token by token.
        slope *= bag_weights[bag]
        by_intercepts += slope
        for h in range(n_heads):
            centre = 0.0
            if mode == 0:
                for c in range(n_outputs):
                    centre += slope[c] * parts[h, c]
            _push_back(
                tokens,
                radii,
                first,
                length,
                h * (1 + n_outputs),
                scores[h],
                weights[h],
                readouts[h],
                slope,
                centre,
                mode,
                by_rows,
            )
    return loss


@njit()
def attend_tokens(
    tokens: Any, offsets: NDArray[np.int64], scores: FloatArray, mode: int
) -> FloatArray:
    """Return the weighted sum of the tokens of each bag, for each row of scores."""
    pooled = np.zeros((len(scores), len(offsets) - 1, tokens.shape[1]))
    weights = np.empty(np.diff(offsets).max())
    for k in range(len(scores)):
        for bag in range(len(offsets) - 1):
            first, length = offsets[bag], offsets[bag + 1] - offsets[bag]
            _weigh(scores[k, first : first + length], length, mode, weights)
            for i in range(length):
                if abs(weights[i]) > _NEGLIGIBLE:
                    _add_scaled(pooled[k], bag, weights[i], tokens, first + i)
    return pooled


@njit()
def pool_tokens(
    tokens: Any, offsets: NDArray[np.int64], weights: NDArray[np.floating]
) -> FloatArray:
    """Return the weighted sum of the tokens of each bag."""
    pooled = np.zeros((len(offsets) - 1, tokens.shape[1]))
    for bag in range(len(pooled)):
        for i in range(offsets[bag], offsets[bag + 1]):
            if abs(weights[i]) > _NEGLIGIBLE:
                _add_scaled(pooled, bag, weights[i], tokens, i)
    return pooled
