"""Draws tables on axes."""

from eigenheads.plotting._location import draw_location_panels, draw_vector_field
from eigenheads.plotting._location_asymptotics import (
    draw_any_dimension,
    draw_bayes,
    draw_step_changes,
)
from eigenheads.plotting._svg import embedded_svg, render_svg

__all__ = [
    "draw_any_dimension",
    "draw_bayes",
    "draw_location_panels",
    "draw_step_changes",
    "draw_vector_field",
    "embedded_svg",
    "render_svg",
]
