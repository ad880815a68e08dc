"""Names that a block of the README uses: a trained model and test images."""

import torch
from sklearn.datasets import load_digits
from torch import nn


class Digits(nn.Module):
    """Sixteen patches of 2 × 2 pixels, two layers, mean over tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Conv2d(1, 32, 2, stride=2), nn.Flatten(2))
        self.place = nn.Parameter(0.1 * torch.randn(16, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        return self.head(self.encoder(self.embed(x).mT + self.place).mean(1))


def readme_names():
    """Return the names by which the README refers to models and data."""
    torch.manual_seed(0)
    pixels, digits = load_digits(return_X_y=True)
    images = torch.tensor(pixels.reshape(-1, 1, 8, 8) / 16, dtype=torch.float32)
    classes = torch.tensor(digits)
    model = Digits()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(400):
        batch = torch.randint(0, 1200, (128,))
        loss = nn.functional.cross_entropy(model(images[batch]), classes[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def accuracy(of, tested):
        with torch.no_grad():
            hits = of(tested).argmax(1) == classes[1200:]
            return round(hits.float().mean().item(), 2)

    return {
        "model": model.eval(),
        "images": images[1200:],
        "calibration": images[:1200],
        "accuracy": accuracy,
    }
