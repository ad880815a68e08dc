"""The default for bags against the search, the set kernel and bag statistics.

Nothing is set. Laws of ``datasets.BagLaw``, bags of handwritten digits and MUSK; area
under the ROC curve for classes, R² for numbers, paired over draws or folds. The rule
was developed on data like these; ``--first 100`` takes other draws. Few bags have the
paper's own law.

    python -m benchmarks.bench_bag_default --data DIR [--first 100] [--only law]

DIR has ``mnist/*-ubyte.gz`` and ``mil/musk*.csv.gz``; what is missing is left out.
"""

import argparse
import csv
import gzip
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.model_selection import StratifiedKFold

from eigenheads.datasets import BagLaw, load_musk
from eigenheads.estimators import (
    PooledBagClassifier,
    PooledBagRegressor,
    SingleLocationClassifier,
    SingleLocationClassifierCV,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
)

LAWS = {
    "witness": (20, 20),
    "two kinds": (20, 20),
    "ring": (10, 20),
    "xor": (10, 10),
    "both": (20, 20),
}
# What is asked of a bag of digits, number of bags, digits per bag, draws.
DIGITS = {
    "contains a 9, 60 bags": ("contains", 60, 6, 8),
    "contains a 9, 300 bags": ("contains", 300, 6, 3),
    "a 3 and a 7, 600 bags": ("both", 600, 6, 3),
    "number of threes, 300 bags": ("count", 300, 6, 3),
    "largest of six, 600 bags": ("largest", 600, 6, 3),
    "sum of six, 300 bags": ("sum", 300, 6, 3),
}
N_TEST = 1000


class Task(NamedTuple):
    """A question about bags: `draw` takes a seed and returns two sets of bags."""

    draw: Callable[[int], tuple]
    is_class: bool
    n_draws: int


def methods(is_class):
    """Return the estimators by name; each is as a new user would make it."""
    if is_class:
        return {
            "default": SingleLocationClassifier(),
            "search": SingleLocationClassifierCV(),
            "set kernel": PooledBagClassifier("kernel"),
            "bag statistics": PooledBagClassifier("statistics"),
        }
    return {
        "default": SingleLocationRegressor(),
        "search": SingleLocationRegressorCV(),
        "set kernel": PooledBagRegressor("kernel"),
        "bag statistics": PooledBagRegressor("statistics"),
    }


def law_task(name, n_bags=1000):
    d, n_tokens = LAWS[name]

    def draw(seed):
        law = BagLaw(name, d=d, n_tokens=n_tokens, frame_seed=seed)
        X, y, _ = law.sample(n_bags + N_TEST, np.random.default_rng(7000 + seed))
        return (X[:n_bags], y[:n_bags]), (X[n_bags:], y[n_bags:])

    return Task(draw, True, 3)


def paper_task(n_bags, d=60, n_tokens=6, noise=0.5):
    """Single-location regression with few bags: shift 3 along the key."""

    def draw(seed):
        rng = np.random.default_rng(300 + seed)
        key, value = np.linalg.qr(rng.standard_normal((d, 2)))[0].T
        n = n_bags + N_TEST
        X, places = rng.standard_normal((n, n_tokens, d)), rng.integers(0, n_tokens, n)
        X[np.arange(n), places] += 3 * key
        y = X[np.arange(n), places] @ value + noise * rng.standard_normal(n)
        return (X[:n_bags], y[:n_bags]), (X[n_bags:], y[n_bags:])

    return Task(draw, False, 24)


def digit_task(images, labels, kind, n_bags, n_tokens, n_draws):
    """Bags of images; training and test have different ones."""

    def draw(seed):
        rng = np.random.default_rng(8000 + seed)
        half = len(images) // 2
        parts = []
        for first, n in ((0, n_bags), (half, N_TEST)):
            rows = first + rng.integers(0, half, (n, n_tokens))
            digits = labels[rows]
            targets = {
                "contains": (digits == 9).any(axis=1),
                "both": (digits == 3).any(axis=1) & (digits == 7).any(axis=1),
                "count": (digits == 3).sum(axis=1),
                "largest": digits.max(axis=1),
                "sum": digits.sum(axis=1),
            }[kind]
            parts.append((images[rows], targets.astype(float)))
        return tuple(parts)

    return Task(draw, kind in ("contains", "both"), n_draws)


def musk_task(folder, version):
    musk = load_musk(folder, version=version)

    def draw(seed):
        folds = StratifiedKFold(10, shuffle=True, random_state=3 + seed // 10)
        train, test = list(folds.split(musk.targets, musk.targets))[seed % 10]
        return tuple(
            ([musk.bags[i] for i in rows], musk.targets[rows]) for rows in (train, test)
        )

    return Task(draw, True, 10)


def mnist(folder):
    """Return images of 14 × 14 pixels and their digits."""

    def read(name, skip):
        return np.frombuffer(
            gzip.open(folder / name).read(), dtype=np.uint8, offset=skip
        )

    images = read("train-images-idx3-ubyte.gz", 16).reshape(-1, 14, 2, 14, 2)[:20_000]
    labels = read("train-labels-idx1-ubyte.gz", 8)[:20_000].astype(int)
    return images.mean(axis=(2, 4)).reshape(len(images), -1) / 255, labels


def tasks(folder):
    """Return all questions whose data are there."""
    found = {name: law_task(name) for name in LAWS}
    if folder is not None and (folder / "mnist").is_dir():
        images, labels = mnist(folder / "mnist")
        for name, sizes in DIGITS.items():
            found[name] = digit_task(images, labels, *sizes)
    if folder is not None and (folder / "mil").is_dir():
        found |= {f"MUSK{v}": musk_task(folder / "mil", v) for v in (1, 2)}
    few = {f"paper's law, {n} bags": paper_task(n) for n in (120, 240, 480)}
    return found | few


def score(task, model, seed):
    (X, y), (X_new, y_new) = task.draw(seed)
    model.fit(X, y)
    if task.is_class:
        return roc_auc_score(y_new, model.predict_proba(X_new)[:, 1])
    return r2_score(y_new, model.predict(X_new))


def main(quick=False, folder=None, first=0, only="", file=None, leave=()):
    chosen = {name: task for name, task in tasks(folder).items() if only in name}
    if quick:
        chosen = {"witness": law_task("witness", 40)._replace(n_draws=1)}
    for name, task in chosen.items():
        cells = []
        for method, model in methods(task.is_class).items():
            if method in leave:
                continue
            seeds = range(first, first + task.n_draws)
            scores = np.array([score(task, model, seed) for seed in seeds])
            cells.append(f"{method} {scores.mean():.3f}")
            if file:
                with Path(file).open("a", newline="") as out:
                    rows = (
                        [name, method, *pair]
                        for pair in zip(seeds, scores, strict=True)
                    )
                    csv.writer(out).writerows(rows)
        print(f"{name:<30}" + "".join(f"{cell:>22}" for cell in cells), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--first", type=int, default=0, help="first draw")
    parser.add_argument("--only", default="", help="part of a question's name")
    parser.add_argument("--leave", nargs="*", default=(), help="methods to leave out")
    parser.add_argument("--csv")
    options = parser.parse_args()
    main(False, options.data, options.first, options.only, options.csv, options.leave)
