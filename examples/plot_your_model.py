r"""
Train a model of your own
=========================

The loss of an attention model, written in NumPy for one sample, is all that is needed
to train it exactly in any dimension and to compute the mean path of this training.
"""

# %%
# Declare the model
# -----------------
# One softmax head reads five tokens. The first token has a mean along a hidden key; the
# target is its component along a hidden value direction, with noise.
import matplotlib.pyplot as plt

from eigenheads.models import Model, Token, mean_dynamics, simulate, softmax


def softmax_location(X, w, u, g, p):
    prediction = softmax(X @ w.k) @ (X @ w.v)
    return (prediction - X[0] @ u.value - p.noise * g[0]) ** 2


model = Model(
    softmax_location,
    weights={"k": "free", "v": "sphere"},
    planted=("key", "value"),
    tokens=[Token(mean={"key": 3.0}), Token(4)],
    normals=1,
    parameters={"noise": 0.1},
)

# %%
# Train in two dimensions, and compute the mean path
# --------------------------------------------------
# Step sizes are 1/d, so that d steps are one unit of time. Descent on the risk has no
# noise; the mean dynamics have the noise of single samples.
start = {"k.key": 0.3, "v.value": 0.3, "k.k": 0.3}
runs, means, descents = {}, {}, {}
for d in (100, 10_000):
    setting = {"d": d, "step_size": 1 / d, "n_steps": 6 * d, "record_every": d // 10}
    runs[d] = simulate(model, start=start, n_runs=8, seed=0, **setting)
    path = {"start": start, "stride": d // 100, "n_samples": 2000} | setting
    means[d] = mean_dynamics(model, **path)
    descents[d] = mean_dynamics(model, noise=False, **path)

# %%
# Runs, mean dynamics and descent
# -------------------------------
figure, axes = plt.subplots(1, 2, figsize=(9.6, 3.4), sharey=True)
for axis, d in zip(axes, runs, strict=True):
    time = runs[d].steps / d
    axis.plot(time, runs[d]["v.value"].T, color="C0", alpha=0.4)
    axis.plot(time, means[d]["v.value"][0], "k--", label="mean dynamics")
    axis.plot(time, descents[d]["v.value"][0], "k", lw=0.7, label="without noise")
    axis.set(xlabel="steps / d", title=f"d = {d}")
axes[0].set_ylabel("v · value")
axes[1].legend(loc="lower right")
last = runs[10_000].final("v.value").mean()
gap = abs(means[10_000].final("v.value")[0] - last)
late = abs(descents[10_000].final("v.value")[0] - last)
figure.suptitle(
    f"At d = 10 000 the mean dynamics end {gap:.3f} from the runs, descent {late:.3f}"
)
plt.show()
