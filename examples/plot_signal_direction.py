r"""
Find a direction in few tokens
==============================

One token in two hundred contains a direction; the others are noise, and a nuisance
direction has a larger variance. PCA finds the nuisance direction. An attention query
gives single strong tokens a large weight and finds the direction of the few tokens.
"""

# %%
# Tokens
# ------
import matplotlib.pyplot as plt
import numpy as np
from sklearn.decomposition import PCA

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import SignalDirection

law = SignalTokens(d=40, n_informative=30, n_nuisance=5970, strength=1.0)
tokens, signs = law.sample(1, np.random.default_rng(0))
tokens, is_informative = tokens[0], signs[0] != 0
# The second coordinate has the largest variance and is unrelated to the signal.
nuisance = np.eye(law.d)[1]
tokens += 0.8 * np.random.default_rng(1).standard_normal((len(tokens), 1)) * nuisance

# %%
# Two estimators of a direction
# -----------------------------
model = SignalDirection(random_state=0).fit(tokens)
principal = PCA(1).fit(tokens).components_[0]
called = model.predict(tokens)
recall = called[is_informative].mean()
false = called[~is_informative].mean()
print(
    f"overlap with the planted direction: {model.directions_[0] @ law.direction:+.3f}"
)
print(f"overlap of PCA:                     {principal @ law.direction:+.3f}")
print(f"true positives: {recall:.1%}, false positives: {false:.2%}")

# %%
# Projections of all tokens on both directions
# --------------------------------------------
figure, axes = plt.subplots(1, 2, figsize=(8.6, 3.6))
for axis, name, direction in (
    (axes[0], "PCA", principal),
    (axes[1], "SignalDirection", model.directions_[0]),
):
    along = tokens @ direction
    bins = np.linspace(-8, 8, 65)
    axis.hist(along[~is_informative], bins, color="C4", label="nuisance tokens")
    axis.hist(along[is_informative], bins, color="C1", label="informative tokens")
    overlap = abs(direction @ law.direction)
    axis.set(yscale="log", title=f"{name}: overlap {overlap:.2f}", xlabel="projection")
axes[1].legend()
figure.suptitle(
    f"{is_informative.sum()} of {len(tokens)} tokens contain a direction; "
    f"SignalDirection finds it and {recall:.0%} of the tokens"
)
plt.show()
