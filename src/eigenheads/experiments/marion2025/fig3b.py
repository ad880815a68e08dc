"""Figure 3b: population descent from the sphere, the sharpness small and fixed."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._location import draw_location_panels
from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.marion2025._dynamics import (
    Descent,
    descent_work,
    distance_to_manifold,
    largest,
    risk_above_oracle,
    simulate_descent,
    weakest_overlap,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The ends are at overlap 0 or above 0.97, so any threshold between says the same.
_RECOVERED = 0.5


def check(run: Run[Descent]) -> list[Claim]:
    """Return the claims of the figure."""
    params, table = run.params, run.table
    recovered = weakest_overlap(table) > _RECOVERED
    lost, distance = ~recovered, distance_to_manifold(table)[:, -1]
    return [
        Claim(
            statement="share of runs that reach the oracle",
            source="marion2025, Figure 3b, drawn run by run",
            relation="≈",
            expected=0.5,
            measured=float(recovered.mean()),
            tolerance=4 * 0.5 / params.n_runs**0.5,
            reason="four standard deviations of a fair coin thrown once a run",
        ),
        Claim(
            statement="the other runs: largest overlap |κ| or |ν| at the end",
            source="marion2025, Figure 3b, drawn run by run",
            relation="≤",
            expected=0.0,
            measured=largest(np.abs([table["kappa"], table["nu"]])[:, lost, -1]),
            tolerance=1e-3,
            reason="a fixed point, reached at a constant rate",
        ),
        Claim(
            statement="the other runs: smallest distance to the manifold at the end",
            source="marion2025, Figure 3b, drawn run by run",
            relation="≥",
            expected=1.0,
            measured=-largest(-distance[lost]),
            tolerance=0.0,
            reason="|η| = 1 there: key and value have swapped their roles (ours)",
        ),
        Claim(
            statement="largest risk above the oracle's over all runs, in null risks",
            source="ours: the swapped predictor is nearly as good at this sharpness",
            relation="≤",
            expected=0.0,
            measured=float(risk_above_oracle(table).max()),
            tolerance=0.01,
            reason="its excess risk is 0.1155 against 0.1135 for the oracle",
        ),
    ]


def draw(figure: "Figure", run: Run[Descent]) -> None:
    """Draw the four panels, run by run."""
    table = run.table
    draw_location_panels(figure, table, run_by_run=True)


_PAPER = Descent()

experiments = (
    Experiment(
        key="marion2025/fig3b",
        title="A small fixed sharpness recovers k* and v* in half of the runs",
        source="Figure 3b",
        about=(
            "Population projected gradient descent from uniform starts with λ = 0.1. "
            "Half of the runs leave the neighbourhood of the manifold and end at κ = ν "
            "= 0. They are not lost (ours): key and value have swapped roles, k = ±v* "
            "and v close to ±k*, a predictor of nearly the oracle's risk."
        ),
        presets={"smoke": replace(_PAPER, n_runs=64), "demo": _PAPER, "paper": _PAPER},
        simulate=simulate_descent,
        check=check,
        draw=draw,
        work=descent_work,
    ),
)
