"""Figures 3b and 7b from the draws of the authors' programs.

The programs draw with JAX. Written out here: Threefry with two words and twenty rounds
(Salmon et al. 2011), and JAX's ways to split a key and to draw normals. In JAX 0.5 the
counters changed ("partitionable"), so that one seed gives other numbers before and
after it.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfinv

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, ORANGE
from eigenheads_papers._claims import Claim, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, parameter
from eigenheads_papers.maulensoto2026._method import (
    in_context_landscape,
    softmax_landscape,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Words = NDArray[np.uint32]

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)


def threefry(key: Words, first: Words, second: Words) -> tuple[Words, Words]:
    """Encrypt counters of two words each with a key of two words."""
    keys = (key[0], key[1], key[0] ^ key[1] ^ _PARITY)
    with np.errstate(over="ignore"):
        x, y = first + keys[0], second + keys[1]
        for number in range(5):
            for turn in _ROTATIONS[number % 2]:
                x = x + y
                y = (y << np.uint32(turn) | y >> np.uint32(32 - turn)) ^ x
            x = x + keys[(number + 1) % 3]
            y = y + keys[(number + 2) % 3] + np.uint32(number + 1)
    return x, y


def _words(key: Words, n: int, *, partitionable: bool) -> tuple[Words, Words]:
    """Encrypt the counters of `n` pairs of words, in JAX's order."""
    if partitionable:
        return threefry(key, np.zeros(n, np.uint32), np.arange(n, dtype=np.uint32))
    counters = np.arange(2 * n, dtype=np.uint32)
    return threefry(key, counters[:n], counters[n:])


def split(key: Words, n: int = 2, *, partitionable: bool) -> Words:
    """Return `n` new keys, as ``jax.random.split``."""
    pair = _words(key, n, partitionable=partitionable)
    if partitionable:
        return np.stack(pair, axis=1)
    return np.concatenate(pair).reshape(n, 2)


def normal(key: Words, shape: tuple[int, ...], *, partitionable: bool) -> FloatArray:
    """Return standard normals, as ``jax.random.normal`` in single precision."""
    n = int(np.prod(shape))
    if partitionable:
        x, y = _words(key, n, partitionable=True)
        drawn = x ^ y
    else:
        # An odd number of words is filled up with a counter of zero.
        half = (n + 1) // 2
        counters = np.append(np.arange(n, dtype=np.uint32), np.zeros(n % 2, np.uint32))
        drawn = np.concatenate(threefry(key, counters[:half], counters[half:]))[:n]
    unit = (drawn >> np.uint32(9) | np.uint32(0x3F800000)).view(np.float32)
    least = np.nextafter(np.float32(-1), np.float32(0))
    width = np.float32(1) - least
    uniform = np.maximum(least, (unit - np.float32(1)) * width + least)
    roots = erfinv(uniform.astype(np.float64)).astype(np.float32)
    return np.asarray(np.float32(np.sqrt(2)) * roots, np.float64).reshape(shape)


# Whether JAX's random numbers are partitionable, by its versions.
GENERATORS = {"before 0.5": False, "from 0.5": True}


@dataclass(frozen=True, kw_only=True)
class Params:
    """The constants of the authors' programs; their seed is 0."""

    d: int = parameter(5, "dimension of the tokens")
    n_runs: int = parameter(10, "independent runs")
    spike: float = parameter(0.1, "size of the spike of the covariance")
    degrees_of_freedom: int = parameter(10, "degrees of freedom of the covariance")
    n_steps: int = parameter(10_001, "training steps")


def drawn(params: Params, *, partitionable: bool) -> tuple[FloatArray, ...]:
    """Return the programs' covariance, spike direction and unit starts."""
    key, first = split(np.zeros(2, np.uint32), partitionable=partitionable)
    square = normal(first, (params.d, params.d), partitionable=partitionable)
    direction = normal(first, (params.d,), partitionable=partitionable)
    starts = []
    for _ in range(params.n_runs):
        key, fresh = split(key, partitionable=partitionable)
        starts.append(normal(fresh, (params.d,), partitionable=partitionable))
    covariance = square @ square.T + 0.1 * np.eye(params.d)
    return covariance, _unit(direction), _unit(np.array(starts))


