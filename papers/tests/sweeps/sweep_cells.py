"""Experiments that sweeps are tested with: small, fast, and easy to kill."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from threadpoolctl import threadpool_info

from eigenheads._checks import fail
from eigenheads._parallel import n_threads
from eigenheads_papers import Boundary, Cells, Experiment


@dataclass(frozen=True, kw_only=True)
class Params:
    x: float = 1.0
    n: int = 3
    loud: bool = False
    word: str = "a"
    shape: tuple[int, ...] = (1, 2)
    seconds: float = 0.0
    flag: str = ""
    gate: str = ""


def threads_here():
    """Return how many threads our kernels and linear algebra may use."""
    infos = threadpool_info()
    return {"own": n_threads(), "blas": max(i["num_threads"] for i in infos)}


def wait_at(gate):
    """Let the first 60 cells pass; the others when the file is there.

    So that what is struck in the middle cannot be over, however slow the striker is.
    """
    with Path(gate).with_suffix(".count").open("ab") as file:
        file.write(b".")
        file.flush()
        before = file.tell()
    while before > 60 and not Path(gate).exists():
        time.sleep(0.01)


def run(params, rng):
    """Return a number that depends on parameters and stream; perhaps slowly."""
    if params.x < 0:
        fail("x", "a number >= 0", params.x)
    if params.x == 13.0:
        time.sleep(params.seconds)
        raise ZeroDivisionError("a mistake of ours")
    if params.gate:
        wait_at(params.gate)
    if params.flag and not Path(params.flag).exists():
        Path(params.flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if params.word == "deadly":
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    if params.word == "threads":
        began = time.time()
        time.sleep(params.seconds)
        return {**threads_here(), "began": began, "ended": time.time()}
    time.sleep(params.seconds)
    return {"b": params.x + rng.standard_normal(), "a": float(params.n)}


CELLS = Cells(
    presets={"smoke": Params(), "slow": Params(seconds=0.02)},
    run=run,
    shows=("b",),
    boundaries={"b": Boundary(label="x = n", distance=lambda p: p.x - p.n)},
)
EXPERIMENT = Experiment(
    key="test2026/cells",
    title="Cells",
    source="ours",
    about="For tests.",
    presets=CELLS.presets,
    simulate=None,
    check=None,
    draw=None,
    cells=CELLS,
)
