"""The principal subspace of a covariance, ties included, and alignment with it."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from eigenheads._checks import Got, check_count, check_finite_array, fail
from eigenheads._typing import FloatArray

# Relative to the largest entry or eigenvalue: what rounding may do.
_ROUNDING = 1e-10
# Eigenvalues closer than this, relative to the largest, count as one.
_TIE = 1e-9


class NotIdentifiedWarning(UserWarning):
    """Warning: eigenvalues coincide, so a principal direction is not unique."""


def check_covariance(name: str, value: object, *, owner: str) -> FloatArray:
    """Return a symmetric positive semi-definite matrix that is not 0, or raise."""
    matrix = check_finite_array(name, value, owner=owner)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        fail(name, "a square matrix (d, d)", matrix, owner=owner)
    largest = float(np.abs(matrix).max())
    gap = float(np.abs(matrix - matrix.T).max())
    if gap > _ROUNDING * largest:
        got = Got(f"entries that differ from their mirror image by up to {gap:.3g}")
        hint = "Pass (C + C.T) / 2 if the difference is rounding."
        fail(name, "a symmetric matrix", got, owner=owner, hint=hint)
    # With exact symmetry it does not matter which triangle `eigh` reads.
    matrix = (matrix + matrix.T) / 2
    smallest = float(np.linalg.eigvalsh(matrix)[0])
    if smallest < -_ROUNDING * largest:
        got = Got(f"smallest eigenvalue {smallest:.3g}")
        fail(name, "a positive semi-definite matrix", got, owner=owner)
    if largest == 0:
        fail(name, "a matrix that is not zero", matrix, owner=owner)
    return matrix


def check_columns(directions: object, d: int) -> None:
    """Raise unless directions are columns (..., d, k) of finite numbers."""
    owner = "PrincipalSubspace.alignment"
    shape = check_finite_array("directions", directions, owner=owner).shape
    kind = getattr(directions, "dtype", np.dtype(float))
    if kind not in (np.float64, np.float32, np.int64):
        contract = "an array of NumPy of dtype float64 or float32"
        fail("directions", contract, Got(str(kind)), owner=owner)
    if len(shape) < 2 or shape[-2] != d or not 1 <= shape[-1] <= d:
        contract = f"columns, an array (..., {d}, k) with 1 <= k <= {d}"
        fail("directions", contract, Got(f"shape {shape}"), owner=owner)


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

    def warn_if_not_identified(self, *, owner: str) -> None:
        """Warn (:class:`NotIdentifiedWarning`) if the subspace is not unique."""
        if self.is_identified:
            return
        n_tied = self.n_candidates - self.n_certain
        value = float(self.eigenvalues[self.rank - 1])
        warnings.warn(
            f"{owner}: {n_tied} eigenvalues equal {value:.6g}, so the principal "
            "direction among them is not identified. Alignment is measured with "
            "their eigenspace.",
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
    covariance: ArrayLike,
    rank: int = 1,
    *,
    owner: str = "principal_subspace",
    name: str = "covariance",
) -> PrincipalSubspace:
    r"""Return the principal subspace of a covariance, which may not be unique.

    Parameters
    ----------
    covariance
        :math:`\Sigma`, symmetric positive semi-definite, (d, d).
    rank
        Dimension k of the subspace.
    owner, name
        Name of the caller and of the matrix, for error messages.

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
    matrix = check_covariance(name, covariance, owner=owner)
    rank = check_count("rank", rank, owner=owner, maximum=len(matrix))
    values, vectors = np.linalg.eigh(matrix)
    values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1]
    slack = _TIE * values[0]
    threshold = values[rank - 1]
    n_certain = int(np.sum(values > threshold + slack))
    n_candidates = int(np.sum(values >= threshold - slack))
    return PrincipalSubspace(
        values, np.ascontiguousarray(vectors), rank, n_certain, n_candidates
    )
