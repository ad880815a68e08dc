"""Risks of heads on tokens of a given covariance, for the figures of the paper."""

from typing import Any

from eigenheads.datasets import GaussianPrompts, SpikedWishartPrompts
from eigenheads.extend import FloatArray
from eigenheads.models import Trajectories
from eigenheads.theory import PCALandscape


def softmax_landscape(
    covariance: FloatArray, *, inverse_temperature: float, rank: int = 1
) -> PCALandscape:
    """Return the risk of a softmax head on infinitely long prompts."""
    law = GaussianPrompts(covariance)
    return PCALandscape(law, inverse_temperature=inverse_temperature, rank=rank)


def linear_landscape(
    covariance: FloatArray,
    *,
    n_tokens: int,
    inverse_temperature: float,
    rank: int = 1,
) -> PCALandscape:
    """Return the risk of a linear head on prompts of `n_tokens`."""
    law = GaussianPrompts(covariance, n_tokens)
    return PCALandscape(
        law, inverse_temperature=inverse_temperature, rank=rank, head="linear"
    )


def in_context_landscape(
    scale_matrix: FloatArray, *, degrees_of_freedom: int, inverse_temperature: float
) -> PCALandscape:
    """Return the risk of a softmax head on prompts with Wishart covariances."""
    law = SpikedWishartPrompts(len(scale_matrix), degrees_of_freedom=degrees_of_freedom)
    return PCALandscape(
        law, inverse_temperature=inverse_temperature, scale_matrix=scale_matrix
    )


def descend(landscape: PCALandscape, start: FloatArray, **options: Any) -> Trajectories:
    """Descend a risk from given starts."""
    return landscape.descend(start, **options)
