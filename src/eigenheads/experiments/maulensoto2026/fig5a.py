"""Figure 5a: softmax head: the longer the prompt, the closer to theory."""

from dataclasses import replace

import numpy as np

from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.maulensoto2026 import _sweeps
from eigenheads.experiments.maulensoto2026._sweeps import Lengths


def check(run: Run[Lengths]) -> list[Claim]:
    """Return the claims of the figure."""
    params, table = run.params, run.table
    theory = np.full(len(params.lengths), float(table["limit"][0]))
    source = "maulensoto2026, Figure 5a"
    return _sweeps.length_claims(table, expected=theory, source=source)


_PAPER = Lengths()
_FEW = (3, 20)

experiments = (
    Experiment(
        key="maulensoto2026/fig5a",
        title="Softmax head: the longer the prompt, the closer to theory",
        source="Figure 5a",
        about=(
            "Final alignment of SGD against the length of the prompt, softmax head, d "
            "= 5, λ = 0.1, step 1e-4, 5000 steps, starts 0.1·N(0, I), the same at "
            "every length; one draw of Σ for the figure. Dashed: theory for L → ∞ on "
            "the same Σ."
        ),
        presets={
            "smoke": replace(_PAPER, lengths=_FEW, n_runs=3, batch_size=32),
            "demo": replace(_PAPER, lengths=(3, 8, 20, 50), n_runs=4, batch_size=32),
            "paper": _PAPER,
        },
        simulate=_sweeps.simulate_lengths,
        check=check,
        draw=_sweeps.draw_lengths,
        work=_sweeps.lengths_work,
        size=(6.5, 4.0),
    ),
)
