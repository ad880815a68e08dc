"""Starts of a training: overlaps of the weights, given or drawn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    Got,
    check_choice,
    check_finite_array,
    check_items,
    fail,
)
from eigenheads._rng import gaussian_length
from eigenheads._trajectories import Trajectories
from eigenheads._typing import FloatArray
from eigenheads.models._model import Model, weights_in_frame

# Rounding of overlaps that were computed from unit vectors.
_ROUNDING = 1e-9


def drawn_start(model: Model, d: int, rng: np.random.Generator) -> FloatArray:
    r"""Draw weights in frame coordinates, (n_weights, n_axes).

    Weights on spheres are uniform; free ones are :math:`\mathcal N(0, I/d)`.
    """
    r, p = len(model.weights), len(model.planted)
    rows = np.zeros((r, p + r))
    rows[:, :p] = rng.standard_normal((r, p))
    # Bartlett: row a has normals on the residuals before it, and the rest's length.
    for row in range(r):
        rows[row, p : p + row] = rng.standard_normal(row)
        rows[row, p + row] = gaussian_length(rng, d - p - row)
    lengths = np.linalg.norm(rows, axis=1)
    divisors = np.where(model.on_sphere, lengths, math.sqrt(d))
    return rows / divisors[:, None]


def check_start(
    model: Model, start: Mapping[str, ArrayLike], n_runs: int, *, name: str = "start"
) -> list[FloatArray]:
    """Return given starts in frame coordinates, one per run, or raise.

    `name` is that of the argument, for error messages.
    """
    if not isinstance(start, Mapping):
        contract = f"a mapping of overlaps such as {model.overlaps[0]!r} to numbers"
        fail("start", contract, start, error=TypeError)
    values = _given(model, start, n_runs)
    r, p = len(model.weights), len(model.planted)
    planted, gram = overlap_matrices(model, values)
    eigenvalues = np.linalg.eigvalsh(gram - planted @ planted.transpose(0, 2, 1))
    impossible = np.flatnonzero(
        eigenvalues[:, 0] < -_ROUNDING * (1 + np.trace(gram[0]))
    )
    if len(impossible):
        run = impossible[0]
        contract = "overlaps that vectors can have (their Gram matrix is positive)"
        shown = {key: float(value[run]) for key, value in values.items()}
        hint = _why_impossible(list(model.weights), planted[run], gram[run])
        fail(name, contract, Got(str(shown)), hint=hint)
    return [
        weights_in_frame(planted[run], gram[run], columns=p + r)
        for run in range(n_runs)
    ]


def _why_impossible(names: list[str], planted: FloatArray, gram: FloatArray) -> str:
    """Return which weight or pair of weights is impossible, if one alone is.

    Examples
    --------
    >>> _why_impossible(["k"], np.array([[1.2]]), np.array([[1.0]]))
    'Squared overlaps of k add up to 1.44, more than k.k = 1.'
    """
    residual = gram - planted @ planted.T
    for row, name in enumerate(names):
        if residual[row, row] < -_ROUNDING * (1 + gram[row, row]):
            total = float(planted[row] @ planted[row])
            length = f"{name}.{name} = {gram[row, row]:.4g}"
            return (
                f"Squared overlaps of {name} add up to {total:.4g}, more than {length}."
            )
    for row, name in enumerate(names):
        for column, partner in enumerate(names[:row]):
            least, most = (
                float(planted[row] @ planted[column])
                + sign
                * math.sqrt(max(0.0, residual[row, row] * residual[column, column]))
                for sign in (-1.0, 1.0)
            )
            if not least - _ROUNDING <= gram[row, column] <= most + _ROUNDING:
                pair = f"{partner}.{name}"
                return f"The others allow {pair} from {least:.4g} to {most:.4g}."
    return ""


def _given(
    model: Model, start: Mapping[str, ArrayLike], n_runs: int
) -> dict[str, FloatArray]:
    """Return all overlaps as arrays (n_runs,).

    Those that are not given are 0 with planted directions, lengths are 1, and weights
    overlap as much as their parts along planted directions do.
    """
    values = {name: np.zeros(n_runs) for name in model.overlaps}
    for name in model.weights:
        if f"{name}.{name}" in values:
            values[f"{name}.{name}"] = np.ones(n_runs)
    for name, value in start.items():
        if isinstance(start, Trajectories) and name not in values:
            continue  # curves of averages and velocities
        check_choice("start", name, model.overlaps)
        array = check_finite_array(f"start[{name!r}]", value)
        if isinstance(start, Trajectories):
            array = array[:, 0]
        if array.shape not in {(), (n_runs,), (1,)}:
            contract = f"one number or of shape ({n_runs},)"
            fail(f"start[{name!r}]", contract, array)
        values[name] = np.broadcast_to(array, (n_runs,)).astype(float)
    names = list(model.weights)
    for row, name in enumerate(names):
        for partner in names[:row]:
            pair = f"{partner}.{name}"
            if pair in values and pair not in start:
                values[pair] = sum(
                    (
                        values[f"{name}.{direction}"] * values[f"{partner}.{direction}"]
                        for direction in model.planted
                    ),
                    np.zeros(n_runs),
                )
    return values


def overlap_matrices(
    model: Model, values: Mapping[str, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Return overlaps as matrices (…, r, p) with planted ones and (…, r, r)."""
    shape = next(iter(values.values())).shape
    names, r, p = list(model.weights), len(model.weights), len(model.planted)
    planted, gram = np.zeros((*shape, r, p)), np.zeros((*shape, r, r))
    for row, name in enumerate(names):
        for column, direction in enumerate(model.planted):
            planted[..., row, column] = values[f"{name}.{direction}"]
        for column, partner in enumerate(names[: row + 1]):
            value = values.get(f"{partner}.{name}", np.ones(shape))
            gram[..., row, column] = gram[..., column, row] = value
    return planted, gram


def curve_pairs(
    model: Model, record: Sequence[str] | None, rows: Sequence[str]
) -> tuple[tuple[str, ...], Any]:
    """Return names of the recorded overlaps, and the pairs of rows behind them.

    `rows` are the names of the simulated vectors: weights, velocities, averages. In a
    pair, planted direction j is -1 - j.
    """
    places = {name: row for row, name in enumerate(rows)}
    places |= {name: -1 - j for j, name in enumerate(model.planted)}
    if record is None:
        averages = [name for name in rows if name.endswith("_average")]
        diagonal = [
            f"{name}.{second}" for name in averages for second in (*model.planted, name)
        ]
        record = (*model.overlaps, *diagonal)
    contract = "a sequence of overlaps such as 'k.key'"
    record = check_items("record", record, contract)
    if not record:
        fail("record", contract, record)
    pairs = []
    for name in record:
        first, _, second = str(name).partition(".")
        if first not in rows or second not in places:
            listed = ", ".join(model.overlaps)
            contract = f"overlaps such as {listed}"
            fail("record", contract, name)
        pairs.append((places[first], places[second]))
    return tuple(record), np.array(pairs, dtype=np.int64)


def recorded(state: FloatArray, pairs: Any) -> FloatArray:
    """Return the overlaps of pairs of rows of a state."""
    return np.array(
        [state[a, -1 - b] if b < 0 else state[a] @ state[b] for a, b in pairs]
    )
