"""Figures 3 and 7: what tied weights gain over untied ones, against the length."""

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, GREEN, GREY, ORANGE
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, about, at_least
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import bootstrap_estimate
from eigenheads_papers.arnaboldi2025._models import network_model, recovered

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_CHANGED = (
    "lengths were cut from (1, 2, 4, 6) to (1, 2, 4) and runs from 16 to 10 before "
    "the first record (1.04 held, 0.95 contradicted); now the first lengths, 30 runs"
)
_MARGIN = 0.25
_THRESHOLD = 0.3


@dataclass(frozen=True, kw_only=True)
class Params:
    """Steps are multiples of the length's best one, see :func:`best_step`."""

    lengths: tuple[int, ...] = parameter((1, 2, 4, 6), "numbers of tokens per prompt")
    factors: tuple[float, ...] = parameter(
        (0.3, 0.6, 1.0, 1.4, 3.0), "step sizes, in units of the best one"
    )
    d: int = parameter(1000, "dimension of the tokens")
    # Ten runs gave an exponent ± 0.24; thirty reach the margin of 0.25.
    n_runs: int = parameter(30, "independent runs")
    n_records: int = parameter(200, "recorded points along training")


def best_step(n_tokens: int) -> float:
    r"""Return the c of step c/d at which the tied network escapes fastest.

    Near the start :math:`\dot m = c (4 a_2 - c (1 + L))\, m` with the second Hermite
    coefficient :math:`a_2 = 1/(2\sqrt\pi)` of the ReLU; the second term is the squared
    length of the gradients. With untied weights both terms are smaller by the factor
    L, so the best step is the same and the escape L times as long.
    """
    return 2 / math.sqrt(math.pi) / (2 * (1 + n_tokens))


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Return steps to weak recovery, by length, step size and run."""
    table: dict[str, FloatArray] = {}
    for tied in (True, False):
        times = []
        for n_tokens in params.lengths:
            row = []
            for factor in params.factors:
                row.append(_times(params, n_tokens, tied, factor, drawn_seed(rng)))
            times.append(row)
        table["tied" if tied else "untied"] = np.array(times)
    table["length"] = np.array(params.lengths, dtype=np.float64)
    table["factor"] = np.array(params.factors)
    return table


def _steps(params: Params, n_tokens: int, tied: bool, factor: float) -> int:
    """Return a number of steps that is ample at this step size, were it useful."""
    step = factor * best_step(n_tokens)
    rate = 2 * best_step(n_tokens) * (1 + n_tokens) * max(1 - factor / 2, 0.25)
    horizon = 2.2 * math.log(math.sqrt(params.d)) / rate
    every = math.ceil(horizon * params.d / step / params.n_records)
    return every * params.n_records * (1 if tied else n_tokens)


def _times(
    params: Params, n_tokens: int, tied: bool, factor: float, seed: int
) -> FloatArray:
    n_steps = _steps(params, n_tokens, tied, factor)
    names = ["w"] if tied else [f"w{i}" for i in range(n_tokens)]
    overlaps = [f"{name}.teacher" for name in names]
    # All overlaps start at 1/√d, as in the authors' runs.
    start = dict.fromkeys(overlaps, 1 / math.sqrt(params.d))
    pairs = [
        f"{first}.{two}" for i, first in enumerate(names) for two in names[i + 1 :]
    ]
    paths = simulate_model(
        network_model(n_tokens, tied),
        d=params.d,
        step_size=factor * best_step(n_tokens) / params.d,
        n_steps=n_steps,
        n_runs=params.n_runs,
        record_every=n_steps // params.n_records,
        seed=seed,
        start=start | dict.fromkeys(pairs, 0.0),
        record=overlaps,
    )
    curves = np.sqrt(np.mean([paths[name] ** 2 for name in overlaps], axis=0))
    return recovered(curves, np.asarray(paths.steps, dtype=np.float64), _THRESHOLD)


def _mean_times(times: FloatArray, axis: int) -> FloatArray:
    """Return the mean step of recovery; infinite if a tenth of the runs fails."""
    fails = np.isinf(times).mean(axis=axis) > 0.1
    counted = np.isfinite(times)
    total = np.where(counted, times, 0.0).sum(axis=axis)
    return np.where(fails, np.inf, total / np.maximum(counted.sum(axis=axis), 1))


def _exponent(lengths: FloatArray, gains: FloatArray) -> FloatArray:
    """Return the slope of log gain against log length."""
    x = np.log(lengths) - np.log(lengths).mean()
    # A gain of zero is one of a network that does not recover.
    with np.errstate(divide="ignore"):
        return np.asarray((np.log(gains) @ x) / (x @ x))


def _rows(table: Table) -> FloatArray:
    """Return the times with runs first: (runs, network, length, factor)."""
    return np.moveaxis(np.stack([table["tied"], table["untied"]]), -1, 0)


def check(run: Run[Params]) -> list[Claim]:
    """Return exponents of the gain at equal steps, at the best ones, and beyond."""
    table, lengths = run.table, run.table["length"]

    def equal(rows: FloatArray, axis: int) -> FloatArray:
        times = _mean_times(rows, axis)[..., 0]
        return _exponent(lengths, times[..., 1, :] / times[..., 0, :])

    def best(rows: FloatArray, axis: int) -> FloatArray:
        times = _mean_times(rows, axis).min(axis=-1)
        return _exponent(lengths, times[..., 1, :] / times[..., 0, :])

    last = np.isinf(_rows(table)[..., -1]).mean(axis=0)
    rows = _rows(table)
    return [
        about(
            "equal small steps: exponent of the gain of tied weights in the length",
            bootstrap_estimate(rows, equal),
            1.0,
            _MARGIN,
            "a quarter of the distance between L and L² is not a difference",
            source="arnaboldi2025, Figure 7",
            own_setting=True,
            changed=_CHANGED,
        ),
        about(
            "steps at which each network is fastest: exponent of the gain",
            bootstrap_estimate(rows, best),
            2.0,
            _MARGIN,
            "a quarter of the distance between L and L² is not a difference",
            source="arnaboldi2025, Theorem 2 and Figure 3",
            own_setting=True,
            changed=_CHANGED,
        ),
        at_least(
            "three times the best step: smallest share of runs that never recover",
            last.min(),
            0.5,
            "beyond twice the best step the gradients' squared length wins",
            source="ours: the largest step is twice the best one for both",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw recovery times against the step, and the gain against the length."""
    table, lengths = run.table, run.table["length"]
    steps_panel, gain_panel = figure.subplots(1, 2)
    times = _mean_times(_rows(table), 0)
    for number, length in enumerate(lengths):
        for network, style in ((0, "o-"), (1, "s--")):
            steps_panel.plot(
                table["factor"],
                times[network, number],
                style,
                color=(BLUE, GREEN, ORANGE, GREY)[number % 4],
                ms=4,
                label=f"L = {length:.0f}" if network == 0 else None,
            )
    steps_panel.set(
        yscale="log",
        xlabel="step size / best step of tied weights",
        ylabel="steps to overlap 0.3",
        title="Tied (solid) and untied (dashed)",
    )
    steps_panel.legend()
    gain_panel.plot(
        lengths,
        times[1, :, 0] / times[0, :, 0],
        "o-",
        color=BLUE,
        label="equal small steps",
    )
    best = times.min(axis=-1)
    gain_panel.plot(
        lengths, best[1] / best[0], "s-", color=GREEN, label="each at its best step"
    )
    gain_panel.plot(lengths, lengths, ":", color=GREY, label="L")
    gain_panel.plot(lengths, lengths**2, "--", color=GREY, label="L²")
    gain_panel.set(
        xscale="log", yscale="log", xlabel="L", ylabel="gain of tied weights"
    )
    gain_panel.set_xticks(lengths, [f"{length:.0f}" for length in lengths])
    gain_panel.minorticks_off()
    gain_panel.legend()


