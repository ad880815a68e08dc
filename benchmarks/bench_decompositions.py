"""Principal components of a large table: AttentionPCA, IncrementalPCA and PCA.

200 000 rows in d = 256, float32, 8 components. The reference is an eigendecomposition
of the covariance in float64; `error` is the sine of the largest angle between the
spans. Fits are interleaved; the minimum of the times and the maximum of the errors are
printed. `explained` is the variance in the span divided by that of the exact span.
"""

import time

import numpy as np
from sklearn.decomposition import PCA, IncrementalPCA

from eigenheads.estimators import AttentionPCA

# Variances of the principal directions: a slow decay, and eight over flat noise.
SPECTRA = {
    "1/i": lambda d: 1 / np.arange(1, d + 1),
    "spikes": lambda d: np.r_[np.linspace(3, 2, 8), np.ones(d - 8)],
}


def draw(n, spectrum, seed):
    rng = np.random.default_rng(seed)
    d = len(spectrum)
    turn = np.linalg.qr(rng.standard_normal((d, d)))[0].astype(np.float32)
    rows = rng.standard_normal((n, d), dtype=np.float32)
    return (rows * np.sqrt(spectrum).astype(np.float32)) @ turn.T


def true_span(X, k):
    covariance = np.cov(X.T, dtype=np.float64)
    values, vectors = np.linalg.eigh(covariance)
    return covariance, vectors[:, -k:], values[-k:].sum()


def methods(k, seed):
    return {
        "AttentionPCA": AttentionPCA(k, random_state=seed),
        "IncrementalPCA": IncrementalPCA(k),
        "PCA": PCA(k),
    }


def measure(X, k, repeats):
    covariance, span, variance = true_span(X, k)
    best = {}
    for repeat in range(repeats):
        for name, model in methods(k, repeat).items():
            wall, processor = time.perf_counter(), time.process_time()
            model.fit(X)
            wall = time.perf_counter() - wall
            processor = time.process_time() - processor
            basis = np.linalg.qr(model.components_.T.astype(np.float64))[0]
            error = np.linalg.norm(basis - span @ (span.T @ basis), 2)
            explained = np.trace(basis.T @ covariance @ basis) / variance
            row = (wall, processor, error, 1 - explained)
            best[name] = np.r_[
                np.minimum(best.get(name, row)[:2], row[:2]),
                np.maximum(best.get(name, row)[2:], row[2:]),
            ]
    return best


def main(quick: bool = False) -> None:
    n, d, repeats = (4000, 32, 1) if quick else (200_000, 256, 3)
    for name, spectrum in SPECTRA.items():
        X = draw(n, spectrum(d), seed=0)
        best = measure(X, 8, repeats)
        print(f"{n} rows, d = {d}, k = 8, float32, variances {name}, {repeats} fits")
        for method, (wall, processor, error, lost) in best.items():
            print(
                f"  {method:<15} {wall:7.3f} s wall {processor:7.3f} s processor"
                f"  error {error:.1e}  explained {1 - lost:.6f}"
            )
        ratios = best["IncrementalPCA"] / best["AttentionPCA"]
        print(
            f"  IncrementalPCA takes {ratios[0]:.1f} times as long (processor "
            f"{ratios[1]:.1f}), its error is {ratios[2]:.1f} times as large"
        )


if __name__ == "__main__":
    main()
