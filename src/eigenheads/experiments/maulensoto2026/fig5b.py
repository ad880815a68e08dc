"""Figure 5b: linear head: simulation and exact theory at every length."""

from dataclasses import replace

from eigenheads.experiments._claims import Claim
from eigenheads.experiments._core import Experiment, Run
from eigenheads.experiments.maulensoto2026 import _sweeps
from eigenheads.experiments.maulensoto2026._sweeps import Lengths


def check(run: Run[Lengths]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    theory = table["theory"]
    source = "maulensoto2026, Figure 5b"
    return _sweeps.length_claims(table, expected=theory, source=source)


_PAPER = Lengths(head="linear", inverse_temperature=1e-3, start=0.01)
_FEW = (3, 20)

experiments = (
    Experiment(
        key="maulensoto2026/fig5b",
        title="Linear head: simulation and exact theory at every length",
        source="Figure 5b",
        about=(
            "Final alignment of SGD against the length of the prompt, linear head, d = "
            "5, λ = 0.001, step 1e-4, 5000 steps, starts 0.01·N(0, I), the same at "
            "every length; one draw of Σ for the figure. Dashed: descent of the exact "
            "risk at that L, same Σ and starts."
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
