"""Speed of declared models, compared with hand-written kernels and with PyTorch.

Processor time of interleaved repeats in one process; the minimum of each counts.
``python -m benchmarks.bench_models --peer FOLDER`` adds the code of Arnaboldi et al.,
from a checkout of their repository.
"""

import argparse
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks._declared_models import SHARE, location_model, transition_model
from benchmarks._location_kernel import location_exact_block
from benchmarks._signal_kernel import signal_exact_block
from eigenheads._location_order import ORDER_PARAMETERS
from eigenheads._parallel import threads
from eigenheads._rng import run_generators
from eigenheads._run_blocks import run_blocks
from eigenheads.datasets import SignalTokens, SingleLocation
from eigenheads.models import (
    location_start,
    simulate,
    simulate_location,
    simulate_signal,
)
from eigenheads.models._location import LocationProblem, frame_coordinates
from eigenheads.models._signal import SignalProblem

# The authors' step size, for vectors of length sqrt(d).
STEP_SIZE = 5e-2


def location_pair(n_tokens: int, n_steps: int) -> tuple[Callable[[], object], ...]:
    """Return the hand-written kernel and the declared model, at equal settings."""
    law = SingleLocation(d=80, n_tokens=n_tokens, noise=0.1)
    options = {"step_size": 1e-3, "batch_size": 5, "n_steps": n_steps, "n_runs": 1}
    options |= {"record_every": n_steps, "seed": 0, "inverse_temperature": 1.0}

    def by_hand() -> object:
        starts = location_start(law.d, n_runs=1, seed=0)
        return run_blocks(
            location_exact_block,
            [np.pad(frame_coordinates(row), ((0, 0), (0, 2))) for row in starts],
            curves=ORDER_PARAMETERS,
            start=starts,
            schedules={"inverse_temperature": 1.0, "step_size": 1e-3},
            constants=(LocationProblem(80.0, n_tokens, law.gamma, law.noise, 5),),
            generators=run_generators(0, 1),
            n_steps=n_steps,
            record_every=n_steps,
            nanoseconds=180.0 * n_tokens,
        )

    return by_hand, lambda: simulate_location(law, **options)


