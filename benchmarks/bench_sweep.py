"""Overhead and scaling of sweeps, compared with independent processes.

Each cell takes one millisecond and has its own random generator; each worker computes
five seconds of cells.

*Overhead*: a sweep on one or two workers, from the first block sent to the last block
stored, compared with as many independent processes that loop over their shares of the
same cells. A cell runs until its thread has used one millisecond of processor time: the
speed of the same Python loop differs by a tenth between processes, which is more than
the overhead. The processor time of all processes is measured as well; other programs
disturb it less, but it does not include the time a worker waits.

*Scaling*: cells per second of the sweep on two workers divided by that on one, compared
with the same ratio of the independent processes. Here a cell is a fixed number of
loops, so that processors that slow each other down are measured.

Measurements are interleaved and repeated; the minimum of each counts. Fixed costs are
printed separately: the start of the workers, and the plan, the table and the map. If an
independent process needs much more than a millisecond per cell, other programs disturb
the measurement.
"""

import math
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import get_context

import numpy as np

from eigenheads_papers import Cells, Experiment, sweep

CELL_SECONDS = 1e-3


@dataclass(frozen=True, kw_only=True)
class Spin:
    """Parameters of a cell in pure Python: `loops` loops, or 0 for one millisecond."""

    loops: int = 1000
    batch: int = 0


def spin(params: Spin, rng: np.random.Generator) -> dict[str, float]:
    total = 0
    end = time.thread_time() + CELL_SECONDS
    while not params.loops and time.thread_time() < end:
        total += 1
    for index in range(params.loops):
        total += index & 7
    return {
        "total": float(total),
        "noise": rng.standard_normal(),
        "worker": float(os.getpid()),
        "processor": time.process_time(),
    }


EXPERIMENT = Experiment(
    key="benchmark/spin",
    title="Spin",
    source="ours",
    about="A loop for the benchmark.",
    presets={"demo": Spin()},
    simulate=None,  # type: ignore[arg-type]
    check=None,  # type: ignore[arg-type]
    draw=None,  # type: ignore[arg-type]
    cells=Cells(presets={"demo": Spin()}, run=spin, shows=("total",)),
)


def calibrated() -> int:
    """Return the number of loops in a millisecond, with the generator's start.

    Each of three measurements takes half a second: an idle processor is slow at first.
    """
    loops = 20_000
    for _ in range(3):
        began = time.process_time()
        plain_loop(loops, range(500))
        loops = round(loops * 500 * CELL_SECONDS / (time.process_time() - began))
    return loops


def plain_loop(loops: int, seeds: range) -> None:
    params = Spin(loops=loops)
    for seed in seeds:
        sequence = np.random.SeedSequence(seed, spawn_key=(1, 2, 3, 4))
        spin(params, np.random.default_rng(sequence))


def serve(pipe) -> None:  # type: ignore[no-untyped-def]
    """Loop on every message; the start of the process is not measured."""
    while (order := pipe.recv()) is not None:
        began = time.process_time()
        plain_loop(*order)
        pipe.send(time.process_time() - began)


class Pair:
    """Two independent processes that have been started."""

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

    def seconds(self, loops: int, n_cells: int, *, workers: int) -> tuple[float, float]:
        """Return wall clock and processor time of all."""
        share = n_cells // workers
        began = time.perf_counter()
        for end in self.ends[:workers]:
            end.send((loops, range(share)))
        processor = sum(end.recv() for end in self.ends[:workers])
        return time.perf_counter() - began, processor

    def close(self) -> None:
        for end in self.ends:
            end.send(None)
        for process in self.processes:
            process.join()


class Stopwatch:
    """Progress listener that times a sweep.

    `seconds` and `handing` are wall-clock and processor time of this process from the
    first to the last block, `processor` that of all processes, `around` the rest of
    the call.
    """

    around = processor = 0.0

    def begin(self, total: float) -> None:
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def start(self, key: str, work: float) -> None: ...

    def advance(self, units: float) -> None:
        self.seconds = time.perf_counter() - self.began
        self.handing = time.process_time() - self.cpu_began


