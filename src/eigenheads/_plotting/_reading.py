"""Readings of trained heads: every head beside what chance gives."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._plotting.svg import BLUE, GREEN, GREY, INK, ORANGE, PURPLE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Numbers = NDArray[np.float64]
_NULL_COLORS = (GREY, ORANGE, GREEN)
# Half the width of a layer's column of heads.
_SPREAD = 0.3


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
