"""Train small models deterministically, side by side in processes."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from eigenheads.extend import FloatArray, advance, n_threads
from eigenheads.nn import PursuitWarning
from eigenheads_papers._models import one_thread
from eigenheads_papers.sweeps._cells import run_jobs
from eigenheads_papers.teo2024._variants import SmallModel

Work: TypeAlias = Callable[..., FloatArray]
# Fewer steps than this are finished before a new process has imported torch.
_WORTH_PROCESSES = 1500


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed`, and leave the global generator alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def train(
    model: nn.Module,
    data: Sequence[Tensor],
    loss: Callable[[nn.Module, Sequence[Tensor]], Tensor],
    *,
    how: SmallModel,
    seed: int,
    every: int = 0,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Train in place by AdamW with a warm-up and a linear decay.

    Parameters
    ----------
    model
        A model.
    data
        Tensors of one length; each step draws the same rows of them.
    loss
        Model and batch to a loss.
    how
        Number of steps, batch size and learning rate.
    seed
        Seed of the batches.
    every, watch
        `watch` is called with the number of steps done, every `every` steps.
    """
    # The batches depend on the seed alone, so all models of one seed see the same ones
    # and their differences are paired.
    generator = torch.Generator().manual_seed(seed)
    # All parameters in one call: the same numbers, in two thirds of the time.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=how.learning_rate, foreach=True
    )
    n_steps = how.n_steps
    warm = max(1, n_steps // 10)
    # The rate rises over the first tenth of the steps and then falls to zero; the lower
    # of the two lines applies.
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min((step + 1) / warm, (n_steps - step) / max(1, n_steps - warm)),
    )
    model.train()
    with warnings.catch_warnings():
        # The experiments report the numbers that these warnings are about.
        warnings.simplefilter("ignore", PursuitWarning)
        for step in range(n_steps):
            rows = torch.randint(
                0, len(data[0]), (how.batch_size,), generator=generator
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss(model, [tensor[rows] for tensor in data]))
            # Clipping bounds what a single batch contributes to the moments of AdamW.
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if watch is not None and (step + 1) % every == 0:
                watch(step + 1)
    model.eval()


def _call(work: Work, *job: Any) -> FloatArray:
    with one_thread():
        return work(*job)


def train_all(
    work: Work, jobs: Sequence[tuple[Any, ...]], *, units: float, steps: float
) -> list[FloatArray]:
    """Return ``work(*job)`` of every job, in order; each reports `units` of progress.

    Jobs run in processes, because a small model spends its time in the interpreter. A
    result does not depend on the process: jobs use one thread, and bring their seeds.
    Inside :func:`~eigenheads_papers.reproduce`, jobs that an earlier call finished
    are not run again.
    """
    return run_jobs(
        f"{work.__module__}.{work.__qualname__}",
        partial(_call, work),
        jobs,
        n_workers=n_threads() if steps >= _WORTH_PROCESSES else 1,
        done=lambda: advance(units),
    )
