"""Data in the real layouts, in miniature."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

N_CLASSES = 20


def write_images(folder: Path, *, per_class: int, seed: int, classes=range(N_CLASSES)):
    """Write images whose colour tells the class, in odd sizes, as PNG and JPEG."""
    rng = np.random.default_rng(seed)
    for label in classes:
        sub = folder / f"n{label:08d}"
        sub.mkdir(parents=True)
        colour = np.array([label % 3, label // 3 % 3, label // 9]) * 100 + 20
        for number in range(per_class):
            height, width = rng.integers(20, 45, 2)
            pixels = colour + rng.normal(0, 12, (height, width, 3))
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            name = f"{label}_{number}"
            if number % 2:
                image.save(sub / f"{name}.JPEG")
            else:
                image.save(sub / f"{name}.png")


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Compute with one thread: these models are too small to share."""
    torch = pytest.importorskip("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def miniature(tmp_path_factory) -> Path:
    """An ImageNet of 20 classes."""
    root = tmp_path_factory.mktemp("imagenet")
    write_images(root / "train", per_class=4, seed=0)
    write_images(root / "val", per_class=2, seed=1)
    return root


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """A text of a small grammar."""
    root = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(0)
    nouns, verbs = ["cat", "dog", "bird", "fish"], ["sees", "hears", "likes"]
    for name, n_lines in (("train", 300), ("valid", 60), ("test", 60)):
        lines = [
            f"the {rng.choice(nouns)} {rng.choice(verbs)} the {rng.choice(nouns)} ."
            for _ in range(n_lines)
        ]
        (root / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return root
