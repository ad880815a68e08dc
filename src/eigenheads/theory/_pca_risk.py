"""Population risks of attention-based PCA, in closed form, with their gradients."""

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import (
    Got,
    check_count,
    check_finite_array,
    check_positive,
    fail,
)
from eigenheads._typing import FloatArray
from eigenheads.functional import PrincipalSubspace, principal_subspace
from eigenheads.theory._pca_landscape import Coefficients, PCALandscape


def softmax_landscape(
    covariance: ArrayLike, *, inverse_temperature: float, rank: int = 1
) -> PCALandscape:
    r"""Return the risk of a softmax head on infinitely long prompts.

    As :math:`L \to \infty` the softmax average becomes a Gaussian tilt,
    :math:`T(X) \to \lambda \Sigma M M^\top x_1`, and

    .. math::

        R(M) = \tau - 2\lambda \operatorname{tr}(M^\top \Sigma^2 M)
             + \lambda^2 \operatorname{tr}(M^\top\Sigma M\, M^\top\Sigma^2 M), \qquad
        \tau = \operatorname{tr}\Sigma

    If :math:`\sigma_k > \sigma_{k+1}`, every minimiser has
    :math:`MM^\top = U_k \operatorname{diag}(1/(\lambda\sigma_i)) U_k^\top` and reaches
    the rank-k PCA error, :math:`\tau - \sigma_1 - … - \sigma_k`.

    Parameters
    ----------
    covariance
        :math:`\Sigma` of the tokens.
    inverse_temperature
        :math:`\lambda > 0`.
    rank
        :math:`k`, columns of :math:`M`.

    Examples
    --------
    >>> import numpy as np
    >>> landscape = softmax_landscape(np.diag([3.0, 2.0, 1.0]), inverse_temperature=1.0)
    >>> [point.kind for point in landscape.critical_points()]
    ['minimum', 'strict saddle', 'strict saddle', 'maximum']
    """
    owner = "softmax_landscape"
    return _softmax(covariance, inverse_temperature, rank, owner=owner)


def linear_landscape(
    covariance: ArrayLike,
    *,
    n_tokens: int,
    inverse_temperature: float,
    rank: int = 1,
) -> PCALandscape:
    r"""Return the risk of a linear head on prompts of any length, exactly.

    With :math:`a, b, f, g` the traces of :math:`B\Sigma`, :math:`B\Sigma^2`,
    :math:`B\Sigma B\Sigma`, :math:`B\Sigma B\Sigma^2`, :math:`B = MM^\top`,

    .. math::

        R_L(M) = \tau - 2\lambda[a\tau + (L+1) b]
        + \lambda^2 [\tau a^2 + (L+1)\tau f + 2(L+1)ab + (L^2+3L+4) g]

    Parameters
    ----------
    covariance
        :math:`\Sigma` of the tokens.
    n_tokens
        :math:`L`.
    inverse_temperature
        :math:`\lambda > 0`.
    rank
        :math:`k`, columns of :math:`M`.

    Examples
    --------
    >>> import numpy as np
    >>> landscape = linear_landscape(
    ...     np.diag([3.0, 1.0]), n_tokens=6, inverse_temperature=0.1)
    >>> landscape.minimiser().round(3)
    array([0.58, 0.  ])
    """
    owner = "linear_landscape"
    return _linear(covariance, n_tokens, inverse_temperature, rank, owner=owner)


def in_context_landscape(
    scale_matrix: ArrayLike,
    *,
    degrees_of_freedom: int,
    inverse_temperature: float,
    rank: int = 1,
) -> PCALandscape:
    r"""Return the risk of a softmax head on long prompts with Wishart covariances.

    Each prompt draws :math:`\Sigma = \sum_{i \le n} y_i y_i^\top`,
    :math:`y_i \sim N(0, V)`, then infinitely many tokens from :math:`N(0, \Sigma)`.
    The risk is n times that of a linear head on prompts of length n from
    :math:`N(0, V)`:

    .. math::

        \mathbb E \lVert x - \lambda \Sigma B x \rVert^2
        = \sum_i \mathbb E \lVert y_i - \lambda \Sigma B y_i \rVert^2

    since :math:`x \mid \Sigma` has the second moments of :math:`\sum_i y_i y_i^\top`,
    and :math:`\lambda\Sigma B y_i` is the linear head on :math:`y_1, …, y_n`.

    Parameters
    ----------
    scale_matrix
        :math:`V`.
    degrees_of_freedom
        :math:`n`.
    inverse_temperature
        :math:`\lambda > 0`.
    rank
        Columns of :math:`M`.

    Examples
    --------
    >>> import numpy as np
    >>> landscape = in_context_landscape(
    ...     np.diag([3.0, 1.0]), degrees_of_freedom=10, inverse_temperature=1e-3)
    >>> landscape.minimiser().round(3)
    array([4.889, 0.   ])
    """
    owner = "in_context_landscape"
    return _in_context(
        scale_matrix, degrees_of_freedom, inverse_temperature, rank, owner=owner
    )


