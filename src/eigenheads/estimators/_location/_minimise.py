"""Minimise the penalised loss: compiled L-BFGS for few numbers, else that of SciPy."""

import math
from typing import Any

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from eigenheads._compile import njit
from eigenheads._typing import FloatArray
from eigenheads.estimators._location._head import accumulate
from eigenheads.estimators._location._objective import PenalisedLoss

# Pairs of steps and gradients that L-BFGS keeps.
_MEMORY = 20
# Conditions of Wolfe: least decrease, and least increase of the slope.
_DECREASE, _CURVATURE = 1e-4, 0.9
# Trials of one line search.
_TRIALS = 30
# Sums may be reordered (for SIMD); NaN and infinities keep their meaning.
_FASTMATH = {"reassoc", "contract", "nsz", "arcp"}


def minimise(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS.

    With few numbers nearly all the time would be spent between the evaluations, so
    the whole search is compiled. Both versions stop by the same rules.
    """
    options = _options(max_iter, tol)
    arrays = objective.compiled_arguments()
    if arrays is not None:
        x, gradient = np.array(flat, dtype=np.float64), np.empty(len(flat))
        limits = max_iter, int(options["maxfun"]), options["gtol"], options["ftol"]
        value, n_iter, n_calls, success = _search(x, arrays, *limits, gradient)
        return OptimizeResult(
            x=x, fun=value, jac=gradient, nit=n_iter, nfev=n_calls, success=success
        )
    with objective.loss.threads():
        return minimize(objective, flat, jac=True, method="L-BFGS-B", options=options)


def minimise_sparse(
    objective: PenalisedLoss, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS-B on positive and negative parts, so that zeros are exact."""
    size = objective.shape[0] * objective.shape[1]

    def from_parts(parts: FloatArray) -> FloatArray:
        return np.concatenate(
            [parts[:size] - parts[size : 2 * size], parts[2 * size :]]
        )

    def value_and_gradient(parts: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(from_parts(parts))
        value += objective.lasso * float(parts[: 2 * size].sum())
        by = gradient[:size]
        both = [by + objective.lasso, objective.lasso - by, gradient[size:]]
        return value, np.concatenate(both)

    with objective.loss.threads():
        result = minimize(
            value_and_gradient,
            np.concatenate(
                [np.maximum(flat[:size], 0), np.maximum(-flat[:size], 0), flat[size:]]
            ),
            jac=True,
            method="L-BFGS-B",
            bounds=[(0.0, None)] * (2 * size) + [(None, None)] * (len(flat) - size),
            options=_options(max_iter, tol),
        )
    result.x = from_parts(result.x)
    return result


def _options(max_iter: int, tol: float) -> dict[str, float]:
    return {
        "maxiter": max_iter,
        "maxfun": 4 * max_iter + 20,
        "maxcor": _MEMORY,
        "gtol": tol,
        "ftol": tol * 1e-3,
    }


# Compiled code has loops rather than products of arrays: it compiles in half the time.
@njit(fastmath=_FASTMATH)
def _inner(first: FloatArray, second: FloatArray) -> float:
    total = 0.0
    for i in range(first.size):
        total += first[i] * second[i]
    return total


@njit(fastmath=_FASTMATH)
def _add_multiple(sums: FloatArray, factor: float, other: FloatArray) -> None:
    for i in range(sums.size):
        sums[i] += factor * other[i]


@njit()
def _divide(numbers: FloatArray, scale: FloatArray) -> None:
    for i in range(numbers.size):
        numbers[i] /= scale[i]


@njit()
def _add_coherence(
    key: FloatArray, mean: FloatArray, coherence: float, by_key: FloatArray
) -> float:
    """Return the penalty of the part of the key across `mean`; add its gradient."""
    along, penalty = _inner(key, mean), 0.0
    for j in range(key.size):
        off = key[j] - along * mean[j]
        penalty += 0.5 * coherence * key[j] * off
        by_key[j] += coherence * off
    return penalty


@njit()
def _whiten(rows: FloatArray, whitening: FloatArray, result: FloatArray) -> None:
    """Write the product with the symmetric matrix, which is one if it is empty."""
    for i in range(len(rows)):
        if not whitening.size:
            result[i] = rows[i]
            continue
        for j in range(len(whitening)):
            result[i, j] = _inner(rows[i], whitening[j])


@njit()
def _penalised(flat: FloatArray, arrays: Any, gradient: FloatArray) -> float:
    """Return the value of :class:`PenalisedLoss`, and write its gradient."""
    (
        (tokens, radii, offsets, bounds, targets, bag_weights, mode, code),
        (whitening, scale, mean, attended),
        (ridge, coherence, n_outputs, has_radius, has_intercept),
    ) = arrays
    width, size, per_head = mean.size, flat.size - n_outputs, 1 + n_outputs
    whitened = flat[:size].reshape(size // width, width)
    by_rows = gradient[:size].reshape(size // width, width)
    rows, by_raw = np.empty(whitened.shape), np.zeros(whitened.shape)
    intercepts, by_intercepts = flat[size:].copy(), gradient[size:]
    by_intercepts[:] = 0.0
    _whiten(whitened, whitening, rows)
    for i in range(len(rows)):
        _divide(rows[i], scale)
        if i % per_head:
            intercepts[i % per_head - 1] -= _inner(rows[i], mean)
    loss = accumulate(
        tokens,
        radii,
        offsets,
        bounds,
        rows,
        intercepts,
        targets,
        bag_weights,
        mode,
        code,
        by_raw,
        by_intercepts,
    )
    for i in range(len(rows)):
        if i % per_head:
            _add_multiple(by_raw[i], -by_intercepts[i % per_head - 1], mean)
        _divide(by_raw[i], scale)
    _whiten(by_raw, whitening, by_rows)
    loss += 0.5 * ridge * _inner(flat[:size], flat[:size])
    _add_multiple(gradient[:size], ridge, flat[:size])
    for head in range(len(attended)):
        key, by_key = whitened[head * per_head], by_rows[head * per_head]
        n = width - has_radius  # the radius does not count
        loss += _add_coherence(key[:n], attended[head, :n], coherence, by_key[:n])
    for i in range(len(rows)):
        if has_radius and i % per_head:
            by_rows[i, width - 1] = 0.0
    if not has_intercept:
        by_intercepts[:] = 0.0
    return loss


@njit()
def _set_direction(
    gradient: FloatArray,
    steps: FloatArray,
    changes: FloatArray,
    n_pairs: int,
    direction: FloatArray,
) -> None:
    """Write minus the inverse Hessian of the last pairs times the gradient."""
    memory = len(steps)
    n_kept = min(n_pairs, memory)
    direction[:] = 0.0
    _add_multiple(direction, -1.0, gradient)
    shares = np.empty(memory)
    for age in range(n_kept):
        slot = (n_pairs - 1 - age) % memory
        step, change = steps[slot], changes[slot]
        shares[slot] = _inner(step, direction) / _inner(step, change)
        _add_multiple(direction, -shares[slot], change)
    if n_kept:
        step, change = steps[(n_pairs - 1) % memory], changes[(n_pairs - 1) % memory]
        factor = _inner(step, change) / _inner(change, change)
        _add_multiple(direction, factor - 1.0, direction)
    for age in range(n_kept - 1, -1, -1):
        slot = (n_pairs - 1 - age) % memory
        step, change = steps[slot], changes[slot]
        back = _inner(change, direction) / _inner(step, change)
        _add_multiple(direction, shares[slot] - back, step)


@njit()
def _find_step(
    flat: FloatArray,
    direction: FloatArray,
    value: float,
    slope: float,
    size: float,
    arrays: Any,
    trial: FloatArray,
    by_trial: FloatArray,
) -> tuple[float, int, bool]:
    """Write a step that satisfies the weak conditions of Wolfe, by bisection.

    Returns its value, the number of trials and whether there is one.
    """
    low, high, trial_value = 0.0, np.inf, value
    for n_trials in range(1, _TRIALS + 1):
        trial[:] = flat
        _add_multiple(trial, size, direction)
        trial_value = _penalised(trial, arrays, by_trial)
        # A value that is not a number is too far, too.
        if not trial_value <= value + _DECREASE * size * slope:
            high = size
        elif _inner(by_trial, direction) < _CURVATURE * slope:
            low = size
        else:
            return trial_value, n_trials, True
        size = 2.0 * low if np.isinf(high) else 0.5 * (low + high)
    return trial_value, _TRIALS, False


@njit()
def _search(
    flat: FloatArray,
    arrays: Any,
    max_iter: int,
    max_calls: int,
    gtol: float,
    ftol: float,
    gradient: FloatArray,
) -> tuple[float, int, int, bool]:
    """Move `flat` to the minimum; return value, iterations, calls and success.

    After each step, by the conditions of Wolfe, the pair has positive curvature.
    """
    width = flat.size
    steps, changes = np.empty((_MEMORY, width)), np.empty((_MEMORY, width))
    direction, trial, by_trial = np.empty(width), np.empty(width), np.empty(width)
    value = _penalised(flat, arrays, gradient)
    n_calls, n_pairs, n_iter = 1, 0, 0
    while True:
        largest = 0.0
        for i in range(width):
            largest = max(largest, abs(gradient[i]))
        if largest <= gtol:
            return value, n_iter, n_calls, True
        if n_iter >= max_iter or n_calls > max_calls:
            return value, n_iter, n_calls, False
        _set_direction(gradient, steps, changes, n_pairs, direction)
        slope = _inner(gradient, direction)
        size = 1.0 if n_pairs else min(1.0, 1.0 / math.sqrt(-slope))
        trial_value, n_trials, is_found = _find_step(
            flat, direction, value, slope, size, arrays, trial, by_trial
        )
        n_calls += n_trials
        if not is_found:
            if n_pairs == 0:
                return value, n_iter, n_calls, False
            n_pairs = 0  # once more along the gradient
            continue
        step, change = steps[n_pairs % _MEMORY], changes[n_pairs % _MEMORY]
        for i in range(width):
            step[i] = trial[i] - flat[i]
            change[i] = by_trial[i] - gradient[i]
        n_pairs += 1
        n_iter += 1
        gain = value - trial_value
        scale = max(abs(value), abs(trial_value), 1.0)
        flat[:] = trial
        gradient[:] = by_trial
        value = trial_value
        if gain <= ftol * scale:
            return value, n_iter, n_calls, True
