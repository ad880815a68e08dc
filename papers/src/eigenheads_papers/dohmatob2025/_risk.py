r"""Risk of softmax attention among exponentially many tokens.

The deciding token is :math:`N(c \sqrt d\, u^*, \gamma^2 I)` with
:math:`c^2 = 1 - \gamma^2`, the others are standard normal, their number is
:math:`e^{\alpha d}`, and the inverse temperature is :math:`\beta \sqrt d`.
"""

import math
from dataclasses import dataclass

import numpy as np

from eigenheads.extend import FloatArray


@dataclass(frozen=True)
class Overlaps:
    """Overlaps of a head (u, v) with the oracle (u*, v*)."""

    mu: float = 1.0  # u·u*
    nu: float = 1.0  # v·v*
    zeta: float = 0.0  # v·u*
    rho: float = 0.0  # u·v


@dataclass(frozen=True)
class MeanField:
    r"""The mean-field description of Corollary 1, and its thermodynamics."""

    d: int
    n_others: float
    gamma: float
    beta: float

    @property
    def critical(self) -> float:
        r"""Inverse temperature of condensation, :math:`\sqrt{2 \alpha}`."""
        return math.sqrt(2 * math.log(self.n_others) / self.d)

    @property
    def psi(self) -> float:
        r"""Free energy over β: :math:`\alpha/\beta + \beta/2`, or its frozen value."""
        if self.beta >= self.critical:
            return self.critical
        return self.critical**2 / (2 * self.beta) + self.beta / 2

    @property
    def participation(self) -> float:
        r"""Limit of :math:`E \sum w^2` over the other tokens' own weights.

        :math:`1 - \beta_c/\beta` in the frozen phase, 0 above its temperature.
        """
        return max(0.0, 1 - self.critical / self.beta)

    def share(self, mu: float) -> float:
        """Return p, the weight of the deciding token."""
        c = math.sqrt(1 - self.gamma**2)
        exponent = (c * mu - self.psi) * self.beta * self.d
        return 1 / (1 + math.exp(-min(max(exponent, -500.0), 500.0)))

    def risk(self, at: Overlaps) -> float:
        """Return the risk of Corollary 1, without noise on the targets."""
        c, p = math.sqrt(1 - self.gamma**2), self.share(at.mu)
        energy = min(self.beta, self.critical)
        mean = p * c * at.zeta + (1 - p) * at.rho * energy
        return mean**2 * self.d + self.gamma**2 * (p**2 - 2 * p * at.nu + 1)

    def corrected_risk(self, at: Overlaps) -> float:
        """Return the risk plus the variance of the tokens that a frozen head picks."""
        p = self.share(at.mu)
        spread = (1 - p) ** 2 * (1 - at.rho**2) * self.participation
        return self.risk(at) + spread


def sampled_risk(
    field: MeanField, at: Overlaps, n_samples: int, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the exact risk at finite d and its error, for heads with ζ = 0.

    Scores are drawn; given them, values are Gaussian and averaged exactly: a value is
    ρ times its score plus independent noise of variance 1 − ρ² (γ² that for the
    deciding token), and u is taken orthogonal to v*.
    """
    n_others = round(field.n_others)
    block = max(1, min(n_samples, 4_000_000 // n_others))
    c, slope = math.sqrt(1 - field.gamma**2), field.beta * math.sqrt(field.d)
    batches = []
    for start in range(0, n_samples, block):
        size = min(block, n_samples - start)
        distractors = rng.standard_normal((size, n_others))
        noise = rng.standard_normal(size)
        decisive = c * math.sqrt(field.d) * at.mu + field.gamma * noise
        top = np.maximum(distractors.max(axis=1), decisive)
        weights = np.exp(slope * (distractors - top[:, None]))
        first = np.exp(slope * (decisive - top))
        total = weights.sum(axis=1) + first
        first, weights = first / total, weights / total[:, None]
        batches.append(_errors(field, at, noise, first, weights, distractors))
    errors = np.concatenate(batches)
    return float(errors.mean()), float(errors.std() / math.sqrt(n_samples))


def _errors(
    field: MeanField,
    at: Overlaps,
    noise: FloatArray,
    first: FloatArray,
    weights: FloatArray,
    distractors: FloatArray,
) -> FloatArray:
    """Return mean squared errors given the scores."""
    # The deciding token: value γ (ρ g + …), target γ times its v*-component, which has
    # correlation ν with the value and none with the score.
    mean = first * field.gamma * at.rho * noise
    mean += at.rho * np.einsum("ij,ij->i", weights, distractors)
    spread = field.gamma**2 * (first**2 * (1 - at.rho**2) - 2 * first * at.nu + 1)
    return mean**2 + spread + (1 - at.rho**2) * np.einsum("ij,ij->i", weights, weights)
