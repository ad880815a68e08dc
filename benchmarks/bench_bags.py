"""Which rule of bags does each setting read, which assumptions does it obey, how fast?

- ``default``: the default against the mean target and ridge on the mean token, with few
  bags, noise included;
- ``limit``: how well the best possible test tells noise from a law of the mean token;
- ``laws``: the laws of ``datasets.BagLaw`` against their oracles;
- ``assumptions``: unit tests after Raff and Holt (2023, arXiv 2310.17867): training
  data have an easy signal that standard multiple-instance learning must not use, and
  in the test it points the other way;
- ``musk``: ``compare_bag_estimators`` on MUSK1 and MUSK2 (``--data DIR``);
- ``speed``: processor seconds of one fit, of RBF features and of the choice of penalty;
- ``choice``: the default and a search as multiples of one fit, with few bags;
- ``wide``: 2 000 tokens with 6 000 features, dense and sparse;
- ``areas``: the table of mean areas of ``marion2025/bags`` (``--data table.npz``).

    python -m benchmarks.bench_bags laws
"""

import argparse
import time

import numpy as np
from scipy.sparse import random as sparse_random
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.dummy import DummyRegressor
from sklearn.linear_model import RidgeCV
from sklearn.metrics import r2_score, roc_auc_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from eigenheads.datasets import BagLaw, SingleLocation, load_musk
from eigenheads.estimators import (
    PooledBagClassifier,
    PooledBagRegressor,
    RBFFeatures,
    SingleLocationClassifier,
    SingleLocationRegressor,
    SingleLocationRegressorCV,
    compare_bag_estimators,
)

# Law, dimension, tokens per bag.
LAWS = (
    ("witness", 20, 20),
    ("two kinds", 20, 20),
    ("ring", 10, 20),
    ("xor", 10, 10),
    ("both", 20, 20),
    ("sum", 20, 20),
)
TASKS = (
    "noise10",
    "noise100",
    "slr",
    "mean",
    "sparse",
    "digodd",
    "digmin",
    "digsum",
    "digmean3",
)
CLASSIFIERS = {
    "softmax": SingleLocationClassifier(),
    "quadratic": SingleLocationClassifier(feature_map="quadratic"),
    "rbf": SingleLocationClassifier(feature_map="rbf"),
    "2 heads": SingleLocationClassifier(n_heads=2),
    "logsumexp": SingleLocationClassifier(head="logsumexp"),
    "mean pooling": PooledBagClassifier(),
}
REGRESSORS = {
    "softmax": SingleLocationRegressor(),
    "2 heads": SingleLocationRegressor(n_heads=2),
    "sigmoid": SingleLocationRegressor(head="sigmoid"),
    "mean pooling": PooledBagRegressor(),
}
TESTS = ("presence", "both present", "frequency")
SETTINGS = {
    "softmax": SingleLocationClassifier(),
    "radial": SingleLocationClassifier(head="radial"),
    "sigmoid": SingleLocationClassifier(head="sigmoid"),
    "softmax, 2 heads": SingleLocationClassifier(n_heads=2),
    "logsumexp": SingleLocationClassifier(head="logsumexp"),
    "logsumexp, 2 heads": SingleLocationClassifier(head="logsumexp", n_heads=2),
    "mean pooling": PooledBagClassifier(),
    "max pooling": PooledBagClassifier("max"),
}


QUESTIONS = (
    "default",
    "limit",
    "laws",
    "assumptions",
    "musk",
    "speed",
    "choice",
    "wide",
    "areas",
)


def main(quick: bool = False) -> None:
    n = 150 if quick else 2000
    run_laws(n, laws=LAWS[-1:] if quick else LAWS)
    run_assumptions(150 if quick else 500, tests=TESTS[:1] if quick else TESTS)