def signal_pair(n_tokens: int, n_steps: int) -> tuple[Callable[[], object], ...]:
    """Return the hand-written kernel and the declared model, at equal settings."""
    few = max(1, n_tokens // 100)
    law = SignalTokens(100, few, n_tokens - few, 0.25, inverse_temperature=1.0)
    options = {"step_size": 1e-3, "n_steps": n_steps, "n_runs": 1, "seed": 0}
    options |= {"record_every": n_steps, "start": 0.1}
    problem = SignalProblem(
        100.0, few, n_tokens - few, law.amplitude, law.signs == "random", 1.0, 1
    )

    def by_hand() -> object:
        return run_blocks(
            signal_exact_block,
            [np.array([[0.1, math.sqrt(0.99), 0.0]])],
            curves=("alignment",),
            start=np.array([[0.1]]),
            schedules={"step_size": 1e-3},
            constants=(problem,),
            generators=run_generators(0, 1),
            n_steps=n_steps,
            record_every=n_steps,
            nanoseconds=22.0 * n_tokens,
        )

    return by_hand, lambda: simulate_signal(law, **options)


def least(functions: tuple[Callable[[], object], ...], repeats: int) -> list[float]:
    """Return the least processor time of each function, after a first call."""
    for function in functions:
        function()
    best = [math.inf] * len(functions)
    for _ in range(repeats):
        for place, function in enumerate(functions):
            began = time.process_time()
            function()
            best[place] = min(best[place], time.process_time() - began)
    return best


def first_use(declared: str, folder: str) -> tuple[float, float]:
    """Return processor and wall seconds of a new process that uses a model once.

    `folder` takes all compiled code, that of the package too. Imports are included.
    """
    code = (
        "import time; began = time.process_time(), time.perf_counter()\n"
        f"from benchmarks._declared_models import {declared}\n"
        "from eigenheads.models import simulate\n"
        f"simulate({declared}(7), d=80, step_size=1e-3, n_steps=2, n_runs=1,"
        " record_every=1, seed=0)\n"
        "print(time.process_time() - began[0], time.perf_counter() - began[1])"
    )
    environment = os.environ | {
        "EIGENHEADS_CACHE_DIR": folder,
        "NUMBA_CACHE_DIR": folder,
    }
    out = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    processor, wall = (float(number) for number in out.split())
    return processor, wall


def print_first_use(declared: str, repeats: int = 3) -> None:
    """Print the time of a first use without and with compiled code on disk."""
    taken: dict[str, list[tuple[float, float]]] = {"no cache": [], "cache": []}
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as folder:
            for times in taken.values():
                times.append(first_use(declared, folder))
    for label, times in taken.items():
        spans = [
            f"{min(one):.1f} to {max(one):.1f} s" for one in zip(*times, strict=True)
        ]
        print(
            f"  first use of {declared}, {label}: processor {spans[0]}, wall {spans[1]}"
        )


def torch_step(d: int, n_steps: int) -> Callable[[], object]:
    """Return a function that does the updates of `transition` in PyTorch."""
    import torch

    torch.set_num_threads(1)
    teacher, position = torch.eye(2, d)
    place = torch.tensor([1.0, -1.0])
    target = 0.5 + 0.5 * math.tanh(1.0) * torch.outer(place, place)
    shift = torch.outer(place, position)

    def run() -> object:
        w = torch.randn(d)
        w = w / w.norm()
        for _ in range(n_steps):
            X = torch.randn(2, d)
            w = w.detach().requires_grad_()
            z, y = (X + shift) @ w, X @ teacher
            A = torch.softmax(torch.outer(z, z), -1)
            Y = torch.softmax(torch.outer(y, y), -1)
            (A - (1.0 - SHARE) * Y - SHARE * target).norm().backward()
            with torch.no_grad():
                w = w - STEP_SIZE / d * w.grad
                w = w / w.norm()
        return w

    return run


def authors_step(folder: str, d: int, n_steps: int) -> Callable[[], object]:
    """Return the loop of the authors' simulate.py, run by their own classes.

    `folder` is a checkout of github.com/IdePHICS/Sequence-Single-Index.
    """
    import torch

    torch.set_num_threads(1)
    path = Path(folder) / "sequence_single_index.py"
    spec = importlib.util.spec_from_file_location("sequence_single_index", path)
    if spec is None or spec.loader is None or not path.is_file():
        raise SystemExit(f"{path} is no file of the authors' code")
    theirs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(theirs)
    first = theirs.OverlappedInitialCondition(d=d, overlap=0.0, seed=34795)
    teacher = theirs.PositionalSemanticTransitionModel(
        first.teacher(), SHARE, torch.softmax(torch.tensor([[1.0, -1], [-1, 1]]), -1)
    )
    weight = first.student(1)
    place = theirs.OppositePairedPositionalEncoding(
        d=d, seed=20573, orthogonal_to=torch.stack((weight, first.teacher()))
    )
    student = theirs.SingleIndexAttention(
        weight, require_grad=True, positional_encoding=place
    )
    loss = theirs.FrobeniusNormLoss()
    optimizer = theirs.NormalizedSGD(student.parameters(), lr=STEP_SIZE)
    check_same_loss(teacher, student, loss, d)

    def run() -> object:
        samples = theirs.GaussianTeacherDataset(
            teacher, L=2, seed=0, number_of_samples=n_steps
        )
        for x, y in samples:
            optimizer.zero_grad()
            loss(y, student(x)).backward()
            optimizer.step()
        return student.hidden_direction

    return run


def check_same_loss(teacher: Any, student: Any, loss: Any, d: int) -> None:
    """Raise unless the authors' loss of a sample is that of the declared model."""
    import torch

    model, root = transition_model(), math.sqrt(d)
    position = student.positional_encoding.positional_tensor(1)[0].detach()
    weight, target = (
        module.hidden_direction.detach() / root for module in (student, teacher)
    )
    values = [model.defaults[name] for name in model.parameters]
    for seed in range(5):
        x = torch.randn(2, d, generator=torch.Generator().manual_seed(seed))
        with torch.no_grad():
            expected = float(loss(teacher(x / root), student(x / root)))
        tokens = x + torch.outer(torch.tensor([1.0, -1.0]), position)
        found = model.evaluate(
            tokens.double().numpy(),
            weight.double().numpy()[None],
            torch.stack((target, position)).double().numpy(),
            np.zeros(0),
            values,
        )
        if not math.isclose(found, expected, rel_tol=1e-4):
            raise SystemExit(f"the losses differ: {found} and {expected}")


def print_pytorch(peer: str | None) -> None:
    """Print the time of an update in PyTorch, as a ratio to that of the engine."""
    model, few, many = transition_model(), 500, 50_000
    options = {"d": 1000, "step_size": STEP_SIZE / 1000, "step": "normalised"}
    options |= {"n_steps": many, "n_runs": 1, "record_every": many, "seed": 0}
    rows = {"PyTorch": torch_step(1000, few)}
    if peer is not None:
        rows["the authors' code"] = authors_step(peer, 1000, few)
    with threads(1):
        ours, *others = least((lambda: simulate(model, **options), *rows.values()), 5)
    print(f"  update at d = 1000, declared model: {1e6 * ours / many:.2f} µs")
    for label, taken in zip(rows, others, strict=True):
        each = 1e6 * taken / few
        ratio = each / (1e6 * ours / many)
        print(f"  the same by {label}: {each:.0f} µs, ratio {ratio:.0f}")


def main(quick: bool = False, peer: str | None = None) -> None:
    repeats, scale = (1, 50) if quick else (9, 1)
    print("processor time, one core")
    with threads(1):
        for n_tokens, n_steps in ((10, 20_000 // scale), (1000, 300 // scale)):
            hand, declared = least(location_pair(n_tokens, n_steps), repeats)
            label = f"location, {n_tokens} tokens: declared / by hand"
            print(f"  {label:48} {declared / hand:5.2f}")
        for n_tokens, n_steps in ((1000, 2000 // scale), (10_000, 300 // scale)):
            hand, declared = least(signal_pair(n_tokens, n_steps), repeats)
            label = f"signal, {n_tokens} tokens: declared / by hand"
            print(f"  {label:48} {declared / hand:5.2f}")
        model = location_model(10)
        options = {"step_size": 1e-12, "n_runs": 1, "seed": 0, "batch_size": 5}
        options |= {"n_steps": 20_000 // scale, "record_every": 20_000 // scale}
        sizes = (100, 10**5, 10**9)
        times = least(
            tuple(lambda d=d: simulate(model, d=d, **options) for d in sizes), repeats
        )
        for d, taken in zip(sizes, times, strict=True):
            print(f"  d = {d:<13,} {taken / times[0]:5.2f} x d = 100")
    if quick:
        return
    for declared in ("location_model", "clustering_model", "signal_model"):
        print_first_use(declared)
    if importlib.util.find_spec("torch") is not None:
        print_pytorch(peer)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="run few repeats")
    parser.add_argument(
        "--peer", metavar="FOLDER", help="checkout of IdePHICS/Sequence-Single-Index"
    )
    chosen = parser.parse_args()
    main(quick=chosen.quick, peer=chosen.peer)
