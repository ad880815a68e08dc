"""Figures 4 and 13: six regions in the plane of a and ω, and where SGD ends in each."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from eigenheads.extend import FloatArray
from eigenheads.extend.drawing import BLUE, INK
from eigenheads.models import risk as model_risk
from eigenheads.models import simulate as simulate_model
from eigenheads_papers._claims import Claim, about, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, drawn_seed, parameter
from eigenheads_papers._statistics import share_estimate
from eigenheads_papers.arnaboldi2025._landscape import corners, quadrature_risk
from eigenheads_papers.arnaboldi2025._models import (
    attention_model,
    positional_excess,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# By the signs (deeper semantic, steeper semantic, semantic minimum, positional
# minimum): the paper's six regions.
REGIONS = {
    (True, True, True, False): "unique semantic minimum",
    (True, True, True, True): "global semantic minimum",
    (True, False, True, True): "global semantic minimum, positional dynamics",
    (True, False, True, False): "unique semantic minimum, misaligned dynamics",
    (False, False, True, True): "global positional minimum",
    (False, False, False, True): "unique positional minimum",
}
# Points in the regions, chosen from the diagram alone, and whether SGD ends semantic.
_POINTS = (
    (1.0, 0.3, True),
    (1.0, 0.56, True),
    (1.0, 0.71, False),
    (0.76, 0.95, True),
    (1.0, 0.8, False),
    (1.0, 0.92, False),
)


@dataclass(frozen=True, kw_only=True)
class Params:
    """A grid of the plane, and runs at one point per region."""

    n_grid: int = parameter(121, "points per axis of the map")
    d: int = parameter(1000, "dimension of the tokens")
    n_runs: int = parameter(16, "independent runs")
    step: float = parameter(0.5, "step size before its scaling with the dimension")
    horizon: float = parameter(160.0, "training time: steps × step, or steps / d")
    # The region with misaligned dynamics is slow: the risk is nearly flat there.
    slow_d: int = parameter(100, "dimension of the runs where the risk is nearly flat")
    slow_step: float = parameter(0.05, "their step size before scaling by d")
    slow_horizon: float = parameter(4000.0, "their training time")
    n_slow: int = parameter(6, "runs where the risk is nearly flat")
    n_samples: int = parameter(2**17, "samples that estimate a risk")


def classify(omegas: FloatArray, a: float) -> FloatArray:
    """Return the number of the region for each ω; −1 where no corner is a minimum."""
    minima = corners(omegas, a)
    signs = zip(
        minima.deeper > 0,
        minima.steepest > 0,
        minima.semantic > 0,
        minima.positional > 0,
        strict=True,
    )
    names = list(REGIONS)
    keys = [tuple(map(bool, sign)) for sign in signs]
    return np.array([names.index(key) if key in names else -1 for key in keys], float)


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Classify the plane by quadrature, and train at one point per region."""
    a_grid = np.linspace(0.7, 1.0, params.n_grid)
    omegas = np.linspace(0.4, 1.0, params.n_grid)
    regions = np.array([classify(omegas, a) for a in a_grid])
    ends = []
    for a, omega, _ in _POINTS:
        is_slow = a < 1
        d, step, horizon = (
            (params.slow_d, params.slow_step, params.slow_horizon)
            if is_slow
            else (params.d, params.step, params.horizon)
        )
        every = max(1, int(horizon * d / step / 40))
        paths = simulate_model(
            attention_model("half_square"),
            d=d,
            step_size=step / d,
            n_steps=40 * every,
            n_runs=params.n_slow if is_slow else params.n_runs,
            record_every=every,
            seed=drawn_seed(rng),
            start={"w.teacher": 0.0, "w.position": 0.0},
            parameters={"omega": omega, "excess": positional_excess(a)},
        )
        curves = np.stack([paths["w.teacher"], paths["w.position"]])
        padded = np.full((2, params.n_runs, 41), np.nan)
        padded[:, : curves.shape[1]] = np.abs(curves)
        ends.append(padded)
    overlaps = np.array([[0.0, 0.0], [0.3, 0.5], [0.6, 0.2], [1.0, 0.0], [0.0, 1.0]])
    at = {"w.position": overlaps[:, 0], "w.teacher": overlaps[:, 1]}
    drawn = [
        model_risk(
            attention_model("half_square"),
            at,
            d=params.d,
            parameters={"omega": 0.7, "excess": positional_excess(1.0)},
            n_samples=params.n_samples // 8,
            seed=seed,
        )
        for seed in range(8)
    ]
    return {
        "a": a_grid,
        "omega": omegas,
        "regions": regions,
        "runs": np.array(ends),
        "risk": np.array([quadrature_risk(e, m, 0.7, 1.0) for e, m in overlaps]),
        "drawn_risk": np.array(drawn),
    }