def task(name, seed, n):
    """Bags and targets of one comparison of the default with ridge."""
    rng = np.random.default_rng([seed, len(name)])
    rows = np.arange(n)
    if name.startswith("noise"):
        d = int(name.removeprefix("noise"))
        return rng.standard_normal((n, 6, d)), rng.standard_normal(n)
    if name == "slr":
        return SingleLocation(d=20, n_tokens=8).sample(n, rng)[:2]
    if name == "mean":
        bags = rng.standard_normal((n, 6, 20))
        value = 1.5 * rng.standard_normal(20) / np.sqrt(20)
        return bags, np.sqrt(6) * bags.mean(1) @ value + rng.standard_normal(n)
    if name == "sparse":
        bags = rng.standard_normal((n, 8, 30)) * (rng.random((n, 8, 30)) < 0.05)
        places, y = rng.integers(8, size=n), rng.standard_normal(n)
        bags[rows, places, 0], bags[rows, places, 1] = 3.0, y
        return bags, y
    images, digits = load_digits(return_X_y=True)
    chosen = rng.integers(len(digits), size=(n, 6))
    if name == "digodd":
        chosen = rng.choice(np.flatnonzero(digits % 2 == 0), (n, 6))
        odd = rng.choice(np.flatnonzero(digits % 2 == 1), n)
        chosen[rows, rng.integers(6, size=n)] = odd
        return images[chosen], digits[odd].astype(float)
    shown = digits[chosen]
    if name == "digmean3":
        return images[chosen], (shown == 3).sum(1) + 0.3 * rng.standard_normal(n)
    return images[chosen], {"digsum": np.sum, "digmin": np.min}[name](shown, axis=1)


def run_default(*, n=60, splits=10, first_seed=500, tasks=TASKS):
    """R² on 600 new bags, and the worst split against the mean target."""
    alphas = np.logspace(-3, 5, 17)
    for name in tasks:
        rows = []
        for seed in range(first_seed, first_seed + splits):
            bags, y = task(name, seed, n + 600)
            means, y = bags.mean(axis=1), np.asarray(y, dtype=float)
            models = (
                (SingleLocationRegressor(), bags),
                (DummyRegressor(), means),
                (RidgeCV(alphas), means),
                (make_pipeline(StandardScaler(), RidgeCV(alphas)), means),
            )
            rows.append([m.fit(x[:n], y[:n]).score(x[n:], y[n:]) for m, x in models])
        scores = np.array(rows)
        worst = (scores[:, 0] - scores[:, 1]).min()
        shown = " ".join(f"{score:7.3f}" for score in scores.mean(axis=0))
        print(f"{name:10s} {shown}  worst {worst:+.3f}", flush=True)


def run_limit(*, n=60, d=10, draws=40_000, explained=(0.1, 0.2, 0.3)):
    """Power of the likelihood ratio between noise and a law of the mean token.

    Bags are given by their means, with standard normal features; the slopes are normal,
    and the variance of the noise is known. So no rule that reads bags does better.
    """
    alarms = np.array([0.002, 0.01, 0.05])
    print("R² of the law, gain of ridge, power at false alarms of", alarms)
    for share in explained:
        rng = np.random.default_rng(0)
        variance = share / (1 - share) / d  # of a slope; that of the noise is one
        ratios, gains = np.zeros((2, draws)), np.zeros(draws)
        for draw in range(draws):
            means, noise = rng.standard_normal((n, d)), rng.standard_normal(n)
            slopes = np.sqrt(variance) * rng.standard_normal(d)
            root = np.linalg.cholesky(np.eye(d) + variance * means.T @ means)
            for row, y in enumerate((noise, noise + means @ slopes)):
                whitened = np.linalg.solve(root, np.sqrt(variance) * means.T @ y)
                ratios[row, draw] = (
                    whitened @ whitened / 2 - np.log(np.diag(root)).sum()
                )
            # The posterior mean given the law is the best ridge regression.
            error = slopes - np.sqrt(variance) * np.linalg.solve(root.T, whitened)
            total = slopes @ slopes
            gains[draw] = (total - error @ error) / (1 + total)
        bounds = np.quantile(ratios[0], 1 - alarms)
        power = (ratios[1] > bounds[:, None]).mean(axis=1)
        print(f"{share:.2f}  {gains.mean():.3f} ", power.round(2), flush=True)


