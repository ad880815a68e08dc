"""Write MNIST's idx files as folders of PNG images, one per class.

``eigenheads train imagenet`` reads such folders. MNIST is not shipped; its four files
``train-images-idx3-ubyte.gz``, ``train-labels-idx1-ubyte.gz``,
``t10k-images-idx3-ubyte.gz`` and ``t10k-labels-idx1-ubyte.gz`` are on many servers.

Usage: python examples/data/mnist_as_folders.py FOLDER_WITH_IDX_FILES OUT
"""

import gzip
import sys
from pathlib import Path

import numpy as np
from PIL import Image


def read_idx(path: Path) -> np.ndarray:
    """Return the array of an idx file of bytes: a header, then the entries."""
    raw = gzip.decompress(path.read_bytes())
    n_axes = raw[3]
    shape = np.frombuffer(raw, dtype=">i4", offset=4, count=n_axes)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * n_axes).reshape(shape)


def write_split(source: Path, stem: str, out: Path) -> int:
    """Write the images of one split as ``out/<digit>/<number>.png``."""
    images = read_idx(source / f"{stem}-images-idx3-ubyte.gz")
    labels = read_idx(source / f"{stem}-labels-idx1-ubyte.gz")
    for digit in range(10):
        (out / str(digit)).mkdir(parents=True, exist_ok=True)
    for number, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        Image.fromarray(pixels).save(out / str(label) / f"{number:05d}.png")
    return len(images)


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:3])
    for split, stem in (("train", "train"), ("val", "t10k")):
        print(f"{split}: {write_split(source, stem, target / split)} images")
