"""Robust PCA: recovery, speed compared with pyrpca, codes of new rows, limits.

Four tables:

- ``recovery``: planted rank 10 and 5 % of gross errors at 400 x 400, and a tall matrix;
  error and time compared with pyrpca (inexact augmented Lagrangian, growing penalty),
  runs interleaved, minimum of each time;
- ``codes``: codes of new rows with a tenth of their entries wrong, compared with PCA;
- ``phases``: share of planted problems that are recovered, by rank and share of errors;
- ``digits``: scikit-learn's images with a tenth of the pixels replaced.

pyrpca is optional: ``pip install pyrpca``. Without it its columns are empty.
"""

import importlib.util
import time
import warnings

import numpy as np
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from eigenheads.estimators import RobustPCA

HAS_PEER = importlib.util.find_spec("pyrpca") is not None
LAWS = ("signs", "uniform")


def main(quick: bool = False) -> None:
    if quick:
        recovery([(60, 60, 3)], repeats=1)
        codes([(60, 40, 2)], n_new=20)
        phases(size=30, ranks=[1, 10], shares=[0.02, 0.4], seeds=1)
        digits(n=200, sparsities=[2.0])
        return
    recovery([(400, 400, 10), (2000, 60, 5)], repeats=5)
    codes([(400, 400, 10), (2000, 60, 5)], n_new=500)
    phases(
        size=100, ranks=[2, 5, 10, 15, 20, 30], shares=[0.02, 0.05, 0.1, 0.2, 0.3, 0.4]
    )
    digits()


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


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


def peer_low_rank(data):
    from pyrpca import rpca_pcp_ialm

    return rpca_pcp_ialm(data, 1 / np.sqrt(max(data.shape)), verbose=False)[0]


def recovery(sizes, *, repeats):
    print("Recovery of a planted low-rank part, 5 % of the entries grossly wrong")
    if not HAS_PEER:
        print("pyrpca is not installed: its columns are empty")
    print(
        f"{'size':>10} {'rank':>4} {'errors':<8} {'ours':>8} "
        f"{'steps':>5} {'gap':>8} {'s':>6} "
        f"{'pyrpca':>8} {'s':>6} {'ratio':>6}"
    )
    for n, d, rank in sizes:
        for law in LAWS:
            sample = planted(np.random.default_rng(0), n, d, rank, law=law)
            clean, data = sample(n, 0.05)
            ours, peer = [], []
            for _ in range(repeats):
                model, seconds = _timed(RobustPCA().fit, data)
                ours.append(seconds)
                if HAS_PEER:
                    found, seconds = _timed(peer_low_rank, data)
                    peer.append(seconds)
            error = relative(model.low_rank_, clean)
            line = (
                f"{f'{n}x{d}':>10} {rank:>4} {law:<8} {error:>8.1e} "
                f"{model.n_iter_:>5} {model.duality_gap_:>8.1e} {min(ours):>6.2f}"
            )
            if HAS_PEER:
                line += (
                    f" {relative(found, clean):>8.1e} {min(peer):>6.2f} "
                    f"{min(ours) / min(peer):>6.2f}"
                )
            print(line)


def _timed(function, *arguments):
    began = time.perf_counter()
    result = function(*arguments)
    return result, time.perf_counter() - began


def codes(sizes, *, n_new):
    print("\nCodes of new rows with 10 % of their entries wrong: relative error")
    print(
        "PCA is given the true rank and compared with its own codes of the clean rows"
    )
    print(
        f"{'size':>10} {'error size':>10} {'RobustPCA':>9} "
        f"{'20% NaN':>8} {'PCA':>6} "
        f"{'PCA, clean fit':>14} {'ms per row':>10}"
    )
    for n, d, rank in sizes:
        for size in (5.0, 10.0, 20.0, 100.0):
            rng = np.random.default_rng(0)
            sample = planted(rng, n, d, rank, size=size)
            _, data = sample(n, 0.05)
            clean, wrong = sample(n_new, 0.1)
            model = RobustPCA().fit(data)
            wanted = (clean - model.mean_) @ model.components_.T
            found, seconds = _timed(model.transform, wrong)
            holed = np.where(rng.random(wrong.shape) < 0.2, np.nan, wrong)
            with_holes = relative(model.transform(holed), wanted)
            plain = PCA(rank).fit(data)
            off = relative(plain.transform(wrong), plain.transform(clean))
            best = PCA(rank).fit(sample(n, 0.0)[0])
            off_best = relative(best.transform(wrong), best.transform(clean))
            print(
                f"{f'{n}x{d}':>10} {size:>7g} sd {relative(found, wanted):>9.1e} "
                f"{with_holes:>8.1e} {off:>6.2f} "
                f"{off_best:>14.2f} {1e3 * seconds / n_new:>10.2f}"
            )


def phases(*, size, ranks, shares, seeds=3):
    print(
        f"\nShare of {size}x{size} problems recovered to 1e-3 ({seeds} each), "
        "by rank (rows) and share of wrong entries (columns)"
    )
    print(" " * 5 + "".join(f"{share:>6.0%}" for share in shares))
    for rank in ranks:
        hits = [
            np.mean([_is_recovered(size, rank, share, seed) for seed in range(seeds)])
            for share in shares
        ]
        print(f"{rank:>5}" + "".join(f"{hit:>6.1f}" for hit in hits))


def _is_recovered(size, rank, share, seed):
    sample = planted(np.random.default_rng(seed), size, size, rank)
    clean, data = sample(size, share)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RobustPCA(tol=1e-5, max_iter=200).fit(data)
    return relative(model.low_rank_, clean) < 1e-3


def digits(n=None, sparsities=(1.0, 1.5, 2.0, 3.0)):
    print("\nDigits, 10 % of the pixels replaced: error of the cleaned test images")
    images = load_digits().data[:n]
    rng = np.random.default_rng(0)
    wrong = rng.random(images.shape) < 0.1
    data = np.where(wrong, rng.uniform(0, 16, images.shape), images)
    train, test = np.arange(len(data)) % 2 == 0, np.arange(len(data)) % 2 == 1
    print(f"{'untouched':<24} {relative(data[test], images[test]):.3f}")
    for sparsity in sparsities:
        model = RobustPCA(sparsity=sparsity, tol=1e-5).fit(data[train])
        cleaned = model.inverse_transform(model.transform(data[test]))
        error = relative(cleaned, images[test])
        label = f"RobustPCA, sparsity={sparsity:g}"
        print(f"{label:<24} {error:.3f}  rank {model.rank_}, {model.n_iter_} steps")
    for rank in (10, 15, 20, 25, 30, 40):
        plain = PCA(rank).fit(data[train])
        error = relative(
            plain.inverse_transform(plain.transform(data[test])), images[test]
        )
        print(f"{f'PCA({rank})':<24} {error:.3f}")


if __name__ == "__main__":
    main()
