"""Are given values those of kernel PCA? Coefficients, ratios, captured variance."""

from __future__ import annotations

from typing import Any

import numpy as np
from array_api_compat import is_numpy_array
from jaxtyping import Float

from eigenheads._checks import Got, check_instance, fail
from eigenheads._typing import Array
from eigenheads.functional._kernel import KernelPCA, check_floats


def kernel_coefficients(
    cloud: KernelPCA, values: Float[Array, "*batch n d_value"]
) -> Float[Array, "*batch n d_value"]:
    r"""Return the coefficients :math:`\hat A` of given values in kernel PCA.

    .. math::

        \hat A = (I - \tfrac1N \mathbf 1 \mathbf 1^\top)^+ G^{-1} V
               = H \operatorname{diag}(g(k_i)) V

    Parameters
    ----------
    cloud
        Result of :func:`eigenheads.functional.kernel_pca`.
    values
        Rows of :math:`V`.

    Returns
    -------
    coefficients
        :math:`\hat A / \max_i g(k_i)`. The factor may exceed the largest float; the
        statistics of these coefficients do not depend on it.

    Notes
    -----
    :math:`I - 1_N` is the projection :math:`H`, singular and its own pseudo-inverse.
    :math:`V = \hat V R` with the kernel-PCA values :math:`\hat V` and any matrix
    :math:`R` gives :math:`\hat A` proportional to :math:`A R`.

    References
    ----------
    .. [1] teo2024, the section that recovers the coefficients from trained values.

    Examples
    --------
    >>> import numpy as np
    >>> from eigenheads.functional import kernel_pca, kernel_pca_values
    >>> cloud = kernel_pca(np.array([[1.0], [0.5], [-1.0]]))
    >>> found = kernel_coefficients(cloud, kernel_pca_values(cloud, 1))
    >>> cosine = found[:, 0] @ cloud.eigenvectors[:, 0] / np.linalg.norm(found)
    >>> round(abs(float(cosine)), 6)
    1.0
    """
    check_instance("cloud", cloud, KernelPCA, owner="kernel_coefficients")
    xp = check_floats("kernel_coefficients", values=values, cloud=cloud.gram)
    if values.shape[-2] != cloud.gram.shape[-1]:
        contract = f"of {cloud.gram.shape[-1]} rows, one per key"
        got = Got(tuple(values.shape))
        fail("values", contract, got, owner="kernel_coefficients")
    logs = cloud.log_normaliser
    weights = xp.exp(logs - xp.max(logs, axis=-1, keepdims=True))
    weighted = weights[..., None] * values
    return weighted - xp.mean(weighted, axis=-2, keepdims=True)


def gamma_ratios(
    gram: Float[Array, "*batch n n"], coefficients: Float[Array, "*batch n d_value"]
) -> Float[Array, "*batch n d_value"]:
    r"""Return the entrywise ratios :math:`\gamma_i = (\tilde K \hat a)_i / \hat a_i`.

    They are constant, and equal to :math:`\ell`, if and only if :math:`\hat a` is an
    eigenvector of :math:`\tilde K`; entries :math:`\hat a_i = 0` are not informative.

    Examples
    --------
    >>> import numpy as np
    >>> gamma_ratios(np.diag([2.0, 3.0]), np.array([[1.0], [1.0]]))
    array([[2.],
           [3.]])
    """
    xp = check_floats("gamma_ratios", gram=gram, coefficients=coefficients)
    n = coefficients.shape[-2]
    if tuple(gram.shape[-2:]) != (n, n):
        contract = f"of shape (..., {n}, {n}), by the rows of `coefficients`"
        fail("gram", contract, Got(tuple(gram.shape)), owner="gamma_ratios")
    product = xp.matmul(gram, coefficients)
    tiny = xp.finfo(product.dtype).smallest_normal
    zero = xp.abs(coefficients) < tiny
    safe = xp.where(zero, xp.full_like(coefficients, tiny), coefficients)
    return product / safe


def relative_differences(
    ratios: Float[Array, "*batch n d_value"],
) -> Float[Array, "*batch d_value"]:
    r"""Mean over pairs of :math:`|\gamma_i - \gamma_j| / \max(|\gamma_i|, |\gamma_j|)`.

    It ranges from 0 (constant) to 2 and is about 1 for random signs. Absolute
    differences are not informative, because :math:`\gamma` is as small as the
    eigenvalues of :math:`\tilde K`.

    Notes
    -----
    With the ratios sorted by absolute value, a pair :math:`j < i` contributes
    :math:`1 - \gamma_j/\gamma_i`, so cumulative sums give the mean in
    :math:`O(n \log n)`. A pair of zeros counts as a difference of 0.

    References
    ----------
    .. [1] saritas2025, section on the eigenvalue test.

    Examples
    --------
    >>> import numpy as np
    >>> relative_differences(np.array([[2.0], [1.0]]))
    array([0.5])
    """
    xp = check_floats("relative_differences", ratios=ratios)
    columns = sorted_by_size(xp, xp.matrix_transpose(ratios))
    n = columns.shape[-1]
    before = xp.cumulative_sum(columns, axis=-1) - columns
    pairs = n * (n - 1) / 2
    if not bool(xp.any(columns[..., 0] == 0)):  # zeros would come first
        return 1 - xp.sum(before / columns, axis=-1) / pairs
    zero = columns == 0
    # Each zero has only zeros before it, which are no difference.
    n_zero = xp.sum(xp.astype(zero, columns.dtype), axis=-1)
    safe = xp.where(zero, xp.ones_like(columns), columns)
    shares = xp.sum(before / safe, axis=-1) + n_zero * (n_zero - 1) / 2
    return 1 - shares / pairs


def sorted_by_size(xp: Any, rows: Array) -> Array:
    """Return each row sorted by absolute value, signs kept.

    For float64 of NumPy the bits are rotated by one, so that the sign comes last and
    numbers sort by size as integers: one fast sort of numbers, none of indices.
    """
    if is_numpy_array(rows) and rows.dtype == np.float64:
        bits = np.array(rows, order="C").view(np.uint64)
        signs = bits >> np.uint64(63)
        bits <<= np.uint64(1)
        bits |= signs
        bits.sort(axis=-1)
        np.left_shift(bits, np.uint64(63), out=signs)
        bits >>= np.uint64(1)
        bits |= signs
        return bits.view(np.float64)
    order = xp.argsort(xp.abs(rows), axis=-1)
    return xp.take_along_axis(rows, order, axis=-1)
