"""Risk of a declared model, and its critical points with their kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    Got,
    check_count,
    check_finite_array,
    check_number,
    fail,
)
from eigenheads._rng import generator
from eigenheads._typing import FloatArray
from eigenheads.models._mean_dynamics import moments_at
from eigenheads.models._model import Model
from eigenheads.models._simulate import (
    check_dimension,
    check_parameters,
    parameter_table,
)
from eigenheads.models._start import check_start, curve_pairs, recorded

# Differences of coordinates; common random numbers keep them smooth.
_DIFFERENCE = 1e-3
_MOST_ITERATIONS = 60
_LONGEST_STEP = 0.5
# Sets of samples that did not place the point, whose spread is the error of a
# curvature; a curvature within this many standard errors of zero counts as zero.
_SETS = 8
_ERRORS = 4.0
# Longest part of a weight outside the planted directions that counts as none.
_SHORT = 0.05


def risk(
    model: Model,
    overlaps: Mapping[str, ArrayLike],
    *,
    d: int,
    parameters: Mapping[str, float] | None = None,
    n_samples: int = 2**14,
    seed: int = 0,
) -> FloatArray:
    """Return the mean of the loss at given overlaps, by Monte Carlo.

    Parameters
    ----------
    model
        The model.
    overlaps
        Numbers or arrays by name, as the `start` of :func:`simulate`; arrays
        broadcast. A simulation gives the risk along its curves.
    d
        Dimension.
    parameters
        Parameters of the loss: numbers.
    n_samples
        Number of samples; all points use the same ones, so that differences are
        smooth.
    seed
        Fixes the samples.

    Returns
    -------
    risk
        Array of the shape of the overlaps.

    Examples
    --------
    >>> from eigenheads.models import Model, Token
    >>> def line(X, w, u, g, p):
    ...     return (X[0] @ w.k - X[0] @ u.key) ** 2
    >>> model = Model(line, weights={"k": "free"}, planted=("key",), tokens=Token())
    >>> risk(model, {"k.key": [0.0, 1.0]}, d=5).round(1)
    array([2., 0.])
    """
    d, row = _check_point(model, d, parameters)
    n_samples = check_count("n_samples", n_samples)
    seed = check_count("seed", seed, minimum=0)
    if not isinstance(overlaps, Mapping):
        fail("overlaps", "a mapping", overlaps, error=TypeError)
    arrays = {
        name: check_finite_array(f"overlaps[{name!r}]", value)
        for name, value in overlaps.items()
    }
    points = {name: value for name, value in arrays.items() if name in model.overlaps}
    unknown = [name for name in arrays if name not in model.overlaps]
    if unknown:
        contract = f"named {', '.join(model.overlaps)}"
        fail("overlaps", contract, unknown[0])
    shapes = [value.shape for value in points.values()]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        got = Got(", ".join(map(str, shapes)))
        fail("overlaps", "of shapes that broadcast", got)
    flat = {name: np.broadcast_to(v, shape).ravel() for name, v in points.items()}
    n_points = int(np.prod(shape, dtype=int))
    values = [
        moments_at(
            model, state, d=d, parameters=row, n_samples=n_samples, seed=(seed,)
        ).risk
        for state in check_start(model, flat, n_points, name="overlaps")
    ]
    return np.array(values).reshape(shape)


@dataclass(frozen=True)
class StationaryPoint:
    """A point where the gradient of the risk vanishes.

    Attributes
    ----------
    overlaps
        Its overlaps, by name.
    risk
        Mean of the loss there.
    kind
        ``"minimum"``, ``"maximum"`` or ``"saddle"``, over all d dimensions;
        ``"undecided"`` if the curvatures that are not zero have one sign, and others
        are zero: there higher derivatives, or more samples, decide.
    index
        Number of directions along which the risk falls, out of all d per weight; at
        least so many if other curvatures are zero.
    curvatures
        Eigenvalues of the Hessian along the planted directions and the weights.
    outside
        Eigenvalues of the Hessian in any one direction outside these; each counts
        d minus the number of planted directions and weights times. Curvatures within
        four standard errors of zero count as zero for `kind` and `index`.
    """

    overlaps: dict[str, float]
    risk: float
    kind: str
    index: int
    curvatures: FloatArray
    outside: FloatArray


def critical_points(
    model: Model,
    *,
    d: int,
    parameters: Mapping[str, float] | None = None,
    n_starts: int = 20,
    n_samples: int = 2**12,
    tolerance: float = 0.05,
    seed: int = 0,
) -> list[StationaryPoint]:
    r"""Find critical points of the risk by Newton's method from random weights.

    Parameters
    ----------
    model, d, parameters
        As in :func:`risk`.
    n_starts
        Number of random starts; points that no start reaches are not found.
    n_samples
        Samples of the risk; all evaluations use the same ones.
    tolerance
        Points whose overlaps differ by less are one.
    seed
        Fixes starts and samples.

    Returns
    -------
    points
        Sorted by risk.

    Notes
    -----
    In the d - q directions e outside the frame the Hessian is one r × r matrix, the
    derivative of :math:`\bar g_a \cdot e` along :math:`\delta w_b = \varepsilon e`.
    Without it many saddles would pass for minima. On spheres, :math:`w \cdot \bar g`
    is subtracted from the Hessian's diagonal: the curvature of the sphere.
    """
    d, row = _check_point(model, d, parameters)
    n_starts = check_count("n_starts", n_starts)
    n_samples = check_count("n_samples", n_samples)
    check_number("tolerance", tolerance, minimum=0.0)
    seed = check_count("seed", seed, minimum=0)
    surface = _Surface(model, d, row, n_samples, (seed, 0))
    curves, pairs = curve_pairs(model, None, list(model.weights))
    rng = generator(seed, 1)
    places: list[FloatArray] = []
    points = []
    for _ in range(n_starts):
        state = _newton(surface, _random_state(model, rng))
        if state is None:
            continue
        at = recorded(state, pairs)
        if any(np.abs(at - place).max() < tolerance for place in places):
            continue
        places.append(at)
        names = dict(zip(curves, at.tolist(), strict=True))
        points.append(surface.described(state, names))
    # Mirror images have one risk, up to rounding: their overlaps decide.
    return sorted(points, key=lambda p: (round(p.risk, 9), *p.overlaps.values()))


class _Surface:
    """The risk as a function of weights in frame coordinates."""

    def __init__(
        self,
        model: Model,
        d: int,
        parameters: FloatArray,
        n_samples: int,
        seed: tuple[int, ...],
    ) -> None:
        self.model, self.d = model, d
        self._parameters, self._n_samples, self._seed = parameters, n_samples, seed
        self.is_unit = np.array(model.on_sphere)

    def with_samples(self, number: int) -> _Surface:
        """Return the surface of another, independent set of samples."""
        return _Surface(
            self.model,
            self.d,
            self._parameters,
            self._n_samples,
            (*self._seed[:1], number),
        )

    def slope(self, state: FloatArray) -> tuple[float, FloatArray]:
        """Return the risk and its gradient."""
        moments = moments_at(
            self.model,
            state,
            d=self.d,
            parameters=self._parameters,
            n_samples=self._n_samples,
            seed=self._seed,
        )
        return moments.risk, moments.mean

    def tangent_basis(self, state: FloatArray) -> FloatArray:
        """Return an orthonormal basis of the moves that change the overlaps.

        Left out are moves off the spheres, and turns of the residual axes, which
        change no overlap.
        """
        # Turns leave the risk as it is: along them the equations of Newton would be
        # singular.
        r, m = state.shape
        p = m - r
        idle = []
        for a in range(r):
            if self.is_unit[a]:
                off = np.zeros((r, m))
                off[a] = state[a]
                idle.append(off.ravel())
            for b in range(a):
                turn = np.zeros((r, m))
                turn[:, p + a], turn[:, p + b] = state[:, p + b], -state[:, p + a]
                idle.append(turn.ravel())
        if not idle:
            return np.eye(r * m)
        vectors, sizes, _ = np.linalg.svd(np.array(idle).T, full_matrices=True)
        rank = int(np.sum(sizes > 1e-6))
        return np.asarray(vectors[:, rank:], dtype=np.float64)

    def hessian(self, state: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the second derivatives along the spheres, (r m, r m)."""
        r, m = state.shape
        columns = []
        for place in range(r * m):
            nudge = np.zeros(r * m)
            nudge[place] = _DIFFERENCE
            ends = [
                self.slope(state + sign * nudge.reshape(r, m))[1] for sign in (1, -1)
            ]
            columns.append((ends[0] - ends[1]).ravel() / (2 * _DIFFERENCE))
        matrix = np.column_stack(columns)
        # A move of length ε along a great circle changes w by -ε² w / 2 at second
        # order, which adds -w · g to the curvature.
        radial = np.where(self.is_unit, np.sum(state * gradient, axis=1), 0.0)
        return 0.5 * (matrix + matrix.T) - np.diag(np.repeat(radial, m))

    def outside(self, state: FloatArray, gradient: FloatArray) -> FloatArray:
        """Return the Hessian in a direction outside the frame, (r, r)."""
        r, m = state.shape
        columns = []
        # One more axis, on which all weights are zero, stands for any direction outside
        # the frame: by symmetry all of them have the same Hessian.
        for b in range(r):
            ends = []
            for sign in (1, -1):
                wide = np.hstack([state, np.zeros((r, 1))])
                wide[b, m] = sign * _DIFFERENCE
                ends.append(self.slope(wide)[1][:, m])
            columns.append((ends[0] - ends[1]) / (2 * _DIFFERENCE))
        matrix = np.column_stack(columns)
        radial = np.where(self.is_unit, np.sum(state * gradient, axis=1), 0.0)
        return 0.5 * (matrix + matrix.T) - np.diag(radial)

    def curvatures(self, state: FloatArray) -> FloatArray:
        """Return the eigenvalues of the Hessian, inside and then outside the frame."""
        _, gradient = self.slope(state)
        basis = self.tangent_basis(state)
        inside = np.linalg.eigvalsh(basis.T @ self.hessian(state, gradient) @ basis)
        parts = [inside]
        if self.d > state.shape[1]:
            parts.append(np.linalg.eigvalsh(self.outside(state, gradient)))
        return np.concatenate(parts).astype(np.float64)

    def described(
        self, state: FloatArray, overlaps: dict[str, float]
    ) -> StationaryPoint:
        """Return the critical point with its curvatures and kind."""
        sets = [self.with_samples(number) for number in range(1, _SETS + 1)]
        values = np.array([sample.curvatures(state) for sample in sets])
        curvatures, errors = (
            values.mean(axis=0),
            values.std(axis=0, ddof=1) / _SETS**0.5,
        )
        flat = np.maximum(_ERRORS * errors, 1e-5 * np.abs(curvatures).max())
        falls, rises = curvatures < -flat, curvatures > flat
        n_outside = self.d - state.shape[1]
        n_inside = len(curvatures) - (len(state) if n_outside else 0)
        index = int(np.sum(falls[:n_inside]))
        index += n_outside * int(np.sum(falls[n_inside:]))
        # Turning all weights about the planted directions leaves the risk as it is:
        # their part outside these gives so many directions without curvature.
        parts = np.linalg.svd(state[:, len(self.model.planted) :], compute_uv=False)
        is_flat = ~(falls | rises)
        n_turns = min(int(np.sum(parts > _SHORT)), int(np.sum(is_flat[n_inside:])))
        if np.any(falls) and np.any(rises):
            kind = "saddle"
        elif np.sum(is_flat) > n_turns:
            kind = "undecided"
        else:
            kind = "maximum" if np.any(falls) else "minimum"
        value = float(np.mean([sample.slope(state)[0] for sample in sets]))
        inside, outside = curvatures[:n_inside], curvatures[n_inside:]
        return StationaryPoint(overlaps, value, kind, index, inside, outside)


