r"""
Principal components of images with wrong pixels
================================================

A tenth of the pixels of handwritten digits are replaced by random values. PCA spreads
every wrong pixel over all components. Robust PCA separates wrong pixels from the image,
also in new images.
"""

# %%
# Digits with wrong pixels
# ------------------------
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA

from eigenheads.estimators import RobustPCA

rng = np.random.default_rng(0)
images = load_digits().data
is_wrong = rng.random(images.shape) < 0.1
corrupted = np.where(is_wrong, rng.uniform(0, 16, images.shape), images)
train = np.arange(len(images)) % 2 == 0

# %%
# Fit on one half, clean the other
# --------------------------------
# Digits are only approximately of low rank, so `sparsity` is larger than its default.
# PCA has the number of components with the smallest error.
robust = RobustPCA(sparsity=1.5, tol=1e-5).fit(corrupted[train])
plain = PCA(25).fit(corrupted[train])
cleaned = {
    "RobustPCA": robust.inverse_transform(robust.transform(corrupted[~train])),
    "PCA": plain.inverse_transform(plain.transform(corrupted[~train])),
}
wanted = images[~train]
errors = {
    name: np.linalg.norm(rows - wanted) / np.linalg.norm(wanted)
    for name, rows in cleaned.items()
}

# %%
# Reconstructions of unseen images
# --------------------------------
# The last row is the sparse part that robust PCA removed.
rows = {
    "true": wanted,
    "given": corrupted[~train],
    f"RobustPCA, error {errors['RobustPCA']:.2f}": cleaned["RobustPCA"],
    f"PCA, error {errors['PCA']:.2f}": cleaned["PCA"],
    "removed": corrupted[~train] - cleaned["RobustPCA"],
}
figure, axes = plt.subplots(5, 10, figsize=(9, 5), layout="constrained")
for line, (label, pictures) in zip(axes, rows.items(), strict=True):
    is_signed = label == "removed"
    limits = (-16, 16) if is_signed else (0, 16)
    for axis, picture in zip(line, pictures[:10], strict=True):
        axis.imshow(
            picture.reshape(8, 8),
            cmap="RdBu_r" if is_signed else "gray_r",
            vmin=limits[0],
            vmax=limits[1],
        )
        axis.set(xticks=[], yticks=[])
        axis.grid(False)
    line[0].set_ylabel(
        label.replace(", ", "\n"), rotation=0, ha="right", va="center", fontsize=9
    )
figure.suptitle(
    "Robust PCA removes wrong pixels: "
    f"relative error {errors['RobustPCA']:.2f}, that of PCA {errors['PCA']:.2f}"
)
