"""One-sample moments of a model's gradient, by Monte Carlo with common numbers."""

import math
from dataclasses import dataclass

import numpy as np

from eigenheads._parallel import RunPool
from eigenheads._typing import FloatArray
from eigenheads.models._model import Model

# Samples of one thread's share; fixed, so that threads do not change a number.
_CHUNK = 1024


@dataclass(frozen=True)
class GradientMoments:
    r"""Moments at one state, in coordinates of a frame with m axes.

    Attributes
    ----------
    risk
        Mean of the loss.
    mean
        Mean of the gradient, (r, m): the gradient of the risk.
    covariance
        Covariance of the one-sample gradient inside the frame, (r, m, r, m).
    outside
        :math:`E\, g_a \cdot g_b` over the directions outside the frame, (r, r).
    products
        :math:`E\, g_a \cdot g_b` over all directions, (r, r).
    feature_covariance
        Covariance of the gradient's r m numbers and of the r² products
        :math:`g_a \cdot g_b` of one sample.
    """

    risk: float
    mean: FloatArray
    covariance: FloatArray
    outside: FloatArray
    products: FloatArray
    feature_covariance: FloatArray


def moments_at(
    model: Model,
    state: FloatArray,
    *,
    d: int,
    parameters: FloatArray,
    n_samples: int,
    seed: tuple[int, ...],
) -> GradientMoments:
    """Return the moments at weights in frame coordinates, from `n_samples` samples.

    One seed draws the same normals at every state: the result is a smooth function of
    the state, fit for differences and Newton's method.
    """
    r, m = state.shape
    n_chunks, size = math.ceil(n_samples / _CHUNK), r * m + r * r
    means, seconds = np.zeros((n_chunks, size)), np.zeros((n_chunks, size, size))
    outsides, losses = np.zeros((n_chunks, r, r)), np.zeros(n_chunks)
    law, sizes = model.law_numbers(d), model.sizes
    kernel = model.compiled.gradient_moments
    values = np.append(parameters, 0.0)

    def work(chunk: int) -> None:
        # Each chunk has a stream and memory of its own: threads may take chunks in any
        # order, and the sums do not change.
        sequence = np.random.SeedSequence(seed[0], spawn_key=(*seed[1:], chunk))
        count = min(_CHUNK, n_samples - chunk * _CHUNK)
        space = model.workspace(state, n_axes=m)
        losses[chunk] = kernel(
            np.random.Generator(np.random.SFC64(sequence)),
            space.state,
            values,
            float(d),
            law,
            space.constants,
            sizes,
            space.memory,
            space.work,
            count,
            means[chunk],
            seconds[chunk],
            outsides[chunk],
        )

    with RunPool(n_chunks) as pool:
        pool.each(work)
    mean = means.sum(axis=0) / n_samples
    lower = seconds.sum(axis=0) / n_samples
    second = lower + np.tril(lower, -1).T
    covariance = second - np.outer(mean, mean)
    return GradientMoments(
        risk=float(losses.sum() / n_samples),
        mean=mean[: r * m].reshape(r, m),
        covariance=covariance[: r * m, : r * m].reshape(r, m, r, m),
        outside=outsides.sum(axis=0) / n_samples,
        products=mean[r * m :].reshape(r, r),
        feature_covariance=covariance,
    )
