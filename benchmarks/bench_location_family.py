"""R2 of the best head of a family, an upper bound for every fit.

The laws of ``bench_location_estimators`` are symmetric around key and value, so the
best score of a family is a function of k*.x and the squared radius, with one or two
coefficients. These are fitted on one half of many bags; R2 is measured on the other.
A second table shows the error by the length of the key. The full run::

    python -m benchmarks.bench_location_family
"""

import numpy as np
from scipy.optimize import minimize
from scipy.special import softmax
from sklearn.metrics import r2_score

LENGTHS = (2.0, 4.0, 8.0)


def main(quick: bool = False) -> None:
    n = 2_000 if quick else 60_000
    print("R2 of the best head, on bags on which it was not chosen; d=32, L=10")
    print(f"{'law':<12} {'oracle':>8} {'linear key':>11} {'with radius':>12}")
    for law in ("isotropic", "heavy tails", "distractors"):
        key, value, radius, y = draw_coordinates(law, 32, 10, n, seed=1)
        rows = np.arange(n)
        oracle = r2_score(y, value[rows, key.argmax(axis=1)])
        found = [
            best_r2(np.stack(features, axis=-1), value, y)
            for features in ([key], [key, radius])
        ]
        print(f"{law:<12} {oracle:>8.4f} {found[0]:>11.4f} {found[1]:>12.4f}")
    print_lengths(n_draws=1 if quick else 5, n=n)


def print_lengths(*, n_draws, n):
    """Print the mean error and the median over tests, by the length of the key."""
    print("1 - R2 along k* by the length of the key; isotropic, d=64, L=100")
    squares = {length: [] for length in (4.0, 6.0, 8.0, 12.0, 16.0, 32.0, np.inf)}
    for seed in range(1, 1 + n_draws):
        key, value, _, y = draw_coordinates("isotropic", 64, 100, n, seed=seed)
        for length, errors in squares.items():
            errors.append(
                2 * (_read(length, key, value) - y) ** 2
            )  # y has variance 1/2
    print(f"{'length':>8} {'all bags':>10} {'median of tests with 3000 bags':>31}")
    for length, errors in squares.items():
        tests = np.concatenate(errors)
        parts = tests.reshape(-1, min(3000, len(tests))).mean(axis=1)
        print(f"{length:>8g} {tests.mean():>10.2e} {np.median(parts):>31.2e}")


def _read(length, key, value):
    if np.isinf(length):
        return value[np.arange(len(key)), key.argmax(axis=1)]
    return (softmax(length * key, axis=1) * value).sum(axis=1)


def draw_coordinates(law, d, n_tokens, n, *, seed):
    """Draw k*.x, v*.x and the squared length of tokens; the first token decides."""
    rng = np.random.default_rng(seed)
    if law == "heavy tails":
        tokens = rng.standard_t(8, size=(n, n_tokens, d)) * np.sqrt(6 / 8)
        rest = (tokens[..., 2:] ** 2).sum(axis=-1)
    else:
        tokens = rng.standard_normal((n, n_tokens, 2))
        rest = rng.chisquare(d - 2, size=(n, n_tokens))
    key, value = tokens[..., 0].copy(), tokens[..., 1].copy()
    for column, factor in ((key, 0.5**0.5), (value, 0.5**0.5), (rest, 0.5)):
        column[:, 0] *= factor
    if law == "distractors":
        for token in range(1, 1 + n_tokens // 5):
            value[:, token] += 3 * rng.choice([-1, 1], n)
    key[:, 0] += np.sqrt(d / 2)
    return key, value, key**2 + value**2 + rest, value[:, 0].copy()


def best_r2(features, value, y):
    """Fit the coefficients of the score on one half; return R2 on the other."""
    half = len(y) // 2

    def error(coefficients, part):
        weights = softmax(features[part] @ coefficients, axis=1)
        read = (weights * value[part]).sum(axis=1)
        slope = read @ y[part] / (read @ read)
        return 1 - r2_score(y[part], slope * read)

    searches = [
        minimize(
            error,
            np.append(length, np.zeros(features.shape[-1] - 1)),
            args=(slice(None, half),),
            method="Nelder-Mead",
            options={"maxfev": 100, "xatol": 1e-3, "fatol": 1e-6},
        )
        for length in LENGTHS
    ]
    best = min(searches, key=lambda search: search.fun)
    return 1 - error(best.x, slice(half, None))


if __name__ == "__main__":
    main()
