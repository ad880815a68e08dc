"""One rule for inverse temperature and steps; runs by it, and theory's path."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import SignalTokens
from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import GREY
from eigenheads.models import simulate_signal
from eigenheads.theory import SignalSteps, signal_mean_dynamics, signal_steps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The logit βA of an informative token at full alignment. Sharper, and attention sits
# on a few tokens whose noise is then all there is; flatter, and the escape is slow.
PEAK_LOGIT = 2.5
RULE = (
    "One rule for all: sharpness β = 2.5/(θ√d), so that an informative token's logit "
    "is 2.5 at full alignment, and steps a₀/(1 + t/t₀) with a₀, t₀ and their number T "
    "from the escape rate, the return rate and the gradient noise of theory, for a "
    "final error 1 − |q·u| of 0.001."
)
CONSTANTS = (
    "The paper's token law, d, counts, sharpness and steps are not public; all of "
    "these are ours. "
)
# The paper's mean final alignment over 30 runs.
PUBLISHED = 0.9965


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One law, its step sizes by the rule, and its number of runs."""

    law: SignalTokens
    steps: SignalSteps
    n_runs: int

    @property
    def work(self) -> float:
        """Updates over all runs."""
        return float(self.steps.n_steps * self.n_runs)


def setting(
    d: int, n_informative: int, n_nuisance: int, strength: float, n_runs: int
) -> Setting:
    """Return the law of these numbers with its sharpness and steps by the rule."""
    law = SignalTokens(
        d,
        n_informative,
        n_nuisance,
        strength,
        inverse_temperature=PEAK_LOGIT / (strength * math.sqrt(d)),
    )
    return Setting(law=law, steps=signal_steps(law), n_runs=n_runs)


def with_power(rule: Setting, power: float, n_runs: int) -> Setting:
    """Change the decay of the steps, and the number of runs."""
    return replace(rule, steps=replace(rule.steps, power=power), n_runs=n_runs)


def simulate_setting(
    rule: Setting, *, n_records: int, seed: int
) -> dict[str, FloatArray]:
    """Return steps, time, alignment and averaged alignment of the runs."""
    n_steps = rule.steps.n_steps
    record_every = max(1, n_steps // n_records)
    paths = simulate_signal(
        rule.law,
        step_size=rule.steps,
        n_steps=n_steps,
        n_runs=rule.n_runs,
        record_every=record_every,
        seed=seed,
        averaging=True,
    )
    # The time of the gradient flow after t updates is the sum of their step sizes.
    sizes = np.array([rule.steps(index) for index in range(n_steps)])
    time = np.concatenate([[0.0], np.cumsum(sizes)])
    return {
        "steps": paths.steps.astype(np.float64),
        "time": time[paths.steps],
        "alignment": paths["alignment"],
        "averaged": paths["averaged_alignment"],
    }


def mean_path(rule: Setting, start: FloatArray, steps: FloatArray) -> FloatArray:
    """Return theory's alignment, noise included, at the recorded steps."""
    # Theory is recorded at the same steps as the runs.
    record_every = int(steps[1] - steps[0])
    path = signal_mean_dynamics(
        rule.law,
        start,
        step_size=rule.steps,
        n_steps=rule.steps.n_steps,
        record_every=record_every,
    )
    return path["alignment"]


def final_error(alignment: FloatArray) -> FloatArray:
    """Return 1 − |q·u| at the end of every run."""
    error: FloatArray = 1 - np.abs(alignment[:, -1])
    return error


def mark_published(axes: "Axes") -> None:
    """Draw the paper's number as a horizontal line."""
    error = 1 - PUBLISHED
    axes.axhline(error, color=GREY, linewidth=1)
    where: Any = axes.get_yaxis_transform()
    text = axes.text(0.02, error * 1.04, "the paper's 0.9965", transform=where)
    text.set(color=GREY, ha="left", va="bottom")


def dimension_label(d: int) -> str:
    """Return d with thin groups of digits."""
    return "d = " + f"{d:,}".replace(",", " ")
