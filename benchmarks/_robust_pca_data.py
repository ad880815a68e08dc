"""Tables with known errors, for the benchmark of robust PCA."""

import numpy as np
from sklearn.datasets import load_sample_images
from sklearn.feature_extraction.image import extract_patches_2d

# Place, width and height of the blobs of a generated face.
_BLOBS = (
    (0.5, 0.5, 0.4, 1.0),
    (0.35, 0.3, 0.1, -0.5),
    (0.35, 0.7, 0.1, -0.5),
    (0.75, 0.5, 0.15, -0.4),
)


def planted(rng, n, d, rank, *, law="signs", size=10.0):
    """Return a sampler of clean and corrupted rows of one random subspace.

    Wrong entries are shifted by +-`size` standard deviations ("signs") or by a number
    drawn uniformly between these two ("uniform", which includes small errors).
    """
    basis = rng.standard_normal((rank, d))

    def sample(n_rows, share):
        clean = rng.standard_normal((n_rows, rank)) @ basis
        shape = clean.shape
        draw = (
            rng.uniform(-1, 1, shape)
            if law == "uniform"
            else rng.choice([-1, 1], shape)
        )
        wrong = rng.random(shape) < share
        return clean, np.where(wrong, clean + size * np.sqrt(rank) * draw, clean)

    return sample


def video(n_frames=60, height=24, width=32, seed=0):
    """Return frames with two moving spots, where they are, and the background."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    scene = 120 + 40 * np.sin(x / 5) + 30 * np.cos(y / 7)
    scene = scene + 15 * rng.standard_normal(scene.shape)
    frames, spots, backgrounds = [], [], []
    for t in range(n_frames):
        light = 1 + 0.1 * np.sin(t / 17) + 0.03 * np.sin(t / 5) * x / width
        spot = np.zeros(scene.shape, dtype=bool)
        for k in (0, 1):
            cx = (width * (0.1 + 0.8 * k) + 0.5 * t * (1 - 2 * k)) % width
            cy = height * (0.3 + 0.4 * k) + 4 * np.sin(t / 9 + k)
            distance = ((x - cx) / (0.06 * width)) ** 2
            spot |= distance + ((y - cy) / (0.14 * height)) ** 2 < 1
        frame = np.where(spot, 220.0 - 150 * (y < height / 2), scene * light)
        frames.append((frame + 2 * rng.standard_normal(scene.shape)).ravel())
        spots.append(spot.ravel())
        backgrounds.append((scene * light).ravel())
    return np.array(frames), np.array(spots), np.array(backgrounds)


def patches(n=600, size=10, image=0, seed=0):
    """Return patches of one of scikit-learn's photographs."""
    photograph = load_sample_images().images[image].mean(axis=2)
    found = extract_patches_2d(
        photograph, (size, size), max_patches=n, random_state=seed
    )
    return found.reshape(n, -1)


def with_blocks(images, value, side, share, seed):
    """Return flat images, of which a share has a block of equal values."""
    rng = np.random.default_rng(seed)
    images = images.copy()
    height, width = images.shape[1:]
    for index in np.flatnonzero(rng.random(len(images)) < share):
        row = rng.integers(0, height - side + 1)
        column = rng.integers(0, width - side + 1)
        images[index, row : row + side, column : column + side] = value
    return images.reshape(len(images), -1)


def with_replaced(table, share, low, high, seed):
    """Return a table with a share of its entries replaced by uniform numbers."""
    rng = np.random.default_rng(seed)
    draw = rng.uniform(low, high, table.shape)
    return np.where(rng.random(table.shape) < share, draw, table)


def faces(n=300, side=16, seed=0):
    """Return generated images: blobs whose places and sizes vary smoothly."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:side, :side] / (side - 1)
    found = np.zeros((n, side, side))
    for cy, cx, width, height in _BLOBS:
        moves = 0.05 * rng.standard_normal((n, 3, 1, 1))
        square = (y - cy - moves[:, 0]) ** 2 + (x - cx - moves[:, 1]) ** 2
        found += height * np.exp(-square / (2 * (width + moves[:, 2] / 2) ** 2))
    light = 0.3 * rng.standard_normal((n, 1, 1)) * (x - 0.5)
    return found + light + 0.02 * rng.standard_normal(found.shape)


def with_outlying_rows(kind, noise, seed, n=200, d=20, k=3):
    rng = np.random.default_rng(seed)
    basis = rng.standard_normal((k, d))
    X = rng.standard_normal((n, k)) @ basis + noise * rng.standard_normal((n, d))
    count, direction = n // 5, rng.standard_normal(d)
    if kind == "cluster":
        X[:count] = 10 * direction + rng.standard_normal((count, d))
    elif kind == "line":
        X[:count] = np.outer(10 * rng.standard_normal(count), direction)
    else:
        X[:count] = 5 * rng.standard_normal((count, d))
    return X, basis
