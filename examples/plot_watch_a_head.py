r"""
Training of a head, simulation and theory
=========================================

One token of each prompt decides the target; the head does not know which one. It has a
key and a value and is trained on five new prompts per step. Theory describes gradient
descent on the mean loss by five numbers in any dimension; the simulation includes the
noise of the prompts.
"""

# %%
# Simulate
# --------
# Six heads from random starts, with the settings of the paper (marion2025, Figure 4).
# The simulation is exact in distribution and never stores a vector of length d.
import matplotlib.pyplot as plt
import numpy as np

from eigenheads.datasets import SingleLocation
from eigenheads.models import simulate_location
from eigenheads.theory import LocationLandscape, location_descent


def inverse_temperature(step):
    """Return the inverse temperature, which decreases during training."""
    return 2 / (1 + 1e-4 * step)


law = SingleLocation(d=80, n_tokens=10, gamma=0.5**0.5, noise=0.1)
training = {
    "inverse_temperature": inverse_temperature,
    "step_size": 1e-3,
    "n_steps": 150_000,
    "record_every": 1_000,
}
runs = simulate_location(law, **training, batch_size=5, n_runs=6, seed=0)

# %%
# Theory: descent on the population risk
# --------------------------------------
# Gradient descent from the same starts. The closed forms of the risk and of its
# gradient need five inner products only.
names = ("kappa", "nu", "theta", "eta", "rho")
starts = np.stack([runs[name][:, 0] for name in names], axis=1)
theory = location_descent(law, starts, **training)


def excess_risk(paths):
    """Return the risk minus that of the noise, for every run and record."""
    order = [paths[name] for name in names]
    schedule = inverse_temperature(paths.steps)
    landscape = LocationLandscape(law, inverse_temperature=schedule)
    return landscape.risk(*order) - law.noise**2


# %%
# Compare
# -------
# With five prompts per step, noise slows key and value for a long time. The risk still
# follows the theoretical curve, because it decreases mostly with the inverse
# temperature. At the end the runs agree with theory, and their risk is below that of
# every predictor that ignores the location.
thousands = runs.steps / 1000
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6))
for name, color, label in (("kappa", "C0", "key, |κ|"), ("nu", "C1", "value, |ν|")):
    left.plot(thousands, np.abs(runs[name]).T, color=color, alpha=0.35, linewidth=1)
    left.plot([], [], color=color, label=label)
    left.plot(thousands, np.abs(theory[name]).mean(axis=0), "k--")
left.plot([], [], "k--", label="theory, mean")
left.set(xlabel="thousand steps", title="Overlap with the planted directions")
left.legend()
right.plot(thousands, excess_risk(runs).T, color="C2", alpha=0.35, linewidth=1)
right.plot(thousands, excess_risk(theory).mean(axis=0), "k--")
right.axhline(law.gamma**2, color="C4", label="predicting 0")
right.set(xlabel="thousand steps", yscale="log", title="Excess risk")
right.legend()
worst = np.minimum(np.abs(runs.final("kappa")), np.abs(runs.final("nu"))).min()
figure.suptitle(
    f"All 6 heads find the token; the worst overlap at the end is {worst:.3f}"
)
plt.show()
