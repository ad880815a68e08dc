"""Draws tables on axes."""

from eigenheads.plotting._heads import HeadMap, draw_head_maps, head_maps_size
from eigenheads.plotting._location import draw_location_panels, draw_vector_field
from eigenheads.plotting._location_asymptotics import (
    draw_any_dimension,
    draw_bayes,
    draw_step_changes,
)
from eigenheads.plotting._pca import (
    draw_pca_curves,
    draw_pca_laws,
    draw_pca_quantiles,
    draw_pca_ranks,
    draw_pca_sweep,
)
from eigenheads.plotting._reading import (
    HeadStrip,
    draw_probe_accuracy,
    draw_reconstruction,
    draw_strips,
)
from eigenheads.plotting._robustness import draw_robustness, robustness_size
from eigenheads.plotting._signal import (
    draw_signal_paths,
    draw_signal_phases,
    draw_signal_sweep,
)
from eigenheads.plotting._svg import embedded_svg, render_svg
from eigenheads.plotting._variants import (
    draw_convergence,
    draw_gaps,
    draw_variants,
)

__all__ = [
    "HeadMap",
    "HeadStrip",
    "draw_any_dimension",
    "draw_bayes",
    "draw_convergence",
    "draw_gaps",
    "draw_head_maps",
    "draw_location_panels",
    "draw_pca_curves",
    "draw_pca_laws",
    "draw_pca_quantiles",
    "draw_pca_ranks",
    "draw_pca_sweep",
    "draw_probe_accuracy",
    "draw_reconstruction",
    "draw_robustness",
    "draw_signal_paths",
    "draw_signal_phases",
    "draw_signal_sweep",
    "draw_step_changes",
    "draw_strips",
    "draw_variants",
    "draw_vector_field",
    "embedded_svg",
    "head_maps_size",
    "render_svg",
    "robustness_size",
]
