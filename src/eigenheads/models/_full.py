"""Training with real vectors: the user's own loss, central differences, no tracer."""

from collections.abc import Callable
from typing import Any

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.models._model import Model
from eigenheads.models._start import recorded

# Relative step of the differences: its square and eps / step are both about 1e-11.
_STEP = 1e-5


def difference_gradient(
    model: Model,
    tokens: FloatArray,
    weights: FloatArray,
    latents: FloatArray,
    parameters: Any,
) -> FloatArray:
    """Return the gradient of one sample's loss by central differences, (r, d)."""
    d = weights.shape[1]
    planted = np.eye(len(model.planted), d)
    gradient = np.empty_like(weights)
    moved = weights.copy()
    for row in range(len(weights)):
        step = _STEP * max(1.0, float(np.max(np.abs(weights[row]))))
        for axis in range(d):
            ends = []
            for sign in (1.0, -1.0):
                moved[row, axis] = weights[row, axis] + sign * step
                ends.append(model.evaluate(tokens, moved, planted, latents, parameters))
            moved[row, axis] = weights[row, axis]
            gradient[row, axis] = (ends[0] - ends[1]) / (2 * step)
    return gradient


def full_block(
    model: Model,
    *,
    d: int,
    batch_size: int,
    reuse: int,
    table: Callable[[int, int], FloatArray],
    flags: tuple[bool, bool, bool],
    pairs: Any,
) -> Callable[..., int]:
    """Return a kernel with the arguments of the compiled one, for real vectors.

    The state of a run is the array of its rows (n_rows, d) and a list that holds the
    batch in use.
    """

    def kernel(
        rng: np.random.Generator,
        run: tuple[FloatArray, list[Any]],
        *arguments: Any,
    ) -> int:
        *rules, first, record_every, records = arguments
        state, batch = run
        parameters = table(first, first + len(rules[0]))
        for index, rule in enumerate(np.column_stack(rules)):
            if (first + index) % reuse == 0:
                batch[:] = [model.law.sample(rng, d) for _ in range(batch_size)]
            # An update that overflows is named by the caller.
            with np.errstate(over="ignore", invalid="ignore"):
                gradient = np.mean(
                    [
                        difference_gradient(
                            model,
                            tokens,
                            state[: len(model.weights)],
                            latents,
                            parameters[index, : len(model.parameters)],
                        )
                        for tokens, latents in batch
                    ],
                    axis=0,
                )
                _move(state, gradient, rule, model.on_sphere, *flags)
            if not np.all(np.isfinite(state)):
                return first + index
            step = first + index + 1
            if step % record_every == 0:
                records[step // record_every] = recorded(state, pairs)
        return -1

    return kernel


def _move(
    state: FloatArray,
    gradient: FloatArray,
    rule: FloatArray,
    on_sphere: tuple[bool, ...],
    is_tangent: bool,
    has_velocity: bool,
    has_average: bool,
) -> None:
    """Make one update of weights, velocities and averages, in place."""
    step_size, decay, momentum, rate = rule
    r = len(on_sphere)
    weights, is_unit = state[:r], np.array(on_sphere)
    direction = gradient + decay * weights
    if is_tangent:
        radial = np.sum(direction * weights, axis=1, keepdims=True) * weights
        direction = np.where(is_unit[:, None], direction - radial, direction)
    if has_velocity:
        state[r : 2 * r] = momentum * state[r : 2 * r] + direction
        direction = state[r : 2 * r]
    weights -= step_size * direction
    lengths = np.linalg.norm(weights, axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        weights /= np.where(is_unit[:, None], lengths, 1.0)
    if has_average:
        state[-r:] += rate * (weights - state[-r:])
