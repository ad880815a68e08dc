"""Figure 3a: infinite prompts, descent of the exact risk."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _fixed

experiments = (
    Experiment(
        key="maulensoto2026/fig3a",
        title="Infinite prompts, descent of the exact risk",
        source="Figure 3a",
        about=_fixed.ABOUT + " Figure 1's first curve, from the same simulation.",
        presets=_fixed.PRESETS,
        simulate=_fixed.simulate,
        check=_fixed.check_population,
        draw=partial(_fixed.draw, parts=("population", "covariances")),
        work=_fixed.work,
        size=(9.0, 3.6),
    ),
)