def _unit(vectors: FloatArray) -> FloatArray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Descend both risks from the programs' starts; nothing is drawn here."""
    del rng
    table: dict[str, FloatArray] = {}
    for name, partitionable in GENERATORS.items():
        covariance, v, starts = drawn(params, partitionable=partitionable)
        fixed = softmax_landscape(covariance, inverse_temperature=0.01)
        schedule: Any = {"step_size": 1e-3, "n_steps": 3000, "record_every": 30}
        context = in_context_landscape(
            np.eye(params.d) + params.spike * np.outer(v, v),
            degrees_of_freedom=params.degrees_of_freedom,
            inverse_temperature=1e-3,
        )
        # The interval of 73 divides 10 001, so that the last step is recorded.
        long: Any = {"step_size": 5e-3, "n_steps": params.n_steps, "record_every": 73}
        paths = context.descend(starts, **long)
        table[f"fixed {name}"] = fixed.descend(starts, **schedule)["alignment"]
        table[f"context {name}"] = paths["alignment"]
        table[f"program {name}"] = program_alignments(params, v, starts)
    table["context_steps"] = np.asarray(paths.steps, dtype=np.float64)
    return table


def program_alignments(params: Params, v: FloatArray, mu: FloatArray) -> FloatArray:
    """Return final alignments by the programs' own gradient, written out."""
    n, theta, scale = params.degrees_of_freedom, params.spike, 1e-3
    trace = params.d + theta
    for _ in range(params.n_steps):
        along = mu @ v
        first = np.sum(mu**2, axis=1) + theta * along**2
        second = first + (theta + theta**2) * along**2
        of_first = 2 * mu + 2 * theta * np.outer(along, v)
        of_second = of_first + 2 * (theta + theta**2) * np.outer(along, v)
        product = first[:, None] * of_second + second[:, None] * of_first
        quartic = (n + 3) * product + 2 * trace * first[:, None] * of_first
        gradient = scale**2 * n * (n + 2) * quartic
        gradient -= 2 * scale * n * ((n + 1) * of_second + trace * of_first)
        mu = mu - 5e-3 * gradient
    return np.asarray(np.abs(mu @ v) / np.linalg.norm(mu, axis=1))


def check(run: Run[Params]) -> list[Claim]:
    """Judge that both routes agree, and how much the draw decides."""
    table = run.table
    final = {name: table[f"context {name}"][:, -1] for name in GENERATORS}
    before, after = (float(values.mean()) for values in final.values())
    gaps = [np.abs(final[name] - table[f"program {name}"]) for name in GENERATORS]
    return [
        at_most(
            "Figure 7b, θ = 0.1: final alignment of our descent less the program's, "
            "largest of 20 runs",
            np.max(gaps),
            1e-9,
            "the same numbers to rounding",
            source="ours: the risk's gradient against the authors' formula",
        ),
        at_least(
            "Figure 7b, θ = 0.1: mean final alignment by the generator of JAX before "
            "0.5 less that from 0.5 on",
            before - after,
            0.1,
            "a tenth would be seen in the figure",
            source="question: does the draw of ten starts decide?",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the ten runs of both figures, by either generator."""
    of_fixed, in_context = figure.subplots(1, 2, sharey=True)
    for name, color in zip(GENERATORS, (BLUE, ORANGE), strict=True):
        fixed = run.table[f"fixed {name}"]
        steps = 30.0 * np.arange(fixed.shape[1])
        of_fixed.plot(steps, fixed.T, color=color, lw=0.5, alpha=0.5)
        of_fixed.plot(steps, fixed.mean(axis=0), color=color, label=f"JAX {name}")
        context, at = run.table[f"context {name}"], run.table["context_steps"]
        in_context.plot(at, context.T, color=color, lw=0.5, alpha=0.5)
        in_context.plot(at, context.mean(axis=0), color=color)
    of_fixed.set(title="Figure 3b", xlabel="step", ylabel="alignment")
    in_context.set(title="Figure 7b, θ = 0.1", xlabel="step")
    of_fixed.legend(loc="lower right")


experiments = (
    Experiment(
        key="maulensoto2026/replay",
        title="The authors' own draws give their curves, with either generator of JAX",
        source="Figures 3b and 7b, the authors' programs",
        about=(
            "The authors' programs begin with PRNGKey(0). JAX's generator (Threefry) "
            "and its normals are written out in NumPy, so that covariance and starts "
            "are theirs, in both orders of counters that JAX has had. Left: one Σ, "
            "infinite prompts. Right: in context with the latest script's θ = 0.1 and "
            "10 001 steps, after which descent has not converged. Bold: mean of ten "
            "runs."
        ),
        presets={"smoke": Params(), "demo": Params(), "paper": Params()},
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(2 * params.n_runs * params.n_steps),
        size=(9.0, 3.6),
    ),
)