def timed_sweep(loops: int, n_cells: int, *, jobs: int, batch: int) -> Stopwatch:
    """Time a sweep from the first block sent to the last block stored."""
    watch = Stopwatch()
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        table = sweep(
            EXPERIMENT,
            grid={"loops": [loops], "batch": [batch, batch + 1]},
            seeds=n_cells // 2,
            jobs=jobs,
            out=folder,
            listener=watch,  # type: ignore[arg-type]
        ).table
        watch.around = time.perf_counter() - began - watch.seconds
    watch.processor = watch.handing + in_workers(table)
    return watch


def in_workers(table: Mapping[str, np.ndarray]) -> float:
    """Return the processor time of other processes from first to last cell."""
    others = [pid for pid in np.unique(table["worker"]) if pid != os.getpid()]
    clocks = [table["processor"][table["worker"] == pid] for pid in others]
    # Clocks are read at the ends of cells: the first one's own time is not between.
    return sum(float(np.ptp(clock)) + CELL_SECONDS for clock in clocks)


@dataclass
class Least:
    """Minimum of each measurement, by name and number of workers."""

    seconds: dict[tuple[str, int], float] = field(default_factory=dict)

    def take(self, name: str, workers: int, seconds: float) -> None:
        before = self.seconds.get((name, workers), math.inf)
        self.seconds[name, workers] = min(before, seconds)

    def __getitem__(self, at: tuple[str, int]) -> float:
        return self.seconds[at]


def measured(loops: int, a_worker: int, repeats: int) -> Least:
    """Interleave loops and sweeps with `a_worker` cells per worker."""
    pair, least = Pair(), Least()
    timed_sweep(loops, 4, jobs=1, batch=0)  # import all
    least.take("start", 2, timed_sweep(loops, 4, jobs=2, batch=0).seconds)
    for repeat in range(1, repeats + 1):
        for workers in (1, 2):
            n_cells = workers * a_worker
            wall, processor = pair.seconds(loops, n_cells, workers=workers)
            swept = timed_sweep(loops, n_cells, jobs=workers, batch=2 * repeat)
            least.take("plain", workers, wall)
            least.take("plain, processor", workers, processor)
            least.take("sweep", workers, swept.seconds)
            least.take("sweep, processor", workers, swept.processor)
            least.take("around", workers, swept.around)
            least.take("handing", workers, swept.handing)
    pair.close()
    return least


def report(a_worker: int, repeats: int) -> None:
    least = measured(0, a_worker, repeats)
    print(f"{a_worker} cells per worker, least of {repeats}; {os.cpu_count()} cores")
    for workers in (1, 2):
        for clock in ("", ", processor"):
            plain, swept = (least[way + clock, workers] for way in ("plain", "sweep"))
            n_cells = a_worker * (workers if clock else 1)  # one after the other
            print(
                f"  workers: {workers}  {clock[2:] or 'wall':9}  "
                f"independent {plain:7.3f} s "
                f"({1e3 * plain / n_cells:.3f} ms per cell)  "
                f"sweep {swept:7.3f} s  "
                f"overhead {100 * (swept / plain - 1):5.1f} %"
            )
    share = least["handing", 2] / least["plain, processor", 2]
    print(f"  of it the process that hands out and stores, two workers: {share:.1%}")
    loops = measured(calibrated(), a_worker, repeats)
    scaling = 2 * loops["sweep", 1] / loops["sweep", 2]
    possible = 2 * loops["plain", 1] / loops["plain", 2]
    print(
        f"  scaling from one to two: {scaling:.2f}, independent processes "
        f"{possible:.2f}, ratio {scaling / possible:.2f}"
    )
    print(
        f"  once: start of two workers {least['start', 2]:.2f} s; plan, table and map "
        f"of {2 * a_worker} cells {least['around', 2]:.2f} s"
    )


def main(quick: bool = False) -> None:
    report(20, 1) if quick else report(5000, 3)


if __name__ == "__main__":
    main()
