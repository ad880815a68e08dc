"""Figure 7a: in context, infinite prompts."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _in_context

experiments = (
    Experiment(
        key="maulensoto2026/fig7a",
        title="In context, infinite prompts",
        source="Figure 7a",
        about=_in_context.ABOUT + " Figure 2's first curve, from the same simulation.",
        presets=_in_context.PRESETS,
        simulate=_in_context.simulate,
        check=_in_context.check_population,
        draw=partial(_in_context.draw, parts=("population", "norm")),
        work=_in_context.work,
        size=(9.0, 3.6),
    ),
)
