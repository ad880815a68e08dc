r"""
PCA with an attention head
==========================

An attention head that is trained to reconstruct its query learns the principal subspace
of the rows. ``AttentionPCA`` trains such a head on all rows, or on a stream that it
reads once. On images of digits it explains the same variance as PCA.
"""

# %%
# Fit AttentionPCA and PCA
# ------------------------
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA, IncrementalPCA

from eigenheads.estimators import AttentionPCA

images = load_digits().data
rng = np.random.default_rng(0)
n_components = 6
exact = PCA(n_components).fit(images)
head = AttentionPCA(n_components, random_state=0).fit(images)


def kept(model):
    """Return the variance of the images along the components of a model."""
    basis = np.linalg.qr(model.components_.T)[0]
    return np.var(images @ basis, axis=0, ddof=1).sum()


best = kept(exact)
print(f"explained variance of PCA: {exact.explained_variance_ratio_.sum():.4f}")
print(f"head, relative to PCA:     {kept(head) / best:.6f}")

# %%
# Components of both
# ------------------
figure, axes = plt.subplots(2, n_components, figsize=(9, 3.4))
for line, name, model in zip(axes, ("PCA", "head"), (exact, head), strict=True):
    for axis, component, reference in zip(
        line, model.components_, exact.components_, strict=True
    ):
        shown = np.sign(component @ reference) * component  # signs are arbitrary
        axis.imshow(shown.reshape(8, 8), cmap="RdBu_r", vmin=-0.4, vmax=0.4)
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
cosines = np.abs(np.sum(head.components_ * exact.components_, axis=1))
figure.suptitle(
    "The trained head finds the components of PCA: "
    f"1 − |cosine| is at most {1 - cosines.min():.0e}"
)
plt.show()

# %%
# On a stream
# -----------
# The stream has every image five times, in random order and each time with new noise.
# It is read once, in batches of 60 rows.
rows = np.concatenate([images[rng.permutation(len(images))] for _ in range(5)])
rows = rows + rng.normal(0, 2, rows.shape)
streams = {
    "AttentionPCA.partial_fit": AttentionPCA(n_components, random_state=0),
    "IncrementalPCA.partial_fit": IncrementalPCA(n_components),
}
figure, axis = plt.subplots(figsize=(6.4, 3.6))
lost = {}
for name, model in streams.items():
    read, lost[name] = [], []
    for batch in np.array_split(rows, len(rows) // 60):
        model.partial_fit(batch)
        read.append(model.n_samples_seen_)
        lost[name].append(1 - kept(model) / best)
    axis.plot(read, lost[name], label=name)
axis.set(yscale="log", xlabel="rows read", ylabel="variance lost, relative to PCA")
axis.legend()
final = {name: values[-1] for name, values in lost.items()}
axis.set_title(
    f"After {len(rows)} noisy rows AttentionPCA has lost "
    f"{final['AttentionPCA.partial_fit']:.1e},\n"
    f"IncrementalPCA {final['IncrementalPCA.partial_fit']:.1e} of the variance"
)
plt.show()
