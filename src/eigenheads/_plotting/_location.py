"""Panels of the single-location system: risk, overlaps, paths, distance to M."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
# Distances below are rounding; a log axis needs a floor.
_FLOOR = 1e-17
# Runs end with |η| near 0 or near 1.
_SWAPPED = 0.9


def draw_location_panels(
    figure: "Figure", table: Columns, *, run_by_run: bool = False, n_rows: int = 2
) -> NDArray[Any]:
    """Draw the paper's four panels and return all axes, `n_rows` rows of two.

    Curves are means over runs with bands from the 2.5 to the 97.5 percentile, or
    every run by itself; where the table has theory, it is dashed on top. Runs that
    end with key and value swapped are drawn one by one, beside the band.
    """
    axes: NDArray[Any] = figure.subplots(n_rows, 2)
    swapped = np.abs(table["eta"][:, -1]) > _SWAPPED
    draw_excess_risk(axes[0, 0], table, _Runs(swapped, run_by_run))
    draw_overlaps(axes[0, 1], table, _Runs(swapped, run_by_run))
    draw_paths(axes[1, 0], table, swapped)
    draw_distance(axes[1, 1], table, _Runs(swapped, run_by_run))
    for panel in (axes[0, 0], axes[0, 1], axes[1, 1]):
        show_steps(panel)
    return axes


def draw_excess_risk(axes: "Axes", table: Columns, runs: "_Runs") -> None:
    """Draw excess risk against steps, with the oracle and the baselines."""
    steps = table["steps"]
    runs.draw(axes, steps, table["excess_risk"], "predictor", BLUE)
    if "theory_excess_risk" in table:
        mean = table["theory_excess_risk"].mean(axis=0)
        axes.plot(steps, mean, "--", color=INK, label="population theory (mean)")
    axes.plot(steps, table["oracle_excess"], ":", color=GREEN, label="oracle (k*, v*)")
    for name, label in (("linear_excess", "best linear"), ("null_excess", "null")):
        style = "-." if name == "linear_excess" else "-"
        level = float(table[name][0])
        axes.axhline(level, color=GREY, linestyle=style, linewidth=1, label=label)
    axes.set(title="Excess risk", yscale="log")
    axes.legend()


def draw_overlaps(axes: "Axes", table: Columns, runs: "_Runs") -> None:
    """Draw |κ| and |ν| against steps."""
    steps = table["steps"]
    for name, color in (("kappa", BLUE), ("nu", ORANGE)):
        label = "|κ| = |k·k*|" if name == "kappa" else "|ν| = |v·v*|"
        runs.draw(axes, steps, np.abs(table[name]), label, color)
        if f"theory_{name}" in table:
            mean = np.abs(table[f"theory_{name}"]).mean(axis=0)
            axes.plot(steps, mean, "--", color=INK, linewidth=1.2)
    if "theory_kappa" in table:
        axes.plot([], [], "--", color=INK, linewidth=1.2, label="theory (means)")
    axes.set(title="Overlap with the planted directions")
    axes.set_ylim(-0.03, 1.05)
    axes.legend(loc="center right")


def draw_paths(axes: "Axes", table: Columns, swapped: NDArray[np.bool_]) -> None:
    """Draw every run in the (κ, ν) square."""
    axes.plot(table["kappa"].T, table["nu"].T, color=BLUE, linewidth=0.7, alpha=0.6)
    if "theory_kappa" in table:
        theory = table["theory_kappa"].T, table["theory_nu"].T
        axes.plot(*theory, "--", color=INK, linewidth=0.6, alpha=0.6)
    axes.plot(table["kappa"][:, 0], table["nu"][:, 0], ".", color=GREY, label="start")
    for chosen, color, label in (
        (~swapped, ORANGE, f"end ({(~swapped).sum()} runs)"),
        (swapped, PURPLE, f"end, swapped ({swapped.sum()} runs)"),
    ):
        if chosen.any():
            final = table["kappa"][chosen, -1], table["nu"][chosen, -1]
            axes.plot(*final, "o", markersize=4, color=color, label=label)
    axes.set(title="Paths", xlabel="κ", ylabel="ν", xlim=(-1.1, 1.1), ylim=(-1.1, 1.1))
    axes.set_aspect("equal")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


def draw_distance(axes: "Axes", table: Columns, runs: "_Runs") -> None:
    """Draw the distance to the invariant manifold on a log axis."""
    squares = sum(table[name] ** 2 for name in ("theta", "eta", "rho"))
    distance = np.maximum(np.sqrt(squares), _FLOOR)
    runs.draw(axes, table["steps"], distance, "√(θ²+η²+ρ²)", BLUE)
    axes.set(title="Distance to the manifold")
    if distance.max() > _FLOOR:
        axes.set_yscale("log")
    else:
        axes.set_ylim(-1, 1)
    axes.legend()


def draw_vector_field(axes: "Axes", table: Columns) -> None:
    """Draw the flow on the manifold and its fixed points by kind."""
    kappa, nu = table["grid_kappa"], table["grid_nu"]
    axes.streamplot(
        kappa,
        nu,
        table["field_kappa"],
        table["field_nu"],
        color=GREY,
        linewidth=0.7,
        density=1.1,
        arrowsize=0.8,
    )
    kinds = (("sink", "o", GREEN), ("saddle", "X", ORANGE), ("source", "s", PURPLE))
    for number, (kind, marker, color) in enumerate(kinds):
        chosen = table["fixed_kind"] == number
        points = table["fixed_kappa"][chosen], table["fixed_nu"][chosen]
        axes.plot(*points, marker, color=color, label=kind, clip_on=False, zorder=3)
    axes.set(xlabel="κ", ylabel="ν", xlim=(-1.02, 1.02), ylim=(-1.02, 1.02))
    axes.set_aspect("equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3)


def show_steps(axes: "Axes") -> None:
    """Label the horizontal axis with few, short numbers of steps."""
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("step")


class _Runs:
    """How the runs of a panel are drawn: a band, or one by one."""

    def __init__(self, swapped: NDArray[np.bool_], run_by_run: bool) -> None:
        self.one_by_one = np.ones_like(swapped) if run_by_run else swapped
        self.swapped = swapped

    def draw(
        self,
        axes: "Axes",
        steps: NDArray[np.float64],
        curves: NDArray[np.float64],
        label: str,
        color: str,
    ) -> None:
        """Draw curves of shape (n_runs, n_records)."""
        band = curves[~self.one_by_one]
        if len(band):
            low, high = np.percentile(band, [2.5, 97.5], axis=0)
            axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
            axes.plot(steps, band.mean(axis=0), color=color)
        for run in np.flatnonzero(self.one_by_one):
            style = ":" if self.swapped[run] else "-"
            axes.plot(steps, curves[run], style, color=color, linewidth=0.7, alpha=0.7)
        axes.plot([], [], color=color, label=label)
