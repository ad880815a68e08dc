"""What the gallery's build calls by name: the order of examples, and their style."""

import warnings

# In the order of a first reading.
ORDER = (
    "watch_a_head",
    "any_dimension",
    "your_model",
    "find_the_token",
    "regress_on_bags",
    "attention_pca",
    "signal_direction",
    "robust_pca",
    "wrong_cells",
    "video_background",
    "phase_diagram",
    "pursuit_diagnostics",
    "head_certificate",
    "probe_a_head",
)


def reading_order(name):
    """Return the place of an example; new ones come last."""
    key = name.removeprefix("plot_").removesuffix(".py")
    return f"{ORDER.index(key):02d}" if key in ORDER else key


def house_style(gallery_conf, name, when):
    """Draw as the reports do, and let no warning of an example pass."""
    if when == "after":
        warnings.resetwarnings()  # those of the builder are its own
        return
    import matplotlib as mpl

    from eigenheads._plotting.svg import _STYLE

    mpl.rcParams.update(_STYLE)
    warnings.simplefilter("error")
    # Of the build itself: Agg draws nothing on a screen.
    warnings.filterwarnings("ignore", "FigureCanvasAgg is non-interactive")
