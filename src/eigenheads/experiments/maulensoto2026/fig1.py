"""Figure 1: the head learns the top eigenvector, with infinite and finite prompts."""

from functools import partial

from eigenheads.experiments._core import Experiment
from eigenheads.experiments.maulensoto2026 import _fixed
from eigenheads.experiments.maulensoto2026._cells import cells

experiments = (
    Experiment(
        key="maulensoto2026/fig1",
        title="The head learns the top eigenvector, with infinite and finite prompts",
        source="Figure 1",
        about=_fixed.ABOUT
        + " Right: what changes with Σ, the alignment reached when descent stops.",
        presets=_fixed.PRESETS,
        simulate=_fixed.simulate,
        check=_fixed.check_both,
        draw=partial(_fixed.draw, parts=("population", "finite", "covariances")),
        work=_fixed.work,
        size=(9.0, 6.5),
        cells=cells,
    ),
)
