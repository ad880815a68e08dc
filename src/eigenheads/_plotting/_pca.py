"""Panels of attention-based PCA: alignment, loss, norm, sweeps."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._plotting.panels import show_steps
from eigenheads._plotting.svg import BLUE, COLORS, GREEN, GREY, INK, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Columns = Mapping[str, NDArray[np.float64]]


def draw_pca_curves(figure: "Figure", table: Columns, parts: Sequence[str]) -> None:
    """Draw panels by name, two a row: alignments first, then what explains them."""
    alignments = [part for part in parts if part in ("population", "finite")]
    panels = [("alignment", alignments)]
    panels += [(part, []) for part in parts if part not in alignments]
    if len(alignments) == 2:
        panels += [("loss", []), ("error", [])]
    n_rows = -(-len(panels) // 2)
    axes: Any = figure.subplots(n_rows, 2, squeeze=False).ravel()
    for panel, (name, shown) in zip(axes, panels, strict=False):
        if name == "alignment":
            _draw_alignment(panel, table, shown)
        else:
            _PANELS[name](panel, table)
    for panel in axes[len(panels) :]:
        panel.set_axis_off()


def _draw_alignment(axes: "Axes", table: Columns, shown: Sequence[str]) -> None:
    steps = table["steps"]
    names = {"population": ("descent of the risk", BLUE), "finite": ("SGD", ORANGE)}
    for part in shown:
        label, color = names[part]
        _band(axes, steps, table[f"{part}_alignment"], label, color)
    if "finite" in shown:
        mean = table["theory_alignment"].mean(axis=0)
        label = "theory for SGD's starts"
        axes.plot(steps, mean, "--", color=INK, linewidth=1.2, label=label)
    _alignment_axis(axes)
    axes.set_title("Alignment with the top eigenvector, mean and range of runs")
    axes.legend(loc="lower right")
    show_steps(axes)


def _draw_loss(axes: "Axes", table: Columns) -> None:
    steps = table["steps"]
    _band(axes, steps, table["finite_loss"], "SGD, loss of fresh prompts", ORANGE)
    mean = table["theory_risk"].mean(axis=0)
    axes.plot(steps, mean, "--", color=INK, linewidth=1.2, label="theory")
    axes.set(title="Loss", ylim=(0, None))
    axes.legend(loc="upper right")
    show_steps(axes)


def _draw_norm(axes: "Axes", table: Columns) -> None:
    steps = table["steps"]
    _band(axes, steps, table["population_norm"], "descent of the risk", BLUE)
    best = float(table["population_best_norm"][0])
    axes.axhline(best, color=INK, linestyle="--", linewidth=1.2, label="minimiser")
    axes.set_title("Norm of μ")
    axes.legend(loc="lower right")
    show_steps(axes)


def _draw_covariances(axes: "Axes", table: Columns) -> None:
    finals = table["covariance_alignments"]
    share = (np.arange(len(finals)) + 0.5) / len(finals)
    axes.plot(finals, share, color=GREEN, label=f"{len(finals)} draws of Σ")
    mine = float(table["population_alignment"][:, -1].mean())
    axes.axvline(mine, color=BLUE, linestyle=":", label="this figure's Σ (mean)")
    axes.set(title="Final alignment, infinite prompts, over Σ", xlabel="alignment")
    axes.set(ylabel="share of draws below", xlim=(0, 1.02), ylim=(0, 1))
    axes.legend(loc="upper left")


def _draw_error(axes: "Axes", table: Columns) -> None:
    steps = table["steps"]
    for part, label, color in (
        ("population", "descent of the risk", BLUE),
        ("finite", "SGD", ORANGE),
        ("theory", "theory for SGD's starts", INK),
    ):
        error = np.mean(1 - table[f"{part}_alignment"] ** 2, axis=0)
        style = "--" if part == "theory" else "-"
        axes.plot(steps, np.maximum(error, 1e-17), style, color=color, label=label)
    axes.set(title="What is missing, 1 − alignment², mean", yscale="log")
    axes.legend(loc="upper right")
    show_steps(axes)


_PANELS = {
    "error": _draw_error,
    "loss": _draw_loss,
    "norm": _draw_norm,
    "covariances": _draw_covariances,
}


def draw_pca_sweep(axes: "Axes", table: Columns, *, label: str) -> None:
    """Draw final alignments against one setting: runs, and theory on top.

    Columns ``setting``, ``alignment`` (settings × runs) and, where they exist,
    ``theory`` (one number a setting) and ``limit`` (one number).
    """
    setting, finals = table["setting"], table["alignment"]
    axes.plot(setting, finals, ".", color=BLUE, markersize=3, alpha=0.35)
    axes.plot(setting, np.median(finals, axis=1), "o-", color=BLUE, markersize=4)
    axes.plot([], [], "o-", color=BLUE, markersize=4, label="median of the runs")
    if "theory" in table:
        axes.plot(setting, table["theory"], "s--", color=INK, markersize=3, linewidth=1)
        axes.plot([], [], "s--", color=INK, markersize=3, label="theory, same starts")
    if "limit" in table:
        limit = float(table["limit"][0])
        axes.axhline(limit, color=INK, linestyle="--", linewidth=1, label="L → ∞")
    axes.set(title="Alignment when the run stops", xlabel=label)
    low = float(min(finals.min(), 1.0))
    axes.set_ylim(max(0.0, 1 - 1.15 * (1 - low)), 1 + 0.06 * (1 - low) + 1e-6)
    axes.legend(loc="lower right")


def draw_pca_quantiles(axes: "Axes", table: Columns, *, label: str) -> None:
    """Draw quantiles over covariances against one setting."""
    setting, quantiles = table["setting"], table["quantiles"]
    levels = ("5 %", "25 %", "50 %", "75 %", "95 %")
    for column, (level, color) in enumerate(zip(levels, COLORS, strict=True)):
        axes.plot(setting, quantiles[:, column], "o-", color=color, ms=3, label=level)
    axes.set(title="The same over many Σ: quantiles", xlabel=label)
    axes.set_ylim(None, 1.01)
    axes.legend(loc="lower left")


def draw_pca_ranks(figure: "Figure", table: Columns, ranks: Sequence[int]) -> None:
    """Draw the subspace error against steps for each rank: one panel a head."""
    axes = figure.subplots(1, 2, sharey=True)
    for panel, head in zip(axes, ("softmax", "linear"), strict=True):
        shades = np.linspace(0.25, 1.0, len(ranks))
        color = BLUE if head == "softmax" else ORANGE
        for rank, shade in zip(ranks, shades, strict=True):
            steps = table[f"{head}_steps"]
            error = 1 - table[f"{head}_alignment_{rank}"] ** 2
            mean = np.maximum(error.mean(axis=0), 1e-16)
            panel.plot(steps, mean, color=color, alpha=shade)
            theory = 1 - table[f"{head}_theory_{rank}"] ** 2
            shown = np.maximum(theory.mean(axis=0), 1e-16)
            panel.plot(steps, shown, "--", color=INK, linewidth=0.7, alpha=shade)
            panel.plot([], [], color=color, alpha=shade, label=f"k = {rank}")
        panel.plot([], [], "--", color=INK, linewidth=0.7, label="theory, same starts")
        panel.set(title=f"{head} head", yscale="log", ylim=(1e-7, 1.5))
        panel.legend(loc="lower left", ncols=2)
        show_steps(panel)
    axes[0].set_ylabel("subspace error, 1 − alignment²")


def draw_pca_laws(
    figure: "Figure", table: Columns, laws: Sequence[str], heads: Sequence[str]
) -> None:
    """Draw alignment, norm and explained share for each law and head, as dots."""
    axes = figure.subplots(1, 3, sharey=True)
    rows = np.arange(len(laws))[::-1]
    for index, head in enumerate(heads):
        color = (BLUE, ORANGE, GREEN, PURPLE, GREY)[index]
        height = rows + 0.3 - 0.15 * index
        for panel, name in zip(axes, ("alignment", "norm", "gain"), strict=True):
            panel.plot(table[name][:, index], height, "o", color=color, markersize=4)
        axes[0].plot([], [], "o", color=color, markersize=4, label=head)
        if "theory_norm" in table:
            spot = np.array([table["theory_norm"][index]]), height[:1]
            axes[1].plot(*spot, "|", color=INK, markersize=9)
            spot = np.array([table["theory_gain"][index]]), height[:1]
            axes[2].plot(*spot, "|", color=INK, markersize=9)
    axes[0].set_yticks(rows, list(laws))
    axes[0].set(title="Alignment with u₁", xlim=(-0.03, 1.03))
    axes[1].set(title="Norm of μ at the end")
    axes[2].set(title="Share of σ₁ explained")
    axes[2].axvline(1.0, color=INK, linestyle=":", linewidth=1)
    axes[1].plot([], [], "|", color=INK, markersize=9, label="theory, L → ∞")
    figure.legend(loc="outside lower center", ncols=len(heads) + 1)


def _alignment_axis(axes: "Axes") -> None:
    axes.set_ylim(-0.03, 1.05)


def _band(
    axes: "Axes",
    steps: NDArray[np.float64],
    curves: NDArray[np.float64],
    label: str,
    color: str,
) -> None:
    low, high = curves.min(axis=0), curves.max(axis=0)
    axes.fill_between(steps, low, high, color=color, alpha=0.18, linewidth=0)
    axes.plot(steps, curves.mean(axis=0), color=color, label=label)
