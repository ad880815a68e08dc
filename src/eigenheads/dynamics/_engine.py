"""Length of a Gaussian vector, for the kernels of principal components."""

import math

import numpy as np

from eigenheads._compile import njit

# Sums may be reordered (SIMD); infinities and NaN keep their meaning.
REORDER = {"reassoc", "contract", "nsz"}


@njit()
def chi(rng: np.random.Generator, dof: float) -> float:
    r"""Draw the length of a standard Gaussian vector in :math:`\mathbb R^{dof}`.

    .. math::

        \chi_m = \sqrt{2 \Gamma_{m/2}}, \qquad \chi_0 = 0

    Parameters
    ----------
    rng
        Source of randomness.
    dof
        :math:`m`, finite; nothing is drawn, and 0 returned, if it is <= 0.
    """
    if not math.isfinite(dof):
        raise ValueError("chi: `dof` must be a finite number; got nan or infinity.")
    if dof <= 0.0:
        return 0.0
    # Half the squared length is a gamma variable: one draw for any dimension.
    return math.sqrt(2.0 * rng.standard_gamma(0.5 * dof))
