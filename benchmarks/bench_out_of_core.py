"""Peak memory and time of fits over batches, compared with fits in memory.

Bags of ten tokens in d = 64; each batch is generated from its number, so that the data
never exist as a whole. Each fit runs in its own process; its peak is the largest
resident set minus that before the fit. In memory the peak grows with the data; over
batches it is that of a few batches, whatever their number.

The same for AttentionPCA on rows in d = 512 with variances 1/i: `fit` over batches
makes passes until its residuals are as small as in memory, and `partial_fit` reads each
row once and explains slightly less.
"""

import resource
import sys
import time
from collections.abc import Iterator
from multiprocessing import get_context

import numpy as np

from eigenheads.datasets import SingleLocation
from eigenheads.estimators import AttentionPCA, SingleLocationRegressor

D, N_TOKENS, BATCH = 64, 10, 4000
LAW = SingleLocation(D, N_TOKENS, noise=0.1)
PCA_D, PCA_K, PCA_BATCH = 512, 8, 5000


def batch(index: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    bags, targets = LAW.sample(size, np.random.default_rng(index))[:2]
    return bags, targets


def batches(count: int, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return (batch(index, size) for index in range(count))


def peak_mb() -> float:
    scale = 1e6 if sys.platform == "darwin" else 1e3
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def measure(pipe, way: str, count: int, size: int) -> None:  # type: ignore[no-untyped-def]
    small = batch(0, 200)
    SingleLocationRegressor(alpha=3e-5).fit(*small)  # compile
    SingleLocationRegressor(alpha=3e-5).fit(lambda: iter([small]))
    before, began = peak_mb(), time.perf_counter()
    if way == "memory":
        parts = list(batches(count, size))
        X, y = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        del parts
        model = SingleLocationRegressor(alpha=3e-5).fit(X, y)
    elif way == "callable":
        model = SingleLocationRegressor(alpha=3e-5).fit(lambda: batches(count, size))
    else:
        model = SingleLocationRegressor(alpha=3e-5).fit(batches(count, size))
    seconds = time.perf_counter() - began
    pipe.send((peak_mb() - before, seconds, model.coef_key_, model.coef_value_))


def row_batches(count: int, size: int) -> Iterator[np.ndarray]:
    scales = np.arange(1, PCA_D + 1) ** -0.5
    for index in range(count):
        yield np.random.default_rng(index).standard_normal((size, PCA_D)) * scales


def measure_pca(pipe, way: str, count: int, size: int) -> None:  # type: ignore[no-untyped-def]
    AttentionPCA(PCA_K, random_state=0).fit(lambda: row_batches(2, 200))  # load
    before, began = peak_mb(), time.perf_counter()
    model = AttentionPCA(PCA_K, random_state=0)
    if way == "memory":
        X = np.empty((count * size, PCA_D))
        for index, rows in enumerate(row_batches(count, size)):
            X[index * size : (index + 1) * size] = rows
        model.fit(X)
    elif way == "fit":
        model.fit(lambda: row_batches(count, size))
    else:
        model.partial_fit(row_batches(count, size))
    seconds = time.perf_counter() - began
    peak = peak_mb() - before
    along = [
        np.square((rows - model.mean_) @ model.components_.T).sum()
        for rows in row_batches(count, size)
    ]
    pipe.send((peak, seconds, sum(along)))


def run(way: str, count: int, size: int, work=measure):  # type: ignore[no-untyped-def]
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=work, args=(theirs, way, count, size))
    process.start()
    theirs.close()  # then recv raises EOFError if the process fails
    answer = ours.recv()
    process.join()
    return answer


def main(quick: bool = False) -> None:
    counts, size = ((2,), 200) if quick else ((5, 20), BATCH)
    batch_mb = size * N_TOKENS * D * 8 / 1e6
    print(f"batches of {size} bags x {N_TOKENS} tokens x {D}: {batch_mb:.1f} MB each")
    for count in counts:
        ways = ("callable",) if quick else ("memory", "callable", "iterator")
        answers = {way: run(way, count, size) for way in ways}
        reference = answers.get("memory", answers["callable"])
        for way, (peak, seconds, key, value) in answers.items():
            gap = max(
                float(np.abs(one - other).max() / np.abs(other).max())
                for one, other in zip((key, value), reference[2:], strict=True)
            )
            print(
                f"  {count * batch_mb:7.0f} MB  {way:9} peak {peak:7.1f} MB = "
                f"{peak / batch_mb:5.1f} batches  {seconds:6.1f} s  gap {gap:.1e}"
            )
    rows_out_of_core(quick)


def rows_out_of_core(quick: bool) -> None:
    counts, size = ((2,), 200) if quick else ((5, 20), PCA_BATCH)
    batch_mb = size * PCA_D * 8 / 1e6
    print(f"AttentionPCA, batches of {size} rows x {PCA_D}: {batch_mb:.1f} MB each")
    for count in counts:
        answers = {
            way: run(way, count, size, measure_pca)
            for way in ("memory", "fit", "partial_fit")
        }
        best = answers["memory"][2]
        for way, (peak, seconds, explained) in answers.items():
            print(
                f"  {count * batch_mb:7.0f} MB  {way:11} peak {peak:7.1f} MB = "
                f"{peak / batch_mb:5.1f} batches  {seconds:6.1f} s  "
                f"explained {explained / best:.6f} of that in memory"
            )


if __name__ == "__main__":
    main()