def run_laws(n, *, laws=LAWS, seed=11):
    """Score on 2 000 new bags: accuracy, or R² for the sum."""
    print(f"{n} bags to fit, 2 000 to test; penalty chosen inside")
    for name, d, n_tokens in laws:
        law = BagLaw(name, d=d, n_tokens=n_tokens, frame_seed=seed)
        bags, y, _ = law.sample(n + 2000, np.random.default_rng(seed))
        known = law.oracle(bags[n:])
        best = r2_score(y[n:], known)
        if not law.is_regression:
            best = np.mean((known > 0.5) == y[n:])
        print(f"{name:10s} d={d} L={n_tokens} oracle {best:.3f}", flush=True)
        methods = REGRESSORS if law.is_regression else CLASSIFIERS
        for label, method in methods.items():
            start = time.process_time()
            score = method.fit(bags[:n], y[:n]).score(bags[n:], y[n:])
            seconds = time.process_time() - start
            line = f"    {label:14s} {score:.3f}  gap {best - score:+.3f}"
            print(f"{line}  {seconds:.1f} s", flush=True)


def unit_test(name, n, rng, *, is_test):
    """Bags with a signal that points the other way in the test.

    ``presence``: class 1 has a token A; bags of class 0 have a token P in training,
    those of class 1 in the test. ``both present``: the same, but class 1 needs A and B,
    and class 0 has one of them. ``frequency``: class 1 has A and B once, class 0 one of
    them once in training, and six times in the test.
    """
    d, length = 6, 12
    bags = rng.standard_normal((n, length, d))
    y = rng.permutation(np.arange(n) % 2)
    kind = rng.integers(2, size=n)
    for bag in range(n):
        if name == "presence":
            if y[bag]:
                bags[bag, 0, 0] += 5.0
        elif y[bag]:
            bags[bag, 0, 0] += 5.0
            bags[bag, 1, 1] += 5.0
        else:
            repeats = 6 if name == "frequency" and is_test else 1
            bags[bag, :repeats, kind[bag]] += 5.0
        if name != "frequency" and bool(y[bag]) == is_test:
            bags[bag, -1, 2] += 5.0
    return bags, y


def run_assumptions(n, *, tests=TESTS, seed=7):
    """Area under the ROC curve in training's law, and with the signal reversed."""
    print(f"{n} bags to fit; AUC in the same law / with the easy signal reversed")
    for name in tests:
        rng = np.random.default_rng(seed)
        train = unit_test(name, n, rng, is_test=False)
        same = unit_test(name, 1000, rng, is_test=False)
        other = unit_test(name, 1000, rng, is_test=True)
        for label, method in SETTINGS.items():
            model = method.fit(*train)
            scores = [
                roc_auc_score(y, model.predict_proba(bags)[:, 1])
                for bags, y in (same, other)
            ]
            verdict = "obeys" if scores[1] > 0.5 else "violates"
            line = f"{name:13s} {label:20s} {scores[0]:.3f} / {scores[1]:.3f}"
            print(f"{line}  {verdict}", flush=True)


def run_musk(folder):
    for version in (1, 2):
        musk = load_musk(folder, version=version)
        print(f"MUSK{version}")
        print(compare_bag_estimators(musk.bags, musk.targets), flush=True)


def least_seconds(model, bags, y, repeats):
    """Processor seconds of one fit, the least of several."""
    found = []
    for _ in range(repeats):
        start = time.process_time()
        model.fit(bags, y)
        found.append(time.process_time() - start)
    return min(found)


