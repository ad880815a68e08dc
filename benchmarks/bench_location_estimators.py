"""Accuracy and speed of the single-location estimators, compared with other methods.

Three tables:

- ``synthetic``: five laws of bags with a known deciding token, compared with the
  oracle, the pooled principal direction with ridge, ridge on the mean, and torchmil's
  ABMIL;
- ``musk``: MUSK1 and MUSK2, compared with ABMIL and an mi-SVM (``--data DIR`` with
  ``musk1.csv.gz`` and ``musk2.csv.gz``: label, bag, 166 features);
- ``digits``: streams of scikit-learn's handwritten digits, of which one decides.

ABMIL is optional. In an environment that has torch::

    pip install --no-deps torchmil tensordict pyvers orjson einops

Without it, or with ``--without-peers``, the other rows are measured. The full run::

    python -m benchmarks.bench_location_estimators synthetic --csv FILE
    python -m benchmarks.bench_location_estimators musk --data DIR --csv FILE
    python -m benchmarks.bench_location_estimators digits --csv FILE

Seconds are processor seconds of all threads of the process. To make a comparison
independent of other programs on the machine, give every library one thread:
``OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 NUMBA_NUM_THREADS=1``.
"""

import argparse
import csv
import time
from itertools import product
from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import r2_score
from sklearn.model_selection import GridSearchCV, RepeatedStratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks._location_laws import LAWS, digit_streams, draw
from benchmarks._location_methods import (
    ABMIL,
    MaximumInstanceSVM,
    PooledPCARidge,
    ridge_on_the_mean,
)
from benchmarks._location_tables import (
    MEAN,
    OURS,
    PEER,
    POOLED,
    RADIAL,
    print_digits,
    print_musk,
    print_synthetic,
)
from eigenheads.estimators import (
    SingleLocationClassifier,
    SingleLocationRegressor,
    group_bags,
)

SIZES = ((32, 10), (64, 100))
SEARCHED = "SingleLocation, search"
MUSK_GRID = {"alpha": [1e-3, 1e-2, 1e-1], "shrinkage": [0.01, 0.1, 1.0]}


def main(quick: bool = False) -> None:
    if quick:
        rows = run_synthetic(seeds=1, sizes=[(16, 5)], n=400, peer_seeds=0)
        print_synthetic(rows)
        print_digits(run_digits(seeds=1, n=300, peer_seeds=0))
        return
    print_synthetic(run_synthetic(seeds=3, sizes=SIZES, n=3000, peer_seeds=0))


def run_synthetic(
    *, seeds, sizes, n, peer_seeds, first_seed=0, laws=LAWS, sink=None, done=()
):
    """Return one row per law, size, seed and method; `sink` receives each at once.

    `done` are rows of a run that was stopped: they are kept, and not measured again.
    """
    rows = list(done)
    known = {_fit_of(row) for row in rows}
    _compile()
    for (d, n_tokens), seed, law in product(sizes, range(first_seed, seeds), laws):
        data = {"law": law, "d": d, "n_tokens": n_tokens, "seed": seed}
        methods = {
            name: method
            for name, method in _methods(seed, with_peer=seed < peer_seeds).items()
            if _fit_of({**data, "method": name}) not in known
        }
        if not methods:
            continue
        drawn = draw(law, d, n_tokens, 2 * n, seed)
        oracle = {
            "oracle_r2": r2_score(drawn.y[n:], drawn.oracle()[n:]),
            "oracle_locate": _share(drawn.oracle_places(), drawn.places, n),
        }
        for name, method in methods.items():
            row = {**data, "method": name, **oracle, **_measure(method, drawn, n)}
            rows.append(row)
            if sink is not None:
                sink(row)
    return rows


def _methods(seed, *, with_peer):
    methods = {
        OURS: SingleLocationRegressor(alpha=3e-5),
        RADIAL: SingleLocationRegressor(alpha=3e-5, head="radial"),
        POOLED: PooledPCARidge(),
        MEAN: ridge_on_the_mean(),
    }
    if with_peer:
        methods[PEER] = ABMIL(seed)
    return methods


def _fit_of(row):
    return tuple(row[name] for name in ("law", "d", "n_tokens", "seed", "method"))


def _measure(method, drawn, n):
    is_flat = not hasattr(method, "locate")
    bags = drawn.bags.mean(axis=1) if is_flat else drawn.bags
    start = time.process_time()
    method.fit(bags[:n], drawn.y[:n])
    seconds = time.process_time() - start
    r2 = r2_score(drawn.y[n:], method.predict(bags[n:]))
    locate = np.nan if is_flat else np.mean(method.locate(bags[n:]) == drawn.places[n:])
    return {"r2": r2, "locate": locate, "seconds": seconds}


def _share(found, places, n):
    return np.mean(found[n:] == places[n:])


def _compile():
    """Fit once, so that compilation is not measured."""
    rng = np.random.default_rng(0)
    bags, y = rng.standard_normal((20, 3, 2)), rng.standard_normal(20)
    for head in ("softmax", "radial"):
        SingleLocationRegressor(alpha=3e-5, head=head).fit(bags, y)
        SingleLocationClassifier(alpha=1e-2, head=head).fit(bags, y > 0)


