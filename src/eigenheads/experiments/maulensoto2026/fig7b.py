"""Figure 7b: in context, finite prompts."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _in_context

experiments = (
    Experiment(
        key="maulensoto2026/fig7b",
        title="In context, finite prompts",
        source="Figure 7b",
        about=_in_context.ABOUT + " Figure 2's second curve, from the same simulation.",
        presets=_in_context.PRESETS,
        simulate=_in_context.simulate,
        check=_in_context.check_finite,
        draw=partial(_in_context.draw, parts=("finite", "loss")),
        work=_in_context.work,
        size=(9.0, 3.6),
    ),
)