def run_speed(n=3000, n_tokens=100, d=64):
    """Processor seconds of one thread, the least of several fits."""
    rng = np.random.default_rng(0)
    bags, y, _ = SingleLocation(d=d, n_tokens=n_tokens, noise=0.3).sample(n, rng)
    fixed = SingleLocationRegressor(alpha=1e-3)
    settings = {
        "one fit": fixed,
        "penalty chosen": SingleLocationRegressor(),
        "100 RBF features": clone(fixed).set_params(feature_map=RBFFeatures(100)),
        "300 RBF features": clone(fixed).set_params(feature_map=RBFFeatures(300)),
    }
    for model in settings.values():  # compiles
        clone(model).fit(bags[:50], y[:50])
    found = dict.fromkeys(settings, np.inf)
    for _ in range(2):
        for name, model in settings.items():
            found[name] = min(found[name], least_seconds(model, bags, y, 1))
    for name, seconds in found.items():
        ratio = seconds / found["one fit"]
        print(f"{name:20s} {seconds:7.2f} s  {ratio:5.1f} x", flush=True)


def run_choice(sizes=(60, 600), tasks=TASKS, seed=500):
    """Default penalty and a search of 18 settings, as multiples of one fit."""
    for n in sizes:
        for name in tasks:
            bags, y = task(name, seed, n)
            one = least_seconds(SingleLocationRegressor(alpha=1e-3), bags, y, 5)
            auto = least_seconds(SingleLocationRegressor(), bags, y, 3)
            line = f"{n:4d} bags {name:10s} one fit {one:.3f} s, default"
            print(f"{line} {auto:.3f} s  {auto / one:5.1f} x", flush=True)
    search = SingleLocationRegressorCV(feature_maps=(None, "quantile"))
    seconds = least_seconds(search, *task("slr", seed, sizes[-1]), 2)
    one = SingleLocationRegressor(alpha=1e-3)
    ratio = seconds / least_seconds(one, *task("slr", seed, sizes[-1]), 5)
    print(f"18 settings {seconds:.2f} s  {ratio:5.1f} x", flush=True)


def run_wide(n=200, n_tokens=10, d=6000):
    """Seconds of a fit of 2 000 tokens with 6 000 features, dense and sparse."""
    rng = np.random.default_rng(0)
    y = rng.standard_normal(n)
    rows = sparse_random(n * n_tokens, d, density=0.01, format="csr", random_state=0)
    kinds = {
        "dense": rng.standard_normal((n, n_tokens, d)),
        "sparse": [rows[i : i + n_tokens] for i in range(0, n * n_tokens, n_tokens)],
    }
    for name, bags in kinds.items():
        one = least_seconds(SingleLocationRegressor(alpha=1e-2), bags, y, 1)
        auto = least_seconds(SingleLocationRegressor(), bags, y, 1)
        print(f"{name:8s} one fit {one:.1f} s, default {auto:.1f} s", flush=True)


def run_areas(file):
    """Mean area under the ROC curve per law and method, as a table of Markdown."""
    table = np.load(file)
    pairs = [name.split(": ") for name in table]
    methods = list(dict.fromkeys(method for _, method in pairs))
    print("| | " + " | ".join(methods) + " |\n|---|" + "--:|" * len(methods))
    for law in dict.fromkeys(law for law, _ in pairs):
        names = [f"{law}: {method}" for method in methods]
        means = [f"{table[n].mean():.3f}" if n in table else "–" for n in names]
        shown = " | ".join(mean.removeprefix("0") for mean in means)
        print(f"| {law.replace('musk', 'MUSK')} | {shown} |")


def run(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("--data", default="data/mil", help="folder of the MUSK files")
    args = parser.parse_args(argv)
    {
        "default": run_default,
        "limit": run_limit,
        "laws": lambda: run_laws(2000),
        "assumptions": lambda: run_assumptions(500),
        "musk": lambda: run_musk(args.data),
        "speed": run_speed,
        "choice": run_choice,
        "wide": run_wide,
        "areas": lambda: run_areas(args.data),
    }[args.question]()


if __name__ == "__main__":
    run()
