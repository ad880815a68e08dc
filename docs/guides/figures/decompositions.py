"""Draw the figure of the guide: what variance sees, and what rare tokens show."""

from pathlib import Path

import matplotlib as mpl
import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import AttentionPCA, SignalDirection

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "decompositions"  # the same bytes every time
mpl.rcParams["svg.fonttype"] = "none"

import matplotlib.pyplot as plt  # noqa: E402

HERE = Path(__file__).parent
N_ROWS, D, K = 20_000, 100, 5


def lost_variance(model, X, best):
    basis = np.linalg.qr(model.components_.T)[0]
    return max(1 - np.var(X @ basis, axis=0, ddof=1).sum() / best, 1e-9)


def draw_streams(axes):
    """Variance lost against rows read, for streams and for the whole table."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N_ROWS, D)) / np.sqrt(np.arange(1, D + 1))
    best = PCA(K).fit(X).explained_variance_.sum()
    streams = {
        "AttentionPCA.partial_fit": AttentionPCA(K, random_state=0),
        "IncrementalPCA": IncrementalPCA(K),
    }
    for (name, model), color in zip(streams.items(), ("C0", "C7"), strict=True):
        read, lost = [], []
        for batch in np.array_split(X, N_ROWS // 500):
            model.partial_fit(batch)
            read.append(model.n_samples_seen_)
            lost.append(lost_variance(model, X, best))
        axes.plot(read, lost, color=color, label=name)
    whole = lost_variance(AttentionPCA(K, random_state=0).fit(X), X, best)
    axes.axhline(whole, color="C0", linestyle="--", label="AttentionPCA.fit")
    axes.axhline(1e-3, color="black", linewidth=0.8, linestyle=":")
    axes.text(N_ROWS, 1.1e-3, "99.9 % of PCA", ha="right", va="bottom", fontsize=8)
    axes.set(
        xlabel="rows read",
        ylabel="explained variance lost against PCA",
        yscale="log",
        title="Common directions: variance",
    )
    axes.legend(fontsize=8, loc=(0.35, 0.25))


def draw_tokens(axes):
    """Tokens along the direction found by each method."""
    law = SignalTokens(d=50, n_informative=12, n_nuisance=5988, strength=1.0)
    tokens, signs = law.sample(1, np.random.default_rng(0))
    tokens, is_rare = tokens[0], signs[0] != 0
    model = SignalDirection(random_state=0).fit(tokens)
    top = PCA(1).fit(tokens).components_[0]
    across, along = tokens @ top, model.transform(tokens)[:, 0]
    axes.scatter(
        across[~is_rare],
        along[~is_rare],
        s=2,
        color="C7",
        label="nuisance",
        rasterized=True,
    )
    axes.scatter(
        across[is_rare], along[is_rare], s=14, color="C1", label="informative, 0.2 %"
    )
    for sign in (-1, 1):
        axes.axhline(sign * model.threshold_, color="C0", linewidth=0.8)
    found, seen = abs(model.directions_[0] @ law.direction), abs(top @ law.direction)
    axes.set(
        xlabel=f"along PCA's first component (|cos| with the truth {seen:.2f})",
        ylabel=f"along SignalDirection (|cos| {found:.2f})",
        title="Rare directions: single strong tokens",
    )
    axes.legend(fontsize=8, loc="upper left")


if __name__ == "__main__":
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    draw_streams(left)
    draw_tokens(right)
    figure.savefig(HERE / "decompositions.svg", metadata={"Date": None})
