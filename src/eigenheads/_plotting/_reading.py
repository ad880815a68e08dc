"""Readings of trained heads: every head beside what chance gives."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._plotting.heads import HeadMap, draw_head_map
from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
_NULL_COLORS = (GREY, ORANGE, GREEN)
# Half the width of a layer's column of heads.
_SPREAD = 0.3


@dataclass(frozen=True, eq=False)
class HeadStrip:
    """One number a head, layer by layer, with its nulls.

    Attributes
    ----------
    title
        Above the panel.
    values
        (layers, heads).
    layers
        What the layers are called.
    nulls
        By name, mean and standard deviation, (layers, heads) each; a band is drawn of
        two standard deviations about the layer's mean.
    references
        Horizontal lines, by name.
    is_log
        Whether the axis is logarithmic.
    has_map
        Whether a heat map of the values is drawn beside it.
    """

    title: str
    values: Numbers
    layers: Numbers
    nulls: Mapping[str, tuple[Numbers, Numbers]] = field(default_factory=dict)
    references: Mapping[str, float] = field(default_factory=dict)
    is_log: bool = False
    has_map: bool = False


def draw_strips(figure: "Figure", rows: Sequence[Sequence[HeadStrip]]) -> None:
    """Draw rows of strips; one with a map takes two columns."""
    n_columns = max(sum(2 if one.has_map else 1 for one in row) for row in rows)
    panels: Any = figure.subplots(len(rows), n_columns, squeeze=False)
    for row, line in zip(rows, panels, strict=True):
        free = list(line)
        for one in row:
            if one.has_map:
                values = np.log10(one.values) if one.is_log else one.values
                title = one.title + (", log10" if one.is_log else "")
                names = [int(layer) for layer in one.layers]
                draw_head_map(figure, free.pop(0), HeadMap(title, values), names)
            _strip(free.pop(0), one)
        for axes in free:
            axes.set_visible(False)
    known: dict[str, Any] = {}
    for axes in panels.ravel():
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            known.setdefault(label, handle)
    figure.legend(
        list(known.values()), list(known), loc="outside lower center", ncols=len(known)
    )


def _strip(axes: "Axes", one: HeadStrip) -> None:
    n_layers, n_heads = one.values.shape
    places = np.arange(n_layers)
    offsets = np.linspace(-_SPREAD, _SPREAD, n_heads) if n_heads > 1 else np.zeros(1)
    for color, (name, (mean, sd)) in zip(_NULL_COLORS, one.nulls.items(), strict=False):
        _band(axes, places, mean.mean(axis=1), sd.mean(axis=1), color, name)
    axes.plot(
        (places[:, None] + offsets).ravel(),
        one.values.ravel(),
        ".",
        color=BLUE,
        markersize=5,
        label="heads",
    )
    for style, (name, level) in zip(("--", ":"), one.references.items(), strict=False):
        axes.axhline(level, color=INK, linestyle=style, linewidth=1, label=name)
    if one.is_log:
        axes.set_yscale("log")
    axes.set_xticks(places, [str(int(layer)) for layer in one.layers])
    axes.set_xlim(-0.6, n_layers - 0.4)
    axes.set_xlabel("layer")
    axes.set_title(one.title, fontsize="small")


def _band(
    axes: "Axes", places: Any, mean: Numbers, sd: Numbers, color: str, name: str
) -> None:
    """Draw a box of two standard deviations for each layer."""
    for place, centre, spread in zip(places, mean, sd, strict=True):
        axes.fill_between(
            [place - 0.42, place + 0.42],
            centre - 2 * spread,
            centre + 2 * spread,
            color=color,
            alpha=0.3,
            linewidth=0,
            label=name if place == 0 else None,
        )
        axes.hlines(centre, place - 0.42, place + 0.42, color=color, linewidth=1)


def draw_reconstruction(
    figure: "Figure", table: Mapping[str, Numbers], n_layers: int
) -> None:
    """Draw loss, both norms and the ratio along training, a curve a layer."""
    loss, norms, ratio = figure.subplots(1, 3)
    steps = table["steps"]
    colors = (BLUE, ORANGE, GREEN, PURPLE)
    for layer in range(n_layers):
        color = colors[layer % len(colors)]
        feature, output = (
            table["feature_norm"][:, layer],
            table["output_norm"][:, layer],
        )
        loss.plot(steps, table["loss"][:, layer], color=color, label=f"layer {layer}")
        norms.plot(steps, output, color=color)
        norms.plot(steps, feature, color=color, linestyle="--")
        norms.plot(steps, table["mean_feature_norm"][:, layer], ":", color=color)
        ratio.plot(steps, output / feature, color=color)
        scaled = table["mean_output_norm"] / table["standardized_norm"]
        ratio.plot(steps, scaled[:, layer], color=color, linewidth=0.7)
    loss.axhline(0, color=INK, linewidth=0.8)
    loss.set_title("J = |feature|² − |output|², median token")
    loss.legend()
    norms.plot([], [], color=INK, label="|output|²")
    norms.plot([], [], color=INK, linestyle="--", label="|feature|²")
    norms.plot([], [], ":", color=INK, label="|feature|², mean token")
    norms.set_yscale("log")
    norms.set_title("both norms, median token")
    norms.legend()
    ratio.set_yscale("log")
    ratio.axhline(1e3, color=INK, linestyle="--", linewidth=1, label="the study's 10³")
    ratio.axhline(
        1, color=INK, linestyle=":", linewidth=1, label="largest if unit axes"
    )
    ratio.plot([], [], color=INK, linewidth=0.7, label="authors' program")
    ratio.set_title("|output|² / |feature|²")
    ratio.legend()
    for axes in (loss, norms, ratio):
        axes.set_xlabel("update")


def draw_probe_accuracy(
    figure: "Figure",
    curves: Mapping[str, Mapping[str, Numbers]],
) -> None:
    """Draw accuracy against depth, a panel a model and a curve a set.

    Parameters
    ----------
    figure
        Empty.
    curves
        By model, by set, the accuracy of the embedding and of each layer.
    """
    panels: Any = figure.subplots(1, len(curves), sharey=True, squeeze=False)[0]
    styles = ((GREY, "-"), (BLUE, "-"), (ORANGE, "-"), (GREEN, "-"), (PURPLE, "-"))
    for axes, (model, sets) in zip(panels, curves.items(), strict=True):
        for (color, style), (name, values) in zip(styles, sets.items(), strict=False):
            axes.plot(
                np.arange(len(values)),
                values,
                style,
                marker="o",
                markersize=4,
                color=color,
                label=name,
            )
        axes.axhline(0.5, color=INK, linestyle=":", linewidth=1)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel("layer (0: embedding)")
        axes.set_title(model)
    panels[0].set_ylabel("accuracy of the probe")
    panels[0].legend(loc="lower right")
