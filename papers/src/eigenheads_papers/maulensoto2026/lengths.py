"""Final alignment against the length of the prompt: Figure 5."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from eigenheads.datasets import GaussianPrompts, random_covariance
from eigenheads.extend import FloatArray
from eigenheads.models import simulate_pca
from eigenheads.theory import PCALandscape
from eigenheads_papers._claims import Claim, about, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import Estimate, mean_estimate
from eigenheads_papers.maulensoto2026._method import (
    draw_against,
    linear_landscape,
    softmax_landscape,
    starts,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Twenty numbers from 3 to 50, evenly spaced and cut to integers, as the authors do.
PAPER_LENGTHS = tuple(int(length) for length in np.linspace(3, 50, 20))


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """SGD on one covariance for several lengths of the prompt; the paper's figure 5."""

    head: str = parameter("softmax", "softmax or linear")
    lengths: tuple[int, ...] = parameter(PAPER_LENGTHS, "numbers of tokens per prompt")
    d: int = parameter(5, "dimension of the tokens")
    inverse_temperature: float = parameter(0.1, "inverse temperature λ of the head")
    step_size: float = parameter(1e-4, "step size")
    start: float = parameter(0.1, "size of weights or overlaps at the start")
    n_steps: int = parameter(5000, "training steps")
    batch_size: int = parameter(256, "samples per gradient step")
    n_runs: int = parameter(10, "independent runs")


def _work(params: Lengths) -> float:
    """Return the updates over all lengths and runs: SGD's and theory's."""
    return 2.0 * len(params.lengths) * params.n_runs * params.n_steps


def _landscape(params: Lengths, covariance: FloatArray, n_tokens: int) -> PCALandscape:
    """Return the population risk: exact for the linear head, L → ∞ for softmax."""
    sharp = params.inverse_temperature
    if params.head == "linear":
        return linear_landscape(
            covariance, n_tokens=n_tokens, inverse_temperature=sharp
        )
    return softmax_landscape(covariance, inverse_temperature=sharp)


def simulate(params: Lengths, rng: np.random.Generator) -> Table:
    """Run SGD at each length, and theory from the same starts on the same Σ."""
    covariance = random_covariance(params.d, rng)
    # One Σ and one set of starts serve all lengths: otherwise the curve against L would
    # mix the effect of L with that of the draws.
    begin = starts(rng, params.d, params.n_runs, params.start)
    finals, theory, norms = [], [], []
    for n_tokens in params.lengths:
        paths = simulate_pca(
            GaussianPrompts(covariance, n_tokens),
            head=params.head,
            inverse_temperature=params.inverse_temperature,
            step_size=params.step_size,
            batch_size=params.batch_size,
            n_steps=params.n_steps,
            n_runs=params.n_runs,
            record_every=params.n_steps,
            seed=drawn_seed(rng),
            start=begin,
        )
        expected = _landscape(params, covariance, n_tokens).descend(
            begin,
            step_size=params.step_size,
            n_steps=params.n_steps,
            record_every=params.n_steps,
        )
        finals.append(paths.final("alignment"))
        theory.append(np.median(expected.final("alignment")))
        norms.append(np.mean(paths.final("norm") / expected.final("norm")))
    table = {
        "setting": np.array(params.lengths, dtype=np.float64),
        "alignment": np.array(finals),
        "norm_ratio": np.array(norms),
        "eigenvalues": np.linalg.eigvalsh(covariance)[::-1].copy(),
    }
    # The linear head has a risk of its own at each L. The softmax risk is the limit
    # L → ∞, equal at all lengths, so its first entry is enough.
    if params.head == "linear":
        return {**table, "theory": np.array(theory)}
    return {**table, "limit": np.array(theory[:1])}


def draw(figure: "Figure", run: Run[Lengths]) -> None:
    """Draw the final alignments against L."""
    table = run.table
    draw_against(figure.subplots(), table, label="tokens in a prompt, L")


