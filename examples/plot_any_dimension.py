r"""
Train in a billion dimensions
=============================

A query maximises the norm of its own attention output and finds the direction that a
few tokens of each prompt share. One number, the alignment, describes its training. It
can be simulated exactly in distribution, at a cost that does not depend on d.
"""

# %%
# Simulate in three dimensions
# ----------------------------
# A tenth of the tokens contain the direction, with an amplitude of 0.35 √d; heads start
# at an alignment of 0.2. The step sizes are those that theory gives for a final error
# of one percent. No vector of length d is stored.
import time

import matplotlib.pyplot as plt

from eigenheads.datasets import SignalTokens
from eigenheads.models import simulate_signal
from eigenheads.theory import signal_mean_dynamics, signal_steps

dimensions = (10**2, 10**5, 10**9)
runs, theory, seconds = {}, {}, {}
for d in dimensions:
    law = SignalTokens(
        d=d,
        n_informative=100,
        n_nuisance=900,
        strength=0.35,
        inverse_temperature=2.5 / (0.35 * d**0.5),
    )
    steps = signal_steps(law, error=1e-2)
    training = {"step_size": steps, "n_steps": steps.n_steps, "record_every": 1}
    simulate_signal(law, step_size=1e-9, n_steps=1, record_every=1, n_runs=1, seed=0)
    begin = time.perf_counter()  # the call above has compiled the code
    runs[d] = simulate_signal(law, **training, n_runs=8, seed=0, start=0.2)
    seconds[d] = time.perf_counter() - begin
    theory[d] = signal_mean_dynamics(law, 0.2, **training)

# %%
# All runs and the theoretical mean path
# --------------------------------------
# Runs differ because every step uses one random prompt; their mean follows theory.
figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4), sharey=True)
for axis, d in zip(axes, dimensions, strict=True):
    axis.plot(runs[d].steps, runs[d]["alignment"].T, color="C0", alpha=0.5)
    axis.plot(theory[d].steps, theory[d]["alignment"][0], "k--", label="theory, mean")
    axis.set(xlabel="steps", title=f"d = {d:.0e}: {len(runs[d].steps) - 1} steps")
axes[0].set_ylabel("alignment q·u")
axes[0].legend(loc="lower right")
final = min(runs[d].final("alignment").min() for d in dimensions)
figure.suptitle(
    f"From d = 100 to d = 10⁹ every query finds the direction (worst: {final:.3f})"
)
plt.show()

# %%
# Computing time
# --------------
for d in dimensions:
    n_updates = 8 * (len(runs[d].steps) - 1)
    print(f"d = {d:.0e}: {seconds[d] / n_updates * 1e6:.0f} microseconds per step")
