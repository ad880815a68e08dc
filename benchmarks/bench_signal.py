"""Signal recovery among 10 000 nuisance tokens: milliseconds per step.

100 informative tokens, one prompt per step, β = 1, several dimensions. Measurements are
interleaved and repeated; the minimum of each counts.
"""

import time

from eigenheads._parallel import threads
from eigenheads.datasets import SignalTokens
from eigenheads.models import simulate_signal

CASES = (("exact", 100), ("exact", 10**9), ("full", 100), ("full", 1000))


def seconds(method: str, d: int, n_steps: int, n_nuisance: int) -> float:
    law = SignalTokens(d, n_nuisance // 100, n_nuisance, 2.5 / d**0.5)
    began = time.perf_counter()
    simulate_signal(
        law,
        step_size=lambda t: 0.05 / (1 + t / 200) * 100 / d,
        n_steps=n_steps,
        n_runs=1,
        record_every=n_steps,
        seed=0,
        method=method,
    )
    return time.perf_counter() - began


def main(quick: bool = False) -> None:
    repeats, n_nuisance = (1, 100) if quick else (4, 10_000)
    steps = {("exact", 100): 400, ("exact", 10**9): 400, ("full", 100): 20}
    for method in ("exact", "full"):
        seconds(method, 100, 2, 100)  # compile
    best = dict.fromkeys(CASES, float("inf"))
    with threads(1):
        for _ in range(repeats):
            for case in CASES:
                n_steps = steps.get(case, 8)
                taken = seconds(*case, n_steps, n_nuisance) / n_steps
                best[case] = min(best[case], 1e3 * taken)
    exact = best["exact", 100]
    print(f"signal recovery, {n_nuisance:,} nuisance tokens, one core")
    for (method, d), taken in best.items():
        ratio = f"{taken / exact:7.1f} x exact at d=100"
        print(f"  {method:5}  d={d:<13,}  {taken:8.3f} ms per step  {ratio}")


if __name__ == "__main__":
    main()
