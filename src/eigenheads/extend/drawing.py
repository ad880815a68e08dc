"""Figures of packages that build on this one: style, colours, SVG text, head maps."""

from eigenheads._plotting.heads import HeadMap, draw_head_map, draw_head_maps
from eigenheads._plotting.svg import (
    BLUE,
    COLORS,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    data_address,
    new_figure,
    render_figure,
    render_svg,
)

__all__ = [
    "BLUE",
    "COLORS",
    "GREEN",
    "GREY",
    "INK",
    "ORANGE",
    "PURPLE",
    "HeadMap",
    "data_address",
    "draw_head_map",
    "draw_head_maps",
    "new_figure",
    "render_figure",
    "render_svg",
]
