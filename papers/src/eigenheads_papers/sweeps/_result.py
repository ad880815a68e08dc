"""Result of a sweep: a table, its means over seeds, and a map."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads.extend import Got, check_choice, fail, html_table, require
from eigenheads_papers._settings import Value
from eigenheads_papers.sweeps._map import SweepMap

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """Result of a complete sweep.

    Attributes
    ----------
    key, preset
        Experiment and preset.
    axes
        Values of each parameter of the grid.
    seeds
        Seeds that ran at each point.
    table
        One row per cell, sorted by point, then seed. Columns are the parameters of the
        grid, ``seed``, and the measured numbers; NaN where parameters were refused.
    folder
        Folder of the table, the map and the plan.
    computed
        Number of cells that this call computed; the others were stored before.
    refused
        Distinct error messages of the points whose parameters were refused.
    damaged
        Files of the store that could not be read; their cells were computed again.
    drawing
        The map that :meth:`plot` draws; None if there is no axis, or too many panels.
    """

    key: str
    preset: str
    axes: Mapping[str, tuple[Value, ...]]
    seeds: tuple[int, ...]
    table: Mapping[str, NDArray[Any]]
    folder: Path
    computed: int
    refused: tuple[str, ...]
    damaged: tuple[Path, ...]
    drawing: SweepMap | None = field(default=None, repr=False, compare=False)

    @property
    def names(self) -> list[str]:
        """Names of the measured numbers."""
        return [name for name in self.table if name not in self.axes and name != "seed"]

    def over_seeds(self, name: str) -> NDArray[np.float64]:
        """Return a measured number as an array: one axis per parameter, then seeds."""
        check_choice("name", name, self.names, owner="SweepResult")
        shape = (*(len(values) for values in self.axes.values()), len(self.seeds))
        return np.asarray(self.table[name]).reshape(shape)

    def mean(self, name: str) -> NDArray[np.float64]:
        """Return the mean over seeds of a measured number, on the grid."""
        return np.asarray(self.over_seeds(name).mean(axis=-1))

    def plot(self) -> "Figure":
        """Return the map as a Matplotlib figure: heat maps, or curves over one axis.

        Panels of one quantity share a scale of colours, and grey points have no value.
        """
        if self.drawing is None:
            contract = "a sweep with an axis of two values, and at most 12 panels"
            got = Got(f"axes {', '.join(self.axes) or 'none'}")
            fail("grid", contract, got, owner="SweepResult.plot")
        return self.drawing.figure()

    def _repr_html_(self) -> str:
        """Return the means over seeds as a table for notebooks."""
        means = [self.mean(name).ravel() for name in self.names]
        first_rows = range(0, len(self.table["seed"]), len(self.seeds))
        rows = [
            [*(self.table[name][row] for name in self.axes)]
            + [f"{mean[point]:.4g}" for mean in means]
            for point, row in enumerate(first_rows)
        ]
        header = [*self.axes, *self.names]
        title = f"{self.key}, preset {self.preset}: means of {len(self.seeds)} seeds"
        notes = [f"Refused: {one}" for one in self.refused[:3]]
        return html_table(
            title, header, rows, notes=[*notes, str(self.folder)], n_texts=0
        )

    def to_frame(self) -> Any:
        """Return the table as a pandas DataFrame (extra ``frame``)."""
        owner = "SweepResult.to_frame"
        pandas = require("pandas", "pandas", extra="frame", owner=owner)
        return pandas.DataFrame(dict(self.table))
