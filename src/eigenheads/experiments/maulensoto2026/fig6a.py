"""Figure 6a: softmax head, infinite prompts, against the dimension."""

from dataclasses import replace

from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.maulensoto2026 import _sweeps
from eigenheads.experiments.maulensoto2026._sweeps import Dimensions


def check(run: Run[Dimensions]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    return _sweeps.dimension_claims(table, "maulensoto2026, Figure 6a")


_PAPER = Dimensions()
_FEW = (3, 23, 48)

experiments = (
    Experiment(
        key="maulensoto2026/fig6a",
        title="Softmax head, infinite prompts, against the dimension",
        source="Figure 6a",
        about=(
            "Final alignment of descent of the exact risk against d, softmax head with "
            "infinite prompts: λ = 0.1/d, step 0.5/d², 5000 steps, unit starts. Left: "
            "one Σ a dimension, as in the paper, ten starts. Right (ours): quantiles "
            "over many Σ. Where the paper's step exceeds half the largest stable one, "
            "which happens at the smallest d, that is used instead."
        ),
        presets={
            "smoke": replace(
                _PAPER, dimensions=_FEW, n_runs=4, n_covariances=10, n_starts=1
            ),
            "demo": replace(
                _PAPER, dimensions=(3, 13, 28, 48), n_covariances=20, n_starts=1
            ),
            "paper": replace(_PAPER, n_covariances=200),
        },
        simulate=_sweeps.simulate_dimensions,
        check=check,
        draw=_sweeps.draw_dimensions,
        work=_sweeps.dimensions_work,
        size=(9.0, 3.8),
    ),
)
