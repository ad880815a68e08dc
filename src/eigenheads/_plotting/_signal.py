"""Panels of signal recovery: paths, errors, schedules, sweeps, phase diagrams."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap
from numpy.typing import NDArray

from eigenheads._plotting._location import show_steps
from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]
# What the paper's public summary gives.
_PUBLISHED = 0.9965


def draw_signal_paths(
    figure: "Figure", table: Columns, dimensions: Sequence[int]
) -> None:
    """Draw alignment at two dimensions, the errors, and broken schedules."""
    axes: NDArray[Any] = figure.subplots(2, 2)
    for panel, d in zip(axes[0], dimensions, strict=True):
        _draw_alignment(panel, table, d)
    _draw_errors(axes[1, 0], table, dimensions)
    _draw_schedules(axes[1, 1], table, dimensions[0])


def _draw_alignment(axes: "Axes", table: Columns, d: int) -> None:
    steps, runs = table[f"steps_{d}"], np.abs(table[f"alignment_{d}"])
    low, high = np.percentile(runs, [2.5, 97.5], axis=0)
    axes.fill_between(steps, low, high, color=BLUE, alpha=0.2, linewidth=0)
    axes.plot(steps, runs.mean(axis=0), color=BLUE, label=f"{len(runs)} runs, mean")
    flow = table[f"flow_{d}"].mean(axis=0)
    axes.plot(steps, flow, "--", color=INK, linewidth=1.2, label="gradient flow")
    theory = table[f"theory_{d}"].mean(axis=0)
    axes.plot(steps, theory, ":", color=ORANGE, linewidth=1.8, label="mean path, noise")
    axes.set(title=f"Alignment |q·u|, {_dimension(d)}", ylim=(-0.03, 1.05))
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xlim(0, steps[-1])
    axes.set_xlabel("step")
    axes.legend(loc="lower right")


def _draw_errors(axes: "Axes", table: Columns, dimensions: Sequence[int]) -> None:
    for d, color in zip(dimensions, (BLUE, GREEN), strict=True):
        steps = table[f"steps_{d}"][1:]
        for name, style, label in (
            ("alignment", "-", "last query"),
            ("averaged", "--", "averaged"),
            ("theory", ":", "theory"),
        ):
            error = 1 - np.abs(table[f"{name}_{d}"]).mean(axis=0)[1:]
            ink = ORANGE if name == "theory" else color
            shown = f"{_dimension(d)}, {label}"
            axes.plot(steps, error, style, color=ink, label=shown)
    _mark_published(axes)
    axes.set(title="Error 1 − |q·u|", xscale="log", yscale="log", xlabel="step")
    axes.legend(loc="lower left", fontsize="x-small")


def _draw_schedules(axes: "Axes", table: Columns, d: int) -> None:
    for name, color, label in (
        (str(d), BLUE, "t⁻¹, the rule"),
        ("obeys", GREEN, "t⁻⁰·⁶"),
        ("too_slow", ORANGE, "constant: Σa² = ∞"),
        ("too_fast", PURPLE, "t⁻³: Σa < ∞"),
    ):
        steps = table[f"steps_{name}"]
        mean = np.abs(table[f"alignment_{name}"]).mean(axis=0)
        axes.plot(steps, mean, color=color, label=label)
    averaged = np.abs(table["averaged_obeys"]).mean(axis=0)
    axes.plot(
        table["steps_obeys"], averaged, "--", color=GREEN, label="t⁻⁰·⁶, averaged"
    )
    axes.set(title=f"Other decays of the step, d = {d}", ylim=(-0.03, 1.05))
    show_steps(axes)
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.5))


def draw_signal_sweep(
    figure: "Figure",
    table: Columns,
    dimensions: Sequence[int],
    *,
    label: str,
) -> None:
    """Draw the final error against one parameter of the law, and the steps it takes."""
    axes: NDArray[Any] = figure.subplots(1, 2)
    values = table["values"]
    for shift, (d, color) in enumerate(zip(dimensions, (BLUE, GREEN), strict=True)):
        error = 1 - np.abs(table[f"final_{d}"])
        at = values * (1.0 + 0.03 * (2 * shift - 1))
        axes[0].plot(at, error, ".", color=color, markersize=3, alpha=0.5)
        name = _dimension(d)
        axes[0].plot(at, error.mean(axis=1), "o-", color=color, label=name)
        averaged = 1 - np.abs(table[f"averaged_{d}"])
        axes[0].plot(at, averaged.mean(axis=1), "s--", color=color, markersize=4)
        axes[0].plot(at, table[f"theory_{d}"], ":", color=ORANGE)
        axes[1].plot(values, table[f"n_steps_{d}"], "o-", color=color, label=name)
    axes[0].plot([], [], "s--", color=GREY, markersize=4, label="averaged query")
    axes[0].plot([], [], ":", color=ORANGE, label="theory")
    _mark_published(axes[0])
    axes[0].set(title="Final error 1 − |q·u|", yscale="log")
    axes[0].set_ylim(top=3 * (1 - _PUBLISHED))
    axes[1].set(title="Steps the rule asks for", yscale="log")
    for panel in axes:
        panel.set(xlabel=label, xscale="log")
        panel.set_xticks(values, [f"{value:g}" for value in values])
        panel.xaxis.minorticks_off()
        panel.legend()


def _mark_published(axes: "Axes") -> None:
    error = 1 - _PUBLISHED
    axes.axhline(error, color=GREY, linewidth=1)
    where: Any = axes.get_yaxis_transform()
    text = axes.text(0.02, error * 1.04, "the paper's 0.9965", transform=where)
    text.set(color=GREY, ha="left", va="bottom")


def _dimension(d: int) -> str:
    return "d = " + f"{d:,}".replace(",", " ")


_METHODS = (
    ("head", "attention head, all tokens"),
    ("pca", "PCA of pooled tokens"),
    ("kurtosis", "kurtosis pursuit"),
    ("fastica", "FastICA (log cosh)"),
    ("one_pass", "attention head, one pass"),
)
_OUTCOMES = (
    ("nobody", GREY),
    ("all of them", BLUE),
    ("head and PCA", GREEN),
    ("head, not PCA", ORANGE),
    ("PCA, not head", PURPLE),
    ("kurtosis or ICA only", "#b0455a"),
)


def draw_signal_phases(figure: "Figure", table: Columns) -> None:
    """Draw who finds the direction over share and strength, with theory's lines."""
    axes: NDArray[Any] = figure.subplots(2, 3, sharex=True, sharey=True)
    for panel, (name, title) in zip(axes.flat, _METHODS, strict=False):
        image = _draw_cells(panel, table, table[name], cmap="viridis", vmin=0, vmax=1)
        panel.set_title(title)
        _draw_line(panel, table, "pca_line", INK)
    once = axes[1, 1]
    _draw_line(once, table, "escape_line", ORANGE)
    empty = np.isnan(table["one_pass"]).all(axis=1)
    if empty.any():
        note = "less than one\nsuch token\na prompt"
        once.text(0.02, 0.05, note, transform=once.transAxes, color=GREY, fontsize=8)
    figure.colorbar(
        image, ax=axes[1, :2], location="bottom", label="alignment |cos|", shrink=0.7
    )
    _draw_outcomes(axes[1, 2], table)
    for panel in axes[1]:
        panel.set_xlabel("informative tokens, percent")
    for panel in axes[:, 0]:
        panel.set_ylabel("strength θ")


