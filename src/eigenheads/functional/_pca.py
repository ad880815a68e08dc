"""Attention-based PCA: the principal subspace, and heads of rank one and k."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from eigenheads._arrays import erf, stable_softmax
from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_covariance,
    check_finite_array,
    check_float_arrays,
    check_number,
    fail,
)
from eigenheads._errors import public_call
from eigenheads._typing import Array, FloatArray

# --- The subspace --------------------------------------------------------------------


# Eigenvalues closer than this, relative to the largest, count as one.
_TIE = 1e-9


class NotIdentifiedWarning(UserWarning):
    """Warning: eigenvalues coincide, so a principal direction is not unique."""


def check_columns(directions: object, d: int) -> None:
    """Raise unless directions are columns (..., d, k) of finite numbers."""
    shape = check_finite_array("directions", directions).shape
    kind = getattr(directions, "dtype", np.dtype(float))
    if kind not in (np.float64, np.float32, np.int64):
        contract = "an array of NumPy of dtype float64 or float32"
        fail("directions", contract, Got(str(kind)))
    if len(shape) < 2 or shape[-2] != d or not 1 <= shape[-1] <= d:
        contract = f"columns, an array (..., {d}, k) with 1 <= k <= {d}"
        fail("directions", contract, Got(f"shape {shape}"))


@dataclass(frozen=True, eq=False)
class PrincipalSubspace:
    r"""Span of the eigenvectors of the `rank` largest eigenvalues, which may be tied.

    Attributes
    ----------
    eigenvalues
        All eigenvalues, largest first.
    eigenvectors
        In columns, in the same order.
    rank
        :math:`k`.
    n_certain
        Number of eigenvalues strictly above the k-th.
    n_candidates
        Number of eigenvalues that reach the k-th. It is larger than `rank` if the k-th
        and the next eigenvalue coincide; then only a part of their eigenspace belongs
        to the span.
    """

    eigenvalues: FloatArray
    eigenvectors: FloatArray
    rank: int
    n_certain: int
    n_candidates: int

    @property
    def is_identified(self) -> bool:
        """True if the principal subspace of dimension `rank` is unique."""
        return self.n_candidates == self.rank

    def warn_if_not_identified(self) -> None:
        """Warn (:class:`NotIdentifiedWarning`) if the subspace is not unique."""
        if self.is_identified:
            return
        n_tied = self.n_candidates - self.n_certain
        value = float(self.eigenvalues[self.rank - 1])
        warnings.warn(
            f"{public_call()}: {n_tied} eigenvalues equal {value:.6g}, so the "
            "principal direction among them is not identified. Alignment is measured "
            "with their eigenspace.",
            NotIdentifiedWarning,
            stacklevel=3,
        )

    def alignment(self, directions: FloatArray) -> FloatArray:
        r"""Return the alignment of columns (..., d, k) with the subspace, from 0 to 1.

        .. math::

            \sqrt{\tfrac1k \bigl(\lVert U_{>}^\top Q \rVert_F^2
            + \min(k - k_>, \lVert U_=^\top Q \rVert_F^2)\bigr)}

        with an orthonormal basis :math:`Q` of the columns, the :math:`k_>`
        eigenvectors :math:`U_>` strictly above the k-th eigenvalue and those that
        reach it, :math:`U_=`. Without ties it is the root mean square of the cosines
        of the principal angles; for k = 1 it is :math:`|\cos|` with the eigenspace.
        """
        check_columns(directions, len(self.eigenvectors))
        basis = np.linalg.qr(directions)[0]
        squares = np.square(np.swapaxes(basis, -1, -2) @ self.eigenvectors)
        share = squares.sum(axis=-2)
        certain = share[..., : self.n_certain].sum(axis=-1)
        tied = share[..., self.n_certain : self.n_candidates].sum(axis=-1)
        # No more directions of the tied eigenspace can belong to the span.
        tied = np.minimum(tied, self.rank - self.n_certain)
        return np.sqrt(np.minimum(1.0, (certain + tied) / self.rank))


def principal_subspace(
    covariance: ArrayLike, rank: int = 1, *, name: str = "covariance"
) -> PrincipalSubspace:
    r"""Return the principal subspace of a covariance, which may not be unique.

    Parameters
    ----------
    covariance
        :math:`\Sigma`, symmetric positive semi-definite, (d, d).
    rank
        Dimension k of the subspace.
    name
        Name of the matrix, for error messages.

    Returns
    -------
    subspace
        Eigenvalues and eigenvectors, with the number of ties.

    Examples
    --------
    >>> subspace = principal_subspace([[3.0, 0.0], [0.0, 1.0]])
    >>> float(subspace.alignment(np.array([[1.0], [1.0]])).round(4))
    0.7071
    """
    matrix = check_covariance(name, covariance)
    rank = check_count("rank", rank, maximum=len(matrix))
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    slack = _TIE * values[0]
    threshold = values[rank - 1]
    n_certain = int(np.sum(values > threshold + slack))
    n_candidates = int(np.sum(values >= threshold - slack))
    return PrincipalSubspace(
        values, np.ascontiguousarray(vectors), rank, n_certain, n_candidates
    )


# --- The head ------------------------------------------------------------------------


HEADS = ("softmax", "linear", "sigmoid", "erf", "relu")


def pca_head(
    tokens: Float[Array, "*batch n_tokens d"],
    directions: Float[Array, " d *rank"],
    *,
    inverse_temperature: float,
    head: str = "softmax",
) -> Float[Array, "*batch d"]:
    r"""Return the output of a head whose query is the first token of a prompt.

    The scores are :math:`s_k = \lambda\, x_1^\top M M^\top x_k` with one direction
    :math:`M = \mu` or several, and the values are the tokens themselves:

    .. math::

        T(X) = \sum_k \operatorname{softmax}_k(s)\, x_k, \qquad
        T_{\mathrm{linear}}(X) = \sum_k s_k\, x_k, \qquad
        T_\varphi(X) = \frac1L \sum_k \varphi(s_k)\, x_k

    Parameters
    ----------
    tokens
        Rows :math:`x_k^\top` of each prompt; all of them are keys and values, the
        first one too.
    directions
        :math:`\mu`, (d,), or the columns of :math:`M`, (d, k).
    inverse_temperature
        :math:`\lambda \ge 0`.
    head
        ``"softmax"``; ``"linear"`` (a sum, not a mean); or one activation per score,
        averaged: ``"sigmoid"``, ``"erf"``, ``"relu"``.

    Returns
    -------
    output
        One vector per prompt.

    Notes
    -----
    The output is invariant under permutations of tokens 2 to L and under rotations
    :math:`M \to MQ`. As :math:`\lambda \to 0`, the softmax weights become equal and the
    output is the mean of the tokens.

    References
    ----------
    .. [1] maulensoto2026.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[1.0, 2.0], [3.0, -4.0]])
    >>> pca_head(tokens, np.array([1.0, 0.0]), inverse_temperature=1.0, head="linear")
    array([ 10., -10.])
    """
    check_choice("head", head, HEADS)
    scale = check_number("inverse_temperature", inverse_temperature, minimum=0.0)
    xp = check_tokens_and_directions(tokens, directions)
    matrix = directions if directions.ndim == 2 else directions[:, None]
    # Projecting first avoids the matrix of features by features in the scores.
    projected = xp.matmul(tokens, matrix)
    scores = scale * xp.sum(projected * projected[..., :1, :], axis=-1)
    weights = _weights(xp, scores, head)
    return xp.sum(weights[..., None] * tokens, axis=-2)


def _weights(xp: Array, scores: Array, head: str) -> Array:
    if head == "linear":
        return scores
    if head == "softmax":
        return stable_softmax(scores)
    return _activation(xp, scores, head) / scores.shape[-1]


def _activation(xp: Array, scores: Array, head: str) -> Array:
    if head == "relu":
        return (scores + xp.abs(scores)) / 2
    if head == "sigmoid":  # this form cannot overflow
        return (1 + xp.tanh(scores / 2)) / 2
    return erf(scores)


class PromptLoss(NamedTuple):
    """Mean loss of prompts, and its gradient in the directions."""

    loss: Array
    gradient: Array


def pca_prompt_loss(
    tokens: Float[Array, "*batch n_tokens d"],
    directions: Float[Array, "d rank"],
    *,
    inverse_temperature: float,
    head: str = "softmax",
) -> PromptLoss:
    r"""Mean squared error of a head that reconstructs each token, with its gradient.

    Every token is the query in turn, with all tokens of its prompt as keys and values:
    tokens are exchangeable, so the mean is that of the first token as the only query,
    and the variance is smaller.

    .. math::

        \ell(M) = \frac1L \sum_i \lVert x_i - T_i \rVert^2, \qquad
        T_i = \sum_j p_{ij} x_j, \qquad
        p_i = \operatorname{softmax}(s_i) \text{ or } s_i, \qquad
        s_{ij} = \lambda\, x_i^\top M M^\top x_j

    Parameters
    ----------
    tokens
        Rows :math:`x_j^\top` of each prompt.
    directions
        Columns of :math:`M`.
    inverse_temperature
        :math:`\lambda \ge 0`.
    head
        ``"softmax"``, or ``"linear"`` (a sum, not a mean).

    Returns
    -------
    result
        ``loss``, the mean over tokens and prompts, and ``gradient`` in
        :math:`M`, (d, rank).

    See Also
    --------
    pca_head : the head's output for the first token.

    Notes
    -----
    With the errors :math:`e_i = x_i - T_i` and
    :math:`t_{ij} = \partial(-\ell)/\partial s_{ij} \cdot L/2`, that is
    :math:`e_i \cdot x_j` for the linear head and
    :math:`p_{ij} (e_i \cdot x_j - \sum_m p_{im}\, e_i \cdot x_m)` for softmax,

    .. math::

        \nabla \ell = -\frac{2 \lambda}{L} X^\top (t + t^\top) X M

    A linear head costs O(L d k); softmax O(L² d).

    References
    ----------
    .. [1] maulensoto2026; rank above one is ours.

    Examples
    --------
    >>> import numpy as np
    >>> tokens = np.array([[1.0, 0.0], [-1.0, 0.0]])
    >>> M = np.array([[1.0], [0.0]])
    >>> result = pca_prompt_loss(tokens, M, inverse_temperature=0.5, head="linear")
    >>> float(result.loss), float(np.abs(result.gradient).max())
    (0.0, 0.0)
    """
    check_choice("head", head, ("softmax", "linear"))
    scale = check_number("inverse_temperature", inverse_temperature, minimum=0.0)
    xp = check_tokens_and_directions(tokens, directions)
    if directions.ndim != 2 or 0 in (*directions.shape, *tokens.shape):
        contract = f"of shape ({tokens.shape[-1]}, rank) without empty axes"
        fail("directions", contract, Got(tuple(directions.shape)))
    projected = xp.matmul(tokens, directions)
    pull = _linear_pull if head == "linear" else _softmax_pull
    errors, by_query, by_key = pull(xp, tokens, projected, scale)
    n = 1
    for size in tokens.shape[:-1]:
        n *= size
    d, rank = directions.shape
    flat = xp.reshape(tokens, (-1, d))
    meeting = xp.reshape(by_query + by_key, (-1, rank))
    gradient = (-2 * scale / n) * xp.matmul(flat.T, meeting)
    return PromptLoss(xp.sum(errors * errors) / n, gradient)


def _linear_pull(
    xp: Array, tokens: Array, projected: Array, scale: float
) -> tuple[Array, Array, Array]:
    """Return the errors, and t Y and t′Y, without a matrix of tokens by tokens."""
    values = xp.matmul(_transposed(xp, tokens), projected)  # X′Y, (d, k)
    errors = tokens - scale * xp.matmul(projected, _transposed(xp, values))
    met = xp.matmul(_transposed(xp, errors), projected)
    return errors, xp.matmul(errors, values), xp.matmul(tokens, met)


def _softmax_pull(
    xp: Array, tokens: Array, projected: Array, scale: float
) -> tuple[Array, Array, Array]:
    scores = scale * xp.matmul(projected, _transposed(xp, projected))
    weights = stable_softmax(scores)
    errors = tokens - xp.matmul(weights, tokens)
    meeting = xp.matmul(errors, _transposed(xp, tokens))
    # The derivative of a softmax subtracts the weighted mean from each entry.
    mean = xp.sum(weights * meeting, axis=-1, keepdims=True)
    tangent = weights * (meeting - mean)
    by_query = xp.matmul(tangent, projected)
    return errors, by_query, xp.matmul(_transposed(xp, tangent), projected)


def _transposed(xp: Array, stack: Array) -> Array:
    return xp.matrix_transpose(stack)


def check_tokens_and_directions(tokens: Array, directions: Array) -> Array:
    """Return the arrays' library, or raise unless they are prompts and M."""
    xp = check_float_arrays(tokens=tokens, directions=directions)
    if directions.dtype != tokens.dtype:
        contract = f"of the dtype of `tokens`, {tokens.dtype}"
        got = Got(directions.dtype)
        fail("directions", contract, got, error=TypeError)
    if tokens.ndim < 2 or tokens.shape[-2] < 1:
        contract = "of shape (..., n_tokens, d) with n_tokens >= 1"
        fail("tokens", contract, Got(tuple(tokens.shape)))
    if directions.ndim not in (1, 2) or directions.shape[0] != tokens.shape[-1]:
        d = tokens.shape[-1]
        contract = f"of shape ({d},) or ({d}, k), the width of `tokens` first"
        fail("directions", contract, Got(tuple(directions.shape)))
    return xp
