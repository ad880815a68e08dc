"""Sweeps: what scheduling costs, how they scale, and how many threads there are.

Cells that compute for about a millisecond, each with a generator of its own.
*Overhead*: a sweep on two workers against two independent processes that loop over
half of the same cells each; and, less disturbed by other programs, the processor time
of the process that hands out and stores, over that of the cells. *Scaling*: cells a
second of the sweep on two workers over that on one, against the same ratio of the
independent processes. Measurements are interleaved and repeated, and the least time
of each counts; the start of processes is in none of them.
"""

import tempfile
import time
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from eigenheads.experiments import Cells, Experiment, sweep

CELL_SECONDS = 1e-3


@dataclass(frozen=True, kw_only=True)
class Spin:
    """Loops of pure Python: bound to the processor, one thread, no memory."""

    loops: int = 1000
    batch: int = 0


def spin(params: Spin, rng: np.random.Generator) -> dict[str, float]:
    total = 0
    for index in range(params.loops):
        total += index & 7
    return {"total": float(total), "noise": rng.standard_normal()}


EXPERIMENT = Experiment(
    key="benchmark/spin",
    title="Spin",
    source="ours",
    about="For the benchmark.",
    presets={"demo": Spin()},
    simulate=None,  # type: ignore[arg-type]
    check=None,  # type: ignore[arg-type]
    draw=None,  # type: ignore[arg-type]
    cells=Cells(presets={"demo": Spin()}, run=spin, shows=("total",)),
)


def calibrated() -> int:
    """Return the loops of about a millisecond."""
    rng = np.random.default_rng(0)
    taken = []
    for _ in range(20):
        began = time.perf_counter()
        spin(Spin(loops=20_000), rng)
        taken.append(time.perf_counter() - began)
    return round(20_000 * CELL_SECONDS / min(taken))


def plain_loop(loops: int, seeds: range) -> None:
    params = Spin(loops=loops)
    for seed in seeds:
        sequence = np.random.SeedSequence(seed, spawn_key=(1, 2, 3, 4))
        spin(params, np.random.default_rng(sequence))


def serve(pipe) -> None:  # type: ignore[no-untyped-def]
    """Loop when told to; so that the start of the process is not measured."""
    while (order := pipe.recv()) is not None:
        plain_loop(*order)
        pipe.send(True)


class Pair:
    """Two independent processes, ready."""

    def __init__(self) -> None:
        context = get_context("spawn")
        pipes = [context.Pipe() for _ in range(2)]
        self.ends = [ours for ours, _ in pipes]
        self.processes = [
            context.Process(target=serve, args=(theirs,), daemon=True)
            for _, theirs in pipes
        ]
        for process in self.processes:
            process.start()
        self.seconds(1, 2, workers=2)

    def seconds(self, loops: int, n_cells: int, *, workers: int) -> float:
        share = n_cells // workers
        began = time.perf_counter()
        for end in self.ends[:workers]:
            end.send((loops, range(share)))
        for end in self.ends[:workers]:
            end.recv()
        return time.perf_counter() - began

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join()


class Stopwatch:
    """Hears a sweep begin and end its work."""

    def begin(self, total: float) -> None:
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def start(self, key: str, work: float) -> None: ...

    def advance(self, units: float) -> None:
        self.seconds = time.perf_counter() - self.began
        self.cpu_seconds = time.process_time() - self.cpu_began


def timed_sweep(loops: int, n_cells: int, *, jobs: int, batch: int) -> Stopwatch:
    """Time from the first block handed out to the last one stored."""
    watch = Stopwatch()
    with tempfile.TemporaryDirectory() as folder:
        sweep(
            EXPERIMENT,
            grid={"loops": [loops], "batch": [batch]},
            seeds=n_cells,
            jobs=jobs,
            out=folder,
            listener=watch,  # type: ignore[arg-type]
        )
    return watch


def main(quick: bool = False) -> None:
    n_cells, repeats = (40, 1) if quick else (3000, 4)
    loops = calibrated()
    pair = Pair()
    times: dict[str, list[float]] = {}
    work: list[float] = []
    handed: list[float] = []
    timed_sweep(loops, 40, jobs=2, batch=0)  # workers start, and import
    for repeat in range(repeats):
        for workers in (1, 2):
            plain = pair.seconds(loops, n_cells, workers=workers)
            swept = timed_sweep(loops, n_cells, jobs=workers, batch=repeat)
            times.setdefault(f"plain {workers}", []).append(plain)
            times.setdefault(f"sweep {workers}", []).append(swept.seconds)
        began = time.process_time()
        plain_loop(loops, range(n_cells))
        work.append(time.process_time() - began)
        handed.append(swept.cpu_seconds)
    pair.close()
    best = {name: min(taken) for name, taken in times.items()}
    print(f"{n_cells} cells of about 1 ms, two cores")
    for name, taken in best.items():
        print(f"  {name}: {taken:7.3f} s, {1e3 * taken / n_cells:.4f} ms a cell")
    overhead = best["sweep 2"] / best["plain 2"] - 1
    scaling = best["sweep 1"] / best["sweep 2"]
    possible = best["plain 1"] / best["plain 2"]
    print(f"  overhead on two workers: {100 * overhead:.1f} % (target: at most 5)")
    share = min(handed) / min(work)
    print(
        f"  processor time of the scheduling process: {100 * share:.1f} % of the cells'"
    )
    print(
        f"  scaling from one to two: {scaling:.2f}, independent processes "
        f"{possible:.2f}, ratio {scaling / possible:.2f} (target: at least 0.9)"
    )


if __name__ == "__main__":
    main()
