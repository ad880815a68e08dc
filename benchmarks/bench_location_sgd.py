"""Online SGD of single-location regression: microseconds per step, by dimension.

The paper's setting: 10 tokens, batch 5, λ = 2/(1 + 1e-4 t), α = 1e-3, γ = √½, ε = 0.1.
Measurements are interleaved and repeated; the minimum of each counts.
"""

import time

from eigenheads._parallel import n_threads, threads
from eigenheads.datasets import SingleLocation
from eigenheads.models import simulate_location

CASES = (("exact", 80), ("exact", 10**9), ("full", 80), ("full", 400))


def seconds(method: str, d: int, n_steps: int, n_runs: int = 1) -> float:
    law = SingleLocation(d=d, n_tokens=10, noise=0.1)
    began = time.perf_counter()
    simulate_location(
        law,
        inverse_temperature=lambda t: 2 / (1 + 1e-4 * t),
        step_size=1e-3,
        batch_size=5,
        n_steps=n_steps,
        n_runs=n_runs,
        record_every=min(500, n_steps),
        seed=0,
        method=method,
    )
    return time.perf_counter() - began


def main(quick: bool = False) -> None:
    repeats, scale = (1, 100) if quick else (7, 1)
    steps = {"exact": 100_000 // scale, "full": 10_000 // scale}
    for method in steps:
        seconds(method, 80, 10)  # compile
    best = dict.fromkeys(CASES, float("inf"))
    with threads(1):
        for _ in range(repeats):
            for method, d in CASES:
                taken = seconds(method, d, steps[method]) / steps[method]
                best[method, d] = min(best[method, d], 1e6 * taken)
    exact = best["exact", 80]
    print("online SGD of single-location regression, one core")
    for (method, d), taken in best.items():
        ratio = f"{taken / exact:6.2f} x exact at d=80"
        print(f"  {method:5}  d={d:<10,}  {taken:8.2f} µs per step  {ratio}")
    print(f"  full / exact at d=400: {best['full', 400] / exact:.1f}")

    n_steps = 200_000 // scale
    wall = seconds("exact", 80, n_steps, n_runs=30)
    used = min(n_threads(), 30)
    print(f"30 runs x {n_steps:,} steps on {used} threads: {wall:.2f} s")


if __name__ == "__main__":
    main()
