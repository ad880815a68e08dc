"""Search for a direction that few tokens carry: ascent of a query on the sphere."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.functional import signal_output, signal_output_gradient

Tokens = NDArray[np.floating[Any]]
# Directions along which the objective is measured to know how it varies by chance.
_N_RANDOM = 16


class Found(NamedTuple):
    """The best query of a search, and how it was found."""

    query: FloatArray
    objective: float
    inverse_temperature: float
    n_iter: int
    converged: bool


class Search(NamedTuple):
    """How to search: starts a sharpness, updates at most, when a query rests."""

    n_starts: int
    max_iter: int
    tol: float
    prompt_length: int


def cut_into_prompts(
    tokens: Tokens, length: int, random: np.random.RandomState
) -> Tokens:
    """Return prompts (n_prompts, n_tokens, d) of about `length` random tokens.

    Prompts have one length; fewer tokens than there are prompts stay out.
    """
    n_prompts = max(1, len(tokens) // length)
    n_tokens = len(tokens) // n_prompts
    chosen = random.permutation(len(tokens))[: n_prompts * n_tokens]
    return tokens[chosen].reshape(n_prompts, n_tokens, tokens.shape[1])


def search(
    tokens: Tokens,
    sharpnesses: Sequence[float],
    how: Search,
    random: np.random.RandomState,
) -> Found:
    """Return the query that stands out most, over all sharpnesses.

    A sharpness is judged by how far its objective exceeds the best one on Gaussian
    tokens of the same number and width, in units of its spread over random queries:
    a sharper head finds more in pure noise, too.
    """
    prompts = cut_into_prompts(tokens, how.prompt_length, random)
    starts = _starts(tokens, how.n_starts, random)
    if len(sharpnesses) == 1:
        return _climb_all(prompts, starts, sharpnesses[0], how)
    noise = random.standard_normal(tokens.shape).astype(tokens.dtype)
    in_noise = cut_into_prompts(noise, how.prompt_length, random)
    from_noise = _starts(noise, min(2, how.n_starts), random)
    lines = _normalised(random.standard_normal((_N_RANDOM, tokens.shape[1])))
    best, most = None, -np.inf
    for sharpness in sharpnesses:
        found = _climb_all(prompts, starts, sharpness, how)
        chance = _climb_all(in_noise, from_noise, sharpness, how)
        squares = [mean_square(in_noise, line, sharpness) for line in lines]
        spread = float(np.std(squares))
        excess = (found.objective - chance.objective) / max(spread, 1e-300)
        if best is None or excess > most:
            best, most = found, excess
    assert best is not None
    return best


def mean_square(prompts: Tokens, query: FloatArray, sharpness: float) -> float:
    """Return the mean squared length of the attention output."""
    outputs = signal_output(
        prompts, query.astype(prompts.dtype), inverse_temperature=sharpness
    )
    return float(np.mean(np.sum(outputs**2, axis=-1, dtype=np.float64)))


def _climb_all(
    prompts: Tokens, starts: FloatArray, sharpness: float, how: Search
) -> Found:
    climbs = (_climb(prompts, start, sharpness, how) for start in starts)
    return max(climbs, key=lambda found: found.objective)


def _climb(prompts: Tokens, query: FloatArray, sharpness: float, how: Search) -> Found:
    r"""Ascend from one start.

    The step is :math:`1 / (q \cdot g)`, for which the projected update
    :math:`q + a (I - q q^\top) g` is along the gradient :math:`g` itself.
    """
    iteration, converged = 0, False
    while iteration < how.max_iter and not converged:
        iteration += 1
        gradient = signal_output_gradient(
            prompts, query.astype(prompts.dtype), inverse_temperature=sharpness
        ).mean(axis=0, dtype=np.float64)
        length = float(np.linalg.norm(gradient))
        if not length > 0:  # all tokens are alike along q: nowhere to go
            converged = True
            break
        before, query = query, gradient / length
        converged = 1 - abs(float(before @ query)) <= how.tol
    value = mean_square(prompts, query, sharpness)
    return Found(query, value, sharpness, iteration, converged)


def _starts(tokens: Tokens, n: int, random: np.random.RandomState) -> FloatArray:
    """Return the longest tokens and random directions, half each, as unit rows.

    A rare token with a strong signal is long, and points along it.
    """
    drawn = random.standard_normal((n, tokens.shape[1]))
    lengths = np.einsum("ij,ij->i", tokens, tokens)
    longest = np.argsort(-lengths, kind="stable")[: n // 2]
    longest = longest[lengths[longest] > 0]
    drawn[: len(longest)] = tokens[longest]
    return _normalised(drawn)


def _normalised(rows: FloatArray) -> FloatArray:
    unit: FloatArray = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit
