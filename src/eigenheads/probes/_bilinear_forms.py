"""Bilinear forms of heads on the residual stream, and the overlap of subspaces."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from eigenheads._typing import FloatArray
from eigenheads.functional import effective_rank


@dataclass(frozen=True, eq=False)
class BilinearForm:
    r"""Symmetric part of :math:`A^\top B` per head, by its eigenvectors.

    Attributes
    ----------
    eigenvalues
        (heads, rank), largest first; about half of them are negative.
    eigenvectors
        (heads, d_model, rank), in columns.
    ranks
        Effective rank (entropy) of the singular values of :math:`A^\top B`, (heads,).
    width
        :math:`D`, rows of :math:`A` and :math:`B`.
    """

    eigenvalues: FloatArray
    eigenvectors: FloatArray
    ranks: FloatArray
    width: int

    @property
    def norm(self) -> FloatArray:
        """Frobenius norm, (heads,)."""
        return np.linalg.norm(self.eigenvalues, axis=-1)

    @cached_property
    def flat(self) -> FloatArray:
        """The forms as matrices, (heads, d_model squared)."""
        vectors = self.eigenvectors
        whole = (vectors * self.eigenvalues[:, None]) @ np.swapaxes(vectors, 1, 2)
        return whole.reshape(len(whole), -1)


def symmetric_form(left: FloatArray, right: FloatArray) -> BilinearForm:
    r"""Return :math:`(A^\top B + B^\top A)/2` of (heads, D, d_model) matrices.

    Its rank is at most 2D, and the d_model x d_model matrix is never formed: with
    :math:`(A^\top, B^\top) = QR` it is :math:`Q R J R^\top Q^\top / 2`, where :math:`J`
    swaps the two halves.
    """
    d = left.shape[1]
    both = np.concatenate([left, right], axis=1)
    # Reduce to the 2D directions in which the form lives.
    basis, triangle = np.linalg.qr(np.swapaxes(both, 1, 2))
    swapped = np.concatenate([triangle[..., d:], triangle[..., :d]], axis=-1)
    inner = triangle @ np.swapaxes(swapped, 1, 2) / 2
    # Symmetrised against rounding errors; eigenvalues come in ascending order.
    values, vectors = np.linalg.eigh((inner + np.swapaxes(inner, 1, 2)) / 2)
    singular = product_singular_values(left, right)
    return BilinearForm(
        values[:, ::-1],
        basis @ vectors[..., ::-1],
        effective_rank(singular),
        d,
    )


def product_singular_values(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the singular values of AᵀB, A and B of shape (..., D, d_model)."""
    # AᵀB = Q₁ R₁ R₂ᵀ Q₂ᵀ has the singular values of the small matrix R₁ R₂ᵀ.
    first = np.linalg.qr(np.swapaxes(left, -1, -2), mode="r")
    second = np.linalg.qr(np.swapaxes(right, -1, -2), mode="r")
    return np.linalg.svd(first @ np.swapaxes(second, -1, -2), compute_uv=False)


def overlap(first: FloatArray, second: FloatArray) -> FloatArray:
    r"""Return the mean squared cosine of the principal angles of two k-frames.

    :math:`\lVert U^\top E \rVert_F^2 / k` for orthonormal columns (..., d, k). The
    mean for two uniform subspaces is :math:`k/d`.
    """
    cross = np.swapaxes(first, -1, -2) @ second
    return np.einsum("...ij,...ij->...", cross, cross) / second.shape[-1]
