"""Penalised loss of the single-location head in whitened coordinates, minimised."""

import numpy as np
from scipy.optimize import OptimizeResult, minimize

from eigenheads._typing import FloatArray
from eigenheads.estimators._location_coordinates import Coordinates
from eigenheads.estimators._location_problem import Problem

_MEMORY = 20


class Objective:
    r"""Penalised loss as a function of one flat vector of whitened coordinates.

    .. math::

        \text{mean loss} + \alpha \sum_{u \in \{k, v_1, \dots\}}
        \Bigl( \tfrac{1 - r}{2} \lVert u \rVert_W^2 + r \lVert D u \rVert_1 \Bigr)
        + \tfrac{(1 - r) c}{2} \bigl(
        \lVert k \rVert_W^2 - \langle k, t \rangle_W^2 \bigr)

    with :math:`D` the pooled scale of the features, :math:`W` the whitened metric,
    :math:`r` the `l1_ratio`, :math:`c` the `coherence` and :math:`t` the unit vector
    `attended`, without which the last term is left out. The L1 norm is added by
    :func:`minimise_sparse`. For ``head="radial"`` the last coordinate is that of the
    radius: values do not read it, and the last term leaves it free.
    """

    def __init__(
        self,
        problem: Problem,
        coordinates: Coordinates,
        attended: FloatArray | None = None,
    ) -> None:
        self.coordinates = coordinates
        self.has_intercept = problem.has_intercept
        self.loss = problem.loss()
        self.ridge = problem.alpha * (1 - problem.l1_ratio)
        self.lasso = problem.alpha * problem.l1_ratio
        self.coherence = problem.coherence * (1 - problem.l1_ratio)
        self.attended = attended
        self.has_radius = problem.head == "radial"
        self.shape = (1 + problem.n_outputs, len(coordinates.mean))

    def split(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return key and values as rows, and the intercepts."""
        size = self.shape[0] * self.shape[1]
        return flat[:size].reshape(self.shape), flat[size:]

    def raw(self, flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return rows and intercepts in the features as given."""
        whitened, centred = self.split(flat)
        rows = self.coordinates.raw(whitened)
        return rows, centred - rows[1:] @ self.coordinates.mean

    def __call__(self, flat: FloatArray) -> tuple[float, FloatArray]:
        """Return value and gradient."""
        rows, intercepts = self.raw(flat)
        loss, by_raw, by_intercepts = self.loss(rows, intercepts)
        by_raw[1:] -= np.outer(by_intercepts, self.coordinates.mean)
        by_rows = self.coordinates.pulled_back(by_raw)
        whitened = self.split(flat)[0]
        measured = self.coordinates.measured(whitened)
        loss += 0.5 * self.ridge * float((measured * whitened).sum())
        by_rows += self.ridge * measured
        if self.attended is not None:
            along = whitened[0] @ self.attended
            off = measured[0] - along * self.attended
            if self.has_radius:
                off[-1] = 0.0
            loss += 0.5 * self.coherence * float(whitened[0] @ off)
            by_rows[0] += self.coherence * off
        if self.has_radius:
            by_rows[1:, -1] = 0.0
        if not self.has_intercept:
            by_intercepts[:] = 0.0
        return loss, np.concatenate([by_rows.ravel(), by_intercepts])


def minimise(
    objective: Objective, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS."""
    return minimize(
        objective,
        flat,
        jac=True,
        method="L-BFGS-B",
        options=_options(max_iter, tol),
    )


def minimise_sparse(
    objective: Objective, flat: FloatArray, *, max_iter: int, tol: float
) -> OptimizeResult:
    """Run L-BFGS-B on positive and negative parts, so that zeros are exact."""
    size = objective.shape[0] * objective.shape[1]

    def joined(parts: FloatArray) -> FloatArray:
        return np.concatenate(
            [parts[:size] - parts[size : 2 * size], parts[2 * size :]]
        )

    def value_and_gradient(parts: FloatArray) -> tuple[float, FloatArray]:
        value, gradient = objective(joined(parts))
        value += objective.lasso * float(parts[: 2 * size].sum())
        by = gradient[:size]
        both = [by + objective.lasso, objective.lasso - by, gradient[size:]]
        return value, np.concatenate(both)

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
    result.x = joined(result.x)
    return result


def _options(max_iter: int, tol: float) -> dict[str, float]:
    return {
        "maxiter": max_iter,
        "maxfun": 4 * max_iter + 20,
        "maxcor": _MEMORY,
        "gtol": tol,
        "ftol": tol * 1e-3,
    }
