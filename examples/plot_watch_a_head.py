r"""
Watch a head find the token
===========================

One token of each prompt decides the target; the head is not told which one. It has a
key and a value and is trained on five fresh prompts per step. Theory describes the mean
of the training by five numbers in any dimension; the simulation has its noise, too.
"""

# %%
# Simulate
# --------
# Six heads from random starts, at the paper's settings (marion2025, Figure 4). The
# simulation is exact in law and never makes a vector of length d.
import matplotlib.pyplot as plt
import numpy as np

from eigenheads.datasets import SingleLocation
from eigenheads.dynamics import simulate_location
from eigenheads.theory import location_descent, location_risk


def sharpness(step):
    """Return the inverse temperature, which falls during training."""
    return 2 / (1 + 1e-4 * step)


law = SingleLocation(d=80, n_tokens=10, gamma=0.5**0.5, noise=0.1)
training = {
    "inverse_temperature": sharpness,
    "step_size": 1e-3,
    "n_steps": 150_000,
    "record_every": 1_000,
}
runs = simulate_location(law, **training, batch_size=5, n_runs=6, seed=0)

# %%
# Theory: descent on the population risk
# --------------------------------------
# Descent on the population risk, from the same starts: the closed form of the risk
# needs five inner products, and so does its gradient.
names = ("kappa", "nu", "theta", "eta", "rho")
starts = np.stack([runs[name][:, 0] for name in names], axis=1)
size = {"d": law.d, "n_tokens": law.n_tokens, "gamma": law.gamma}
theory = location_descent(starts, **size, **training)


def excess_risk(paths):
    """Return the risk above that of the noise, of every run and record."""
    order = [paths[name] for name in names]
    return location_risk(*order, **size, inverse_temperature=sharpness(paths.steps))


# %%
# Compare
# -------
# With five prompts per step, noise slows key and value down for a long time, but the
# risk, which mostly falls because the head becomes less sharp, stays on theory's curve.
# In the end the runs meet theory, and beat every predictor that ignores the location.
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
