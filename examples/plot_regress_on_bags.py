r"""
Regression on ragged bags: how much ink is in the zero?
=======================================================

Each bag holds between four and twelve handwritten digits, one of them a 0; the target
is the ink of that 0 alone. The regressor is given bags and targets, but not which
image is the zero, nor that zeros matter.
"""

# %%
# Bags of images
# --------------
# scikit-learn's digits; training and test bags are made of different images.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import RidgeCV

from eigenheads.estimators import SingleLocationRegressor

rng = np.random.default_rng(0)
images, digits = load_digits(return_X_y=True)


def draw_bags(images, digits, n):
    """Return ragged bags, the ink of the zero in each, and its place."""
    bags, ink, places = [], [], []
    for _ in range(n):
        bag = images[rng.choice(np.flatnonzero(digits != 0), rng.integers(4, 13))]
        place = rng.integers(len(bag))
        bag[place] = images[rng.choice(np.flatnonzero(digits == 0))]
        bags.append(bag)
        ink.append(bag[place].mean())
        places.append(place)
    return bags, np.array(ink), np.array(places)


half = rng.permutation(len(digits)) < len(digits) // 2
bags, ink, _ = draw_bags(images[half], digits[half], 1500)
test_bags, test_ink, test_places = draw_bags(images[~half], digits[~half], 500)

# %%
# One head, and ridge regression on the mean image
# ------------------------------------------------
model = SingleLocationRegressor().fit(bags, ink)
found = np.mean(np.asarray(model.locate(test_bags)) == test_places)


def pooled(bags):
    """Return the mean image of every bag."""
    return np.stack([bag.mean(axis=0) for bag in bags])


baseline = RidgeCV(np.logspace(-3, 3, 13)).fit(pooled(bags), ink)

# %%
# Predictions of both
# -------------------
panels = {
    "SingleLocationRegressor": model.predict(test_bags),
    "ridge on the mean image": baseline.predict(pooled(test_bags)),
}
scores = {
    "SingleLocationRegressor": model.score(test_bags, test_ink),
    "ridge on the mean image": baseline.score(pooled(test_bags), test_ink),
}
figure, axes = plt.subplots(1, 2, figsize=(8, 3.9), sharex=True, sharey=True)
for axis, (name, predicted) in zip(axes, panels.items(), strict=True):
    axis.plot(test_ink, predicted, ".", markersize=4, alpha=0.6)
    axis.axline((5, 5), slope=1, color="k", linestyle="--", linewidth=1)
    axis.set(title=f"{name}: R² = {scores[name]:.2f}", xlabel="ink of the zero")
axes[0].set_ylabel("predicted")
figure.suptitle(f"The head finds the zero in {found:.1%} of the bags, and reads it")
plt.show()

# %%
# Key and value are images
# ------------------------
# The key responds to a ring with an empty middle, the value sums up ink.
spread = images.std(axis=0)
figure, axes = plt.subplots(1, 2, figsize=(5, 2.7))
for axis, name, vector in zip(
    axes, ("key", "value"), (model.coef_key_, model.coef_value_), strict=True
):
    shown = (np.ravel(vector) * spread).reshape(8, 8)
    limit = np.abs(shown).max()
    axis.imshow(shown, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set(title=name, xticks=[], yticks=[])
    axis.grid(False)
figure.suptitle("The key asks for a hollow ring, the value for ink")
plt.show()