def run_digits(*, seeds, n, peer_seeds, n_frames=20, sink=None):
    """Fit streams of digit images; train and test use different images."""
    rows = []
    _compile()
    images, digits = load_digits(return_X_y=True)
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        order = rng.permutation(len(digits))
        halves = np.array_split(order, 2)
        train, test = (
            digit_streams(images[half], digits[half], n, n_frames, rng)
            for half in halves
        )
        methods = {
            OURS: SingleLocationClassifier(alpha=1e-2),
            RADIAL: SingleLocationClassifier(alpha=1e-2, head="radial"),
            "logistic on the mean": make_pipeline(
                StandardScaler(), LogisticRegression(max_iter=1000)
            ),
        }
        if seed < peer_seeds:
            methods[PEER] = ABMIL(seed, loss="logistic")
        for name, method in methods.items():
            row = {"seed": seed, "method": name, **_measure_digits(method, train, test)}
            rows.append(row)
            if sink is not None:
                sink(row)
    return rows


def _measure_digits(method, train, test):
    is_flat = not hasattr(method, "locate")
    x_train, x_test = (
        part[0].mean(axis=1) if is_flat else part[0] for part in (train, test)
    )
    start = time.process_time()
    method.fit(x_train, train[1])
    seconds = time.process_time() - start
    predicted = method.predict(x_test)
    if isinstance(method, ABMIL):
        predicted = predicted > 0
    locate = np.nan if is_flat else np.mean(method.locate(x_test) == test[2])
    accuracy = np.mean(predicted == test[1])
    return {"accuracy": accuracy, "locate": locate, "seconds": seconds}


def run_musk(data, *, names, folds, repeats, with_peers, sink=None):
    """Run repeated stratified folds, with a grid search inside each training set."""
    rows = []
    _compile()
    for name in names:
        bags, y = load_musk(Path(data) / f"{name}.csv.gz")
        splits = RepeatedStratifiedKFold(
            n_splits=folds, n_repeats=repeats, random_state=0
        )
        for index, (train, test) in enumerate(splits.split(y, y)):
            methods = {
                OURS: SingleLocationClassifier(alpha=1e-2),
                RADIAL: SingleLocationClassifier(alpha=1e-2, head="radial"),
                SEARCHED: GridSearchCV(
                    SingleLocationClassifier(alpha=1e-2), MUSK_GRID, cv=3
                ),
                "mi-SVM": MaximumInstanceSVM(),
            }
            if with_peers:
                settings = {"batch_size": 1, "weight_decay": 1e-4}
                methods[PEER] = ABMIL(index, loss="logistic", **settings)
            for method_name, method in methods.items():
                row = {"data": name, "repeat": index // folds, "fold": index % folds}
                row |= {
                    "method": method_name,
                    **_measure_musk(method, bags, y, train, test),
                }
                rows.append(row)
                if sink is not None:
                    sink(row)
    return rows


def load_musk(path):
    table = np.loadtxt(path, delimiter=",")
    grouped = group_bags(table[:, 2:], by=table[:, 1])
    return grouped.bags, table[grouped.first_rows, 0] > 0


def _measure_musk(method, bags, y, train, test):
    start = time.process_time()
    method.fit([bags[i] for i in train], y[train])
    seconds = time.process_time() - start
    predicted = method.predict([bags[i] for i in test])
    if isinstance(method, ABMIL):
        predicted = predicted > 0
    return {"accuracy": np.mean(predicted == y[test]), "seconds": seconds}


class _CSV:
    """Write rows as they come, so that a stopped run keeps its rows."""

    def __init__(self, path, *, resume=False):
        self._path = path
        self._is_begun = resume and bool(path) and Path(path).exists()

    def __call__(self, row):
        if not self._path:
            return
        shown = {
            name: f"{value:.8g}" if isinstance(value, float) else value
            for name, value in row.items()
        }
        with Path(self._path).open("a" if self._is_begun else "w") as file:
            writer = csv.DictWriter(file, list(shown), lineterminator="\n")
            if not self._is_begun:
                writer.writeheader()
            writer.writerow(shown)
        self._is_begun = True


def _read_csv(path):
    """Return the rows of a stopped run."""
    numbers = {"d": int, "n_tokens": int, "seed": int}
    texts = ("law", "method")
    with Path(path).open() as file:
        return [
            {
                name: value if name in texts else numbers.get(name, float)(value)
                for name, value in row.items()
            }
            for row in csv.DictReader(file)
        ]


def _parsed(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("question", choices=("synthetic", "musk", "digits"))
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0, help="run in pieces")
    parser.add_argument("--peer-seeds", type=int, default=20)
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--sizes", choices=("small", "large", "both"), default="both")
    parser.add_argument("--data", default="data/mil", help="folder of the MUSK files")
    parser.add_argument("--names", nargs="+", default=["musk1", "musk2"])
    parser.add_argument("--csv", help="file for one row per fit")
    parser.add_argument(
        "--resume", action="store_true", help="synthetic: continue the file of --csv"
    )
    return parser.parse_args(argv)


def run(argv=None) -> None:
    args = _parsed(argv)
    sink = _CSV(args.csv, resume=args.resume)
    peer_seeds = 0 if args.without_peers else args.peer_seeds
    if args.question == "synthetic":
        sizes = {"small": SIZES[:1], "large": SIZES[1:], "both": SIZES}[args.sizes]
        settings = {"seeds": args.seeds, "peer_seeds": peer_seeds, "sink": sink}
        settings["first_seed"] = args.first_seed
        if args.resume and args.csv and Path(args.csv).exists():
            settings["done"] = _read_csv(args.csv)
        print_synthetic(run_synthetic(sizes=sizes, n=3000, **settings))
    elif args.question == "digits":
        rows = run_digits(seeds=args.seeds, n=2000, peer_seeds=peer_seeds, sink=sink)
        print_digits(rows)
    else:
        settings = {"names": args.names, "folds": 10, "repeats": 5, "sink": sink}
        with_peers = not args.without_peers
        print_musk(run_musk(args.data, with_peers=with_peers, **settings))


if __name__ == "__main__":
    run()
