r"""Gradient flow on the sphere of an objective that only knows the alignment.

.. math::

    \dot t = (1 - t^2)\, J'(t)
"""

from collections.abc import Callable

import numpy as np
from scipy.integrate import solve_ivp

from eigenheads._checks import Got, fail
from eigenheads._typing import FloatArray


def alignment_path(
    start: float,
    slope: Callable[[FloatArray], FloatArray],
    times: FloatArray,
    *,
    name: str,
    owner: str,
    precision: tuple[float, float],
) -> FloatArray:
    """Return the alignment at `times`, the first of which is that of `start`.

    Parameters
    ----------
    start, slope, times
        Alignment at first, derivative of the objective in it, increasing times.
    name, owner
        Of the argument that sets the times, and of the caller: for errors.
    precision
        Relative and absolute tolerance of the integrator.
    """

    def velocity(_: float, t: FloatArray) -> FloatArray:
        t = np.clip(t, -1.0, 1.0)
        moved: FloatArray = (1 - t) * (1 + t) * slope(t)
        return moved

    rtol, atol = precision
    # A large amplitude is stiff: its rates differ by factors like A.
    solution = solve_ivp(
        velocity,
        (0.0, times[-1]),
        [start],
        method="LSODA",
        t_eval=times,
        rtol=rtol,
        atol=atol,
    )
    if not solution.success or not np.isfinite(solution.y).all():
        got = Got(f"{float(times[-1])!r} ({solution.message})")
        fail(name, "within what the integrator can reach", got, owner=owner)
    path: FloatArray = np.clip(solution.y[0], -1.0, 1.0)
    path[0] = start
    return path
