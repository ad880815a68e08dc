"""Rare tokens found by SignalDirection, PCA, FastICA and IsolationForest.

- ``phases``: the signal model at several shares and strengths of informative tokens.
  8 000 tokens in d = 32 are fitted without labels; new tokens are scored.
  `alignment` is |cos| with the true direction; `auc` ranks new informative tokens
  before new nuisance tokens, by the distance from the median along the direction.
- ``real``: a rare class of scikit-learn's data among others. Half of the common rows
  are fitted together with a few rare ones; the other rows are scored. For all methods,
  features are standardised and reduced to the principal components with 90 % of the
  variance.

- ``wide``: 1 200 tokens in d = 5 000, a few of them shifted along one direction.
- ``anomalies``: public sets of anomalies, files ``*.npz`` with arrays ``X``, ``y`` (1
  for anomalies) in ``--folder``, for example those of ADBench (Han et al. 2022; they
  are not part of this project). Features are standardised; all rows are fitted without
  labels and ranked. `rate` is the share of marked rows among ordinary ones that were
  not fitted: mean over random halves of the ordinary rows, at a stated rate of 1 %.

Medians over seeds, with the second lowest and second highest of ten (lowest and highest
of fewer) in brackets: a 98 % interval for the median from ten seeds.
Seeds begin at 10, because the settings of the estimator were chosen on seeds 0 to 4.
FastICA is scored by its component of largest |excess kurtosis|, PCA by its first.
``--csv FILE`` writes one row per fit.
"""

import argparse
import csv
import time
import warnings
from collections import defaultdict
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA, FastICA
from sklearn.ensemble import IsolationForest
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import roc_auc_score

from eigenheads.datasets import SignalTokens
from eigenheads.estimators import SignalDirection

SHARES = (0.001, 0.01, 0.05, 0.3)
STRENGTHS = (0.25, 0.5, 0.75, 1.0)
# Name, nuisance classes, rare class, share of the rare class in the fit.
TASKS = {
    "cancer, benign + 3 % malignant": (load_breast_cancer, (1,), 0, 0.03),
    "wine, classes 0, 1 + 5 % of 2": (load_wine, (0, 1), 2, 0.05),
    "digits, 0 + 3 % of 6": (load_digits, (0,), 6, 0.03),
    "digits, 1 + 3 % of 7": (load_digits, (1,), 7, 0.03),
    "digits, 1-9 + 2 % of 0": (load_digits, tuple(range(1, 10)), 0, 0.02),
}


def along(unit, tokens, fitted):
    projected = tokens @ unit
    return np.abs(projected - np.median(fitted @ unit))


def run_signal(fitted, fresh, seed):
    model = SignalDirection(random_state=seed).fit(fitted)
    called = model.predict(fresh)
    return model.directions_[0], model.score_samples(fresh), called


def run_pca(fitted, fresh, seed):
    unit = PCA(1, random_state=seed).fit(fitted).components_[0]
    return unit, along(unit, fresh, fitted), None


