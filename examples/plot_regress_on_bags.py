r"""
Regression on bags of different sizes
=====================================

Each bag contains four to twelve handwritten digits. One of them is a 0, and the target
is the ink of this 0. The regressor is fitted to bags and targets; it does not know
which image is the zero, nor that zeros are relevant.
"""

# %%
# Bags of images
# --------------
# Training and test bags use different images of scikit-learn's digits.
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
# Fit a head, and ridge regression on the mean image
# --------------------------------------------------
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
figure.suptitle(f"The head finds the zero in {found:.1%} of the bags")
plt.show()

# %%
# Key and value are images
# ------------------------
# The key responds to a ring with an empty centre; the value adds up ink.
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
figure.suptitle("The key responds to a ring, the value to ink")
plt.show()
