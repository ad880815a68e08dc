"""Figure 2: in context the head learns the direction that all prompts share."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _in_context

experiments = (
    Experiment(
        key="maulensoto2026/fig2",
        title="In context the head learns the direction that all prompts share",
        source="Figure 2",
        about=_in_context.ABOUT,
        presets=_in_context.PRESETS,
        simulate=_in_context.simulate,
        check=_in_context.check_both,
        draw=partial(_in_context.draw, parts=("population", "finite", "norm")),
        work=_in_context.work,
        size=(9.0, 6.5),
    ),
)
