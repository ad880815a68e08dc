"""Order parameters of single-location regression, and the check that they exist."""

import numpy as np

from eigenheads._checks import Got, check_finite_array, fail, shown
from eigenheads._typing import FloatArray

ORDER_PARAMETERS = ("kappa", "nu", "theta", "eta", "rho")

# Slack for rounded input: in squared lengths, and in the inner product of residuals
# (where a residual of squared length 1e-16, lost to rounding, still counts 1e-8).
_LENGTH_SLACK, _PRODUCT_SLACK = 1e-9, 1e-7


def check_order_parameters(
    start: object, *, d: int, n_runs: int | None = None
) -> FloatArray:
    r"""Return rows (runs, 5), or raise if no two unit vectors in R^d have them.

    The rows are :math:`\kappa = k \cdot k^*`, :math:`\nu = v \cdot v^*`,
    :math:`\theta = v \cdot k^*`, :math:`\eta = k \cdot v^*`,
    :math:`\rho = k \cdot v`. A single row is used for all `n_runs` runs; None means
    as many runs as rows.
    """
    given = check_finite_array("start", start)
    rows = np.atleast_2d(given)
    runs = len(rows) if n_runs is None else n_runs
    if given.shape not in {(5,), (runs, 5)} or not runs:
        wanted = "n_runs" if n_runs is None else n_runs
        contract = (
            "order parameters kappa, nu, theta, eta, rho of shape (5,) or "
            f"({wanted}, 5)"
        )
        fail("start", contract, given)
    rows = np.array(np.broadcast_to(rows, (runs, 5)))
    good = are_feasible(rows, d)
    if not good.all():
        run = int(np.argmin(good))
        numbers = ", ".join(shown(number) for number in rows[run])
        contract = (
            "order parameters kappa, nu, theta, eta, rho of two unit vectors in "
            f"{d} dimensions"
        )
        hint = (
            "They satisfy kappa² + eta² <= 1, nu² + theta² <= 1 and "
            "(rho - kappa theta - eta nu)² <= (1 - kappa² - eta²)(1 - nu² - theta²)."
        )
        fail("start", contract, Got(f"{numbers} in run {run}"), hint=hint)
    return rows


def are_feasible(rows: FloatArray, d: int) -> np.ndarray:
    """Return whether unit vectors k, v in R^d with these order parameters exist.

    They exist if the Gram matrix of k*, v*, k, v is positive semidefinite with rank at
    most `d`.

    Examples
    --------
    >>> are_feasible(np.array([[1.0, 1.0, 0, 0, 0], [1.0, 0, 0, 0.5, 0]]), 9)
    array([ True, False])
    """
    kappa, nu, theta, eta, rho = np.clip(
        rows, -2.0, 2.0
    ).T  # so that squares do not overflow
    k_left, v_left = 1 - kappa**2 - eta**2, 1 - nu**2 - theta**2
    cross = np.abs(rho - kappa * theta - eta * nu)
    bound = np.sqrt(np.maximum(k_left, 0) * np.maximum(v_left, 0))
    good = np.minimum(k_left, v_left) >= -_LENGTH_SLACK
    good &= cross <= bound + _PRODUCT_SLACK
    if d == 2:  # k and v have no part outside the plane of k* and v*
        good &= np.maximum(k_left, v_left) <= _LENGTH_SLACK
    if d == 3:  # outside that plane there is one direction, so these parts are parallel
        good &= cross >= bound - _PRODUCT_SLACK
    return good
