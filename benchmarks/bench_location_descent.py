"""Speed of population descent on five numbers, compared with vectors in R^400.

Both do the same updates. The library runs one compiled loop on five numbers; the plain
loop moves two vectors with NumPy and calls the library for the gradient only.
"""

import math
import time
from collections.abc import Callable
from functools import partial

import numpy as np

from eigenheads._parallel import threads
from eigenheads.datasets import SingleLocation
from eigenheads.theory import LocationLandscape, location_descent
from eigenheads.theory._location_landscape import risk_slopes

LAW = SingleLocation(d=400, n_tokens=10, gamma=math.sqrt(0.5))
STEP = 4e-3
SETTINGS = {
    "constant, 0.1": lambda t: 0.1,
    "constant, 0.9": lambda t: 0.9,
    "1/(1 + 1e-4 t)": lambda t: 1 / (1 + 1e-4 * t),
}


def order_parameters(k: np.ndarray, v: np.ndarray) -> list[float]:
    return [k[0], v[1], v[0], k[1], k @ v]


def plain_loop(k: np.ndarray, v: np.ndarray, schedule: Callable, n_steps: int) -> None:
    """Run projected gradient descent on vectors in plain NumPy, without checks."""
    landscape = LocationLandscape(LAW, inverse_temperature=0.0)
    for t in range(n_steps):
        object.__setattr__(landscape, "inverse_temperature", np.float64(schedule(t)))
        order = order_parameters(k, v)
        by = risk_slopes(order, *landscape._arguments(order[0]))
        gradient_k, gradient_v = by[4] * v, by[4] * k
        gradient_k[:2] += by[0], by[3]
        gradient_v[:2] += by[2], by[1]
        k = k - STEP * (gradient_k - k * (k @ gradient_k))
        v = v - STEP * (gradient_v - v * (v @ gradient_v))
        k, v = k / math.sqrt(k @ k), v / math.sqrt(v @ v)


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(quick: bool = False) -> None:
    repeats, n_steps, n_plain = (1, 20_000, 200) if quick else (5, 500_000, 2_000)
    rng = np.random.default_rng(0)
    k, v = rng.standard_normal((2, LAW.d))
    k, v = k / np.linalg.norm(k), v / np.linalg.norm(v)
    start = order_parameters(k, v)

    def closed(schedule: float | Callable, steps: int) -> None:
        location_descent(
            LAW,
            start,
            inverse_temperature=schedule,
            step_size=STEP,
            n_steps=steps,
            record_every=steps,
        )

    columns = "inverse temperature", "steps/s/core", "NumPy, R^400", "ratio"
    print("{:<20}{:>14}{:>14}{:>8}".format(*columns))
    with threads(1):
        closed(0.1, 1)  # compile
        for name, schedule in SETTINGS.items():
            given = schedule(0) if name.startswith("constant") else schedule
            ours, plain = math.inf, math.inf
            for _ in range(repeats):  # interleaved, so that both see the same noise
                ours = min(ours, seconds(partial(closed, given, n_steps)))
                plain = min(
                    plain,
                    seconds(partial(plain_loop, k, v, schedule, n_plain)),
                )
            speed, plain_speed = n_steps / ours, n_plain / plain
            print(
                f"{name:<20}{speed:>14,.0f}{plain_speed:>14,.0f}"
                f"{speed / plain_speed:>8,.0f}"
            )


if __name__ == "__main__":
    main()
