r"""
A sharp head breaks with one token
==================================

How many tokens must be replaced to take over a softmax head? If keys and values stay
in balls, there is a bound: :func:`~eigenheads.theory.head_certificate`.
"""

# %%
# Heads from flat to sharp
# ------------------------
# 64 tokens with random keys and values. Longer queries make a head sharper.
import matplotlib.pyplot as plt
import numpy as np

from eigenheads.theory import head_certificate

rng = np.random.default_rng(0)
queries, keys, values = rng.standard_normal((3, 64, 16))
counts = np.arange(1, 33)
heads = {
    size: head_certificate(size * queries, keys, values, counts=counts)
    for size in (0.05, 0.2, 0.5, 1.0)
}
print(heads[0.2])

# %%
# Bound and attack
# ----------------
# The bound says how far an output can move, at most. The attack gives the heaviest
# tokens of a row its direction as key, and the worst value of the ball. Above the
# dotted line the bound says nothing that the ball does not say.
figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for (size, found), color in zip(heads.items(), ("C0", "C1", "C2", "C3"), strict=True):
    diameter = 2 * found.value_radius
    bound, attack = (
        np.median(x, axis=0) / diameter for x in (found.bounds, found.attained)
    )
    axes[0].plot(counts, bound, color=color, label=f"queries times {size}")
    axes[0].plot(counts, attack, "--", color=color)
    shares = np.bincount(found.breakdown, minlength=33) / 64
    axes[1].step(np.arange(33), shares.cumsum(), where="post", color=color)
axes[0].axhline(1.0, color="k", linestyle=":", linewidth=1)
axes[0].set(
    title="Movement over the diameter of the ball\n(dashed: by the attack)",
    xlabel="replaced tokens",
    ylim=(0, 2),
)
axes[0].legend(fontsize="small")
axes[1].set(
    title="Share of rows that break with at most\nso many replaced tokens",
    xlabel="breakdown number $m^*$",
)
sharp, flat = (np.median(heads[size].breakdown) for size in (1.0, 0.05))
figure.suptitle(
    f"Median breakdown number: {flat:.0f} of 64 tokens for the flattest head, "
    f"{sharp:.0f} for the sharpest"
)
plt.show()
