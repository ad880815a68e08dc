"""Attention of a fitted estimator on one bag: bars, marked words, or a heat map."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from eigenheads._checks import (
    Got,
    check_choice,
    check_count,
    check_finite_array,
    check_items,
    check_text,
    fail,
)
from eigenheads._plotting.svg import GREY, ORANGE, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_KINDS = ("bars", "text", "image")
# Points: size of words, width of one of their characters, height of a line.
_SIZE, _CHARACTER, _LEADING = 10.0, 6.02, 18.0
# Characters of a line in a new figure, and of a label below a bar.
_LINE, _LABEL = 70, 18
# Opacity of the patch with the largest weight over an image.
_OPAQUE = 0.7


@dataclass
class AttentionDisplay:
    """Weights of the tokens of one bag, drawn.

    Use :meth:`from_estimator` to create it from a fitted estimator.

    Parameters
    ----------
    weights
        Weight of each token.
    contributions
        What each token adds to the output, or None.
    labels
        Name of each token, such as its word, or None.
    patches
        Rows and columns of the grid that the tokens fill row by row, or None.
    image
        Image to draw below a heat map, or None.
    output
        Name of the output that contributions belong to.

    Attributes
    ----------
    ax_
        Axes of the last drawing.
    figure_
        Its figure.
    """

    weights: NDArray[Any]
    contributions: NDArray[Any] | None = None
    labels: Sequence[str] | None = None
    patches: tuple[int, int] | None = None
    image: Any = None
    output: str = "output"

    @classmethod
    def from_estimator(
        cls,
        estimator: Any,
        bag: Any,
        *,
        kind: str = "bars",
        labels: Sequence[str] | None = None,
        patches: tuple[int, int] | None = None,
        image: Any = None,
        head: int = 0,
        output: int = 0,
        ax: "Axes | None" = None,
    ) -> "AttentionDisplay":
        """Draw the attention of a fitted estimator on one bag.

        Parameters
        ----------
        estimator
            Fitted single-location estimator, a search of them, or a pipeline that ends
            with one.
        bag
            Array or DataFrame (n_tokens, n_features).
        kind
            ``"bars"``, one bar per token; ``"text"``, the words given by `labels`,
            marked by their weight; ``"image"``, a heat map of the grid `patches`.
        labels
            Name of each token.
        patches
            Rows and columns of the grid of tokens.
        image
            Image to draw below the heat map, as Matplotlib's ``imshow`` takes it.
        head, output
            Head to draw, and output (class or target) whose contributions are shown, if
            there are several.
        ax
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display
            The display, drawn.
        """
        model, (bag,) = last_estimator(estimator, [bag])
        if not hasattr(model, "attention") or not hasattr(model, "contributions"):
            contract = "a fitted estimator with `attention` and `contributions`"
            fail("estimator", contract, estimator)
        weights = _column(model.attention([bag])[0], head, "head")
        parts = _column(model.contributions([bag])[0], output, "output")
        classes = getattr(model, "classes_", None)
        name = "prediction"
        if classes is not None:
            chosen = classes[1] if len(classes) == 2 else classes[output]
            name = f"logit of {chosen}"
        display = cls(weights, parts, labels, patches, image, name)
        return display.plot(kind=kind, ax=ax)

    def plot(self, *, kind: str = "bars", ax: "Axes | None" = None) -> Any:
        """Draw the weights.

        Parameters
        ----------
        kind
            ``"bars"``, ``"text"`` or ``"image"``.
        ax
            Axes to draw on; None makes a new figure.

        Returns
        -------
        display
            The display itself.
        """
        check_choice("kind", kind, _KINDS)
        self._check(kind)
        if ax is not None and not all(hasattr(ax, one) for one in ("bar", "imshow")):
            fail("ax", "axes of Matplotlib, or None", ax)
        if ax is None:
            from matplotlib import pyplot as plt  # only for a figure of its own

            _, ax = plt.subplots(figsize=self._figure_size(kind), layout="constrained")
        {"bars": self._bars, "text": self._text, "image": self._image}[kind](ax)
        self.ax_ = ax
        self.figure_: Figure = ax.get_figure()  # type: ignore[assignment]
        return self

    def _figure_size(self, kind: str) -> tuple[float, float]:
        """Return width and height in inches."""
        if kind == "image":
            return 4.8, 4.0
        if kind == "text":
            last, _ = _word_places(self.labels or [], _LINE)[-1]
            return 6.4, 0.5 + (last + 1) * _LEADING / 72
        return 6.4, 2.8

    def _check(self, kind: str) -> None:
        n = len(self.weights)
        if self.labels is not None:
            self._check_labels(n)
        elif kind == "text":
            contract = 'the words of the bag, for kind="text"'
            fail("labels", contract, None)
        if self.image is not None:
            pixels = check_finite_array("image", self.image)
            if pixels.ndim not in (2, 3) or not pixels.size:
                got = Got(f"shape {pixels.shape}")
                fail("image", "an image of two or three axes", got)
        contract = f"rows and columns of {n} patches"
        if self.patches is not None:
            sides = check_items("patches", self.patches, contract)
            counts = [check_count("patches", side) for side in sides]
            if len(counts) != 2 or (kind == "image" and math.prod(counts) != n):
                fail("patches", contract, self.patches)
        elif kind == "image":
            fail("patches", contract, None)

    def _check_labels(self, n: int) -> None:
        contract = "one label per token"
        self.labels = check_items("labels", self.labels, contract)
        if len(self.labels) != n:
            got = Got(f"{len(self.labels)} labels for {n} tokens")
            fail("labels", contract, got)
        for one in self.labels:
            check_text("labels", one)

    def _bars(self, axes: "Axes") -> None:
        places = np.arange(len(self.weights))
        deciding = self._decides() & (places == np.abs(self.weights).argmax())
        axes.bar(places, self.weights, color=np.where(deciding, ORANGE, GREY))
        axes.set_axisbelow(True)
        axes.set_ylabel("attention weight")
        if self.labels is None:
            axes.set_xlabel("token")
        else:
            shown = [shorten(one) for one in self.labels]
            axes.set_xticks(places, shown, rotation=60, ha="right")
        self._name_deciding_token(axes)

    def _decides(self) -> bool:
        """Return whether one token has more weight than another, or is alone."""
        return len(self.weights) == 1 or bool(np.ptp(self.weights) > 0)

    def _name_deciding_token(self, axes: "Axes", *, is_image: bool = False) -> None:
        if self.contributions is None:
            return
        if not self._decides():
            title = f"No token decides: each has weight {self.weights[0]:.2f}"
            axes.set_title(title, fontsize="medium")
            return
        top = int(np.abs(self.weights).argmax())
        name = f"token {top}"
        if self.labels is not None:
            name += f" ({shorten(self.labels[top])})"
        elif is_image and self.patches is not None:
            row, column = divmod(top, self.patches[1])
            name += f" (row {row}, column {column})"
        axes.set_title(
            f"{name} has weight {self.weights[top]:.2f}{chr(10) if is_image else ' '}"
            f"and adds {self.contributions[top]:+.3g} to the {plain(self.output)}",
            fontsize="medium",
        )

    def _text(self, axes: "Axes") -> None:
        labels = list(self.labels or [])
        scale = np.abs(self.weights).max() or 1.0
        axes.set_axis_off()
        self._name_deciding_token(axes)
        if hasattr(axes.figure, "draw_without_rendering"):
            axes.figure.draw_without_rendering()  # the layout sets the width
        width = axes.get_window_extent().width / axes.figure.dpi * 72
        places = _word_places(labels, min(_LINE, int(width / _CHARACTER)))
        shares = np.abs(self.weights) / scale * self._decides()
        for word, weight, (line, column) in zip(labels, shares, places, strict=True):
            mark = {"facecolor": ORANGE, "alpha": 0.85 * float(weight), "pad": 1.5}
            axes.annotate(
                plain(word),
                (0, 1),
                (column * _CHARACTER, -(line + 0.5) * _LEADING),
                xycoords="axes fraction",
                textcoords="offset points",
                bbox={**mark, "edgecolor": "none"},
                family="monospace",
                size=_SIZE,
                va="center",
            )

    def _image(self, axes: "Axes") -> None:
        from matplotlib.colors import LinearSegmentedColormap, to_rgb

        rows, columns = self.patches or (1, len(self.weights))
        extent = (0.0, float(columns), float(rows), 0.0)
        heat = np.abs(self.weights).reshape(rows, columns)
        colours: Any = "inferno"
        if self.image is not None:
            axes.imshow(self.image, extent=extent, cmap="gray")
            # Patches without weight show the image as it is.
            ends = [(*to_rgb(ORANGE), opacity) for opacity in (0.0, _OPAQUE)]
            colours = LinearSegmentedColormap.from_list("weight", ends)
        drawn = axes.imshow(heat, extent=extent, cmap=colours, vmin=0.0)
        axes.figure.colorbar(drawn, ax=axes, label="attention weight")
        axes.set_axis_off()
        self._name_deciding_token(axes, is_image=True)


def last_estimator(estimator: Any, bags: Any) -> tuple[Any, Any]:
    """Return the estimator inside a search or a pipeline, and the bags that it gets."""
    model = getattr(estimator, "best_estimator_", estimator)
    steps = getattr(model, "steps", ())
    if steps:
        if len(steps) > 1:
            bags = model[:-1].transform(bags)
        model = getattr(model[-1], "best_estimator_", model[-1])
    return model, bags


def _word_places(words: Sequence[str], width: int) -> list[tuple[int, int]]:
    """Return line and column of each word, in lines of at most `width` characters."""
    places, line, column = [], 0, 0
    for word in words:
        if column and column + len(word) > width:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(word) + 1
    return places


def shorten(label: str, longest: int = _LABEL) -> str:
    """Return the beginning of a long label, to be drawn."""
    return plain(label if len(label) <= longest else label[: longest - 1] + "…")


def _column(values: NDArray[Any], index: int, name: str) -> NDArray[Any]:
    """Return one column of an array, which has one axis if there is one column."""
    if values.ndim == 1:
        values = values[:, None]
    last = values.shape[1] - 1
    check_count(name, index, minimum=0, maximum=last)
    return values[:, index]


def draw_weights(
    figure: "Figure", weights: Sequence[NDArray[Any]], titles: Sequence[str]
) -> None:
    """Draw the weights of several bags, one panel each."""
    grid = figure.subplots(len(weights), 1, squeeze=False, sharey=True)
    axes = grid[:, 0]
    for panel, one, title in zip(axes, weights, titles, strict=True):
        AttentionDisplay(one).plot(ax=panel)
        panel.set_title(title, fontsize="small")
        panel.set(xlabel="token" if panel is axes[-1] else "", ylabel="weight")
