r"""Training of the head of AttentionPCA; no matrix beyond k by k is decomposed.

With infinitely long prompts the head of attention-based PCA is
:math:`T(x) = \Sigma M M^\top x` (λ = 1: it only scales M) with risk

.. math::

    R(M) = \operatorname{tr} \Sigma - 2 \operatorname{tr} M^\top \Sigma^2 M
         + \operatorname{tr} (M^\top \Sigma M)(M^\top \Sigma^2 M).

For a given span the best M has whitened scores, :math:`M^\top \Sigma M = I`. There,
with :math:`W = \Sigma M` and after a rotation that makes
:math:`W^\top W = \operatorname{diag}(b)`,

.. math::

    \nabla R = -2 (\Sigma W - W \operatorname{diag}(b)),

so an eigendirection with :math:`r = \sigma_j / b_i` in column i has the curvature
:math:`2 b_i^2\, r (1 - r) \le b_i^2 / 2`. The step :math:`2 / b_i^2` is the inverse of
this bound: it is the same whatever the scale of the data and however different the
columns' variances are.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_rows import (
    CovarianceProduct,
    RowMoments,
    Rows,
    RowsInMemory,
    StreamedRows,
    WeightedRows,
    covariance_of,
)
from eigenheads.functional._pca import pca_prompt_loss

# Inverse of the largest curvature, in units of the squared variance of a column.
_STEP = 2.0
# On finite prompts, steps fall like t^(-2/3): slowly enough that the average of the
# iterates has the best rate without knowing the gap between variances.
_PROMPT_STEP, _UNTIL, _POWER = 0.2, 10.0, 2.0 / 3.0
# No update changes the scores by more than this share of their spread.
_LONGEST = 0.5

RowSource: TypeAlias = RowsInMemory | StreamedRows | WeightedRows


class PrincipalSpan(NamedTuple):
    """Result of a descent.

    `directions` (d, k) are orthonormal and ordered, `variances` (k,) those of the data
    along them, `residuals` (k,) the lengths of Σu − variance·u.
    """

    directions: FloatArray
    variances: FloatArray
    residuals: FloatArray
    n_iter: int
    converged: bool


class _WhitenedHead(NamedTuple):
    """M with whitened scores, W = ΣM with orthogonal columns, their squared lengths."""

    encoder: FloatArray
    decoder: FloatArray
    lengths: FloatArray


def descend_risk(
    covariance_times: CovarianceProduct,
    start: FloatArray,
    *,
    tolerances: Callable[[FloatArray], FloatArray],
    max_iter: int,
    rounding: float,
    report: Callable[[int, FloatArray, FloatArray], None],
) -> PrincipalSpan:
    """Descend with momentum until every residual is within its tolerance.

    Parameters
    ----------
    covariance_times
        V ↦ ΣV for V of shape (d, k).
    start
        M before whitening, (d, k).
    tolerances
        Variances ↦ largest residuals at which to stop.
    max_iter
        Iterations at most; each takes two products.
    rounding
        Relative error of the products.
    report
        Called with iteration, variances and residuals.
    """
    point, previous, best, age = start, None, -math.inf, 1.0
    for iteration in range(1, max_iter + 1):
        # Stages of an iteration: whiten the head, test for convergence, make a gradient
        # step, and add momentum.
        basis = np.linalg.qr(point)[0]
        head = whitened_head(basis, covariance_times(basis), rounding)
        # The decoder is the encoder times Σ, which is one power iteration, so its span
        # is the better estimate.
        span, mixing = np.linalg.qr(head.decoder)
        image = covariance_times(span)
        rotated = _rotated(span, image, iteration)
        report(iteration, rotated.variances, rotated.residuals)
        if np.all(rotated.residuals <= tolerances(rotated.variances)):
            return rotated._replace(converged=True)
        # The risk of a whitened head is tr Σ minus this sum.
        value = float(head.lengths.sum())
        new = _step(head, image @ mixing)
        if previous is None or value < best:  # momentum led uphill: restart it
            point, age = new, 1.0
        else:
            # Nesterov's momentum: the earlier encoder is brought into the chart of this
            # head, because only bases in one chart may be subtracted.
            older = in_chart(head, previous)
            later = (1 + math.sqrt(1 + 4 * age * age)) / 2
            point = new + (age - 1) / later * (new - older)
            age = later
        previous, best = new, value
    return rotated


def whitened_head(
    basis: FloatArray, image: FloatArray, rounding: float
) -> _WhitenedHead:
    """Return the best head whose encoder spans the basis; k × k decompositions only."""
    gram = basis.T @ image
    # The first decomposition whitens the scores. The second makes the columns of the
    # decoder orthogonal.
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    values = np.maximum(values, _floor(values[-1], rounding))
    mixing = vectors / np.sqrt(values)
    decoder = image @ mixing
    lengths, rotation = np.linalg.eigh(decoder.T @ decoder)
    lengths = np.maximum(lengths, _floor(lengths[-1], rounding))[::-1]
    rotation = rotation[:, ::-1]
    return _WhitenedHead(basis @ (mixing @ rotation), decoder @ rotation, lengths)


def _floor(largest: float, rounding: float) -> float:
    """Return the number that replaces a variance of zero up to rounding."""
    return max(float(largest) * rounding, np.finfo(float).tiny ** 0.5)


def _step(head: _WhitenedHead, image: FloatArray) -> FloatArray:
    """Return the encoder after one preconditioned gradient step, in the chart."""
    gradient = -2 * (image - head.decoder * head.lengths)
    return in_chart(head, head.encoder - _STEP * gradient / head.lengths**2)


def in_chart(head: _WhitenedHead, encoder: FloatArray) -> FloatArray:
    r"""Return the basis of the same span with :math:`W^\top M = I`.

    Bases of nearby spans are then comparable, so that momentum may subtract them.
    """
    try:
        moved: Any = np.linalg.solve((head.decoder.T @ encoder).T, encoder.T).T
    except np.linalg.LinAlgError:  # fewer dimensions than columns
        return encoder
    usable: FloatArray = moved if np.isfinite(moved).all() else encoder
    return usable


def _rotated(span: FloatArray, image: FloatArray, n_iter: int) -> PrincipalSpan:
    """Return ordered directions within an orthonormal span, from a k × k matrix."""
    form = span.T @ image
    values, rotation = np.linalg.eigh((form + form.T) / 2)
    values, rotation = np.maximum(values[::-1], 0.0), rotation[:, ::-1]
    directions = span @ rotation
    residuals = np.linalg.norm(image @ rotation - directions * values, axis=0)
    return PrincipalSpan(directions, values, residuals, n_iter, converged=False)


class TrainedHead(NamedTuple):
    """The encoder M, the average of its iterates, and the number of updates."""

    encoder: FloatArray
    average: FloatArray
    n_updates: int


def train_on_prompts(
    state: TrainedHead, prompts: NDArray[Any], mean: FloatArray, *, head: str
) -> TrainedHead:
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
    inverse_temperature = 1.0 if head == "softmax" else 1.0 / n_tokens
    gradient = pca_prompt_loss(
        prompts - mean.astype(prompts.dtype),
        np.ascontiguousarray(encoder, dtype=prompts.dtype),
        inverse_temperature=inverse_temperature,
        head=head,
    ).gradient.astype(np.float64)
    # With M = M̂C and whitened M̂ the step in M̂ is scaled by the columns' variances.
    mixing = now.decoder.T @ encoder
    change = gradient @ (mixing.T / now.lengths**2) @ mixing
    step = _PROMPT_STEP * (1 + state.n_updates / _UNTIL) ** -_POWER
    # A long step is cut, so that a bad batch cannot destroy the head.
    size = step * float(np.linalg.norm(now.decoder.T @ change))
    new = encoder - step * min(1.0, _LONGEST / max(size, _LONGEST)) * change
    n = state.n_updates + 1
    # Late iterates have more weight, so that the start is forgotten.
    average = in_chart(now, state.average)
    average = average + 2 / (n + 1) * (in_chart(now, new) - average)
    return TrainedHead(new, average, n)


def _start(
    times: CovarianceProduct, encoder: FloatArray, rounding: float
) -> FloatArray:
    descended = descend_risk(
        times,
        encoder,
        tolerances=lambda variances: 0.1 * variances,
        max_iter=20,
        rounding=rounding,
        report=lambda *_: None,
    ).directions
    return whitened_head(descended, times(descended), rounding).encoder


@dataclass(frozen=True)
class PcaTraining:
    """Training from a start to ordered directions, with the estimator's settings."""

    head: str
    n_tokens: int | None
    batch_size: int
    tol: float
    max_iter: int
    report: Callable[[str], None]

    def fit(
        self, source: RowSource, start: FloatArray, random: np.random.RandomState
    ) -> PrincipalSpan:
        """Train on all rows of `source`."""
        if self.n_tokens is not None:
            return self._on_finite_prompts(source, start, random)
        # Prompts grow from some rows to all: early iterations need few rows.
        for n, times in source.growing(random):
            descended = self.descend(times, start, source.moments, source.dtype, n)
            start = descended.directions
        return descended

    def descend(
        self,
        covariance_times: CovarianceProduct,
        start: FloatArray,
        moments: RowMoments,
        dtype: np.dtype[Any],
        n: float,
        max_iter: int | None = None,
    ) -> PrincipalSpan:
        """Descend until the residual is below the noise of `n` of all rows."""
        rounding = 10 * float(np.finfo(dtype).eps)
        total = moments.squares / moments.n

        def tolerances(variances: FloatArray) -> FloatArray:
            # (Σ̂ − Σ)u has the length √(σ tr Σ / n) when n rows are drawn.
            noise = np.sqrt(variances * total / n) / 2 if n < moments.n else 0.0
            exact = self.tol * variances + rounding * variances[0]
            return np.maximum(exact, noise)

        def report(step: int, variances: FloatArray, residuals: FloatArray) -> None:
            worst = float(np.max(residuals / np.maximum(variances, 1e-300)))
            share = float(variances.sum()) / max(total, 1e-300)
            self.report(
                f"{n:.0f} rows, iteration {step}: explained variance ratio "
                f"{share:.6f}, relative residual {worst:.2e}"
            )

        return descend_risk(
            covariance_times,
            start,
            tolerances=tolerances,
            max_iter=self.max_iter if max_iter is None else max_iter,
            rounding=rounding,
            report=report,
        )

    def _on_finite_prompts(
        self, source: RowSource, start: FloatArray, random: np.random.RandomState
    ) -> PrincipalSpan:
        """Pass over the rows in prompts until the average of the heads converges.

        Rows of a stream are shuffled within each batch.
        """
        mean = source.moments.mean
        state, converged = TrainedHead(start, start, 0), False
        before = np.linalg.qr(start)[0]
        for epoch in range(1, self.max_iter + 1):
            for rows in source.parts():
                for prompts in self.prompts(rows, random.permutation(len(rows))):
                    state = train_on_prompts(state, prompts, mean, head=self.head)
            after = np.linalg.qr(state.average)[0]
            # This is the part of the new span outside the old one, column by column.
            moved = float(
                np.linalg.norm(after - before @ (before.T @ after), axis=0).max()
            )
            self.report(f"epoch {epoch}: the average moved by {moved:.2e}")
            before = after
            if moved <= self.tol:
                converged = True
                break
        # One exact iteration orders the directions and measures their variances.
        descended = self.descend(
            source.covariance(),
            state.average,
            source.moments,
            source.dtype,
            source.n,
            max_iter=1,
        )
        return descended._replace(n_iter=epoch, converged=converged)

    def prompts(self, rows: Rows, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield batches (n_prompts, n_tokens, d) of whole prompts."""
        length = min(int(self.n_tokens or 0), len(rows))
        # A batch holds whole prompts only; the rows that remain are left out.
        size = max(1, self.batch_size // length) * length
        usable = len(order) // length * length
        for first in range(0, usable, size):
            chosen = order[first : min(first + size, usable)]
            yield rows[chosen].reshape(-1, length, rows.shape[1])
