"""How AttentionPCA trains its head: on growing prompts, or on finite ones."""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_fit import Descent, Product, descend
from eigenheads.estimators._attention_pca_prompts import Trained, train_on_prompts
from eigenheads.estimators._attention_pca_rows import (
    Moments,
    Rows,
    blocks_of,
    covariance_of,
    growing_prompts,
)


class AbstractHeadTraining:
    """Training from a start to ordered directions; parameters are the estimator's."""

    head: str
    n_tokens: int | None
    batch_size: int
    tol: float
    max_iter: int
    verbose: int

    def _descend(
        self,
        rows: Rows,
        moments: Moments,
        start: FloatArray,
        random: np.random.RandomState,
    ) -> Descent:
        """Descend on prompts that grow from some rows to all."""
        for prompt in growing_prompts(rows, self.batch_size, random):
            n = sum(len(block) for block in prompt)
            mean = moments.mean
            found = self._run(covariance_of(prompt, mean), start, moments, rows, n)
            start = found.directions
        return found

    def _run(
        self,
        covariance_times: Product,
        start: FloatArray,
        moments: Moments,
        rows: Rows,
        n: int,
        max_iter: int | None = None,
    ) -> Descent:
        """Descend as far as `n` of all rows can tell."""
        rounding = 10 * float(np.finfo(rows.dtype).eps)
        total = moments.squares / moments.n

        def tolerances(variances: FloatArray) -> FloatArray:
            # (Σ̂ − Σ)u has the length √(σ tr Σ / n) when n rows are drawn.
            noise = np.sqrt(variances * total / n) / 2 if n < moments.n else 0.0
            exact = self.tol * variances + rounding * variances[0]
            return np.maximum(exact, noise)

        def report(step: int, variances: FloatArray, residuals: FloatArray) -> None:
            worst = float(np.max(residuals / np.maximum(variances, 1e-300)))
            share = float(variances.sum()) / max(total, 1e-300)
            self._say(
                f"{n} rows, iteration {step}: explained variance ratio {share:.6f}, "
                f"relative residual {worst:.2e}"
            )

        return descend(
            covariance_times,
            start,
            tolerances=tolerances,
            max_iter=self.max_iter if max_iter is None else max_iter,
            rounding=rounding,
            report=report,
        )

    def _say(self, message: str) -> None:
        if self.verbose:
            sys.stdout.write(f"{type(self).__name__}: {message}\n")

    def _train(
        self,
        rows: Rows,
        moments: Moments,
        start: FloatArray,
        random: np.random.RandomState,
    ) -> Descent:
        """Pass over the rows in prompts until the average of the heads rests."""
        state, converged = Trained(start, start, 0), False
        before = np.linalg.qr(start)[0]
        for epoch in range(1, self.max_iter + 1):
            shuffled = random.permutation(len(rows))
            for prompts in self._prompts(rows, shuffled):
                state = train_on_prompts(state, prompts, moments.mean, head=self.head)
            after = np.linalg.qr(state.average)[0]
            moved = float(
                np.linalg.norm(after - before @ (before.T @ after), axis=0).max()
            )
            self._say(f"epoch {epoch}: the average moved by {moved:.2e}")
            before = after
            if moved <= self.tol:
                converged = True
                break
        times = covariance_of(list(blocks_of(rows, self.batch_size)), moments.mean)
        found = self._run(times, state.average, moments, rows, len(rows), max_iter=1)
        return found._replace(n_iter=epoch, converged=converged)

    def _prompts(self, rows: Rows, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield batches (n_prompts, n_tokens, d); rows that fill no prompt wait."""
        length = min(int(self.n_tokens or 0), len(rows))
        size = max(1, self.batch_size // length) * length
        usable = len(order) // length * length
        for first in range(0, usable, size):
            chosen = order[first : min(first + size, usable)]
            yield rows[chosen].reshape(-1, length, rows.shape[1])