def _newton(surface: _Surface, state: FloatArray) -> FloatArray | None:
    """Return a critical point near a start, or None."""
    for _ in range(_MOST_ITERATIONS):
        _, gradient = surface.slope(state)
        basis = surface.tangent_basis(state)
        slope = basis.T @ gradient.ravel()
        matrix = basis.T @ surface.hessian(state, gradient) @ basis
        step = -np.linalg.lstsq(matrix, slope, rcond=1e-8)[0]
        length = float(np.linalg.norm(step))
        step *= min(1.0, _LONGEST_STEP / max(length, 1e-30))
        state = state + (basis @ step).reshape(state.shape)
        lengths = np.linalg.norm(state, axis=1, keepdims=True)
        state = np.where(surface.is_unit[:, None], state / lengths, state)
        if not np.all(np.isfinite(state)):
            return None
        if length < 1e-6:
            # A short step is no proof: least squares returns one also where the slope
            # lies outside the range of the matrix.
            size = float(np.linalg.norm(matrix, 2))
            return state if np.linalg.norm(slope) <= 1e-5 * size else None
    return None


def _random_state(model: Model, rng: np.random.Generator) -> FloatArray:
    """Return weights of random directions; free ones have any length."""
    r, m = len(model.weights), len(model.planted) + len(model.weights)
    state = rng.standard_normal((r, m))
    state /= np.linalg.norm(state, axis=1, keepdims=True)
    lengths = np.where(model.on_sphere, 1.0, rng.uniform(0.0, 2.0, r))
    return np.asarray(state * lengths[:, None], dtype=np.float64)


def _check_point(
    model: object, d: object, parameters: Mapping[str, float] | None
) -> tuple[int, FloatArray]:
    if not isinstance(model, Model):
        fail("model", "a Model", model, error=TypeError)
    number = check_dimension(model, d, "exact", n_rows=len(model.weights))
    values = check_parameters(model, parameters)
    row = parameter_table(values, 0, 1)[0, : len(values)]
    return number, row