_PAPER = Params()
experiments = (
    Experiment(
        key="arnaboldi2025/fig3",
        title="Tied weights gain a factor L",
        source="Figures 3 and 7, Theorem 2",
        about=(
            "A ReLU of the tokens' sum learns a sum of second Hermite polynomials, one "
            "fresh sample per step, d = 1000, all overlaps 1/√d at the start, as in "
            "the authors' public configuration; weak recovery is an overlap of 0.3. "
            "The gain is the ratio of the mean recovery steps. At equal small steps it "
            "is L, as Figure 7 says. Theorem 2 adds a factor from the largest steps "
            "that each network bears, and Figure 3 shows L². Here steps are varied "
            "around the one at which each network is fastest. The public "
            "configuration of Figure 3 has steps with the ratio √L."
        ),
        presets={
            "smoke": replace(
                _PAPER,
                lengths=(1, 2, 4),
                factors=(0.5, 1.0, 3.0),
                n_runs=6,
                n_records=50,
            ),
            "demo": replace(
                _PAPER,
                lengths=(1, 2, 4),
                factors=(0.5, 1.0, 3.0),
                n_runs=5,
                n_records=100,
            ),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(
            sum(
                params.n_runs * _steps(params, length, tied, factor)
                for length in params.lengths
                for tied in (True, False)
                for factor in params.factors
            )
        ),
        size=(9.5, 4.2),
    ),
)