def softmax_pca_risk(
    mu: ArrayLike, covariance: ArrayLike, *, inverse_temperature: float
) -> FloatArray:
    r"""Return the risk of a rank-one softmax head on infinitely long prompts.

    .. math::

        R_\infty(\mu) = \tau - 2\lambda b + \lambda^2 ab, \qquad
        a = \mu^\top\Sigma\mu, \quad b = \mu^\top\Sigma^2\mu, \quad
        \tau = \operatorname{tr}\Sigma

    Parameters
    ----------
    mu
        The head's direction, (..., d).
    covariance
        :math:`\Sigma` of the tokens.
    inverse_temperature
        :math:`\lambda > 0`.

    Returns
    -------
    risk
        One number a direction.

    Notes
    -----
    The critical points are 0, a maximum, and :math:`\pm u_i/\sqrt{\lambda\sigma_i}`
    with value :math:`\tau - \sigma_i` and i - 1 negative directions.

    References
    ----------
    .. [1] maulensoto2026.

    See Also
    --------
    softmax_landscape : Hessian, critical points and minimisers.

    Examples
    --------
    >>> import numpy as np
    >>> float(softmax_pca_risk([0.5, 0.0], np.diag([4.0, 1.0]), inverse_temperature=1))
    1.0
    """
    owner = "softmax_pca_risk"
    landscape = _softmax(covariance, inverse_temperature, 1, owner=owner)
    return np.asarray(landscape.risk(_check_mu(mu, landscape, owner=owner)))


def softmax_pca_risk_gradient(
    mu: ArrayLike, covariance: ArrayLike, *, inverse_temperature: float
) -> FloatArray:
    r"""Return the gradient of :func:`softmax_pca_risk`, of the shape of `mu`.

    .. math::

        -4\lambda\Sigma^2\mu + 2\lambda^2 (a\Sigma^2\mu + b\Sigma\mu)

    Examples
    --------
    >>> import numpy as np
    >>> softmax_pca_risk_gradient([0.5, 0], np.diag([4, 1]), inverse_temperature=1)
    array([0., 0.])
    """
    owner = "softmax_pca_risk_gradient"
    landscape = _softmax(covariance, inverse_temperature, 1, owner=owner)
    return landscape.gradient(_check_mu(mu, landscape, owner=owner))


def linear_pca_risk(
    mu: ArrayLike, covariance: ArrayLike, *, n_tokens: int, inverse_temperature: float
) -> FloatArray:
    r"""Return the risk of a rank-one linear head on prompts of `n_tokens`, exactly.

    .. math::

        R_L(\mu) = \tau - 2\lambda[a\tau + (L+1)b]
                 + \lambda^2 (L+2) a [a\tau + (L+3) b]

    Parameters
    ----------
    mu
        The head's direction, (..., d).
    covariance
        :math:`\Sigma` of the tokens.
    n_tokens
        :math:`L`.
    inverse_temperature
        :math:`\lambda > 0`.

    Returns
    -------
    risk
        One number a direction.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> linear_pca_risk([1.0], [[1.0]], n_tokens=1, inverse_temperature=0.1).round(9)
    np.float64(0.55)
    """
    owner = "linear_pca_risk"
    landscape = _linear(covariance, n_tokens, inverse_temperature, 1, owner=owner)
    return np.asarray(landscape.risk(_check_mu(mu, landscape, owner=owner)))


def linear_pca_risk_gradient(
    mu: ArrayLike, covariance: ArrayLike, *, n_tokens: int, inverse_temperature: float
) -> FloatArray:
    r"""Return the gradient of :func:`linear_pca_risk`, of the shape of `mu`.

    .. math::

        -4\lambda[\tau\Sigma\mu + (L+1)\Sigma^2\mu] + 2\lambda^2(L+2)
        [(2a\tau + (L+3)b)\Sigma\mu + (L+3)a\Sigma^2\mu]

    Examples
    --------
    >>> linear_pca_risk_gradient([0.0], [[1.0]], n_tokens=2, inverse_temperature=1)
    array([0.])
    """
    owner = "linear_pca_risk_gradient"
    landscape = _linear(covariance, n_tokens, inverse_temperature, 1, owner=owner)
    return landscape.gradient(_check_mu(mu, landscape, owner=owner))


