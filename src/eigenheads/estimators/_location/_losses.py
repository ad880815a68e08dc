r"""Losses of the outputs of a head.

A new loss is a class with the methods below and a branch of the compiled function
:func:`loss_and_slope`; nothing else in the fit depends on which loss it is.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from scipy.special import expit, log_softmax, softmax

from eigenheads._compile import njit
from eigenheads._typing import FloatArray


def columns(targets: FloatArray) -> FloatArray:
    """Return targets with two axes, one row per bag."""
    return targets.reshape(len(targets), -1)


class AbstractLoss(ABC):
    """Loss of one bag as a function of outputs and target."""

    code: int  # branch of the compiled function

    @abstractmethod
    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return the loss of each bag, as the compiled function does."""

    @abstractmethod
    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the derivative of the loss by the outputs."""

    @abstractmethod
    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the constant outputs of least mean loss."""

    @abstractmethod
    def deviance(self, mean_loss: float, n: float) -> float:
        """Return minus twice the log likelihood of `n` bags, up to a constant."""


@dataclass(frozen=True)
class SquaredLoss(AbstractLoss):
    """Half the squared error, summed over outputs; noise of unknown variance."""

    code: int = 0

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

    def deviance(self, mean_loss: float, n: float) -> float:
        """Return n times the logarithm of the mean loss."""
        return float(n * np.log(max(mean_loss, 1e-300)))


@dataclass(frozen=True)
class LogisticLoss(AbstractLoss):
    """Logistic loss of targets 0 and 1, summed over outputs."""

    code: int = 1

    def per_bag(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return minus the log likelihood of each bag."""
        margins = (1 - 2 * columns(targets)) * outputs
        return np.asarray(np.logaddexp(0.0, margins).sum(axis=1))

    def residuals(self, outputs: FloatArray, targets: FloatArray) -> FloatArray:
        """Return targets minus probabilities."""
        return np.asarray(columns(targets) - expit(outputs))

    def constant(
        self, targets: FloatArray, weights: FloatArray, n_outputs: int
    ) -> FloatArray:
        """Return the logits of the frequencies, half a bag added to each class."""
        del n_outputs
        ones = weights @ columns(targets) + 0.5
        return np.asarray(np.log(ones) - np.log(weights.sum() + 1 - ones))

    def deviance(self, mean_loss: float, n: float) -> float:
        """Return minus twice the log likelihood."""
        return 2 * n * mean_loss


@dataclass(frozen=True)
class MultinomialLoss(AbstractLoss):
    """Cross entropy of a softmax; the target is the index of a class."""

    code: int = 2

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

    def deviance(self, mean_loss: float, n: float) -> float:
        """Return minus twice the log likelihood."""
        return 2 * n * mean_loss


SQUARED, LOGISTIC, MULTINOMIAL = SquaredLoss(), LogisticLoss(), MultinomialLoss()


@njit()
def loss_and_slope(
    code: int, outputs: FloatArray, targets: FloatArray, bag: int, slope: FloatArray
) -> float:
    """Return the loss of one bag; write its derivative by the outputs."""
    loss = 0.0
    if code == 0:
        for c in range(outputs.size):
            slope[c] = outputs[c] - targets[bag, c]
            loss += 0.5 * slope[c] ** 2
        return loss
    if code == 1:
        for c in range(outputs.size):
            # log(1 + e^-m), m = +-output, without overflow.
            is_one = targets[bag, c] > 0.5
            margin = outputs[c] if is_one else -outputs[c]
            small = math.exp(-abs(margin))
            wrong = small / (1 + small) if margin > 0 else 1 / (1 + small)
            slope[c] = -wrong if is_one else wrong
            loss += math.log1p(small) + max(-margin, 0.0)
        return loss
    top = outputs.max()
    total = 0.0
    for c in range(outputs.size):
        slope[c] = math.exp(outputs[c] - top)
        total += slope[c]
    for c in range(outputs.size):
        slope[c] /= total
    chosen = int(targets[bag, 0])
    slope[chosen] -= 1.0
    return math.log(total) + top - outputs[chosen]
