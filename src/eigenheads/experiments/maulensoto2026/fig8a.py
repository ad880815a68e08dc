"""Figure 8a: in context, against the length of the prompt."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads._plotting._pca import draw_pca_sweep
from eigenheads._rng import drawn_seed
from eigenheads.dynamics import simulate_pca
from eigenheads.experiments._claims import Claim, about, at_most
from eigenheads.experiments._core import Experiment, Run, Table
from eigenheads.experiments.maulensoto2026 import _in_context
from eigenheads.experiments.maulensoto2026._in_context import InContext
from eigenheads.experiments.maulensoto2026._method import starts
from eigenheads.theory import descend

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True)
class Params(InContext):
    """In context at several lengths of the prompt."""

    lengths: tuple[int, ...] = tuple(range(3, 99, 5))


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Run SGD in context at each length, and theory from the same starts."""
    begin = starts(rng, params.d, params.n_runs, None)
    finals, norms = [], []
    for n_tokens in params.lengths:
        paths = simulate_pca(
            _in_context.law(params, n_tokens),
            inverse_temperature=params.inverse_temperature,
            step_size=params.step_size,
            batch_size=params.n_covariances * params.prompts_per_covariance,
            n_steps=params.n_steps,
            n_runs=params.n_runs,
            record_every=params.n_steps,
            seed=drawn_seed(rng),
            start=begin,
        )
        finals.append(paths.final("alignment"))
        norms.append(paths.final("norm").mean())
    theory = descend(
        _in_context.landscape(params),
        begin,
        step_size=params.step_size,
        n_steps=params.n_steps,
        record_every=params.n_steps,
    )
    return {
        "setting": np.array(params.lengths, dtype=np.float64),
        "alignment": np.array(finals),
        "norm": np.array(norms),
        "limit": np.array([np.median(theory.final("alignment"))]),
        "limit_norm": np.array([theory.final("norm").mean()]),
    }


def check(run: Run[Params]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    medians = np.median(table["alignment"], axis=1)
    long = table["setting"] >= 40
    source = "maulensoto2026, Figure 8a"
    return [
        at_most(
            "L ≥ 40: largest gap of the median alignment to theory for L → ∞",
            np.abs(medians - table["limit"])[long].max(),
            0.02,
            "order 1/L, and the noise of the batch's covariances",
            source=source,
        ),
        about(
            "longest prompts: norm over theory's, mean over runs",
            table["norm"][-1] / table["limit_norm"][0],
            1.0,
            0.12,
            "order 1/L: 6 % at L = 98",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the final alignments against L."""
    table = run.table
    draw_pca_sweep(figure.subplots(), table, label="tokens in a prompt, L")


_PAPER = Params()

experiments = (
    Experiment(
        key="maulensoto2026/fig8a",
        title="In context, against the length of the prompt",
        source="Figure 8a",
        about=_in_context.ABOUT
        + " Here the length varies; final alignments. Dashed: theory for L → ∞, same "
        "starts.",
        presets={
            "smoke": replace(
                _PAPER,
                lengths=(3, 40, 98),
                n_runs=3,
                n_covariances=50,
                prompts_per_covariance=2,
            ),
            "demo": replace(
                _PAPER,
                lengths=(3, 13, 43, 98),
                n_runs=3,
                n_covariances=50,
                prompts_per_covariance=4,
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(len(params.lengths) * params.n_runs * params.n_steps),
        size=(6.5, 4.0),
    ),
)