def length_claims(
    table: Table, expected: FloatArray, *, least: int, reason: str, source: str
) -> list[Claim]:
    """Return the claims of figure 5: simulation against theory on the same Σ.

    `least` is the shortest prompt for which the theory is meant to hold.
    """
    gaps = np.abs(np.median(table["alignment"], axis=1) - expected)
    return [
        at_most(
            f"L ≥ {least}: largest gap of the median alignment to theory's",
            gaps[table["setting"] >= least].max(),
            0.03,
            reason,
            source=source,
            own_setting=True,
        ),
        about(
            "longest prompts: norm over theory's, mean over runs",
            table["norm_ratio"][-1],
            1.0,
            0.1,
            reason,
        ),
    ]


def rate_in_length(table: Table, limit: float) -> Estimate:
    """Return the exponent at which the gap to the limit falls with L, over runs.

    A straight line through the logarithms of gap and length, one slope per run.
    """
    # The floor keeps the logarithm finite if a run meets the limit exactly. The fit
    # takes all runs at once, one per column.
    logs = np.log(np.maximum(np.abs(table["alignment"] - limit), 1e-12))
    return mean_estimate(np.polyfit(np.log(table["setting"]), logs, 1)[0])


def check(run: Run[Lengths]) -> list[Claim]:
    """Return the claims of the softmax head, against L → ∞."""
    limit = float(run.table["limit"][0])
    expected = np.full(len(run.params.lengths), limit)
    return [
        *length_claims(
            run.table,
            expected,
            least=20,
            reason="the noise of SGD, and order 1/L: the theory is a limit",
            source="maulensoto2026, Figure 5a",
        ),
        about(
            "exponent at which the gap of the alignment to L → ∞ falls with L",
            rate_in_length(run.table, limit),
            -1.0,
            0.5,
            # Expected before the run, and wrong: by symmetry the risk at every L has
            # its minimum along an eigenvector: only the noise of SGD is left here.
            # The norm and the loss carry the rate; finite_prompts measures it.
            "the risk's gradient differs by order 1/L; the noise of SGD flattens it",
            source="ours: the rate in L",
        ),
    ]


def check_linear(run: Run[Lengths]) -> list[Claim]:
    """Return the claims of the linear head, against the exact risk at each L."""
    return length_claims(
        run.table,
        run.table["theory"],
        least=min(run.params.lengths),
        reason="the noise of SGD; the risk is exact at every length",
        source="maulensoto2026, Figure 5b",
    )


_SOFTMAX = Lengths()
_LINEAR = Lengths(head="linear", inverse_temperature=1e-3, start=0.01)
_FEW = (3, 20)


def _against_length(
    figure: str, base: Lengths, *, title: str, setting: str, dashed: str, check: Any
) -> Experiment[Lengths]:
    """Return Figure 5a or 5b: SGD of one head with prompts of every length."""
    return Experiment(
        key=f"maulensoto2026/fig{figure}",
        title=title,
        source=f"Figure {figure}",
        about=(
            f"Final alignment of SGD against the length of the prompt, {setting}, the "
            f"same at every length; one draw of Σ for the figure. Dashed: {dashed}."
        ),
        presets={
            "smoke": replace(base, lengths=_FEW, n_runs=3, batch_size=32),
            "demo": replace(base, lengths=(3, 8, 20, 50), n_runs=4, batch_size=32),
            "paper": base,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=_work,
        size=(6.5, 4.0),
    )


experiments = (
    _against_length(
        "5a",
        _SOFTMAX,
        title="Softmax head: the longer the prompt, the closer to theory",
        setting="softmax head, d = 5, λ = 0.1, step 1e-4, 5000 steps, starts "
        "0.1·N(0, I)",
        dashed="theory for L → ∞ on the same Σ",
        check=check,
    ),
    _against_length(
        "5b",
        _LINEAR,
        title="Linear head: simulation and exact theory at every length",
        setting="linear head, d = 5, λ = 0.001, step 1e-4, 5000 steps, starts "
        "0.01·N(0, I)",
        dashed="descent of the exact risk at that L, same Σ and starts",
        check=check_linear,
    ),
)
