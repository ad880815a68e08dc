"""Figures as SVG text, reproducible byte by byte, without pyplot's global state."""

import io
import re
from collections.abc import Callable
from html import escape
from typing import Any, NoReturn
from xml.parsers import expat

import matplotlib as mpl
from cycler import cycler
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from eigenheads._checks import Got, fail

# Text, axes and theory curves; replaced by the page's text colour in reports.
INK = "#101418"
# Readable on white and on near-black alike (contrast at least 3 to 1 on both).
BLUE, ORANGE, GREEN, PURPLE, GREY = (
    "#3b82c4",
    "#d9722e",
    "#2f9e6e",
    "#9a6bc9",
    "#868c95",
)
_WHITE = b'style="background: #ffffff" '
COLORS = (BLUE, ORANGE, GREEN, PURPLE, GREY)

_STYLE: Any = {
    "axes.edgecolor": INK,
    "axes.grid": True,
    "axes.labelcolor": INK,
    "axes.prop_cycle": cycler(color=COLORS),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titlesize": "medium",
    "figure.constrained_layout.use": True,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "grid.alpha": 0.15,
    "grid.color": INK,
    "legend.fontsize": "small",
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "svg.fonttype": "none",
    "svg.hashsalt": "eigenheads",
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
}


def plain(text: str) -> str:
    r"""Return a name that Matplotlib draws as it is, not as a formula between dollars.

    Examples
    --------
    >>> print(plain("$5 to $6"))
    \$5 to \$6
    """
    return text.replace("$", r"\$")


def render_svg(draw: Callable[[Figure], None], *, size: tuple[float, float]) -> bytes:
    """Return the SVG of what `draw` puts on an empty figure.

    Parameters
    ----------
    draw
        Fills the figure.
    size
        Width and height in inches.

    Returns
    -------
    svg
        A complete file with a white background; equal drawings give equal bytes.

    Examples
    --------
    >>> render_svg(lambda figure: None, size=(1.0, 1.0))[:5]
    b'<?xml'
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        FigureCanvasSVG(figure)
        draw(figure)
        buffer = io.BytesIO()
        # A date or a version would make equal drawings differ.
        metadata = {"Date": None, "Creator": None}
        figure.savefig(buffer, format="svg", transparent=True, metadata=metadata)
    return buffer.getvalue().replace(b"<svg ", b"<svg " + _WHITE, 1)


def render_figure(
    draw: Callable[[Figure], None], *, size: tuple[float, float], kind: str
) -> bytes:
    """Return what `draw` puts on an empty figure as ``"pdf"`` or ``"png"``."""
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        draw(figure)
        buffer = io.BytesIO()
        # A date would make equal drawings differ.
        metadata = {"CreationDate": None} if kind == "pdf" else None
        figure.savefig(buffer, format=kind, dpi=200, metadata=metadata)
    return buffer.getvalue()


def new_figure(draw: Callable[[Figure], None], *, size: tuple[float, float]) -> Figure:
    """Return a figure that `draw` has filled, in the style of the reports.

    Examples
    --------
    >>> new_figure(lambda figure: None, size=(2.0, 1.0)).get_size_inches()
    array([2., 1.])
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=size)
        draw(figure)
    return figure


def embedded_svg(svg: bytes, name: str) -> str:
    """Return a figure for the inside of a page.

    Transparent, in the page's text colour and width, its ids prefixed by `name`, so
    that several figures share a page. Only drawing elements are kept, so that a figure
    from elsewhere cannot run code or load anything.

    Examples
    --------
    >>> figure = render_svg(lambda figure: None, size=(1.0, 1.0))
    >>> embedded_svg(figure, "demo")[:4]
    '<svg'
    """
    return _Embedder(name).embed(svg)


# Everything that Matplotlib draws with; all else is left out of a page. Figures come
# from folders of results, which a stranger may have written.
_ELEMENTS = {"svg", "g", "defs", "path", "use", "text", "tspan", "clipPath", "rect"}
_ELEMENTS |= {"image"}
_NUMBERS = re.compile(r"[-+\d.eE,%\s]*(?:pt|px)?")
_ATTRIBUTES = {
    "clip-path": re.compile(r"url\(#([\w.-]+)\)"),
    "d": re.compile(r"[-+\d.eEMLHVCSQTAZmlhvcsqtaz,\s]*"),
    "height": _NUMBERS,
    "id": re.compile(r"[\w.-]+"),
    "style": re.compile(r"(?:[a-z-]+:[^;]*(?:;|$)\s*)*"),
    "transform": re.compile(
        r"(?:(?:rotate|translate|scale|matrix|skewX|skewY)\([-+\d.eE,\s]*\)\s*)*"
    ),
    "version": _NUMBERS,
    "viewBox": _NUMBERS,
    "width": _NUMBERS,
    "x": _NUMBERS,
    "xlink:href": re.compile(r"#([\w.-]+)|data:image/png;base64,[A-Za-z0-9+/=\s]*"),
    "y": _NUMBERS,
}
_PROPERTIES = {"fill", "fill-opacity", "font", "font-family", "font-size", "opacity"}
_PROPERTIES |= {
    "font-style",
    "font-weight",
    "stroke",
    "stroke-dasharray",
    "text-anchor",
}
_PROPERTIES |= {"stroke-dashoffset", "stroke-linecap", "stroke-linejoin"}
_PROPERTIES |= {"stroke-miterlimit", "stroke-opacity", "stroke-width"}
# No parentheses and no backslash: neither url(...) nor an escaped one.
_VALUE = re.compile(r"[-#\w.,%'\" +]*")
_LARGEST_FIGURE = 2**25
_DEEPEST = 64