def in_context_pca_risk(
    mu: ArrayLike,
    scale_matrix: ArrayLike,
    *,
    degrees_of_freedom: int,
    inverse_temperature: float,
) -> FloatArray:
    r"""Return the risk of a rank-one softmax head on long prompts in context.

    .. math::

        R(\mu) = nt - 2\lambda n[(n+1)B + tA] + \lambda^2 n(n+2) A[(n+3)B + tA], \qquad
        A = \mu^\top V\mu, \quad B = \mu^\top V^2\mu, \quad t = \operatorname{tr} V

    Parameters
    ----------
    mu
        The head's direction, (..., d).
    scale_matrix
        :math:`V` of the Wishart law of the prompts' covariances.
    degrees_of_freedom
        :math:`n` of that law.
    inverse_temperature
        :math:`\lambda > 0`.

    Returns
    -------
    risk
        One number a direction.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> float(in_context_pca_risk(
    ...     [0.0], [[2.0]], degrees_of_freedom=3, inverse_temperature=1.0))
    6.0
    """
    owner = "in_context_pca_risk"
    landscape = _in_context(
        scale_matrix, degrees_of_freedom, inverse_temperature, 1, owner=owner
    )
    return np.asarray(landscape.risk(_check_mu(mu, landscape, owner=owner)))


def in_context_pca_risk_gradient(
    mu: ArrayLike,
    scale_matrix: ArrayLike,
    *,
    degrees_of_freedom: int,
    inverse_temperature: float,
) -> FloatArray:
    r"""Return the gradient of :func:`in_context_pca_risk`, of the shape of `mu`.

    .. math::

        -4\lambda n[tV\mu + (n+1)V^2\mu] + 2\lambda^2 n(n+2)
        [(2tA + (n+3)B)V\mu + (n+3)A V^2\mu]

    Examples
    --------
    >>> in_context_pca_risk_gradient(
    ...     [0.0], [[2.0]], degrees_of_freedom=3, inverse_temperature=1.0)
    array([0.])
    """
    owner = "in_context_pca_risk_gradient"
    landscape = _in_context(
        scale_matrix, degrees_of_freedom, inverse_temperature, 1, owner=owner
    )
    return landscape.gradient(_check_mu(mu, landscape, owner=owner))


def _softmax(
    covariance: ArrayLike, inverse_temperature: float, rank: int, *, owner: str
) -> PCALandscape:
    subspace, matrix = _check_matrix("covariance", covariance, rank, owner=owner)
    sharp = check_positive("inverse_temperature", inverse_temperature, owner=owner)
    coefficients = Coefficients(float(np.trace(matrix)), 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)
    return PCALandscape(matrix, sharp, coefficients, subspace)


def _linear(
    covariance: ArrayLike,
    n_tokens: int,
    inverse_temperature: float,
    rank: int,
    *,
    owner: str,
) -> PCALandscape:
    subspace, matrix = _check_matrix("covariance", covariance, rank, owner=owner)
    n = check_count("n_tokens", n_tokens, owner=owner)
    sharp = check_positive("inverse_temperature", inverse_temperature, owner=owner)
    coefficients = _linear_coefficients(float(np.trace(matrix)), n)
    return PCALandscape(matrix, sharp, coefficients, subspace)


def _in_context(
    scale_matrix: ArrayLike,
    degrees_of_freedom: int,
    inverse_temperature: float,
    rank: int,
    *,
    owner: str,
) -> PCALandscape:
    subspace, matrix = _check_matrix("scale_matrix", scale_matrix, rank, owner=owner)
    n = check_count("degrees_of_freedom", degrees_of_freedom, owner=owner)
    sharp = check_positive("inverse_temperature", inverse_temperature, owner=owner)
    coefficients = _linear_coefficients(float(np.trace(matrix)), n).times(n)
    return PCALandscape(matrix, sharp, coefficients, subspace)


def _linear_coefficients(trace: float, n: int) -> Coefficients:
    # In order: the risk at 0; on a, b; on a², f, ab, g (see the linear landscape).
    quartic = trace, (n + 1) * trace, 2.0 * (n + 1), n**2 + 3.0 * n + 4
    return Coefficients(trace, trace, n + 1.0, *quartic)


def _check_matrix(
    name: str, matrix: ArrayLike, rank: int, *, owner: str
) -> tuple[PrincipalSubspace, FloatArray]:
    subspace = principal_subspace(matrix, rank, owner=owner, name=name)
    array = np.asarray(matrix, dtype=np.float64)
    return subspace, (array + array.T) / 2


def _check_mu(mu: ArrayLike, landscape: PCALandscape, *, owner: str) -> FloatArray:
    array = check_finite_array("mu", mu, owner=owner)
    if array.ndim < 1 or array.shape[-1] != landscape.d:
        contract = f"of shape (..., {landscape.d})"
        fail("mu", contract, Got(array.shape), owner=owner)
    return array
