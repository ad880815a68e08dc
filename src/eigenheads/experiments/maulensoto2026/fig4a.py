"""Figure 4a: linear head, stochastic gradient descent."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _linear

experiments = (
    Experiment(
        key="maulensoto2026/fig4a",
        title="Linear head, stochastic gradient descent",
        source="Figure 4a",
        about=_linear.ABOUT
        + " Shown: SGD with 256 prompts a step; dashed, descent of the exact risk.",
        presets=_linear.PRESETS,
        simulate=_linear.simulate,
        check=_linear.check_finite,
        draw=partial(_linear.draw, parts=("finite", "loss")),
        work=_linear.work,
        size=(9.0, 3.6),
    ),
)