class _Embedder:
    """Copies a figure element by element, and only what is on the lists above.

    No script, handler of events, style sheet, foreign object, link or address outside
    the page passes. A `use` may name a path only, so that none unfolds without end.
    """

    def __init__(self, name: str) -> None:
        self._prefix = name
        self._parts: list[str] = []
        self._open: list[str] = []
        self._n_left_out = 0
        self._is_start_open = False
        self._paths: set[str] = set()

    def embed(self, svg: bytes) -> str:
        start = svg.find(b"<svg")
        if start < 0 or len(svg) > _LARGEST_FIGURE:
            self._refuse("no <svg> in it" if start < 0 else f"{len(svg)} bytes")
        # Without the head of the file there is no document type, and no entity.
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        # The first pass collects the ids of paths, which a `use` may name in advance.
        parser.StartElementHandler = self._note_path
        self._parse(parser, svg[start:])
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        # The second pass copies what is allowed.
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        self._parse(parser, svg[start:])
        return "".join(self._parts)

    def _parse(self, parser: Any, text: bytes) -> None:
        try:
            parser.Parse(text, True)
        except (expat.ExpatError, ValueError) as error:
            self._refuse(str(error))

    def _refuse(self, why: str) -> NoReturn:
        got = Got(f"a figure of {self._prefix} that is none ({why})")
        hint = "`eigenheads reproduce` with --force draws it again."
        fail("figure", "an SVG drawing", got, owner="report", hint=hint)

    def _note_path(self, name: str, attributes: dict[str, str]) -> None:
        if name == "path" and "id" in attributes:
            self._paths.add(attributes["id"])

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        # The contents of a removed element are removed as well. The count
        # tells which end tag closes that element.
        if self._n_left_out or not self._is_allowed(name, attributes):
            self._n_left_out += 1
            return
        self._close_start()
        root = not self._open
        self._open.append(name)
        self._parts.append(f"<{name}")
        if root:  # in place of the style sheet that Matplotlib writes
            self._parts.append(' style="stroke-linejoin: round; stroke-linecap: butt"')
        for attribute, value in attributes.items():
            # The page sets the width; the viewBox keeps the proportions.
            if not (root and attribute in ("style", "width", "height")):
                self._attribute(attribute, value)
        self._is_start_open = True

    def _is_allowed(self, name: str, attributes: dict[str, str]) -> bool:
        # The outermost element must be <svg>, and no other one may be.
        is_nested = (name == "svg") is bool(self._open)
        if name not in _ELEMENTS or is_nested or len(self._open) > _DEEPEST:
            return False
        target = attributes.get("xlink:href", "")
        if name == "use":
            return target.startswith("#") and target[1:] in self._paths
        return name != "image" or target.startswith("data:")

    def _attribute(self, name: str, value: str) -> None:
        pattern = _ATTRIBUTES.get(name)
        found = pattern.fullmatch(value) if pattern else None
        if found is None:
            return
        if name == "style":
            value = "; ".join(
                part.strip()
                for part in value.split(";")
                if part.partition(":")[0].strip() in _PROPERTIES
                and _VALUE.fullmatch(part.partition(":")[2])
            ).replace(INK, "currentColor")
        elif name == "id":
            value = f"{self._prefix}-{value}"
        elif "#" in value:
            value = value.replace("#", f"#{self._prefix}-")
        self._parts.append(f' {name}="{escape(value, quote=True)}"')

    def _close_start(self) -> None:
        if self._is_start_open:
            self._parts.append(">")
            self._is_start_open = False

    def _end(self, name: str) -> None:
        if self._n_left_out:
            self._n_left_out -= 1
        elif self._is_start_open:
            self._parts.append("/>")
            self._is_start_open = False
            self._open.pop()
        else:
            self._parts.append(f"</{name}>")
            self._open.pop()

    def _characters(self, text: str) -> None:
        if self._n_left_out or not self._open:
            return
        self._close_start()
        if self._open[-1] in ("text", "tspan"):
            self._parts.append(escape(text))
        elif not text.strip():
            self._parts.append(text)
