"""Figure 4b: linear head, descent of the exact risk."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _linear

experiments = (
    Experiment(
        key="maulensoto2026/fig4b",
        title="Linear head, descent of the exact risk",
        source="Figure 4b",
        about=_linear.ABOUT
        + " Shown: descent with the exact gradient (the authors' script for this "
        "figure has a wrong factor in its gradient).",
        presets=_linear.PRESETS,
        simulate=_linear.simulate,
        check=_linear.check_population,
        draw=partial(_linear.draw, parts=("population", "norm")),
        work=_linear.work,
        size=(9.0, 3.6),
    ),
)
