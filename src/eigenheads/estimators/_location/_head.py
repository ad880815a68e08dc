"""The single-location head on ragged bags: weights, outputs, losses and gradients.

On bags of one length this is :func:`eigenheads.functional.location_predictor`. All
tokens are read by products of matrices, and sums over the tokens of a bag are segment
sums, so that NumPy does one evaluation in two passes over the tokens.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erf, expit, log_softmax, softmax

from eigenheads._typing import FloatArray
from eigenheads.estimators._bags import Bags

HEADS = ("softmax", "radial", "erf", "sigmoid", "logsumexp")
# Heads whose weights sum to one in each bag: only their outputs move with the tokens.
RELATIVE = ("softmax", "radial", "logsumexp")


# --- Weights and outputs ------------------------------------------------------------


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
    weights = np.exp(scores - bags.spread(bags.largest(scores)))
    weights /= bags.spread(bags.sums(weights))
    return np.asarray(weights)


def log_mean_exp(bags: Bags, scores: NDArray[Any]) -> NDArray[np.floating]:
    r"""Return :math:`\log \frac1L \sum_l e^{s_l}` of each bag."""
    tops = bags.largest(scores)
    powers = np.exp(scores - bags.spread(tops))
    return np.asarray(tops + np.log(bags.sums(powers) / bags.lengths))


def token_products(bags: Bags, rows: NDArray[Any]) -> FloatArray:
    """Return the product of each token with each row, in double precision."""
    # Equal types: otherwise NumPy would convert all tokens.
    products = bags.tokens @ rows.T.astype(bags.tokens.dtype, copy=False)
    return np.asarray(products, dtype=np.float64)


def head_outputs(
    bags: Bags, rows: NDArray[Any], n_outputs: int, *, head: str
) -> FloatArray:
    """Return the outputs of all heads together, one row per bag.

    `rows` has, for each head, its key and then one value per output. The head
    ``logsumexp`` reads the value only: its output is the logarithm of the mean
    exponential of the readouts.
    """
    return np.asarray(sum(_parts(bags, rows, n_outputs, head)))


def _parts(
    bags: Bags, rows: NDArray[Any], n_outputs: int, head: str
) -> list[NDArray[Any]]:
    products, parts = token_products(bags, rows), list[NDArray[Any]]()
    for base in range(0, len(rows), 1 + n_outputs):
        readouts = products[:, base + 1 : base + 1 + n_outputs]
        if head == "logsumexp":
            parts.append(log_mean_exp(bags, readouts[:, 0])[:, None])
            continue
        weights = attention_weights(bags, products[:, base], head=head)
        parts.append(bags.sums(weights[:, None] * readouts))
    return parts


def deciding_tokens(
    bags: Bags, scores: NDArray[Any], *, head: str
) -> NDArray[np.int64]:
    """Return the index, within each bag, of the token with the largest weight.

    For ``erf``, largest in absolute value. The index is read from the scores, because
    distinct large scores share the weight 1 in floating point. Ties go to the first
    token.
    """
    size = np.abs(scores) if head == "erf" else scores
    is_peak = size == bags.spread(bags.largest(size))
    rows = np.where(is_peak, np.arange(len(size)), len(size))
    return np.minimum.reduceat(rows, bags.starts) - bags.starts


# --- Losses of the outputs ----------------------------------------------------------


def columns(targets: FloatArray) -> FloatArray:
    """Return targets with two axes, one row per bag."""
    return targets.reshape(len(targets), -1)


class AbstractLoss(ABC):
    """Loss of one bag as a function of outputs and target."""

    @abstractmethod
    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the loss of each bag."""

    @abstractmethod
    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the derivative of the loss by the outputs."""

    @abstractmethod
    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the constant outputs of least mean loss."""


@dataclass(frozen=True)
class SquaredLoss(AbstractLoss):
    """Half the squared error, summed over outputs."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return half the squared error of each bag."""
        return np.asarray(0.5 * (self.residuals(outputs, targets) ** 2).sum(axis=1))

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return targets minus outputs."""
        return np.asarray(columns(targets) - outputs)

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the means."""
        del n_outputs
        return np.asarray(np.average(columns(targets), weights=weights, axis=0))


