r"""
Compare heads with their null distributions
===========================================

This example tests whether the heads of a trained model attend along the principal
directions of their tokens. A cosine alone means little: the cosine of each head is
compared with that of random directions and with that of untrained heads.
"""

# %%
# Train a small transformer
# -------------------------
# Its tokens are the rows of images of digits.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from eigenheads.adapters import probe_model


class RowReader(nn.Module):
    """A transformer of two layers on the eight rows of an image."""

    def __init__(self):
        super().__init__()
        self.embed, self.place = nn.Linear(8, 32), nn.Embedding(8, 32)
        block = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.decide = nn.Linear(32, 10)

    def forward(self, images):
        rows = self.embed(images) + self.place.weight
        return self.decide(self.encoder(rows).mean(dim=1))


torch.manual_seed(0)
images, digits = load_digits(return_X_y=True)
x = torch.tensor(images.reshape(-1, 8, 8) / 16, dtype=torch.float32)
y = torch.tensor(digits)
model = RowReader()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
for _ in range(300):
    chosen = torch.randint(1400, (64,))
    loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
model.eval()
with torch.no_grad():
    accuracy = float((model(x[1400:]).argmax(1) == y[1400:]).float().mean())
print(f"accuracy on held-out images: {accuracy:.3f}")

# %%
# Probe all eight heads
# ---------------------
# ``probe_model`` captures queries, keys, values and weights, and computes the null
# distributions.
probe = probe_model(model, x[1400:1416], n_permutations=99, n_untrained=5, seed=0)
name = "qk_covariance_cosine"
statistic = probe[name]
observed = statistic.observed.ravel()

# %%
# Heads and their null distributions
# ----------------------------------
# Bars show two standard deviations of the null around its mean. The result is negative:
# this small model does not show the effect that larger models show (see the guide on
# probing heads).
figure, axis = plt.subplots(figsize=(7, 3.8))
heads = np.arange(len(observed))
for shift, null, color in ((-0.15, "rotated", "C4"), (0.15, "untrained", "C1")):
    mean = statistic.null_mean[null].ravel()
    sd = statistic.null_sd[null].ravel()
    axis.errorbar(
        heads + shift, mean, 2 * sd, fmt="_", color=color, capsize=3, label=null
    )
found = probe.stands_out(name).ravel()
axis.plot(heads[~found], observed[~found], "o", color="C0", mfc="none", label="head")
axis.plot(heads[found], observed[found], "o", color="C0", label="stands out (q ≤ 0.05)")
labels = [f"{layer}.{head}" for layer in probe.layers for head in range(4)]
axis.set_xticks(heads, labels)
axis.set(xlabel="layer.head", ylabel="cosine of score form and covariance")
axis.legend(ncols=2)
axis.set_title(
    f"{found.sum()} of {len(found)} heads attend along the principal directions of "
    "their tokens\nmore than every null; the median cosine is "
    f"{np.median(observed):.2f}"
)
plt.show()
