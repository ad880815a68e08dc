"""Train small models: one loop for all, deterministic, side by side in processes."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from threadpoolctl import threadpool_limits

from eigenheads.extend import FloatArray, advance, n_threads, torch_generator
from eigenheads_papers._core import parameter
from eigenheads_papers.sweeps.cells import run_jobs

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.optim import Optimizer

Work: TypeAlias = Callable[..., FloatArray]
# Fewer steps than this are finished before a new process has imported torch.
_WORTH_PROCESSES = 1500


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """Size of a small transformer, its training by AdamW, and the number of seeds.

    A patch is ``patch`` pixels wide; ``learning_rate`` is the largest one.
    """

    patch: int = parameter(2, "width of a patch in pixels")
    d_model: int = parameter(32, "width of the model")
    n_heads: int = parameter(2, "heads per layer")
    depth: int = parameter(2, "number of layers")
    n_steps: int = parameter(240, "training steps")
    batch_size: int = parameter(64, "samples per gradient step")
    learning_rate: float = parameter(6e-3, "largest learning rate")
    n_seeds: int = parameter(5, "training runs per variant")


@contextmanager
def one_thread() -> Iterator[None]:
    """Let PyTorch and BLAS sum in one order, whatever the machine's cores."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw initial weights from `seed`, and leave the global generator alone."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def make_updates(
    optimizer: "Optimizer",
    losses: Iterable["Tensor"],
    factor: Callable[[int], float],
    *,
    clip: float | None = None,
    watch: Callable[[int], None] | None = None,
) -> None:
    """Make one update for each loss.

    Parameters
    ----------
    optimizer
        Holds the parameters, with their largest step sizes.
    losses
        Loss of each batch. An iterator that computes them one by one, each with the
        weights that the update before left.
    factor
        From the number of an update, counted from 0, to the share of the step size.
    clip
        Largest norm of the gradient of all parameters together.
    watch
        Called after each update with the number of updates made.
    """
    import torch

    groups = optimizer.param_groups
    rates = [group["lr"] for group in groups]
    parameters = [weight for group in groups for weight in group["params"]]
    for step, loss in enumerate(losses):
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * factor(step)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if clip is not None:
            # Clipping bounds what a single batch contributes to Adam's moments.
            torch.nn.utils.clip_grad_norm_(parameters, clip)
        optimizer.step()
        if watch is not None:
            watch(step + 1)


def falling(n_steps: int) -> Callable[[int], float]:
    """Return the factor of a step size that falls linearly to zero."""
    return lambda step: 1 - step / n_steps


def rising_then_falling(n_steps: int) -> Callable[[int], float]:
    """Return the factor that rises over a tenth of the steps, then falls to zero."""
    warm = max(1, n_steps // 10)
    fall = max(1, n_steps - warm)
    # The lower of the two lines applies.
    return lambda step: min((step + 1) / warm, (n_steps - step) / fall)


def train(
    model: "nn.Module",
    data: Sequence["Tensor"],
    loss: Callable[["nn.Module", Sequence["Tensor"]], "Tensor"],
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
    import torch

    from eigenheads.nn import PursuitWarning

    # The batches depend on the seed alone, so all models of one seed see the same ones
    # and their differences are paired.
    generator = torch_generator(seed)
    draws = (
        torch.randint(0, len(data[0]), (how.batch_size,), generator=generator)
        for _ in range(how.n_steps)
    )

    def watch_some(step: int) -> None:
        if watch is not None and step % every == 0:
            watch(step)

    model.train()
    with warnings.catch_warnings():
        # The experiments report the numbers that these warnings are about.
        warnings.simplefilter("ignore", PursuitWarning)
        make_updates(
            # All parameters in one call: the same numbers, in two thirds of the time.
            torch.optim.AdamW(model.parameters(), lr=how.learning_rate, foreach=True),
            (loss(model, [tensor[rows] for tensor in data]) for rows in draws),
            rising_then_falling(how.n_steps),
            clip=1.0,
            watch=watch_some,
        )
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
