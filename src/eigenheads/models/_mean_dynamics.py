r"""Mean dynamics of a declared model, with the noise of stochastic gradients.

At weights w the batch gradient G has known mean and second moments, so the conditional
mean of the next overlaps is known: for free weights

.. math::

    E M' = M - \alpha \bar g^U, \qquad
    E Q'_{ab} = Q_{ab} - \alpha (\bar g_a \cdot w_b + \bar g_b \cdot w_a)
              + \alpha^2 E[G_a \cdot G_b],

    E[G_a \cdot G_b] = \bar g_a \cdot \bar g_b
              + \tfrac 1B \operatorname{Cov}(g_a, g_b),

where the covariance includes the d - q directions outside the frame. On spheres the
gradients are projected first, and the new overlaps divided by the lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    check_choice,
    check_count,
    check_flag,
    fail,
)
from eigenheads._parallel import RunPool, advance
from eigenheads._rng import stream
from eigenheads._run_blocks import check_run_counts, check_schedule, schedule_values
from eigenheads._trajectories import Trajectories, record_steps
from eigenheads._typing import FloatArray, Schedule
from eigenheads.models._model import Model, weights_in_frame
from eigenheads.models._simulate import (
    check_dimension,
    check_parameters,
    parameter_table,
)
from eigenheads.models._start import check_start, curve_pairs, recorded

# --- Moments of one gradient ---------------------------------------------------------


# Samples of one thread's share; fixed, so that threads do not change a number.
_CHUNK = 1024


@dataclass(frozen=True)
class GradientMoments:
    r"""Moments at one state, in coordinates of a frame with m axes.

    Attributes
    ----------
    risk
        Mean of the loss.
    mean
        Mean of the gradient, (r, m): the gradient of the risk.
    covariance
        Covariance of the one-sample gradient inside the frame, (r, m, r, m).
    outside
        :math:`E\, g_a \cdot g_b` over the directions outside the frame, (r, r).
    products
        :math:`E\, g_a \cdot g_b` over all directions, (r, r).
    feature_covariance
        Covariance of the gradient's r m numbers and of the r² products
        :math:`g_a \cdot g_b` of one sample.
    """

    risk: float
    mean: FloatArray
    covariance: FloatArray
    outside: FloatArray
    products: FloatArray
    feature_covariance: FloatArray


def moments_at(
    model: Model,
    state: FloatArray,
    *,
    d: int,
    parameters: FloatArray,
    n_samples: int,
    seed: tuple[int, ...],
) -> GradientMoments:
    """Return the moments at weights in frame coordinates, from `n_samples` samples.

    One seed draws the same normals at every state: the result is a smooth function of
    the state, fit for differences and Newton's method.
    """
    r, m = state.shape
    n_chunks, size = math.ceil(n_samples / _CHUNK), r * m + r * r
    means, seconds = np.zeros((n_chunks, size)), np.zeros((n_chunks, size, size))
    outsides, losses = np.zeros((n_chunks, r, r)), np.zeros(n_chunks)
    law, sizes = model.law_numbers(d), model.sizes
    kernel = model.compiled.gradient_moments
    values = np.append(parameters, 0.0)

    def work(chunk: int) -> None:
        # Each chunk has a stream and memory of its own: threads may take chunks in any
        # order, and the sums do not change.
        count = min(_CHUNK, n_samples - chunk * _CHUNK)
        space = model.workspace(state, n_axes=m)
        losses[chunk] = kernel(
            stream(*seed, chunk),
            space.state,
            values,
            float(d),
            law,
            space.constants,
            sizes,
            space.memory,
            space.work,
            count,
            means[chunk],
            seconds[chunk],
            outsides[chunk],
        )

    with RunPool(n_chunks) as pool:
        pool.each(work)
    mean = means.sum(axis=0) / n_samples
    lower = seconds.sum(axis=0) / n_samples
    second = lower + np.tril(lower, -1).T
    covariance = second - np.outer(mean, mean)
    return GradientMoments(
        risk=float(losses.sum() / n_samples),
        mean=mean[: r * m].reshape(r, m),
        covariance=covariance[: r * m, : r * m].reshape(r, m, r, m),
        outside=outsides.sum(axis=0) / n_samples,
        products=mean[r * m :].reshape(r, r),
        feature_covariance=covariance,
    )


# --- The dynamics --------------------------------------------------------------------


# Evaluations of the moments along a run, and of their Jacobian for the band.
_EVALUATIONS = 400
_JACOBIANS = 50
# A stride whose midpoint is further from a straight line is halved. Errors of the
# midpoint rule are of second order, so that this one is small.
_LARGEST_ERROR = 0.05
# Differences of overlaps. With common random numbers it need not be small.
_DIFFERENCE = 1e-3
# Excess of a squared length that counts as rounding.
_ROUNDING = 1e-12


class _Rule(NamedTuple):
    """Effect of one update, at one time."""

    step_size: float
    decay: float
    batch_size: int
    is_tangent: bool
    noise: bool


def mean_dynamics(
    model: Model,
    *,
    d: int,
    start: Mapping[str, ArrayLike],
    step_size: Schedule,
    n_steps: int,
    record_every: int | None = None,
    batch_size: int = 1,
    parameters: Mapping[str, Schedule] | None = None,
    step: str = "tangent",
    weight_decay: Schedule = 0.0,
    noise: bool = True,
    band: bool = False,
    n_samples: int = 4000,
    stride: int | None = None,
    seed: int = 0,
) -> Trajectories:
    r"""Follow the mean of the overlaps under stochastic gradient descent.

    Parameters
    ----------
    model, d, step_size, n_steps, record_every, batch_size, parameters, step
        As in :func:`simulate`.
    start
        Overlaps at which to start, by name; several starts as arrays of one length,
        or the simulation whose starts are to be used.
    weight_decay
        As in :func:`simulate`.
    noise
        Include the terms of order step size squared that gradient noise makes; False
        gives descent on the risk (population descent).
    band
        Also follow the covariance of the fluctuations to first order (linear noise),
        and return their standard deviations as curves ``"k.key_deviation"``.
    n_samples
        Samples per evaluation of the moments; each evaluation draws new ones.
    stride
        Most updates per evaluation. Default: about 400 evaluations in all, more where
        the mean change varies fast. With 1 each update is evaluated, and the mean map
        itself iterated.
    seed
        Fixes the samples.

    Returns
    -------
    trajectories
        One curve per overlap, one run per start.

    Notes
    -----
    The mean of the next overlaps is exact for free weights; on spheres :math:`E[1/N]`
    is replaced by :math:`E[N^2]^{-1/2}`. Following the mean means to neglect the
    spread of the overlaps: close to a saddle, from random starts, fluctuations of size
    :math:`1/\sqrt d` decide, and no such equation describes the escape.

    Examples
    --------
    >>> from eigenheads.models import Model, Token
    >>> def line(X, w, u, g, p):
    ...     return (X[0] @ w.k - X[0] @ u.key) ** 2
    >>> model = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
    >>> paths = mean_dynamics(model, d=100, start={"k.k": 0.0}, step_size=0.005,
    ...                       n_steps=200, record_every=100, stride=10)
    >>> paths["k.key"].round(1)
    array([[0. , 0.6, 0.9]])
    """
    if not isinstance(model, Model):
        fail("model", "a Model", model, error=TypeError)
    check_choice("step", step, ["tangent", "normalised"])
    d = check_dimension(model, d, "exact", n_rows=len(model.weights))
    curves, pairs = curve_pairs(model, None, list(model.weights))
    noise = check_flag("noise", noise)
    band = check_flag("band", band)
    n_starts = _n_starts(start)
    n_curves = len(curves) * (2 if band else 1)
    counts = check_run_counts(n_steps, n_starts, record_every, n_curves=n_curves)
    n_samples = check_count("n_samples", n_samples, minimum=2)
    seed = check_count("seed", seed, minimum=0)
    batch_size = check_count("batch_size", batch_size)
    if stride is None:
        stride = max(1, counts.n_steps // _EVALUATIONS)
    stride = check_count("stride", stride)
    rates = check_schedule("step_size", step_size)
    decays = check_schedule("weight_decay", weight_decay)
    values = check_parameters(model, parameters)

    def rule_at(update: int) -> tuple[_Rule, FloatArray]:
        rate, decay = (
            float(schedule_values(name, schedule, update, update + 1)[0])
            for name, schedule in (("step_size", rates), ("weight_decay", decays))
        )
        rule = _Rule(rate, decay, batch_size, step == "tangent", noise)
        row = parameter_table(values, update, update + 1)[0]
        return rule, row[: len(values)]

    flow = _Flow(model, d, pairs, n_samples, rule_at)
    paths = [
        flow.followed(
            recorded(at, pairs),
            counts.n_steps,
            counts.record_every,
            stride,
            band,
            (seed, run),
        )
        for run, at in enumerate(check_start(model, start, n_starts))
    ]
    table = np.moveaxis(np.array(paths), 3, 0)  # curve, run, mean or deviation, record
    result = dict(zip(curves, table[:, :, 0], strict=True))
    if band:
        names = [f"{name}_deviation" for name in curves]
        result |= dict(zip(names, table[:, :, 1], strict=True))
    return Trajectories(record_steps(counts.n_steps, counts.record_every), result)


class _Flow:
    """The mean change of overlaps per update, as a function of overlaps."""

    def __init__(
        self,
        model: Model,
        d: int,
        pairs: Any,
        n_samples: int,
        rule_at: Callable[[int], tuple[_Rule, FloatArray]],
    ) -> None:
        self._model, self._d, self._pairs = model, d, pairs
        self._n_samples, self._rule_at = n_samples, rule_at

    def followed(
        self,
        y: FloatArray,
        n_steps: int,
        record_every: int,
        stride: int,
        band: bool,
        seed: tuple[int, int],
    ) -> FloatArray:
        """Return means and deviations from a start, (2, n_records, n_curves)."""
        records = np.zeros((2, n_steps // record_every + 1, len(y)))
        records[0, 0] = y
        spread = np.zeros((len(y), len(y)))
        # The Jacobian needs two evaluations per overlap: it is kept for a while.
        every = max(1, n_steps // stride // _JACOBIANS)
        taken, evaluation = 0, 0
        while taken < len(records[0]) * record_every - record_every:
            # A stride ends at the next record at the latest. Each evaluation has a seed
            # of its own, so that errors of sampling average out along the run.
            stop = (taken // record_every + 1) * record_every
            length = min(stride, stop - taken)
            # Where the mean change itself changes within a stride, as it does along
            # directions that relax fast, a long stride would leave the path.
            while True:
                end, error = self.advanced(y, taken, length, (*seed, 0, evaluation))
                if length == 1 or error <= _LARGEST_ERROR:
                    break
                length = (length + 1) // 2
            if band:
                if evaluation % every == 0:
                    jacobian, noise = self.linearised(y, taken, (*seed, 1, evaluation))
                spread = _spread(spread, jacobian, noise, length)
            y = end
            if not np.all(np.isfinite(y)):
                contract = "so small that the mean dynamics stay finite"
                rate = self._rule_at(taken)[0].step_size
                fail("step_size", contract, rate)
            taken, evaluation = taken + length, evaluation + 1
            if taken == stop:
                row = taken // record_every
                deviations = np.sqrt(np.maximum(np.diag(spread), 0.0))
                records[:, row] = y, deviations
            advance(length)
        return records

    def state(self, y: FloatArray) -> FloatArray:
        """Return weights with these overlaps, in frame coordinates."""
        r, p = len(self._model.weights), len(self._model.planted)
        planted, gram = np.zeros((r, p)), np.eye(r)
        for value, (a, b) in zip(y, self._pairs, strict=True):
            if b < 0:
                planted[a, -1 - b] = value
            else:
                gram[a, b] = gram[b, a] = value
        # Overlaps that no vectors have (after a long stride): shorten the planted part,
        # and then what the other weights make too long.
        for a in range(r):
            length = np.sum(planted[a] ** 2)
            if length > gram[a, a] > 0:
                planted[a] *= np.sqrt(gram[a, a] / length)
        rows = weights_in_frame(planted, gram, columns=p + r)
        for a, row in enumerate(rows):
            length = np.sum(row**2)
            if length > (1 + _ROUNDING) * gram[a, a] > 0:
                row *= np.sqrt(gram[a, a] / length)
        return rows

    def change(self, y: FloatArray, update: int, seed: tuple[int, ...]) -> FloatArray:
        """Return the mean change of the overlaps in one update."""
        rule, parameters = self._rule_at(update)
        state = self.state(y)
        moments = self._moments(state, parameters, seed)
        moved = recorded_mean(self._model, state, moments, rule, self._pairs)
        # From where the state is: overlaps that no vectors have were moved to it.
        return moved - recorded(state, self._pairs)

    def _moments(
        self, state: FloatArray, parameters: FloatArray, seed: tuple[int, ...]
    ) -> GradientMoments:
        return moments_at(
            self._model,
            state,
            d=self._d,
            parameters=parameters,
            n_samples=self._n_samples,
            seed=seed,
        )

    def advanced(
        self, y: FloatArray, update: int, length: int, seed: tuple[int, ...]
    ) -> tuple[FloatArray, float]:
        """Return the overlaps after `length` updates, and an estimate of the error.

        One update is the mean map. Several are the midpoint rule; the error is its
        distance from a straight line, relative to overlaps of at least 1.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            # Over a longer stride, the change per update acts as a time derivative.
            slope = first = self.change(y, update, (*seed, 0))
            if length > 1:
                middle = y + 0.5 * length * slope
                slope = self.change(middle, update + length // 2, (*seed, 1))
            end = y + length * slope
            if not np.all(np.isfinite(end)):
                return end, np.inf
            error = np.max(length * abs(slope - first) / np.maximum(1.0, abs(y)))
            # A long stride may leave the overlaps that vectors can have.
            return recorded(self.state(end), self._pairs), float(error)

    def linearised(
        self, y: FloatArray, update: int, seed: tuple[int, ...]
    ) -> tuple[FloatArray, FloatArray]:
        """Return the Jacobian of the change, and the covariance that noise adds."""
        columns = []
        for axis in range(len(y)):
            nudge = np.zeros(len(y))
            nudge[axis] = _DIFFERENCE * (1 + abs(y[axis]))
            ends = [y + nudge, y - nudge]
            ends = [end if self._is_possible(end) else y for end in ends]
            width = (ends[0] - ends[1])[axis]
            if width == 0.0:  # an isolated value: nothing fluctuates along it
                columns.append(np.zeros(len(y)))
                continue
            # One seed for both ends: the errors of sampling nearly cancel.
            slopes = [self.change(end, update, seed) for end in ends]
            columns.append((slopes[0] - slopes[1]) / width)
        rule, parameters = self._rule_at(update)
        state = self.state(y)
        moments = self._moments(state, parameters, seed)
        return np.column_stack(columns), _noise_matrix(
            self._model, state, moments, rule, self._pairs
        )

    def _is_possible(self, y: FloatArray) -> bool:
        state = self.state(y)
        return bool(np.allclose(recorded(state, self._pairs), y, atol=1e-8))


def _projections(model: Model, state: FloatArray, rule: _Rule) -> list[FloatArray]:
    """Return what is applied to each weight's gradient: I, or I - w wᵀ."""
    identity = np.eye(state.shape[1])
    return [
        identity - np.outer(w, w) if is_unit and rule.is_tangent else identity
        for w, is_unit in zip(state, model.on_sphere, strict=True)
    ]


def recorded_mean(
    model: Model,
    state: FloatArray,
    moments: GradientMoments,
    rule: _Rule,
    pairs: Any,
) -> FloatArray:
    """Return the overlaps after the mean of one update."""
    r, p = len(model.weights), len(model.planted)
    rate = np.float64(rule.step_size)
    mean = moments.mean + rule.decay * state
    projections = _projections(model, state, rule)
    moved = [projections[a] @ mean[a] for a in range(r)]
    planted = np.array([state[a, :p] - rate * moved[a][:p] for a in range(r)])
    gram = np.empty((r, r))
    for a in range(r):
        for b in range(r):
            # Population descent has the product of the means. Noise adds the covariance
            # over the batch size: a trace inside the frame, and the sum over all
            # directions outside, which projections leave as they are.
            second = moved[a] @ moved[b]
            if rule.noise:
                inside = projections[a] @ moments.covariance[a, :, b] @ projections[b]
                spread = np.trace(inside) + moments.outside[a, b]
                second += spread / rule.batch_size
            first = state[b] @ moved[a] + state[a] @ moved[b]
            gram[a, b] = state[a] @ state[b] - rate * first + rate**2 * second
    on_sphere = np.array(model.on_sphere)
    # On spheres, the mean of 1/N is replaced by the root of 1 over the mean of N².
    lengths = np.where(on_sphere, np.sqrt(np.maximum(np.diag(gram), 0.0)), 1.0)
    planted, gram = planted / lengths[:, None], gram / np.outer(lengths, lengths)
    return np.array([planted[a, -1 - b] if b < 0 else gram[a, b] for a, b in pairs])


def _noise_matrix(
    model: Model,
    state: FloatArray,
    moments: GradientMoments,
    rule: _Rule,
    pairs: Any,
) -> FloatArray:
    r"""Return the covariance of one update's overlaps, to first order.

    The new overlaps are a function of the batch gradient inside the frame and of the
    products :math:`G_a \cdot G_b`. With steps of order 1/d, fluctuations of both count:
    :math:`\alpha^2 G_a \cdot G_b` sums d terms with one random factor.
    """
    r, m = state.shape
    size, batch = r * m, rule.batch_size
    mean = np.concatenate([moments.mean.ravel(), moments.products.ravel() / batch])

    def updated(features: FloatArray) -> FloatArray:
        gradient, products = features[:size].reshape(r, m), features[size:]
        return _updated(model, state, gradient, products.reshape(r, r), rule, pairs)

    columns = []
    for place in range(len(mean)):
        nudge = np.zeros(len(mean))
        nudge[place] = 1e-4 * (1.0 + abs(mean[place]))
        change = updated(mean + nudge) - updated(mean - nudge)
        columns.append(change / (2 * nudge[place]))
    jacobian = np.column_stack(columns)
    # The products of a batch are the samples' mean over the batch size, to leading
    # order in d; cross terms between samples have mean zero outside the frame.
    shares = np.concatenate([np.ones(size), np.full(r * r, 1.0 / batch)])
    covariance = moments.feature_covariance * np.outer(shares, shares) / batch
    return jacobian @ covariance @ jacobian.T


def _updated(
    model: Model,
    state: FloatArray,
    gradient: FloatArray,
    products: FloatArray,
    rule: _Rule,
    pairs: Any,
) -> FloatArray:
    """Return the overlaps after an update with a given gradient and its products."""
    p, rate = len(model.planted), np.float64(rule.step_size)
    slope = gradient + rule.decay * state
    moved = np.array(
        [q @ g for q, g in zip(_projections(model, state, rule), slope, strict=True)]
    )
    # Projections and decay change the products by parts inside the frame alone.
    second = products + moved @ moved.T - gradient @ gradient.T
    first = state @ moved.T
    gram = state @ state.T - rate * (first + first.T) + rate**2 * second
    planted = state[:, :p] - rate * moved[:, :p]
    on_sphere = np.array(model.on_sphere)
    lengths = np.where(on_sphere, np.sqrt(np.maximum(np.diag(gram), 1e-300)), 1.0)
    planted, gram = planted / lengths[:, None], gram / np.outer(lengths, lengths)
    return np.array([planted[a, -1 - b] if b < 0 else gram[a, b] for a, b in pairs])


def _spread(
    spread: FloatArray, jacobian: FloatArray, noise: FloatArray, length: int
) -> FloatArray:
    """Return the covariance after `length` linear updates, by doubling."""
    result, power, added = spread, np.eye(len(jacobian)) + jacobian, noise
    # After j rounds, power is the matrix of 2^j updates, and added is the covariance of
    # their noise; the bits of the length select what is applied.
    while length:
        if length & 1:
            result = power @ result @ power.T + added
        added = power @ added @ power.T + added
        power = power @ power
        length >>= 1
    return result


def _n_starts(start: object) -> int:
    if isinstance(start, Trajectories):
        return start.n_runs
    if not isinstance(start, Mapping):
        fail("start", "a mapping of overlaps", start, error=TypeError)
    return max([np.size(np.asarray(value)) for value in start.values()], default=1)
