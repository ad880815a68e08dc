"""Check a declared model against real vectors: one call, one table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from eigenheads._checks import check_count, fail
from eigenheads._rng import generator
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray, Schedule
from eigenheads.models._full import difference_gradient
from eigenheads.models._model import Model
from eigenheads.models._simulate import (
    check_dimension,
    check_parameters,
    parameter_table,
    simulate,
    wrong_degrees_of_freedom,
)
from eigenheads.models._start import curve_pairs, drawn_start, recorded

_SMALL_ERROR = 1e-6
# Probability that a correct model fails the comparison of laws.
_FALSE_ALARM = 1e-3
# Samples whose gradients are compared with differences, and measured in length.
_N_DIFFERENCES, _N_LENGTHS = 5, 50
_N_STEPS = 3
_BATCH_SIZE = 2
_EXACT_PER_FULL = 4


@dataclass(frozen=True)
class Verification:
    """Outcome of :func:`verify`.

    Attributes
    ----------
    gradient_error
        Largest relative difference between the compiled gradient and central
        differences of the loss on real vectors.
    p_value
        Kolmogorov–Smirnov, exact simulation against real vectors: the smallest p-value
        of all overlaps, times their number.
    wrong_p_value
        The same for a simulation with 2 d degrees of freedom too many. It must be
        small: a comparison that accepts a wrong simulation shows nothing.
    """

    gradient_error: float
    p_value: float
    wrong_p_value: float

    @property
    def passed(self) -> bool:
        """True if all three checks hold."""
        return (
            self.gradient_error < _SMALL_ERROR
            and self.p_value > _FALSE_ALARM
            and self.wrong_p_value < _FALSE_ALARM
        )

    def __str__(self) -> str:
        rows = [
            ("gradient against differences", self.gradient_error, "<", _SMALL_ERROR),
            ("law against real vectors, p", self.p_value, ">", _FALSE_ALARM),
            ("wrong degrees of freedom, p", self.wrong_p_value, "<", _FALSE_ALARM),
        ]
        lines = []
        for name, value, sign, bound in rows:
            is_right = value < bound if sign == "<" else value > bound
            verdict = "ok" if is_right else "FAILED"
            lines.append(f"{name:30} {value:9.2g}  must be {sign} {bound:g}  {verdict}")
        return "\n".join(lines)


def verify(
    model: Model,
    *,
    d: int = 8,
    parameters: Mapping[str, Schedule] | None = None,
    n_runs: int = 400,
    seed: int = 0,
) -> Verification:
    """Check a model's compiled gradient and its exact simulation on real vectors.

    Parameters
    ----------
    model
        The model to check.
    d
        Dimension: small, so that degrees of freedom matter.
    parameters
        Parameters of the loss, as in :func:`simulate`.
    n_runs
        Runs with real vectors; four times as many are simulated exactly.
    seed
        Fixes all randomness.

    Returns
    -------
    verification
        Three numbers and a verdict; ``print`` shows them as a table.

    Notes
    -----
    The comparison with real vectors calls the loss itself, with no tracing, no
    compilation and another code for the tokens' law. A correct model fails it with
    probability 0.001.

    Examples
    --------
    >>> from eigenheads.models import Model, Token
    >>> def line(X, w, u, g, p):
    ...     return (X[0] @ w.k - X[0] @ u.key) ** 2
    >>> model = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
    >>> verify(model, d=4).passed
    True
    """
    if not isinstance(model, Model):
        fail("model", "a Model", model, error=TypeError)
    n_runs = check_count("n_runs", n_runs, minimum=10)
    d = check_dimension(model, d, "exact", n_rows=len(model.weights))
    values = check_parameters(model, parameters)
    rng = generator(check_count("seed", seed, minimum=0))
    first = parameter_table(values, 0, 1)[0, : len(values)]
    error, size = _gradient_error(model, d, first, rng)
    setting = _setting(model, d, values, size, rng)
    full = simulate(model, n_runs=n_runs, seed=seed, method="full", **setting)
    many = _EXACT_PER_FULL * n_runs
    exact = simulate(model, n_runs=many, seed=seed + 1, **setting)
    with wrong_degrees_of_freedom(2.0 * d):
        wrong = simulate(model, n_runs=many, seed=seed + 2, **setting)
    return Verification(error, _p_value(exact, full), _p_value(wrong, full))


def compiled_gradient(
    model: Model,
    tokens: FloatArray,
    weights: FloatArray,
    latents: FloatArray,
    parameters: FloatArray,
) -> FloatArray:
    """Return the compiled gradient of one sample of real vectors, (r, d)."""
    r, p = len(model.weights), len(model.planted)
    module, space = model.compiled, model.workspace(weights, n_axes=p + r)
    overlaps = np.hstack([weights[:, :p], weights @ weights.T])
    slopes, overlap_slopes = np.empty((r, model.n_tokens)), np.zeros((r, p + r))
    arguments = (
        weights @ tokens.T,
        np.ascontiguousarray(tokens.T),
        np.append(latents, 0.0),
        np.append(parameters, 0.0),
        space.constants,
        model.sizes,
        overlaps,
        space.work,
    )
    combinations = np.empty((model.n_combinations, model.n_tokens))
    if model.n_combinations:
        module.combination_weights(*arguments, combinations)
    outputs = combinations @ tokens
    meetings, products = outputs @ tokens.T, outputs @ outputs.T
    module.loss_gradient(*arguments, slopes, overlap_slopes, meetings, products)
    gradient = slopes @ tokens
    gradient[:, :p] += overlap_slopes[:, :p]
    among = overlap_slopes[:, p:]
    return gradient + (among + among.T) @ weights


def _gradient_error(
    model: Model, d: int, parameters: FloatArray, rng: np.random.Generator
) -> tuple[float, float]:
    """Return the largest relative error of the gradient, and its usual length."""
    errors, lengths = [], []
    for number in range(_N_LENGTHS):
        weights = np.zeros((len(model.weights), d))
        start = drawn_start(model, d, rng)
        weights[:, : start.shape[1]] = start
        tokens, latents = model.law.sample(rng, d)
        arguments = (model, tokens, weights, latents, parameters)
        gradient = compiled_gradient(*arguments)
        size = float(np.linalg.norm(gradient))
        lengths.append(size)
        if not math.isfinite(size):
            fail("model", "a model with finite gradients", size)
        if number < _N_DIFFERENCES:
            expected = difference_gradient(*arguments)
            scale = max(float(np.linalg.norm(expected)), 1e-30)
            errors.append(np.abs(gradient - expected).max() / scale)
    return float(np.max(errors)), float(np.median(lengths))


def _setting(
    model: Model,
    d: int,
    values: dict[str, Schedule],
    size: float,
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return options of the simulations that are compared: large steps, one start."""
    start = drawn_start(model, d, rng)
    curves, pairs = curve_pairs(model, None, list(model.weights))
    setting = {
        "d": d,
        "step_size": 0.5 / max(size, 1e-30),
        "n_steps": _N_STEPS,
        "record_every": _N_STEPS,
        "batch_size": _BATCH_SIZE,
        "parameters": values,
        "start": dict(zip(curves, recorded(start, pairs), strict=True)),
    }
    if d >= len(model.planted) + 2 * len(model.weights):
        # An average that never moves is a snapshot of the start: what the weights
        # lose of it depends on the degrees of freedom most.
        setting["average"] = 0.0
        lost = [f"{name}.{name}_average" for name in model.weights]
        setting["record"] = [*curves, *lost]
    return setting


def _p_value(ours: Trajectories, full: Trajectories) -> float:
    """Return the corrected p-value of all overlaps at the end."""
    from scipy import stats

    values = [
        stats.ks_2samp(ours.final(name), full.final(name), method="asymp").pvalue
        for name in full
    ]
    return float(min(1.0, min(values) * len(values)))
