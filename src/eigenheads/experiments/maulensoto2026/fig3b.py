"""Figure 3b: finite prompts, stochastic gradient descent."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _fixed

experiments = (
    Experiment(
        key="maulensoto2026/fig3b",
        title="Finite prompts, stochastic gradient descent",
        source="Figure 3b",
        about=_fixed.ABOUT + " Figure 1's second curve, from the same simulation.",
        presets=_fixed.PRESETS,
        simulate=_fixed.simulate,
        check=_fixed.check_finite,
        draw=partial(_fixed.draw, parts=("finite", "loss")),
        work=_fixed.work,
        size=(9.0, 3.6),
    ),
)
