"""Figure 8b: in context with infinite prompts, against d = n."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._pca import draw_pca_sweep
from eigenheads._typing import FloatArray
from eigenheads.datasets import SpikedWishartPrompts
from eigenheads.experiments._claims import Claim, about, at_least, at_most
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.maulensoto2026._method import descend_to_the_end, starts
from eigenheads.theory import PCALandscape, descend, in_context_landscape

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params:
    """At dimension d: n = d, λ = `sharpness`/d and the step is `step`/d²."""

    dimensions: tuple[int, ...] = tuple(range(3, 99, 5))
    spike: float = 2.0
    scale: float = 1.0
    sharpness: float = 0.1
    step: float = 0.5
    n_steps: int = 2000
    n_runs: int = 10


def landscape(params: Params, d: int) -> PCALandscape:
    """Return the population risk at dimension d."""
    law = SpikedWishartPrompts(
        d=d, degrees_of_freedom=d, spike=params.spike, scale=params.scale
    )
    return in_context_landscape(
        law.scale_matrix,
        degrees_of_freedom=d,
        inverse_temperature=params.sharpness / d,
    )


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Descend at each d from unit starts."""
    finals: list[FloatArray] = []
    norms, gaps, steps = [], [], []
    for d in params.dimensions:
        risk, begin = landscape(params, d), starts(rng, d, params.n_runs, None)
        paths = descend(
            risk,
            begin,
            step_size=params.step / d**2,
            n_steps=params.n_steps,
            record_every=params.n_steps,
        )
        finals.append(paths.final("alignment"))
        norms.append(paths.final("norm") / np.linalg.norm(risk.minimiser()))
        steps.append(params.step / d**2 / risk.largest_stable_step())
        gaps.append(np.abs(descend_to_the_end(risk, begin)).max())
    return {
        "setting": np.array(params.dimensions, dtype=np.float64),
        "alignment": np.array(finals),
        "norm_ratio": np.array(norms),
        "end_gaps": np.array(gaps),
        "relative_step": np.array(steps),
    }


def check(run: Run[Params]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    stable = table["relative_step"] < 1
    norms = np.median(table["norm_ratio"], axis=1)[stable]
    source = "maulensoto2026, Figure 8b"
    return [
        at_least(
            "least median alignment over all d",
            np.median(table["alignment"], axis=1).min(),
            0.9997,
            "V is fixed at each d, so only the start varies",
            slack=3e-4,
            source=source,
        ),
        about(
            "where the step is stable: median norm over the minimiser's, "
            "the d farthest off",
            norms[np.argmax(np.abs(norms - 1))],
            1.0,
            1e-2,
            "converged where the alignment is",
            source="ours: the minimiser in closed form",
        ),
        at_least(
            "d = 3: the paper's step over the largest stable one",
            table["relative_step"][0],
            1.0,
            "a closed form: 0.5/9 against 1/(4·5.1)",
            source="ours: the length of μ keeps jumping to and fro there",
        ),
        at_most(
            "descent to the end: largest risk above the global minimum, relative",
            table["end_gaps"].max(),
            1e-9,
            "one gap of eigenvalues at each d: all modes have converged",
            source="maulensoto2026: convergence to the minimum",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the final alignments against d."""
    table = run.table
    draw_pca_sweep(figure.subplots(), table, label="dimension d = n")


_PAPER = Params()

experiments = (
    Experiment(
        key="maulensoto2026/fig8b",
        title="In context with infinite prompts, against the dimension",
        source="Figure 8b",
        about=(
            "Descent of the exact risk in context, Wishart covariances with n = d "
            "degrees of freedom, V = I + 2vvᵀ, λ = 0.1/d, step 0.5/d², 2000 steps, "
            "unit starts. V is the same in every run, so this figure does not depend "
            "on a draw."
        ),
        presets={
            "smoke": replace(_PAPER, dimensions=(3, 23, 53, 98), n_runs=8),
            "demo": _PAPER,
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(
            len(params.dimensions) * params.n_runs * params.n_steps
        ),
        size=(6.5, 4.0),
    ),
)
