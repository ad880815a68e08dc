"""Outlying rows of a robust PCA, and the cells that make them so."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import Got, check_choice, check_count, check_items, fail
from eigenheads._plotting.bags import shorten
from eigenheads._plotting.svg import GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = ("rows", "cells")
# Columns with their names below the map, at most; longest name.
_NAMED, _LONGEST = 40, 24


@dataclass
class OutlierDisplay:
    """Rows by their two distances, or the cells of the most outlying rows.

    Use :meth:`from_estimator` to create it from a fitted :class:`RobustPCA`.

    Parameters
    ----------
    distances
        Distance of each row from its low-rank part.
    score_distances
        Distance of its low-rank part from the mean, in deviations of the components.
    threshold
        Rows of larger distance are outliers.
    cells
        Errors of the cells, one row per row.
    names
        Name of each column, or None.

    Attributes
    ----------
    ax_
        Axes of the last drawing.
    figure_
        Its figure.
    """

    distances: NDArray[Any]
    score_distances: NDArray[Any]
    threshold: float
    cells: NDArray[Any]
    names: Sequence[str] | None = None

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        X: Any,
        *,
        kind: str = "rows",
        n_rows: int = 20,
        ax: "Axes | None" = None,
    ) -> "OutlierDisplay":
        """Draw rows, or their wrong cells, under a fitted robust PCA.

        Parameters
        ----------
        estimator
            Fitted :class:`RobustPCA`.
        X
            Rows of shape (n_samples, n_features), a DataFrame to name the columns; NaN
            where a value is missing.
        kind
            ``"rows"``: each row by the distance of its low-rank part from the mean and
            its own from the low-rank part, with the threshold of `predict`.
            ``"cells"``: a map of the errors of the most outlying rows.
        n_rows
            Rows of the map of cells, at most.
        ax
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display
            The display, drawn.
        """
        if not hasattr(estimator, "sparse_of") or not hasattr(estimator, "offset_"):
            fail("estimator", "a fitted RobustPCA", estimator)
        deviations = np.sqrt(estimator.explained_variance_)
        scores = estimator.transform(X)
        names = getattr(X, "columns", getattr(estimator, "feature_names_in_", None))
        display = cls(
            -estimator.score_samples(X),
            np.linalg.norm(scores / deviations, axis=1),
            -estimator.offset_,
            estimator.sparse_of(X),
            None if names is None else [str(name) for name in names],
        )
        return display.plot(kind=kind, n_rows=n_rows, ax=ax)

    def plot(
        self, *, kind: str = "rows", n_rows: int = 20, ax: "Axes | None" = None
    ) -> "OutlierDisplay":
        """Draw the rows or the cells.

        Parameters
        ----------
        kind
            ``"rows"`` or ``"cells"``.
        n_rows
            Rows of the map of cells, at most.
        ax
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display
            The display itself.
        """
        check_choice("kind", kind, _KINDS)
        count = min(check_count("n_rows", n_rows), len(self.distances))
        if self.names is not None:
            contract = f"one name for each of {self.cells.shape[1]} columns"
            self.names = check_items("names", self.names, contract)
            if len(self.names) != self.cells.shape[1]:
                fail("names", contract, Got(f"{len(self.names)} names"))
        if ax is not None and not all(hasattr(ax, one) for one in ("plot", "imshow")):
            fail("ax", "axes of Matplotlib, or None", ax)
        if ax is None:
            from matplotlib import pyplot as plt  # only for a figure of its own

            size = (5.6, 4.0) if kind == "rows" else (7.2, 2.2 + 0.16 * count)
            _, ax = plt.subplots(figsize=size, layout="constrained")
        if kind == "rows":
            self._rows(ax)
        else:
            self._cells(ax, count)
        self.ax_ = ax
        self.figure_: Figure = ax.get_figure()  # type: ignore[assignment]
        return self

    def _rows(self, axes: "Axes") -> None:
        is_out = self.distances > self.threshold
        for rows, colour, label in (
            (~is_out, GREY, "other rows"),
            (is_out, ORANGE, "outliers"),
        ):
            axes.plot(
                self.score_distances[rows],
                self.distances[rows],
                "o",
                markersize=3.5,
                alpha=0.7,
                color=colour,
                label=f"{label} ({rows.sum()})",
            )
        if np.isfinite(self.threshold):
            axes.axhline(self.threshold, color=ORANGE, linestyle="--", linewidth=1)
        axes.set_xlabel("distance from the mean along the components")
        axes.set_ylabel("distance from the low-rank part")
        axes.set_ylim(bottom=0)
        axes.legend()

    def _cells(self, axes: "Axes", count: int) -> None:
        order = np.argsort(-self.distances, kind="stable")[:count]
        cells = self.cells[order]
        largest = float(np.abs(cells).max(initial=0.0)) or 1.0
        drawn = axes.imshow(
            cells, cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto"
        )
        axes.figure.colorbar(drawn, ax=axes, label="error")
        axes.grid(False)
        axes.set_yticks(np.arange(count), [str(row) for row in order])
        axes.set_ylabel("row, most outlying first")
        if self.names is None or len(self.names) > _NAMED:
            axes.set_xlabel("column")
            return
        shown = [shorten(name, _LONGEST) for name in self.names]
        axes.set_xticks(np.arange(len(shown)), shown, rotation=90)
