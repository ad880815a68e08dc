"""Self-attention read as kernel PCA: the kernel, its values, and the test by ratios."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, is_numpy_array, is_torch_array
from jaxtyping import Float

from eigenheads._arrays import log_sum_exp
from eigenheads._checks import (
    Got,
    check_count,
    check_flag,
    check_float_arrays,
    check_instance,
    check_positive,
    fail,
)
from eigenheads._typing import Array

# Largest useful number of columns of zeros.
_MAX_COMPONENTS = 10**6


@dataclass(frozen=True, kw_only=True)
class KernelPCA:
    r"""Kernel PCA of the normalised features of keys; see :func:`kernel_pca`.

    Attributes
    ----------
    log_normaliser
        :math:`\log g(k_i)`.
    gram
        The centred Gram matrix :math:`\tilde K = H K_\varphi H`.
    trace
        :math:`\operatorname{tr} K_\varphi`, before centring.
    eigenvalues
        :math:`\ell_1 \ge \ell_2 \ge \dots` of :math:`\tilde K`, not negative.
    eigenvectors
        Unit eigenvectors :math:`u_d` in columns, in the same order.
    """

    log_normaliser: Float[Array, "*batch n"]
    gram: Float[Array, "*batch n n"]
    trace: Float[Array, "*batch"]
    eigenvalues: Float[Array, "*batch n"]
    eigenvectors: Float[Array, "*batch n n"]


def kernel_pca(
    keys: Float[Array, "*batch n d"], *, scale: float | None = None
) -> KernelPCA:
    r"""Compute kernel PCA of the normalised features :math:`\varphi(k_i)/g(k_i)`.

    With :math:`k(x, y) = e^{c\, x \cdot y} = \langle \varphi(x), \varphi(y) \rangle`
    and :math:`g(x) = \sum_j k(x, k_j)`,

    .. math::

        K_\varphi[i, j] = \frac{k(k_i, k_j)}{g(k_i)\, g(k_j)}, \qquad
        \tilde K = H K_\varphi H, \qquad H = I - \tfrac1N \mathbf 1 \mathbf 1^\top,
        \qquad \tilde K u_d = \ell_d u_d .

    Parameters
    ----------
    keys
        Rows :math:`k_i^\top`, at least two.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.

    Returns
    -------
    cloud
        Gram matrix, spectrum and normalisers.

    Notes
    -----
    :math:`0 \le \ell_d \le \operatorname{tr} \tilde K \le \operatorname{tr} K_\varphi
    \le N`, because :math:`g(k_i) \ge k(k_i, k_i) \ge 1`; for keys of mean zero the
    trace is at most :math:`N (4(N-1))^{-(N-1)/N} \le 1`. Kernels are computed in log
    space, so that long keys do not overflow. [1]_ writes :math:`\ell_d = N \lambda_d`.

    References
    ----------
    .. [1] teo2024, section 2 (the features and their Gram matrix).

    Examples
    --------
    >>> import numpy as np
    >>> cloud = kernel_pca(np.array([[1.0], [-1.0]]))
    >>> bool(cloud.eigenvalues[0] <= cloud.trace <= 1)
    True
    """
    xp = check_floats(keys=keys)
    n, d = keys.shape[-2:]
    if n < 2:
        fail("keys", "two rows or more", Got(tuple(keys.shape)))
    c = d**-0.5 if scale is None else check_positive("scale", scale)
    logs, plain = feature_gram(keys, c)
    gram = centred_gram(plain)
    # Eigenvalues come in increasing order, and rounding may make zeros negative.
    eigenvalues, eigenvectors = xp.linalg.eigh(gram)
    eigenvalues = xp.flip(eigenvalues, axis=-1)
    return KernelPCA(
        log_normaliser=logs,
        gram=gram,
        trace=xp.sum(xp.linalg.diagonal(plain), axis=-1),
        eigenvalues=xp.where(eigenvalues > 0, eigenvalues, 0 * eigenvalues),
        eigenvectors=xp.flip(eigenvectors, axis=-1),
    )


def feature_gram(keys: Array, c: float) -> tuple[Array, Array]:
    r"""Return :math:`\log g(k_i)` and :math:`K_\varphi` of :func:`kernel_pca`."""
    xp = array_namespace(keys)
    scores = c * xp.matmul(keys, xp.matrix_transpose(keys))
    logs = log_sum_exp(scores)
    # The difference of the logarithms is never positive, so nothing overflows.
    return logs, xp.exp(scores - logs[..., :, None] - logs[..., None, :])


def kernel_pca_values(
    cloud: KernelPCA, n_components: int, *, unit_axes: bool = True
) -> Float[Array, "*batch n n_components"]:
    r"""Return values with which a head projects queries on kernel principal axes.

    .. math::

        \hat V = G (I - \tfrac1N \mathbf 1 \mathbf 1^\top) A = G A, \qquad
        G = \operatorname{diag}(1/g(k_i)), \qquad a_d = u_d / \sqrt{\ell_d}

    Parameters
    ----------
    cloud
        Result of :func:`kernel_pca`.
    n_components
        Number of axes, in order of decreasing eigenvalues; axes without variance, and
        those beyond the number of tokens, give columns of zeros.
    unit_axes
        Whether the axes have length 1, :math:`\ell_d \lVert a_d \rVert^2 = 1`.
        Otherwise :math:`\lVert a_d \rVert = 1`, and outputs are wrong by the factor
        :math:`\sqrt{\ell_d}`.

    Returns
    -------
    values
        :math:`\hat V`, each column up to its sign.

    Notes
    -----
    With these values, for any query :math:`q`,

    .. math::

        \sum_j \operatorname{softmax}_j(c\, q \cdot k_j)\, \hat V_{jd}
        = \Bigl\langle \frac{\varphi(q)}{g(q)},\ w_d \Bigr\rangle, \qquad
        w_d = \sum_i a_{di} \Bigl(\frac{\varphi(k_i)}{g(k_i)} - \text{mean}\Bigr):

    the uncentred feature of the query, projected on an axis of the centred features of
    the keys. Eigenvalues below :math:`N \varepsilon\, \ell_1` count as zero, because
    they are rounding errors (:math:`\varepsilon` is the machine precision).

    References
    ----------
    .. [1] teo2024, equation of the values in section 2.
    .. [2] docs/theory/kernel.md, Proposition 1.

    Examples
    --------
    >>> import numpy as np
    >>> cloud = kernel_pca(np.array([[1.0], [-1.0]]))
    >>> kernel_pca_values(cloud, 3).shape
    (2, 3)
    """
    check_instance("cloud", cloud, KernelPCA)
    n_components = check_count("n_components", n_components, maximum=_MAX_COMPONENTS)
    check_flag("unit_axes", unit_axes)
    xp = array_namespace(cloud.gram)
    n = cloud.gram.shape[-1]
    n_axes = min(n_components, n)
    coefficients = cloud.eigenvectors[..., :n_axes]
    levels = cloud.eigenvalues[..., None, :n_axes]
    floor = n * xp.finfo(levels.dtype).eps * cloud.eigenvalues[..., None, :1]
    real = levels > floor
    # Eigenvalues that rounding made are replaced before the division by their roots.
    # Their columns become zero after it.
    safe = xp.where(real, levels, xp.ones_like(levels))
    if unit_axes:
        coefficients = coefficients / xp.sqrt(safe)
    coefficients = xp.where(real, coefficients, xp.zeros_like(coefficients))
    values = xp.exp(-cloud.log_normaliser)[..., None] * coefficients
    if n_axes < n_components:
        zeros = xp.zeros_like(values[..., :1])
        values = xp.concat([values] + [zeros] * (n_components - n_axes), axis=-1)
    return values


def log_feature_norms(
    queries: Float[Array, "*batch n_queries d"],
    keys: Float[Array, "*batch n d"],
    *,
    scale: float | None = None,
    is_causal: bool = False,
    standardize: bool = False,
) -> Float[Array, "*batch n_queries"]:
    r"""Return the logarithm of the squared norm of the normalised query features.

    .. math::

        \log \Bigl\lVert \frac{\varphi(q)}{g(q)} \Bigr\rVert^2
        = c\, q \cdot q - 2 \log \sum_j e^{c\, q \cdot k_j}

    Parameters
    ----------
    queries, keys
        Rows :math:`q_i^\top`, :math:`k_j^\top`.
    scale
        :math:`c`; :math:`D^{-1/2}` unless given.
    is_causal
        Whether query :math:`i` sees keys :math:`j \le i` only; then each row has its
        own normaliser.
    standardize
        Whether to standardise queries and keys token by token (mean 0, variance 1
        over the width), and to leave :math:`c` out of :math:`q \cdot q`. Close to the
        authors' program, but not equal to it: that one divides by D - 1 in the
        variance and takes the normaliser from the first key's score without the scale.

    Returns
    -------
    log_norms
        Natural logarithm, one number per query.

    Notes
    -----
    A projection on unit axes does not increase the norm: with :math:`\hat V` of
    :func:`kernel_pca_values` the output of a head has at most this norm. The
    reproduction study found that trained outputs are about :math:`10^3` times longer
    [1]_.

    References
    ----------
    .. [1] saritas2025, section on reconstruction.

    Examples
    --------
    >>> import numpy as np
    >>> zero = np.zeros((1, 2, 4))
    >>> log_feature_norms(zero, zero).round(4)  # (1/2)² each
    array([[-1.3863, -1.3863]])
    """
    xp = check_floats(queries=queries, keys=keys)
    d = keys.shape[-1]
    c = d**-0.5 if scale is None else check_positive("scale", scale)
    # Batch axes fit if they are equal or if one of them is 1.
    pairs = zip(reversed(queries.shape[:-2]), reversed(keys.shape[:-2]), strict=False)
    if queries.shape[-1] != d or any(
        1 not in pair and len({*pair}) > 1 for pair in pairs
    ):
        contract = f"of a shape that fits that of `keys`, {tuple(keys.shape)}"
        fail("queries", contract, Got(tuple(queries.shape)))
    check_flag("is_causal", is_causal)
    if check_flag("standardize", standardize):
        queries, keys = _standardized(xp, queries), _standardized(xp, keys)
    scores = attention_scores(xp, queries, keys, c, is_causal)
    squares = xp.sum(queries * queries, axis=-1)
    return (squares if standardize else c * squares) - 2 * log_sum_exp(scores)


def centred_gram(gram: Float[Array, "*batch n n"]) -> Float[Array, "*batch n n"]:
    r"""Return :math:`HGH`: rows and columns of a Gram matrix, centred.

    Examples
    --------
    >>> import numpy as np
    >>> centred_gram(np.eye(2))
    array([[ 0.5, -0.5],
           [-0.5,  0.5]])
    """
    xp = array_namespace(gram)
    half = gram - xp.mean(gram, axis=-1, keepdims=True)
    return half - xp.mean(half, axis=-2, keepdims=True)


def _standardized(xp: Any, rows: Array) -> Array:
    centred = rows - xp.mean(rows, axis=-1, keepdims=True)
    spread = xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True))
    return centred / xp.where(spread > 0, spread, xp.ones_like(spread))


def attention_scores(
    xp: Any, queries: Array, keys: Array, c: float, is_causal: bool
) -> Array:
    """Return the scores, with -inf where a query does not see a key."""
    scores = c * xp.matmul(queries, xp.matrix_transpose(keys))
    if not is_causal:
        return scores
    n, m = scores.shape[-2:]
    # If there are fewer queries than keys, the queries are the last tokens.
    is_visible = xp.tril(xp.ones_like(scores), k=m - n)
    return xp.where(is_visible > 0, scores, xp.full_like(scores, -xp.inf))


def check_floats(**arrays: Any) -> Any:
    """Return the arrays' library, or raise unless they are floats (..., n, d)."""
    xp = check_float_arrays(**arrays)
    for name, array in arrays.items():
        if array.ndim < 2 or 0 in array.shape:
            contract = "an array of shape (..., n, d) without empty axes"
            fail(name, contract, Got(tuple(array.shape)))
        if array.dtype.itemsize not in (4, 8):
            got = Got(f"dtype {array.dtype}")
            hint = "Call .float()." if is_torch_array(array) else ""
            fail(name, "of 32 or 64 bits", got, hint=hint)
        if array.dtype.itemsize > 8 or (
            not is_torch_array(array) and array.dtype.itemsize < 4
        ):
            got = Got(f"dtype {array.dtype}")
            fail(name, "of 32 or 64 bits", got, error=TypeError)
    return xp


# --- Ratios that are constant for kernel PCA -----------------------------------------


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
    check_instance("cloud", cloud, KernelPCA)
    xp = check_floats(values=values, cloud=cloud.gram)
    if values.shape[-2] != cloud.gram.shape[-1]:
        contract = f"of {cloud.gram.shape[-1]} rows, one per key"
        got = Got(tuple(values.shape))
        fail("values", contract, got)
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
    xp = check_floats(gram=gram, coefficients=coefficients)
    n = coefficients.shape[-2]
    if tuple(gram.shape[-2:]) != (n, n):
        contract = f"of shape (..., {n}, {n}), by the rows of `coefficients`"
        fail("gram", contract, Got(tuple(gram.shape)))
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
    xp = check_floats(ratios=ratios)
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