def check(run: Run[Params]) -> list[Claim]:
    """Judge that all regions exist, and that SGD ends as each of them says."""
    table = run.table
    found = set(table["regions"].ravel().astype(int)) - {-1}
    here = {
        (a, omega): int(classify(np.array([omega]), a)[0]) for a, omega, _ in _POINTS
    }
    names = list(REGIONS.values())
    claims = [
        at_least(
            "regions of the (a, ω) plane that occur",
            len(found),
            6,
            "the paper names six",
            source="arnaboldi2025, Figure 4",
            own_setting=True,
        ),
        about(
            "region at a = 1, ω → 0: number of minima at the corners",
            _minima(0.0),
            1,
            0,
            "a count: the semantic one",
            source="arnaboldi2025, Section 4",
            own_setting=True,
        ),
        about(
            "region at a = 1, ω = 1: number of minima at the corners",
            _minima(1.0),
            1,
            0,
            "a count: the positional one",
            source="arnaboldi2025, Section 4",
            own_setting=True,
        ),
        about(
            "a = 0.76, ω = 0.95 lies in the region with misaligned dynamics",
            float(names[here[0.76, 0.95]].endswith("misaligned dynamics")),
            1,
            0,
            "yes or no",
            source="arnaboldi2025, Figure 13",
            own_setting=True,
        ),
    ]
    for number, (a, omega, is_semantic) in enumerate(_POINTS):
        curves = table["runs"][number]
        curves = curves[:, ~np.isnan(curves[0, :, 0])]
        ended = curves[0, :, -1] > curves[1, :, -1]
        right = ended if is_semantic else ~ended
        claims.append(
            at_least(
                f"{names[here[a, omega]]} (a = {a:g}, ω = {omega:g}): share of runs "
                f"that end {'semantic' if is_semantic else 'positional'}",
                share_estimate(int(right.sum()), len(right)),
                0.5,
                "most runs; at finite d some escape the other way",
                source=f"arnaboldi2025, Figure {13 if a < 1 else 4}",
                own_setting=True,
            )
        )
    slow = table["runs"][3]
    slow = slow[:, ~np.isnan(slow[0, :, 0])]
    claims.append(
        at_least(
            "misaligned dynamics: largest positional overlap on the way, worst run",
            slow[1].max(axis=1).min(),
            0.3,
            "the run first moves along the positions",
            source="arnaboldi2025, Figure 13",
            own_setting=True,
            undecided=""
            if run.params.slow_d >= 100
            else "in so few dimensions noise may carry a run past the positions",
        )
    )
    errors = table["drawn_risk"].std(axis=0, ddof=1) / np.sqrt(len(table["drawn_risk"]))
    gaps = np.abs(table["drawn_risk"].mean(axis=0) - table["risk"]) / errors
    claims.append(
        at_most(
            "risk of the declared model less quadrature's at five points, in standard "
            "errors of eight sets",
            gaps.max(),
            7.0,
            "Student's t with 7 degrees of freedom exceeds 7 once in 5000",
            source="ours: two independent routes to the risk",
        )
    )
    return claims


def _minima(omega: float) -> int:
    minima = corners(np.array([omega]), 1.0)
    return int((minima.semantic > 0).sum() + (minima.positional > 0).sum())


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the regions, and the runs in the slow one."""
    table = run.table
    plane, slow = figure.subplots(1, 2, width_ratios=(1.4, 1))
    mesh = plane.pcolormesh(
        table["omega"],
        table["a"],
        table["regions"],
        cmap="Set2",
        vmin=-1,
        vmax=6,
        rasterized=True,  # cells of a vector image would show seams
    )
    plane.grid(False)
    names = [*REGIONS.values(), "neither corner is a minimum"]
    for number, name in zip([*range(len(REGIONS)), -1], names, strict=True):
        plane.plot([], [], "s", color=mesh.cmap(mesh.norm(number)), label=name)
    for number, (a, omega, _) in enumerate(_POINTS):
        plane.plot(omega, a, "o", color=INK, ms=4, clip_on=False)
        plane.annotate(
            str(number + 1), (omega, a), xytext=(3, -9), textcoords="offset points"
        )
    plane.set(xlabel="ω", ylabel="a", title="Landscape by quadrature")
    plane.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=6.5)
    curves = table["runs"][3]
    slow.plot(curves[1].T, curves[0].T, "-", color=BLUE, lw=0.8)
    slow.set(xlabel="|e|, positional", ylabel="|m|, semantic", title="Runs at point 4")


_PAPER = Params()
experiments = (
    Experiment(
        key="arnaboldi2025/fig4",
        title="Six regions: minima, and where SGD goes",
        source="Figures 4 and 13",
        about=(
            "Left: for every a and ω whether the semantic corner (e, m) = (0, 1) and "
            "the positional corner (1, 0) are minima of the risk, which is deeper, and "
            "which direction is steeper at the start; quadrature over two normals, "
            "half the squared distance. White slivers: neither corner is a minimum. "
            "SGD runs at six points chosen from this diagram alone, d = 1000. Right: "
            "the region with misaligned dynamics, at the authors' public point a = "
            "0.76, ω = 0.95, d = 100: first positional, then semantic."
        ),
        presets={
            "smoke": replace(
                _PAPER,
                n_grid=61,
                d=300,
                n_runs=12,
                slow_d=50,
                slow_horizon=3000.0,
                n_slow=5,
                n_samples=2**13,
            ),
            "demo": replace(_PAPER, d=300, slow_d=40, slow_horizon=3000.0),
            "paper": _PAPER,
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: (
            5 * params.n_runs * 40 * int(params.horizon * params.d / params.step / 40)
            + params.n_slow
            * 40
            * int(params.slow_horizon * params.slow_d / params.slow_step / 40)
        ),
        size=(9.5, 4.5),
    ),
)
