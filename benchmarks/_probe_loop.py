"""The probes as plain loops over heads and draws."""

import numpy as np

from eigenheads.functional import (
    effective_rank,
    gamma_ratios,
    kernel_coefficients,
    kernel_pca,
    kernel_pca_values,
    linear_cka,
    log_feature_norms,
    matching_cosine,
    rbf_cka,
    relative_differences,
)


def value_statistics(queries, keys, values):
    """Return the statistics of one head on one sequence with redrawn values."""
    d = values.shape[1]
    cloud = kernel_pca(keys)
    target = kernel_pca_values(cloud, d)
    scores = queries @ keys.T / np.sqrt(keys.shape[1])
    weights = np.exp(scores - scores.max(1, keepdims=True))
    outputs = weights / weights.sum(1, keepdims=True) @ values
    logs = np.log(np.square(outputs).sum(1))
    a = kernel_coefficients(cloud, values)
    product = cloud.gram @ a
    lengths = np.square(a).sum(0) * np.square(product).sum(0)
    basis = np.linalg.qr(a)[0]
    captured = np.trace(basis.T @ cloud.gram @ basis)
    return {
        "norm_ratio": (logs - log_feature_norms(queries, keys)).mean() / np.log(10),
        "output_norm": logs.mean() / np.log(10),
        "gamma_difference": relative_differences(gamma_ratios(cloud.gram, a)).mean(),
        "eigen_residual": np.sqrt(1 - (a * product).sum(0) ** 2 / lengths).mean(),
        "captured_variance": captured / cloud.eigenvalues[:d].sum(),
        "linear_cka": float(linear_cka(values, target)),
        "rbf_cka": float(rbf_cka(values, target)),
        "matching_cosine": float(matching_cosine(values, target)),
        "top_eigenvalue": cloud.eigenvalues[0],
        "kernel_rank": float(effective_rank(cloud.eigenvalues)),
    }


def loop_probe(queries, keys, values, n_permutations, seed=0):
    """Return means over sequences, permuted values: (heads, draws) per statistic."""
    rng = np.random.default_rng(seed)
    b, h, n, _ = keys.shape
    total = {}
    for i in range(b):
        for j in range(h):
            for draw in range(n_permutations):
                moved = values[i, j][rng.permutation(n)]
                found = value_statistics(queries[i, j], keys[i, j], moved)
                for name, x in found.items():
                    rows = total.setdefault(name, np.zeros((h, n_permutations)))
                    rows[j, draw] += x / b
    return total
