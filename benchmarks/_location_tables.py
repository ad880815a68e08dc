"""Tables of the benchmark of single-location estimators."""

from collections import defaultdict

import numpy as np
from scipy import stats

OURS, RADIAL = "SingleLocation", "SingleLocation, radial"
PEER, POOLED, MEAN = "ABMIL (torchmil)", "pooled PCA, ridge", "ridge on the mean"


def print_synthetic(rows):
    print("Gap to the oracle's R2 in the worst seed (seeds with oracle R2 >= 0.9)")
    header = (
        f"{'law':<12} {'d':>3} {'L':>4} {'method':<22} {'seeds':>5} {'median R2':>9}"
    )
    print(f"{header} {'worst gap':>9} {'locate':>7} {'oracle':>7} {'s':>7}")
    for (law, d, n_tokens, method), group in _grouped(
        rows, "law", "d", "n_tokens", "method"
    ).items():
        counted = [row for row in group if row["oracle_r2"] >= 0.9]
        gaps = [row["oracle_r2"] - row["r2"] for row in counted] or [np.nan]
        print(
            f"{law:<12} {d:>3} {n_tokens:>4} {method:<22} {len(counted):>5} "
            f"{_median(group, 'r2'):>9.5f} {max(gaps):>9.4f} "
            f"{_median(group, 'locate'):>7.4f} {_median(group, 'oracle_locate'):>7.4f} "
            f"{_median(group, 'seconds'):>7.2f}"
        )
    print_verdicts(rows)


def print_verdicts(rows):
    """Print, per law and head, differences from each peer and ratios of time."""
    print()
    print("Median R2 of ours minus the peer's, on the seeds both have;")
    print("time of ABMIL over ours: median and least over seeds")
    print(
        f"{'law':<12} {'d':>3} {'head':<8} {'seeds':>5} {'within .02':>10} "
        f"{'ABMIL':>9} {'PCA':>9} {'mean':>8} {'time':>6} {'least':>6}"
    )
    groups = _grouped(rows, "law", "d", "method")
    for (law, d, method), group in groups.items():
        if method not in (OURS, RADIAL):
            continue
        counted = [row for row in group if row["oracle_r2"] >= 0.9]
        within = sum(row["oracle_r2"] - row["r2"] <= 0.02 for row in counted)
        leads = [
            _lead(group, groups.get((law, d, peer), []))
            for peer in (PEER, POOLED, MEAN)
        ]
        times = _time_ratios(group, groups.get((law, d, PEER), []))
        print(
            f"{law:<12} {d:>3} {'radial' if method == RADIAL else 'softmax':<8} "
            f"{len(counted):>5} {within:>4} of {len(counted):<2} {leads[0]:>+9.5f} "
            f"{leads[1]:>+9.5f} {leads[2]:>+8.4f} {np.median(times):>6.1f} "
            f"{min(times):>6.1f}"
        )


def _shared(ours, peers):
    by_seed = {row["seed"]: row for row in peers}
    return [(row, by_seed[row["seed"]]) for row in ours if row["seed"] in by_seed]


def _lead(ours, peers):
    """Median of ours minus the median of the peer, on the seeds that both have."""
    pairs = _shared(ours, peers)
    if not pairs:
        return np.nan
    return _median([a for a, _ in pairs], "r2") - _median([b for _, b in pairs], "r2")


def _time_ratios(ours, peers):
    """Time of the peer over ours, on the seeds that both have."""
    pairs = _shared(ours, peers)
    return [theirs["seconds"] / own["seconds"] for own, theirs in pairs] or [np.nan]


def print_digits(rows):
    print("Streams of 20 digits, one of them a 3 or an 8: which? (chance 0.5)")
    print(f"{'method':<22} {'accuracy':>8} {'worst':>7} {'locate':>7} {'s':>7}")
    for (method,), group in _grouped(rows, "method").items():
        print(
            f"{method:<22} {_median(group, 'accuracy'):>8.3f} "
            f"{min(row['accuracy'] for row in group):>7.3f} "
            f"{_median(group, 'locate'):>7.3f} {_median(group, 'seconds'):>7.2f}"
        )


def print_musk(rows):
    print("Accuracy with 95 % intervals (variance of Nadeau and Bengio, 2003)")
    print(
        f"{'data':<6} {'method':<22} {'accuracy':>8} {'interval':>17} {'s a fold':>8}"
    )
    for (data, method), group in _grouped(rows, "data", "method").items():
        scores = np.array([float(row["accuracy"]) for row in group])
        half = _half_interval(scores, n_folds=1 + max(row["fold"] for row in group))
        low, high = scores.mean() - half, scores.mean() + half
        print(
            f"{data:<6} {method:<22} {scores.mean():>8.3f} [{low:.3f}, {high:.3f}]"
            f"    {_median(group, 'seconds'):>8.2f}"
        )


def _half_interval(scores, *, n_folds):
    """Return the half width, with a variance corrected for shared training data."""
    share = 1 / (n_folds - 1)  # test over train
    error = np.sqrt(scores.var(ddof=1) * (1 / len(scores) + share))
    return stats.t.ppf(0.975, len(scores) - 1) * error


def _grouped(rows, *columns):
    groups = defaultdict(list)
    for row in rows:
        groups[tuple(row[column] for column in columns)].append(row)
    return groups


def _median(rows, column):
    return np.median([row[column] for row in rows])
