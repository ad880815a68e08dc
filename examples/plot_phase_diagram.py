r"""
Compute a phase diagram with a sweep
====================================

An attention head finds the direction of rare, strong tokens that PCA misses; PCA is
better for common, weak ones. ``sweep`` compares both at every point of a grid with
every seed. It stores finished cells, so that an interrupted sweep can be resumed.
"""

# %%
# Sweep
# -----
# The grid is smaller than that of the experiment, so that it takes seconds. The same
# on the command line: ``eigenheads sweep truong2026/phase_diagram
# --grid share=.001:.3:6:log --grid strength=.15:1.5:6:log --grid n_prompts=64
# --seeds 2``.
import tempfile

import matplotlib.pyplot as plt
import numpy as np

from eigenheads.theory import pooled_pca_threshold
from eigenheads_papers import sweep

grid = {"share": "0.001:0.3:6:log", "strength": "0.15:1.5:6:log", "n_prompts": [64]}
with tempfile.TemporaryDirectory() as folder:
    result = sweep("truong2026/phase_diagram", grid=grid, seeds=2, jobs=1, out=folder)
print(f"{result.computed} cells; columns: {', '.join(result.names)}")

# %%
# Head minus PCA
# --------------
# The head is better in the red part (rare, strong tokens), PCA in the blue part
# (common, weak tokens). Below the line, PCA of the pooled tokens fails, by theory.
shares, strengths = (np.array(result.axes[name]) for name in ("share", "strength"))
lead = (result.mean("head") - result.mean("pca"))[:, :, 0]
figure, axis = plt.subplots(figsize=(6.4, 4.2))
at = np.log10(shares), np.log10(strengths)
image = axis.pcolormesh(*at, lead.T, cmap="RdBu_r", vmin=-1, vmax=1)
axis.grid(False)
figure.colorbar(image, label="alignment of the head minus that of PCA")
fine = np.geomspace(shares[0], shares[-1], 200)
threshold = pooled_pca_threshold(fraction=fine, d=64, n_samples=64 * 125)
axis.plot(np.log10(fine), np.log10(threshold), "k--", label="threshold of PCA (theory)")
axis.set_xticks(at[0], [f"{share:.2g}" for share in shares])
axis.set_yticks(at[1], [f"{strength:.2g}" for strength in strengths])
axis.set(ylim=(at[1][0] - 0.1, at[1][-1] + 0.1))
axis.set(xlabel="share of informative tokens", ylabel="strength θ")
axis.legend(loc="lower left")
best, worst = (np.unravel_index(i, lead.shape) for i in (lead.argmax(), lead.argmin()))
axis.set_title(
    f"The head is better by up to {lead.max():.2f} "
    f"(share {shares[best[0]]:.2g}, strength {strengths[best[1]]:.2g}),\n"
    f"PCA by up to {-lead.min():.2f} "
    f"(share {shares[worst[0]]:.2g}, strength {strengths[worst[1]]:.2g})"
)
plt.show()