def run_ica(fitted, fresh, seed):
    model = FastICA(whiten="unit-variance", random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        sources = model.fit_transform(fitted)
    best = np.argmax(np.abs(np.mean(sources**4, axis=0) - 3))
    mixing = model.mixing_[:, best]
    unit = mixing / np.linalg.norm(mixing)
    return unit, along(model.components_[best], fresh, fitted), None


def run_forest(fitted, fresh, seed):
    model = IsolationForest(random_state=seed).fit(fitted)
    return None, -model.score_samples(fresh), None


METHODS = {
    "SignalDirection": run_signal,
    "PCA": run_pca,
    "FastICA": run_ica,
    "IsolationForest": run_forest,
}


def measure(method, fitted, fresh, labels, truth, seed):
    began = time.process_time()
    unit, scores, called = METHODS[method](fitted, fresh, seed)
    row = {"method": method, "seed": seed, "seconds": time.process_time() - began}
    row["auc"] = roc_auc_score(labels, scores)
    if truth is not None and unit is not None:
        row["alignment"] = abs(float(unit @ truth))
    if called is not None:
        row["fpr"] = called[labels == 0].mean()
        row["tpr"] = called[labels == 1].mean()
    return row


def run_phases(*, seeds, first=10, n=8000, d=32, shares=SHARES, strengths=STRENGTHS):
    for share in shares:
        for strength in strengths:
            for seed in range(first, first + seeds):
                rng = np.random.default_rng([seed, int(1e4 * share)])
                turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
                rare = max(1, round(share * n))
                law = SignalTokens(d, rare, n - rare, strength)
                fitted = law.sample(1, rng).tokens[0] @ turn
                fresh = SignalTokens(d, n // 4, n // 4, strength).sample(1, rng)
                for method in METHODS:
                    row = measure(
                        method,
                        fitted,
                        fresh.tokens[0] @ turn,
                        np.abs(fresh.signs[0]),
                        turn[0],
                        seed,
                    )
                    yield {"share": share, "strength": strength, **row}


def rare_class(load, nuisance, rare, share, seed):
    """Return rows to fit, rows to score and their labels: 1 for the rare class."""
    X, y = load(return_X_y=True)
    rng = np.random.default_rng(seed)
    common = rng.permutation(np.flatnonzero(np.isin(y, nuisance)))
    few = rng.permutation(np.flatnonzero(y == rare))
    half = len(common) // 2
    n_rare = max(1, round(share * half / (1 - share)))
    fitted = X[np.concatenate([common[:half], few[:n_rare]])]
    fresh = X[np.concatenate([common[half:], few[n_rare:]])]
    labels = np.r_[np.zeros(len(common) - half), np.ones(len(few) - n_rare)]
    spread = fitted.std(axis=0)
    shift, spread = fitted.mean(axis=0), np.where(spread > 0, spread, np.inf)
    fitted, fresh = (fitted - shift) / spread, (fresh - shift) / spread
    reduction = PCA(0.9).fit(fitted)
    return reduction.transform(fitted), reduction.transform(fresh), labels


def run_real(*, seeds, first=10, tasks=TASKS):
    for task, details in tasks.items():
        for seed in range(first, first + seeds):
            fitted, fresh, labels = rare_class(*details, seed)
            for method in METHODS:
                row = measure(method, fitted, fresh, labels, None, seed)
                yield {"task": task, **row}


def run_wide(d=5000, n_bags=60):
    print(f"{n_bags} bags of 20 tokens, d = {d}: alignment; rates on the fitted tokens")
    print("shift every   ours    PCA   mean  token  tpr   fpr     s")
    for shift, every in ((60, 10), (40, 10), (30, 3)):
        rng = np.random.default_rng(7)
        bags = rng.standard_normal((n_bags, 20, d)).astype(np.float32)
        bags[::every, 0, 0] += shift
        truth = np.zeros((n_bags, 20), dtype=bool)
        truth[::every, 0] = True
        began = time.process_time()
        model = SignalDirection(random_state=0).fit(bags)
        seconds = time.process_time() - began
        called = np.array(model.predict(bags))
        centred = bags.reshape(-1, d) - bags.reshape(-1, d).mean(axis=0)
        top = np.linalg.eigh(centred @ centred.T)[1][:, -1]
        lines = (model.directions_[0], centred.T @ top, bags[truth].mean(0), bags[0, 0])
        cosines = [abs(line[0]) / np.linalg.norm(line) for line in lines]
        print(
            f"{shift:>5} {every:>5}",
            *(f"{cosine:>6.3f}" for cosine in cosines),
            end=" ",
        )
        print(f"{called[truth].mean():.2f} {called[~truth].mean():.3f} {seconds:5.1f}")


def run_anomalies(folder, *, seeds=3, splits=5, most=8000):
    print("AUC, all rows fitted (medians of seeds); rates on other ordinary rows")
    columns = ("forest", "ours", "one", "k", "rate", "gaussian", "s")
    shown = "".join(f"{name:>9}" for name in columns)
    print(f"{'set':<18}{'rows':>6}{'d':>5}{'rare':>7}{shown}")
    for path in sorted(Path(folder).glob("*.npz")):
        with np.load(path, allow_pickle=False) as stored:
            X, y = stored["X"].astype(float), stored["y"].ravel()
        some = np.random.default_rng(0).permutation(len(X))[:most]
        X, y = X[some], y[some]
        X = X[:, X.std(axis=0) > 0]
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        rows = []
        for seed in range(10, 10 + seeds):
            forest = IsolationForest(random_state=seed).fit(X)
            one = SignalDirection(1, random_state=seed).fit(X)
            began = time.process_time()
            ours = SignalDirection(random_state=seed).fit(X)
            seconds = time.process_time() - began
            aucs = [
                roc_auc_score(y, scores)
                for scores in (
                    -forest.score_samples(X),
                    ours.score_samples(X),
                    one.score_samples(X),
                )
            ]
            rows.append([*aucs, len(ours.components_), seconds])
        rates = [_rates(X[y == 0], seed) for seed in range(10, 10 + splits)]
        *aucs, k, seconds = np.median(rows, axis=0)
        name = path.stem.split("_", 1)[-1]
        cells = [f"{value:>9.3f}" for value in aucs] + [f"{k:>9.0f}"]
        cells += [f"{value:>9.3f}" for value in np.mean(rates, axis=0)]
        share = f"{100 * y.mean():>6.1f}%"
        print(f"{name:<18}{len(X):>6}{X.shape[1]:>5}{share}", *cells, sep="", end="")
        print(f"{seconds:>9.1f}", flush=True)


def _rates(nuisance, seed):
    """Return the share of new rows that is marked, by both kinds of threshold."""
    order = np.random.default_rng(seed).permutation(len(nuisance))
    half = len(order) // 2
    fitted, fresh = nuisance[order[:half]], nuisance[order[half:]]
    return [
        SignalDirection(calibration=how, random_state=seed)
        .fit(fitted)
        .predict(fresh)
        .mean()
        for how in ("conformal", "gaussian")
    ]


def interval(group, name):
    values = sorted(row[name] for row in group if name in row)
    if not values:
        return f"{'–':>18}"
    cut = 1 if len(values) >= 10 else 0
    low, high = values[cut], values[-1 - cut]
    return f"{np.median(values):.3f} [{low:.2f}, {high:.2f}]"


def print_rows(rows, *keys):
    groups = defaultdict(list)
    for row in rows:
        groups[*(row[key] for key in keys), row["method"]].append(row)
    columns = ("alignment", "auc", "fpr", "tpr")
    shown = [c for c in columns if any(c in row for row in rows)]
    print(f"{', '.join(keys):<32}{'method':<16}", *(f"{c:>18}" for c in shown), "   s")
    for (*where, method), group in groups.items():
        place = ", ".join(f"{value}" for value in where)
        cells = [interval(group, name) for name in shown]
        seconds = np.median([row["seconds"] for row in group])
        print(f"{place:<32}{method:<16}", *cells, f"{seconds:6.2f}")


def main(quick: bool = False) -> None:
    if quick:
        phases = run_phases(seeds=1, n=600, d=8, shares=(0.02,), strengths=(1.5,))
        print_rows(list(phases), "share", "strength")
        task = "wine, classes 0, 1 + 5 % of 2"
        print_rows(list(run_real(seeds=1, tasks={task: TASKS[task]})), "task")
        run_wide(d=200, n_bags=6)
        return
    print_rows(list(run_phases(seeds=10)), "share", "strength")
    print_rows(list(run_real(seeds=10)), "task")
    run_wide()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["phases", "real", "wide", "anomalies"])
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--csv")
    parser.add_argument("--folder")
    options = parser.parse_args()
    if options.what == "wide":
        run_wide()
        raise SystemExit
    if options.what == "anomalies":
        run_anomalies(options.folder)
        raise SystemExit
    is_real = options.what == "real"
    rows = list((run_real if is_real else run_phases)(seeds=options.seeds))
    print_rows(rows, *(("task",) if is_real else ("share", "strength")))
    if options.csv:
        with open(options.csv, "w", newline="") as file:  # noqa: PTH123
            names = list(dict.fromkeys(name for row in rows for name in row))
            writer = csv.DictWriter(file, names, lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
