"""Simulate the training of a declared model, exactly in law in any dimension."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, as_float, check_choice, check_count, fail
from eigenheads._limits import LARGEST, MAX_DIMENSION, MAX_WORK, check_run_memory
from eigenheads._rng import generator, run_generators
from eigenheads._run_blocks import (
    BLOCK_NANOSECONDS,
    check_run_counts,
    check_schedule,
    run_blocks,
    schedule_values,
)
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.models._full import full_block
from eigenheads.models._model import Model
from eigenheads.models._start import check_start, curve_pairs, drawn_start, recorded

# Updates of one batch: the frame grows with each.
_MOST_REUSE = 64
# Schedules of an exact kernel behind the step size: no decay, momentum and average.
NO_EXTRAS: dict[str, Schedule] = {
    "weight_decay": 0.0,
    "momentum": 0.0,
    "average": 0.0,
}
_FREEDOM_ERROR: ContextVar[float] = ContextVar("freedom_error", default=0.0)


@contextmanager
def wrong_degrees_of_freedom(error: float) -> Iterator[None]:
    """Simulate with wrong degrees of freedom, for a check that must then fail."""
    token = _FREEDOM_ERROR.set(error)
    try:
        yield
    finally:
        _FREEDOM_ERROR.reset(token)


def simulate(
    model: Model,
    *,
    d: int,
    step_size: Schedule,
    n_steps: int,
    n_runs: int = 1,
    record_every: int | None = None,
    seed: int = 0,
    batch_size: int = 1,
    parameters: Mapping[str, Schedule] | None = None,
    start: Mapping[str, ArrayLike] | None = None,
    record: Sequence[str] | None = None,
    step: str = "tangent",
    weight_decay: Schedule = 0.0,
    momentum: Schedule | None = None,
    average: Schedule | None = None,
    reuse: int = 1,
    method: str = "exact",
) -> Trajectories:
    r"""Simulate stochastic gradient descent of a model on fresh samples.

    Each update takes the gradient g of the mean loss of a batch and moves all weights
    at once. A free weight moves to :math:`w - \alpha g`; one on the sphere to
    :math:`w - \alpha (I - w w^\top) g`, divided by its length.

    Parameters
    ----------
    model
        The model, see :class:`Model`.
    d
        Dimension, at least the number of planted directions, weights, velocities and
        averages.
    step_size
        :math:`\alpha`, a number or a schedule: a callable of the 0-based index of the
        update.
    n_steps, n_runs
        Updates per run, and number of independent runs.
    record_every
        Record the overlaps after each multiple of this many updates; None: about a
        hundred records.
    seed
        Run r depends on ``(seed, r)`` alone: not on the other runs, nor on the number
        of threads.
    batch_size
        Samples per update.
    parameters
        Parameters of the loss by name: numbers or schedules. The model's defaults
        hold for those that are not given.
    start
        Overlaps at which to start, by name (``"k.key"``): numbers or arrays
        (n_runs,). Those not given are 0, squared lengths 1, and products of two
        weights what their planted overlaps imply. The first record of another
        simulation is a start as well. Default: weights on spheres uniform,
        free ones :math:`\mathcal N(0, I/d)`.
    record
        Names of the overlaps to record; default: :attr:`Model.overlaps`, and those of
        averages with planted directions and themselves.
    step
        ``"tangent"`` projects gradients on the tangent space of the sphere,
        ``"normalised"`` only divides by the length afterwards.
    weight_decay
        :math:`\mu`: adds :math:`\mu w` to the gradient.
    momentum
        :math:`\beta`: moves along the velocity :math:`v \leftarrow \beta v + g`
        instead of g. ``"k_velocity"`` names it in `record`.
    average
        Rate of an average :math:`\bar w \leftarrow \bar w + \rho (w - \bar w)` of the
        iterates: a number gives exponential weights, ``lambda t: 1 / (t + 1)`` the
        mean of all. ``"k_average"`` names it in `record`.
    reuse
        Updates that use the same batch before a new one is drawn.
    method
        ``"exact"`` follows the overlaps alone, exactly in law, at a cost that does not
        depend on d; ``"full"`` draws real vectors and differentiates the loss by
        central differences: slow, and independent of everything compiled.

    Returns
    -------
    trajectories
        One curve per overlap; record 0 is the start.

    Notes
    -----
    Both methods have the same law; for one seed they draw different numbers.

    Examples
    --------
    >>> from eigenheads.models import Model, Token
    >>> def line(X, w, u, g, p):
    ...     return (X[0] @ w.k - X[0] @ u.key) ** 2
    >>> model = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
    >>> paths = simulate(model, d=10**9, step_size=1e-10, n_steps=100, n_runs=2,
    ...                  record_every=50, seed=0, start={"k.key": 0.5})
    >>> paths["k.key"].shape
    (2, 3)
    """
    if not isinstance(model, Model):
        fail("model", "a Model", model, error=TypeError)
    method = check_choice("method", method, ["exact", "full"])
    check_choice("step", step, ["tangent", "normalised"])
    batch_size = check_count("batch_size", batch_size, maximum=MAX_WORK)
    reuse = _check_reuse(model, reuse, batch_size, method)
    rows = [*model.weights]
    rows += [f"{name}_velocity" for name in model.weights if momentum is not None]
    rows += [f"{name}_average" for name in model.weights if average is not None]
    d = check_dimension(model, d, method, n_rows=len(rows))
    curves, pairs = curve_pairs(model, record, rows)
    counts = check_run_counts(n_steps, n_runs, record_every, n_curves=len(curves))
    check_run_memory(
        counts.n_runs,
        len(rows) * _n_columns(model, rows, d if method == "full" else None, reuse),
        hint="Use method='exact'." if method == "full" else "",
    )
    rules = {
        "step_size": check_schedule("step_size", step_size),
        "weight_decay": check_schedule("weight_decay", weight_decay),
        "momentum": check_schedule("momentum", 0.0 if momentum is None else momentum),
        "average": check_schedule("average", 0.0 if average is None else average),
    }
    if not callable(rules["average"]) and rules["average"] > 1:
        fail("average", "a rate from 0 to 1, or a schedule", average)
    values = check_parameters(model, parameters)
    generators = run_generators(seed, counts.n_runs)
    # Starts are drawn even if they are given, so that a given start changes no batch.
    starts = [drawn_start(model, d, rng) for rng in generators]
    if start is not None:
        starts = check_start(model, start, counts.n_runs)
    _check_finite_loss(model, starts[0], values, d)
    states = [
        _initial_state(model, rows, at, d if method == "full" else None, reuse)
        for at in starts
    ]
    flags = step == "tangent", momentum is not None, average is not None
    if method == "exact":
        kernel = exact_kernel(
            model,
            d=d,
            batch_size=batch_size,
            parameters=values,
            pairs=pairs,
            flags=flags,
            reuse=reuse,
        )
    else:
        kernel = full_block(
            model,
            d=d,
            batch_size=batch_size,
            reuse=reuse,
            table=_table_of(values),
            flags=flags,
            pairs=pairs,
        )
    return run_blocks(
        kernel,
        [(state, []) for state in states] if method == "full" else states,
        curves=curves,
        start=np.array([recorded(state, pairs) for state in states]),
        schedules=rules,
        generators=generators,
        n_steps=counts.n_steps,
        record_every=counts.record_every,
        nanoseconds=_nanoseconds(model, method, d, batch_size, reuse),
        diverged=_fail_diverged,
    )


def exact_kernel(
    model: Model,
    *,
    d: int,
    batch_size: int,
    parameters: Mapping[str, Schedule],
    pairs: Any,
    flags: tuple[bool, bool, bool] = (True, False, False),
    reuse: int = 1,
    least: float = -math.inf,
) -> Callable[..., int]:
    """Return a kernel for :func:`run_blocks` that advances a run exactly in law.

    Its schedules are step size, weight decay, momentum and the average's rate; `flags`
    tell if steps are tangent and if there are velocities and averages. Parameters
    below `least` are refused.
    """
    before = d + _FREEDOM_ERROR.get(), batch_size, model.law_numbers(d)
    behind = model.sizes, np.array(model.on_sphere), flags, pairs
    module, table = model.compiled, _table_of(parameters, least)
    block = module.exact_block if reuse == 1 else module.reuse_block
    times = (reuse,) if reuse > 1 else ()

    def kernel(rng: np.random.Generator, state: FloatArray, *arguments: Any) -> int:
        *rules, first, record_every, records = arguments
        # Arrays of this call, because runs advance in several threads.
        space = model.workspace(state, n_axes=state.shape[1] - len(state))
        broken = block(
            rng,
            space.state,
            np.column_stack(rules),
            table(first, first + len(rules[0])),
            (*before, space.constants, *behind),
            space.memory,
            space.work,
            *times,
            first,
            record_every,
            records,
        )
        state[...] = space.state
        return int(broken)

    return kernel


def _table_of(
    parameters: Mapping[str, Schedule], least: float = -math.inf
) -> Callable[[int, int], FloatArray]:
    """Return a function that gives the parameters of a block of updates."""

    @lru_cache(maxsize=2)  # the same for all runs of a block
    def table(first: int, stop: int) -> FloatArray:
        return parameter_table(parameters, first, stop, least=least)

    return table


def parameter_table(
    parameters: Mapping[str, Schedule],
    first: int,
    stop: int,
    *,
    least: float = -math.inf,
) -> FloatArray:
    """Return the parameters at updates `first` … ``stop - 1``, one column each."""
    columns = [
        schedule_values(name, schedule, first, stop, maximum=LARGEST, minimum=least)
        for name, schedule in parameters.items()
    ]
    return np.column_stack([*columns, np.zeros(stop - first)])


def check_parameters(
    model: Model, parameters: Mapping[str, Schedule] | None
) -> dict[str, Schedule]:
    """Return values or schedules of all parameters, in the order of the model."""
    values: dict[str, Any] = dict(model.defaults)
    if parameters is not None and not isinstance(parameters, Mapping):
        fail("parameters", "a mapping", parameters, error=TypeError)
    for name, value in (parameters or {}).items():
        check_choice("parameters", name, model.parameters)
        if not callable(value) and not math.isfinite(as_float(value)):
            contract = "finite numbers or schedules"
            fail(f"parameters[{name!r}]", contract, value)
        values[name] = value
    missing = [name for name in model.parameters if name not in values]
    if missing:
        contract = f"given for {', '.join(model.parameters)}"
        got = Got(f"no {missing[0]!r}")
        fail("parameters", contract, got)
    return {name: values[name] for name in model.parameters}


def check_dimension(model: Model, d: object, method: str, *, n_rows: int) -> int:
    """Return the dimension, or raise if the directions or the memory do not fit.

    `n_rows` counts weights, velocities and averages.
    """
    directions = len(model.planted) + n_rows
    hint = f"Planted directions: {len(model.planted)}; trained vectors: {n_rows}."
    least = directions if method == "exact" else max(len(model.planted), 1)
    number = check_count("d", d, minimum=least, maximum=MAX_DIMENSION, hint=hint)
    width = number if method == "full" else directions + model.n_combinations + 4
    if width * model.n_tokens > MAX_WORK:
        contract = f"a model with at most {MAX_WORK // width} tokens at this d"
        fail("model", contract, Got(f"{model.n_tokens} tokens"))
    return number


def _check_reuse(model: Model, reuse: object, batch_size: int, method: str) -> int:
    times = check_count("reuse", reuse, maximum=_MOST_REUSE)
    if times > 1 and method == "exact" and model.n_combinations:
        contract = "1 for a loss with products of token combinations"
        fail("reuse", contract, times, hint="Use method='full'.")
    numbers = batch_size * model.n_tokens * (2 * times * len(model.weights) + 8)
    if times > 1 and numbers > MAX_WORK:
        contract = f"so small that the batch needs at most {MAX_WORK} numbers"
        fail("reuse", contract, times)
    return times


def _n_columns(model: Model, rows: list[str], d: int | None, reuse: int) -> int:
    """Return how many coordinates a state has for each of its rows."""
    if d is not None:
        return d
    return len(model.planted) + len(rows) + len(model.weights) * reuse


def _initial_state(
    model: Model, rows: list[str], start: FloatArray, d: int | None, reuse: int
) -> FloatArray:
    """Return weights, velocities at rest and averages at the start.

    Real vectors (`d` given) lie in the first basis vectors, which is no restriction.
    """
    r = len(model.weights)
    columns = len(model.planted) + len(rows) + r * reuse if d is None else d
    state = np.zeros((len(rows), columns))
    used = min(start.shape[1], columns)
    state[:r, :used] = start[:, :used]
    if rows[-1].endswith("_average"):
        state[-r:] = state[:r]
    return state


def _nanoseconds(
    model: Model, method: str, d: int, batch_size: int, reuse: int
) -> float:
    """Estimate the duration of an update: 4 ns per normal, 20 ns per field."""
    r, tokens = len(model.weights), model.n_tokens * batch_size
    if method == "full":  # about 20 µs per call of the loss
        return 40e3 * batch_size * r * d
    normals = model.n_axes + model.n_combinations + (r * reuse if reuse > 1 else 0)
    duration = tokens * (4.0 * normals + 20.0 * r) + 200.0
    if reuse == 1:
        return duration
    # A block holds whole batches, because their tokens do not outlive it.
    batches = max(1, int(BLOCK_NANOSECONDS / duration / reuse))
    return BLOCK_NANOSECONDS / (batches * reuse + 0.5)


def _check_finite_loss(
    model: Model, start: FloatArray, values: dict[str, Schedule], d: int
) -> None:
    """Raise unless the loss of a few samples at the start is finite."""
    rng = generator(0)
    length = min(d, model.n_axes)
    planted = np.eye(len(model.planted), length)
    row = parameter_table(values, 0, 1)[0, : len(values)]
    for _ in range(3):
        tokens, latents = model.law.sample(rng, d, length=length)
        with np.errstate(all="ignore"):
            loss = model.evaluate(tokens, start[:, :length], planted, latents, row)
        if not np.isfinite(loss):
            contract = "a model whose loss is finite at the start"
            fail("model", contract, Got(f"{float(loss)}"))


def _fail_diverged(run: int, update: int, step_size: float) -> NoReturn:
    contract = "so small that no update diverges"
    got = Got(f"{step_size!r} at update {update}, where run {run} overflowed")
    fail("step_size", contract, got)
