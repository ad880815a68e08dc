"""Stochastic descent of a rank-k head on prompts of finite length."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_fit import (
    Product,
    chart,
    descend,
    whitened_head,
)
from eigenheads.estimators._attention_pca_rows import covariance_of
from eigenheads.functional import pca_prompt_loss

# Steps fall like t^(-2/3): slowly enough that the average of the iterates has the
# best rate without knowing the gap between variances.
_STEP, _UNTIL, _POWER = 0.2, 10.0, 2.0 / 3.0


# No update changes the scores by more than this share of their spread.
_LONGEST = 0.5


class Trained(NamedTuple):
    """The encoder M, the average of its iterates, and the number of updates."""

    encoder: FloatArray
    average: FloatArray
    n_updates: int


def train_on_prompts(
    state: Trained, prompts: NDArray[Any], mean: FloatArray, *, head: str
) -> Trained:
    """Make one update on a batch of prompts (n_prompts, n_tokens, d).

    The first batch also starts the head: in the limit of long prompts, whitened.
    """
    n_tokens, d = prompts.shape[1:]
    rows = prompts.reshape(-1, d)
    rounding = 10 * float(np.finfo(rows.dtype).eps)
    times = covariance_of([rows], mean)
    encoder = (
        state.encoder if state.n_updates else _start(times, state.encoder, rounding)
    )
    now = whitened_head(encoder, times(encoder), rounding)
    sharpness = 1.0 if head == "softmax" else 1.0 / n_tokens
    gradient = pca_prompt_loss(
        prompts - mean.astype(prompts.dtype),
        np.ascontiguousarray(encoder, dtype=prompts.dtype),
        inverse_temperature=sharpness,
        head=head,
    ).gradient.astype(np.float64)
    # With M = M̂C and whitened M̂ the step in M̂ is scaled by the columns' variances.
    mixing = now.decoder.T @ encoder
    change = gradient @ (mixing.T / now.lengths**2) @ mixing
    step = _STEP * (1 + state.n_updates / _UNTIL) ** -_POWER
    size = step * float(np.linalg.norm(now.decoder.T @ change))
    new = encoder - step * min(1.0, _LONGEST / max(size, _LONGEST)) * change
    n = state.n_updates + 1
    # Late iterates weigh more, so that the start is forgotten.
    average = chart(now, state.average)
    average = average + 2 / (n + 1) * (chart(now, new) - average)
    return Trained(new, average, n)


def _start(times: Product, encoder: FloatArray, rounding: float) -> FloatArray:
    found = descend(
        times,
        encoder,
        tolerances=lambda variances: 0.1 * variances,
        max_iter=20,
        rounding=rounding,
        report=lambda *_: None,
    ).directions
    return whitened_head(found, times(found), rounding).encoder
