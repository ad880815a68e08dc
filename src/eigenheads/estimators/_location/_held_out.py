"""Candidates of the choice of a penalty, and their outputs on held-out bags."""

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._location._problem import HeadSettings, LabelledBags


@dataclass(frozen=True)
class Candidate:
    """A model to choose from, and its out-of-fold score.

    `score` is the share of the loss of the best constant that the candidate removes,
    after its outputs are multiplied by `scale`; for squared loss it is :math:`R^2`.
    """

    pooling: str
    alpha: float
    path: int = 0
    scale: float = 1.0
    score: float = np.nan

    @property
    def name(self) -> tuple[str, float, int]:
        """Pooling, penalty and path: what is fitted."""
        return self.pooling, self.alpha, self.path


@dataclass(frozen=True)
class HeldOut:
    """Outputs of all candidates on bags that they were not fitted to.

    `outputs` are relative to `constants`, the best constants of the folds. `solutions`
    has the coefficients of the heads on each fold, by name.
    """

    settings: HeadSettings
    sample: LabelledBags
    constants: FloatArray
    outputs: dict[Candidate, FloatArray]
    solutions: dict[tuple[str, float, int], list[FloatArray]] = field(
        default_factory=dict
    )

    @property
    def size(self) -> float:
        """Number of bags, repeated as often as their weights say."""
        weights = self.sample.weights
        return max(float(weights.sum()), float(len(weights)))

    def take(self, chosen: NDArray[np.int64]) -> "HeldOut":
        """Return the same for some of the bags."""
        outputs = {name: some[chosen] for name, some in self.outputs.items()}
        sample, constants = self.sample.take(chosen), self.constants[chosen]
        return replace(self, sample=sample, constants=constants, outputs=outputs)

    def of(self, pooling: str) -> list[Candidate]:
        """Return the candidates with this pooling."""
        return [candidate for candidate in self.outputs if candidate.pooling == pooling]

    def losses(self, candidate: Candidate, scale: float) -> FloatArray:
        """Return the loss of each bag, with outputs times `scale`."""
        outputs = self.constants + scale * self.outputs[candidate]
        return self.settings.kind.per_bag(outputs, self.sample.targets)

    @cached_property
    def shares(self) -> FloatArray:
        """Weights of the bags, with sum one."""
        return np.asarray(self.sample.weights / self.sample.weights.sum())

    def mean(self, losses: FloatArray) -> float:
        """Return the weighted mean over the bags."""
        return float(self.shares @ losses)

    def error(self, losses: FloatArray) -> float:
        """Return the standard error of the mean."""
        variance = self.mean((losses - self.mean(losses)) ** 2)
        return float(np.sqrt(variance / self.size))

    def gain(self, mean_loss: float) -> float:
        """Return twice the gain in log likelihood over the constants."""
        kind = self.settings.kind
        none = self.mean(kind.per_bag(self.constants, self.sample.targets))
        return kind.deviance(none, self.size) - kind.deviance(mean_loss, self.size)
