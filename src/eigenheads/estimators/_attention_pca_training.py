"""How AttentionPCA trains its head: on growing prompts, or on finite ones."""

import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import check_choice, check_count, check_positive
from eigenheads._typing import FloatArray
from eigenheads.estimators._attention_pca_fit import Descent, Product, descend
from eigenheads.estimators._attention_pca_prompts import Trained, train_on_prompts
from eigenheads.estimators._attention_pca_rows import Moments, Rows, RowsInMemory
from eigenheads.estimators._attention_pca_stream import StreamedRows

_HEADS = ("softmax", "linear")
Source: TypeAlias = RowsInMemory | StreamedRows


class AbstractHeadTraining:
    """Training from a start to ordered directions; parameters are the estimator's."""

    n_components: int
    head: str
    n_tokens: int | None
    batch_size: int
    tol: float
    max_iter: int
    verbose: int

    @property
    def _owner(self) -> str:
        return type(self).__name__

    def _check_parameters(self, n_samples: int | None, d: int) -> None:
        owner = self._owner
        hint = f"The data have n_features={d}."
        maximum = d
        if n_samples is not None and n_samples < d:
            maximum, hint = n_samples, f"The data have n_samples={n_samples}."
        check_count(
            "n_components", self.n_components, owner=owner, maximum=maximum, hint=hint
        )
        check_choice("head", self.head, _HEADS, owner=owner)
        if self.n_tokens is not None:
            hint = "None is the limit of long prompts."
            check_count("n_tokens", self.n_tokens, owner=owner, minimum=2, hint=hint)
        check_count("batch_size", self.batch_size, owner=owner)
        check_count("max_iter", self.max_iter, owner=owner)
        check_positive("tol", self.tol, owner=owner)

    def _descend(
        self, source: Source, start: FloatArray, random: np.random.RandomState
    ) -> Descent:
        """Descend on prompts that grow from some rows to all."""
        for n, times in source.growing(random):
            found = self._run(times, start, source.moments, source.dtype, n)
            start = found.directions
        return found

    def _run(
        self,
        covariance_times: Product,
        start: FloatArray,
        moments: Moments,
        dtype: np.dtype[Any],
        n: int,
        max_iter: int | None = None,
    ) -> Descent:
        """Descend as far as `n` of all rows can tell."""
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
        self, source: Source, start: FloatArray, random: np.random.RandomState
    ) -> Descent:
        """Pass over the rows in prompts until the average of the heads rests.

        Rows that come in batches are mixed within them.
        """
        mean = source.moments.mean
        state, converged = Trained(start, start, 0), False
        before = np.linalg.qr(start)[0]
        for epoch in range(1, self.max_iter + 1):
            for rows in source.parts():
                for prompts in self._prompts(rows, random.permutation(len(rows))):
                    state = train_on_prompts(state, prompts, mean, head=self.head)
            after = np.linalg.qr(state.average)[0]
            moved = float(
                np.linalg.norm(after - before @ (before.T @ after), axis=0).max()
            )
            self._say(f"epoch {epoch}: the average moved by {moved:.2e}")
            before = after
            if moved <= self.tol:
                converged = True
                break
        found = self._run(
            source.covariance(),
            state.average,
            source.moments,
            source.dtype,
            source.n,
            max_iter=1,
        )
        return found._replace(n_iter=epoch, converged=converged)

    def _prompts(self, rows: Rows, order: NDArray[np.int64]) -> Iterator[NDArray[Any]]:
        """Yield batches (n_prompts, n_tokens, d); rows that fill no prompt wait."""
        length = min(int(self.n_tokens or 0), len(rows))
        size = max(1, self.batch_size // length) * length
        usable = len(order) // length * length
        for first in range(0, usable, size):
            chosen = order[first : min(first + size, usable)]
            yield rows[chosen].reshape(-1, length, rows.shape[1])
