"""Robust PCA: recovery, speed compared with pyrpca, codes of new rows, limits.

Four tables:

- ``recovery``: planted rank 10 and 5 % of gross errors at 400 x 400, and a tall matrix;
  error and time compared with pyrpca (inexact augmented Lagrangian, growing penalty),
  runs interleaved, minimum of each time;
- ``codes``: codes of new rows with a tenth of their entries wrong, compared with PCA;
- ``phases``: share of planted problems that are recovered, by rank and share of errors;
- ``digits``: scikit-learn's images with a tenth of the pixels replaced;
- ``peers``: time and objective of programs that are installed, also on data with slowly
  decaying spectra; ``outlying_rows``: whole rows wrong; ``occluded``: the choice of
  `sparsity`.

pyrpca is optional: ``pip install pyrpca``. Without it its columns are empty.
"""

import importlib.util
import time
import warnings

import numpy as np
from sklearn.covariance import MinCovDet
from sklearn.datasets import load_digits, load_sample_images
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.image import extract_patches_2d

from eigenheads.estimators import RobustPCA

HAS_PEER = importlib.util.find_spec("pyrpca") is not None
LAWS = ("signs", "uniform")


def main(quick: bool = False) -> None:
    if quick:
        recovery([(60, 60, 3)], repeats=1)
        codes([(60, 40, 2)], n_new=20)
        phases(size=30, ranks=[1, 10], shares=[0.02, 0.4], seeds=1)
        digits(n=200, sparsities=[2.0])
        peers(quick=True)
        return
    recovery([(400, 400, 10), (2000, 60, 5)], repeats=5)
    codes([(400, 400, 10), (2000, 60, 5)], n_new=500)
    phases(
        size=100, ranks=[2, 5, 10, 15, 20, 30], shares=[0.02, 0.05, 0.1, 0.2, 0.3, 0.4]
    )
    digits()
    peers()
    outlying_rows()
    occluded(seeds=3)


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
                model, seconds = _timed(RobustPCA(sparsity=1.0).fit, data)
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
            model = RobustPCA(sparsity=1.0).fit(data)
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
        model = RobustPCA(sparsity=1.0, tol=1e-5, max_iter=200).fit(data)
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


def video(n_frames=60, height=24, width=32, seed=0):
    """Return frames of a changing scene with two moving spots, and where they are."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    scene = 120 + 40 * np.sin(x / 5) + 30 * np.cos(y / 7)
    scene = scene + 15 * rng.standard_normal(scene.shape)
    frames, spots = [], []
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
    return np.array(frames), np.array(spots)


def patches(n=600, size=10):
    """Return patches of one of scikit-learn's photographs."""
    image = load_sample_images().images[0].mean(axis=2)
    found = extract_patches_2d(image, (size, size), max_patches=n, random_state=0)
    return found.reshape(n, -1)


def peer_fits():
    """Return functions from data to their low-rank part, of what is installed."""

    def skpcp(data):
        from skpcp.pcp import pcp

        return pcp(data)[0]

    def tensorly(data):
        from tensorly.decomposition import robust_pca

        price = 1 / np.sqrt(max(data.shape))
        return robust_pca(data, reg_E=price, verbose=False)[0]

    fits = {"RobustPCA": lambda data: RobustPCA(sparsity=1.0).fit(data).low_rank_}
    named = {"pyrpca": peer_low_rank, "skpcp": skpcp, "tensorly": tensorly}
    for name, fit in named.items():
        if importlib.util.find_spec(name) is not None:
            fits[name] = fit
    return fits


def peers(quick=False):
    print("\nOne fit of each program, sparsity 1: processor time, objective over ours")
    data = {
        "planted 200x200, rank 5": planted(np.random.default_rng(0), 200, 200, 5)(
            200, 0.05
        )[1],
        "video 60x768": video()[0],
        "patches 600x100": patches(),
        "digits 1797x64": load_digits().data,
    }
    if quick:
        data = {"video 20x48": video(20, 6, 8)[0]}
    print(f"{'data':<24} {'program':<10} {'s':>6} {'objective - ours':>17}")
    for name, table in data.items():
        centred = table - np.median(table, axis=0)
        ours = None
        for program, fit in peer_fits().items():
            began = time.process_time()
            try:
                found = fit(centred)
            except Exception as error:  # a peer that does not run is reported
                print(f"{name:<24} {program:<10} {type(error).__name__}")
                continue
            seconds = time.process_time() - began
            centre = found.mean(axis=0)
            rest = np.abs(centred - found).sum() / np.sqrt(max(table.shape))
            value = np.linalg.norm(found - centre, "nuc") + rest
            ours = value if ours is None else ours
            print(
                f"{name:<24} {program:<10} {seconds:>6.2f} {value / ours - 1:>+16.2%}"
            )


def outlying_rows(seeds=5):
    print("\nA fifth of 200 rows outlying, d = 20, 3 components: sine to the true span")
    print(f"{'rows':<10} {'noise':>5} {'RobustPCA':>9} {'MinCovDet':>9} {'PCA':>5}")
    for kind in ("cluster", "line", "scattered"):
        for noise in (0.1, 0.5):
            sines = []
            for seed in range(10, 10 + seeds):
                X, basis = _with_outlying_rows(kind, noise, seed)
                model = RobustPCA(3, errors="rows").fit(X)
                scatter = MinCovDet(random_state=0).fit(X).covariance_
                spans = (
                    model.components_,
                    np.linalg.eigh(scatter)[1][:, -3:].T,
                    PCA(3).fit(X).components_,
                )
                sines.append([_sine(span, basis) for span in spans])
            ours, theirs, plain = np.mean(sines, axis=0)
            print(f"{kind:<10} {noise:>5} {ours:>9.3f} {theirs:>9.3f} {plain:>5.2f}")


def _with_outlying_rows(kind, noise, seed, n=200, d=20, k=3):
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


def _sine(components, basis):
    found, span = np.linalg.qr(components.T)[0], np.linalg.qr(basis.T)[0]
    return np.linalg.norm(found - span @ (span.T @ found), 2)


def occluded(seeds=3):
    print("\nDigits, a 3 x 3 block of 30 % of them set to 16: relative error")
    print(f"{'seed':>4} {'auto':>6} {'chosen':>6} {'best fixed':>10} {'untouched':>9}")
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        images = load_digits().images.copy()
        clean = images.reshape(len(images), -1).copy()
        for index in np.flatnonzero(rng.random(len(images)) < 0.3):
            row, column = rng.integers(0, 6, 2)
            images[index, row : row + 3, column : column + 3] = 16
        X = images.reshape(len(images), -1)
        fixed = [
            relative(RobustPCA(sparsity=s).fit(X).low_rank_, clean)
            for s in (1.0, 1.4, 2.0, 2.8)
        ]
        model = RobustPCA().fit(X)
        print(
            f"{seed:>4} {relative(model.low_rank_, clean):>6.3f} "
            f"{model.relative_sparsity_:>6.2f} {min(fixed):>10.3f} "
            f"{relative(X, clean):>9.3f}"
        )


if __name__ == "__main__":
    main()
