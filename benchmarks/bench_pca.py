"""SGD of attention-based PCA: time per prompt of the full and the exact simulation.

Both sample the same law, on one thread. The full simulation works in the eigenbasis of
the covariance, with one pass over the tokens per matrix product. Measurements are
interleaved and repeated; the minimum of each counts.
"""

import time

import numpy as np

from eigenheads.models._pca_prompts import PCAProblem, pca_block

# (n_tokens, d): number of prompts that take about 50 ms, full and exact.
CASES = {
    (100, 5): (15_000, 25_000),
    (100, 100): (1_000, 15_000),
    (1000, 1000): (8, 1_500),
}


def seconds_a_prompt(n_tokens: int, d: int, method: str, n_prompts: int) -> float:
    """Time the compiled updates, without the set-up of a run."""
    problem = PCAProblem(
        roots=np.sqrt(np.linspace(1.0, 0.1, d)),
        dof=0,
        n_tokens=n_tokens,
        inverse_temperature=0.1,
        is_softmax=True,
        batch_size=n_prompts,
        prompts_per_covariance=1,
        n_certain=0,
        n_candidates=1,
    )
    state, records = np.full((1, d), 1 / np.sqrt(d)), np.empty((1, 3))
    steps, rng = np.array([1e-4]), np.random.Generator(np.random.SFC64(0))
    exact = method == "exact"
    began = time.perf_counter()
    pca_block(rng, (state, problem.roots), steps, problem, exact, 0, 1, records)
    return (time.perf_counter() - began) / n_prompts


def main(quick: bool = False) -> None:
    repeats, scale = (1, 50) if quick else (9, 1)
    print("SGD of attention-based PCA, softmax head, one thread")
    for method in ("exact", "full"):
        seconds_a_prompt(10, 5, method, 10)  # compile
    for (n_tokens, d), counts in CASES.items():
        best = {"full": float("inf"), "exact": float("inf")}
        for _ in range(repeats):
            for method, count in zip(best, counts, strict=True):
                n_prompts = max(count // scale, 2)
                taken = seconds_a_prompt(n_tokens, d, method, n_prompts)
                best[method] = min(best[method], taken)
        ratio = best["full"] / best["exact"]
        print(
            f"  L={n_tokens:<5} d={d:<5} full {1e6 * best['full']:9.2f} µs"
            f"  exact {1e6 * best['exact']:7.2f} µs per prompt"
            f"  ratio {ratio:6.1f}"
        )


if __name__ == "__main__":
    main()
