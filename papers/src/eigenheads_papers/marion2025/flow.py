"""Figure 5: the flow on the invariant manifold and its fixed points."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.optimize import root

from eigenheads.datasets import SingleLocation
from eigenheads.extend import FloatArray, advance
from eigenheads.extend.drawing import GREEN, GREY, ORANGE, PURPLE
from eigenheads.theory import LocationLandscape
from eigenheads_papers._claims import Claim, about, at_least, at_most
from eigenheads_papers._core import Experiment, Run, Table, parameter

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("sink", "saddle", "source")


@dataclass(frozen=True, kw_only=True)
class Params:
    """The manifold setting of the paper; the grids are ours."""

    d: int = parameter(400, "dimension of the tokens")
    n_tokens: int = parameter(10, "tokens per sample or prompt")
    gamma: float = parameter(math.sqrt(0.5), "standard deviation of the deciding token")
    inverse_temperature: float = parameter(0.1, "inverse temperature λ of the head")
    n_grid: int = parameter(41, "points per axis of the map")
    n_searches: int = parameter(100, "starts of the search for fixed points")
    n_flows: int = parameter(40, "gradient flows to draw")
    duration: float = parameter(400.0, "end time of the gradient flow")


def simulate(params: Params, rng: np.random.Generator) -> Table:
    """Evaluate the field, list its fixed points, and search for more."""
    landscape = LocationLandscape(
        SingleLocation(params.d, params.n_tokens, params.gamma),
        inverse_temperature=params.inverse_temperature,
    )
    axis = np.linspace(-1, 1, params.n_grid)
    kappa, nu = np.meshgrid(axis, axis)
    field = landscape.velocity(kappa, nu)
    points = landscape.fixed_points()
    # Theory lists the fixed points and their kinds. Searches from random starts test
    # whether the list is complete, and differences of the field test the kinds.
    minima = _search(landscape, rng.uniform(-1, 1, (params.n_searches, 2)))
    starts = rng.uniform(-1, 1, (params.n_flows, 2))
    flows = landscape.flow(starts, duration=params.duration, n_records=2)
    measured = [_measured_kind(landscape, point.kappa, point.nu) for point in points]
    return {
        "grid_kappa": axis,
        "grid_nu": axis,
        "field_kappa": field[0],
        "field_nu": field[1],
        "fixed_kappa": np.array([point.kappa for point in points]),
        "fixed_nu": np.array([point.nu for point in points]),
        "fixed_kind": np.array([float(KINDS.index(point.kind)) for point in points]),
        "measured_kind": np.array([float(KINDS.index(kind)) for kind in measured]),
        "found": minima,
        "flow_kappa": flows.final("kappa"),
        "flow_nu": flows.final("nu"),
    }


def _measured_kind(landscape: LocationLandscape, kappa: float, nu: float) -> str:
    """Return the kind of a fixed point from differences of the field alone."""
    # Towards the inside, since the field is defined on the square only.
    step = 1e-5
    columns = []
    for axis, at in enumerate((kappa, nu)):
        side = -step if at > 0 else step
        moved = np.array([kappa, nu])
        moved[axis] += side
        # The field is zero at the fixed point, so the difference needs one value only.
        columns.append(np.stack(landscape.velocity(*moved)) / side)
    rates = np.linalg.eigvals(np.stack(columns, axis=-1)).real
    if (rates < 0).all():
        return "sink"
    return "source" if (rates > 0).all() else "saddle"


def _search(landscape: LocationLandscape, starts: FloatArray) -> FloatArray:
    """Return the distinct zeros of the field in the square that Newton finds."""

    def field(point: FloatArray) -> FloatArray:
        # Outside the square the field is continued by its value on the border.
        inside = np.clip(point, -1, 1)
        return np.stack(landscape.velocity(*inside)) + (inside - point)

    zeros: list[Any] = []
    for start in starts:
        solution = root(field, start, tol=1e-12)
        advance(1)
        # A zero counts if it lies in the square, where the field is not continued, and
        # if its residual confirms what the solver reports.
        inside = np.abs(solution.x).max() <= 1 + 1e-9
        if solution.success and inside and np.abs(solution.fun).max() < 1e-9:
            zeros.append(solution.x)
    # Adding zero turns −0 into 0, so that equal points have equal bytes.
    rounded = np.round(np.array(zeros), 4) + 0.0
    return np.unique(rounded, axis=0)


def check(run: Run[Params]) -> list[Claim]:
    """Return the claims of the figure."""
    table = run.table
    listed = np.stack([table["fixed_kappa"], table["fixed_nu"]], axis=-1)
    to_listed = np.linalg.norm(table["found"][:, None] - listed, axis=-1).min(axis=1)
    at = {
        tuple(point): KINDS[int(kind)]
        for point, kind in zip(listed.round(6), table["measured_kind"], strict=True)
    }
    expected = {(0.0, 0.0): "saddle", (1.0, 1.0): "sink", (-1.0, -1.0): "sink"}
    agree = np.mean([at.get(point) == kind for point, kind in expected.items()])
    product = table["flow_kappa"] * table["flow_nu"]
    return [
        about(
            "the oracle ±(1, 1) attracts and (0, 0) is a saddle",
            agree,
            1.0,
            0.0,
            "the share of the three kinds that agree, from differences of the field",
            source="marion2025, Figure 5",
            own_setting=True,
        ),
        about(
            "kinds by theory that differ from those by differences",
            (table["measured_kind"] != table["fixed_kind"]).sum(),
            0.0,
            0.0,
            "a count",
            source="ours: two derivations",
        ),
        at_least(
            "smallest κν at the end of flows from random starts",
            product.min(),
            0.99,
            "κ closes its gap to ±1 at rate 0.021, so e^-8 of it is left",
            source="marion2025, Section 5: convergence on the manifold",
            own_setting=True,
        ),
        at_most(
            "largest distance of a zero found by Newton searches to the list",
            to_listed.max(),
            1e-3,
            "zeros are rounded to four digits",
            source="ours: the list of fixed points is complete",
        ),
    ]


def draw(figure: "Figure", run: Run[Params]) -> None:
    """Draw the flow on the manifold and its fixed points by kind."""
    axes, table = figure.subplots(), run.table
    kappa, nu = table["grid_kappa"], table["grid_nu"]
    axes.streamplot(
        kappa,
        nu,
        table["field_kappa"],
        table["field_nu"],
        color=GREY,
        linewidth=0.7,
        density=1.1,
        arrowsize=0.8,
    )
    kinds = (("sink", "o", GREEN), ("saddle", "X", ORANGE), ("source", "s", PURPLE))
    for number, (kind, marker, color) in enumerate(kinds):
        chosen = table["fixed_kind"] == number
        points = table["fixed_kappa"][chosen], table["fixed_nu"][chosen]
        axes.plot(*points, marker, color=color, label=kind, clip_on=False, zorder=3)
    axes.set(xlabel="κ", ylabel="ν", xlim=(-1.02, 1.02), ylim=(-1.02, 1.02))
    axes.set_aspect("equal")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3)


experiments = (
    Experiment(
        key="marion2025/fig5",
        title="On the manifold, the oracle attracts all but a set of measure zero",
        source="Figure 5",
        about=(
            "The gradient flow of the population risk on the manifold, where only κ "
            "and ν move: a saddle at the centre; the oracle (1, 1) and its mirror "
            "image (−1, −1), which is the same predictor, attract; the two other "
            "corners repel."
        ),
        presets={
            "smoke": Params(n_searches=30, n_flows=10),
            "demo": Params(),
            "paper": Params(),
        },
        simulate=simulate,
        check=check,
        draw=draw,
        work=lambda params: float(params.n_searches),
        size=(6.0, 6.2),
    ),
)
