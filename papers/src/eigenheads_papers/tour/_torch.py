"""Chapter of the tour that trains, swaps and probes a small transformer (PyTorch)."""

import warnings
from collections.abc import Iterator

import torch
from sklearn.datasets import load_digits
from torch import nn

from eigenheads.adapters import SwapWarning, probe_model, swap_attention
from eigenheads.extend import generator

_LEVEL = 0.05


class RowReader(nn.Module):
    """A transformer that classifies digits; the tokens are the rows of an image."""

    def __init__(self, width: int = 32, n_heads: int = 4) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Embedding(8, width)
        block = nn.TransformerEncoderLayer(
            width, n_heads, 2 * width, dropout=0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(block, 2, enable_nested_tensor=False)
        self.decide = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return scores of the ten digits; images are (batch, 8, 8)."""
        rows = self.embed(images) + self.place.weight
        scores: torch.Tensor = self.decide(self.encoder(rows).mean(dim=1))
        return scores


def swap_and_probe(
    n_steps: int = 300, n_permutations: int = 99, n_images: int = 16
) -> Iterator[str]:
    """Train a small model, swap the attention of a layer and back, probe its heads."""
    images, digits = load_digits(return_X_y=True)
    order = generator(0).permutation(len(digits))
    x = torch.tensor(images[order].reshape(-1, 8, 8) / 16, dtype=torch.float32)
    y = torch.tensor(digits[order])
    x_test, y_test = x[-400:], y[-400:]
    # The fork leaves the caller's random numbers as they were.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = _trained(RowReader(), x[:-400], y[:-400], n_steps)
        before_swap = _accuracy(model, x_test, y_test)
        yield (
            f"A transformer with 2 layers, trained on digits for {n_steps} steps: "
            f"accuracy {before_swap:.3f} on held-out images."
        )
        before = _scores(model, x_test)
        with warnings.catch_warnings():
            # The next line of the tour shows the effect that this warning names.
            warnings.simplefilter("ignore", SwapWarning)
            swap_attention(model, to="rpc", layers=[0], n_iter=4)
        swapped = _accuracy(model, x_test, y_test)
        swap_attention(model, to="original")
        is_same = torch.equal(_scores(model, x_test), before)
        yield (
            f"Layer 0 swapped to attention pursuit, without training: {swapped:.3f}; "
            f"swapped back: {'bit for bit' if is_same else 'not'} the same."
        )
        yield (
            "Why the swapped model is worse: its weights were trained for another "
            "attention. A swap is a start for training on, not a repair."
            if swapped < before_swap
            else "The swap cost no accuracy here."
        )
        probe = probe_model(
            model,
            x_test[:n_images],
            n_permutations=n_permutations,
            n_untrained=1,
            seed=0,
        )
    rows = [
        row
        for row in probe.summary(_LEVEL)
        if row["statistic"] == "qk_covariance_cosine" and row["n_found"] is not None
    ]
    yield (
        "Do heads prefer tokens along the principal directions? Cosine of scores and "
        f"token covariance, median over heads: {rows[0]['median']:.3f}."
    )
    for row in rows:
        yield (
            f"By chance ({row['null'].replace('_', ' ')}): {row['null_median']:.3f}; "
            f"{row['n_found']} of {row['n_heads']} heads stand out (q ≤ {_LEVEL})."
        )
    stands_out = any(row["n_found"] for row in rows)
    yield (
        f"Conclusion: {'some' if stands_out else 'no'} heads of this model do. A "
        "number of a head means something only beside its null; `eigenheads probe` "
        "shows both."
    )


def _trained(
    model: nn.Module, x: torch.Tensor, y: torch.Tensor, n_steps: int
) -> nn.Module:
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(n_steps):
        chosen = torch.randint(len(x), (64,))
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x[chosen]), y[chosen])
        torch.autograd.backward(loss)
        optimizer.step()
    return model.eval()


@torch.no_grad()
def _scores(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    scores: torch.Tensor = model(x)
    return scores


def _accuracy(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    return float((_scores(model, x).argmax(dim=1) == y).float().mean())