def _draw_line(axes: "Axes", table: Columns, name: str, color: str) -> None:
    """Draw one of theory's lines with a white rim, to be seen on any cell."""
    axes.plot(table["line_share"], table[name], color="#ffffff", linewidth=2.6)
    axes.plot(table["line_share"], table[name], color=color)


def _draw_cells(axes: "Axes", table: Columns, cells: Any, **options: Any) -> Any:
    edges = [_edges(table[name]) for name in ("shares", "strengths")]
    image = axes.pcolormesh(*edges, np.asarray(cells).T, rasterized=False, **options)
    axes.set(xscale="log", yscale="log")
    axes.set_xlim(*edges[0][[0, -1]])
    axes.set_ylim(*edges[1][[0, -1]])
    percent = [f"{100 * share:.2g}" for share in table["shares"]]
    axes.set_xticks(table["shares"], percent)
    axes.set_yticks(table["strengths"], [f"{theta:g}" for theta in table["strengths"]])
    axes.minorticks_off()
    axes.grid(False)
    return image


def _draw_outcomes(axes: "Axes", table: Columns) -> None:
    colors = ListedColormap([color for _, color in _OUTCOMES])
    norm = BoundaryNorm(np.arange(len(_OUTCOMES) + 1) - 0.5, len(_OUTCOMES))
    _draw_cells(axes, table, table["outcome"], cmap=colors, norm=norm)
    axes.set_title("who finds it (|cos| ≥ 0.8)")
    for label, color in _OUTCOMES:
        axes.plot([], [], "s", color=color, label=label)
    axes.plot([], [], color=INK, label="PCA's threshold")
    axes.plot([], [], color=ORANGE, label="escape in one pass")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=2)


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    middle = np.sqrt(values[1:] * values[:-1])
    first, last = values[0] ** 2 / middle[0], values[-1] ** 2 / middle[-1]
    return np.concatenate([[first], middle, [last]])
