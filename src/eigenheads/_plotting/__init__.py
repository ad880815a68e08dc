"""Draw tables on axes: generic panels, and figures as SVG text."""
