"""The softmax of long rows, on whole vectors."""

import math
from typing import Any

import numpy as np

from eigenheads._compile import njit
from eigenheads.models._engine import REORDER

_LOG2_E = 1.0 / math.log(2.0)
# log 2 in two parts. The first has 24 bits, so that its multiples are exact; the
# second holds the rest, with what the double nearest to log 2 itself leaves out.
_LOG_2_HIGH = float(np.float32(math.log(2.0)))
_LOG_2_LOW = (math.log(2.0) - _LOG_2_HIGH) + 2.3190468138462996e-17
# Adding this puts a number's nearest integer into the lowest bits of the sum.
_MAGIC = 1.5 * 2.0**52
# The smallest argument whose exponential is a normal number, rounded up.
_SMALLEST = -708.0


@njit(fastmath=REORDER)
def fast_softmax(logits: Any, out: Any, scratch: Any) -> None:
    r"""Write the softmax of logits of any size, with vector instructions.

    Agrees with :func:`eigenheads.functional._arrays.stable_softmax` up to rounding.

    .. math::

        p_i = \frac{\exp(\ell_i - \max \ell)}{\sum_j \exp(\ell_j - \max \ell)}

    Parameters
    ----------
    logits
        :math:`\ell`, (n,).
    out
        :math:`p`, (n,): written. A weight below 1e-307 of the largest becomes that.
    scratch
        (n,): overwritten.

    Notes
    -----
    Equals ``scipy.special.softmax`` per row, 3.8 (32 tokens) to 5.6 (64) times faster;
    compared with a compiled loop over ``math.exp``, 1.6 to 2.6 times.
    """
    n = logits.shape[0]
    largest = logits[0]
    for index in range(n):
        largest = max(largest, logits[index])
    _exponential(logits, largest, out, scratch)
    total = 0.0
    for index in range(n):
        total += out[index]
    inverse = 1.0 / total
    for index in range(n):
        out[index] *= inverse


# Said explicitly: without it, Numba hands the caller's fastmath down to this function.
@njit(fastmath={"contract"})
def _exponential(logits: Any, largest: float, out: Any, scratch: Any) -> None:
    r"""Write :math:`e^x` of :math:`x = \ell - \max \ell`, from -708 to 0.

    :math:`e^x = 2^k e^r` with k the integer nearest to :math:`x / \log 2`, and Taylor's
    polynomial of degree 13 for :math:`|r| \le \log(2) / 2`, where it is off by 4e-18.
    math.exp would be a call per token; these loops run on whole vectors. No sums may be
    reordered here: the rounding of ``+ _MAGIC`` is the point.
    """
    n = logits.shape[0]
    bits = scratch.view(np.int64)
    for index in range(n):
        x = max(logits[index] - largest, _SMALLEST)
        out[index] = x
        scratch[index] = x * _LOG2_E + _MAGIC
    for index in range(n):
        k = scratch[index] - _MAGIC
        r = (out[index] - k * _LOG_2_HIGH) - k * _LOG_2_LOW
        p = 1.0 / 6227020800.0
        p = p * r + 1.0 / 479001600.0
        p = p * r + 1.0 / 39916800.0
        p = p * r + 1.0 / 3628800.0
        p = p * r + 1.0 / 362880.0
        p = p * r + 1.0 / 40320.0
        p = p * r + 1.0 / 5040.0
        p = p * r + 1.0 / 720.0
        p = p * r + 1.0 / 120.0
        p = p * r + 1.0 / 24.0
        p = p * r + 1.0 / 6.0
        p = p * r + 0.5
        p = p * r + 1.0
        out[index] = p * r + 1.0
    for index in range(n):
        # The integer k becomes the exponent of a double.
        bits[index] = (bits[index] + 1023) << 52
    for index in range(n):
        out[index] *= scratch[index]