@dataclass(frozen=True)
class LogisticLoss(AbstractLoss):
    """Logistic loss of targets 0 and 1, summed over outputs."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the log likelihood of each bag."""
        margins = (1 - 2 * columns(targets)) * outputs
        return np.asarray(np.logaddexp(0.0, margins).sum(axis=1))

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return targets minus probabilities, alike for both classes."""
        signs = 2 * columns(targets) - 1
        return np.asarray(signs * expit(-signs * outputs))

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the logits of the frequencies, half a bag added to each class."""
        del n_outputs
        ones = weights @ columns(targets) + 0.5
        return np.asarray(np.log(ones) - np.log(weights.sum() + 1 - ones))


@dataclass(frozen=True)
class MultinomialLoss(AbstractLoss):
    """Cross entropy of a softmax; the target is the index of a class."""

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the log likelihood of each bag."""
        codes = targets.ravel().astype(np.int64)
        logs = log_softmax(outputs, axis=1)
        return np.asarray(-logs[np.arange(len(codes)), codes])

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return indicators minus probabilities."""
        codes = targets.ravel().astype(np.int64)
        return np.asarray(np.eye(outputs.shape[1])[codes] - softmax(outputs, axis=1))

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the logarithms of the frequencies, half a bag added to each class."""
        codes = targets.ravel().astype(np.int64)
        counts = np.bincount(codes, weights, n_outputs) + 0.5
        return np.asarray(np.log(counts / counts.sum()))


SQUARED, LOGISTIC, MULTINOMIAL = SquaredLoss(), LogisticLoss(), MultinomialLoss()


def head_loss(
    bags: Bags,
    targets: FloatArray,
    shares: FloatArray,
    rows: FloatArray,
    intercepts: FloatArray,
    *,
    head: str,
    kind: AbstractLoss,
) -> tuple[float, FloatArray, FloatArray]:
    r"""Return the loss of the heads together, and its gradients by rows and intercepts.

    Parameters
    ----------
    bags, targets
        Data.
    shares
        Weight of each bag in the mean of the losses.
    rows, intercepts
        For each head its key, then its values; added constants.
    head, kind
        Weights of the tokens, and loss of the outputs.
    """
    products, n_outputs = token_products(bags, rows), len(intercepts)
    bases = range(0, len(rows), 1 + n_outputs)
    outputs = np.zeros((len(bags), n_outputs)) + intercepts
    attended = []
    # Forward: scores and readouts of the tokens, weights, outputs of the bags.
    for base in bases:
        readouts = products[:, base + 1 : base + 1 + n_outputs]
        if head == "logsumexp":
            weights = attention_weights(bags, readouts[:, 0], head=head)
            part = log_mean_exp(bags, readouts[:, 0])[:, None]
        else:
            weights = attention_weights(bags, products[:, base], head=head)
            part = bags.sums(weights[:, None] * readouts)
        outputs += part
        attended.append((readouts, weights, part))
    loss = float(shares @ kind.per_bag(outputs, targets))
    # Backward: from the outputs to scores and readouts, then to keys and values.
    slopes = -shares[:, None] * kind.residuals(outputs, targets)
    spread, pulls = bags.spread(slopes), np.zeros(products.shape)
    for base, (readouts, weights, part) in zip(bases, attended, strict=True):
        pulls[:, base + 1 : base + 1 + n_outputs] = weights[:, None] * spread
        if head == "logsumexp":
            continue
        pull = (spread * readouts).sum(axis=1)
        if head == "erf":
            pull *= 2 / np.sqrt(np.pi) * np.exp(-(products[:, base] ** 2))
        elif head == "sigmoid":
            pull *= weights * (1 - weights)
        else:
            pull -= bags.spread((slopes * part).sum(axis=1))
            pull *= weights
        pulls[:, base] = pull
    dtype = bags.tokens.dtype
    by_rows = (bags.tokens.T @ pulls.astype(dtype, copy=False)).T
    return loss, np.asarray(by_rows, dtype=np.float64), slopes.sum(axis=0)
